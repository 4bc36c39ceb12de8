"""The rate that a loopback through a port should give, and who says so."""

import dataclasses

# Bytes around each packet's payload: preamble, gap, Ethernet and FCS 38; UDP and IP 28 (IPv4) or 48
# (IPv6); BTH 12; ICRC 4. RoCE v1 has a GRH of 40 in place of IP and UDP. InfiniBand: LRH 8, BTH 12,
# ICRC and VCRC 6 (IBTA volume 1, RoCE annexes).
_OVERHEAD_BYTES = {"RoCE v2 IPv4": 82, "RoCE v2 IPv6": 102, "RoCE v1": 94, "InfiniBand": 26}
# RETH once per message of 64 KiB, spread over its packets: below 0.03 %, and left out.


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """`bits_per_second` is None where nothing is known; `source` then says what is missing."""

    bits_per_second: float | None
    source: str


def wire_efficiency(transport: str, mtu_bytes: int) -> float:
    """Share of a port's data rate that is payload."""
    overhead = _OVERHEAD_BYTES.get(transport, max(_OVERHEAD_BYTES.values()))
    return mtu_bytes / (mtu_bytes + overhead)


def of_hardware(
    *,
    port_bits_per_second: float | None,
    port_why: str,
    transport: str,
    mtu_bytes: int,
    pcie_bits_per_second: float | None,
    pcie_why: str,
) -> Expectation:
    """The smallest of the known terms: port rate × wire efficiency, PCIe path × TLP efficiency.

    Args:
        port_bits_per_second: data rate of the port, None where unknown, and then `port_why`.
        port_why: see above.
        transport: `RoCE v2 IPv4`, `RoCE v2 IPv6`, `RoCE v1` or `InfiniBand`.
        mtu_bytes: active path MTU.
        pcie_bits_per_second: payload rate of the narrowest PCIe link between NIC and root (TLP
            efficiency is in it),
            None where the topology is not believable, and then `pcie_why`.
        pcie_why: see above.
    """
    terms = []
    if port_bits_per_second is not None:
        efficiency = wire_efficiency(transport, mtu_bytes)
        source = f"port {port_bits_per_second / 1e9:g} Gb/s × {efficiency:.3f} ({transport}, MTU {mtu_bytes})"
        terms.append(Expectation(bits_per_second=port_bits_per_second * efficiency, source=source))
    if pcie_bits_per_second is not None:
        source = f"PCIe path {pcie_bits_per_second / 1e9:.4g} Gb/s"
        terms.append(Expectation(bits_per_second=pcie_bits_per_second, source=source))
    if not terms:
        return Expectation(
            bits_per_second=None, source=f"port rate: {port_why}; PCIe path: {pcie_why}"
        )
    return min(terms, key=lambda term: term.bits_per_second or 0)
