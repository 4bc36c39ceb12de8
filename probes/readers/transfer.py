"""Moves bytes between two RC queue pairs with RDMA WRITE and READ, times it, and compares what
arrived.

The two ends of a loopback live on one device and port; a peer probe uses one end of the same kind.
Chains of linked work requests are posted at once, so that one Python call covers megabytes and the
interpreter is not what gets measured. Results are facts: a transfer that failed says at which step
and with which code, and nobody here judges that.
"""

import contextlib
import ctypes
import dataclasses
import os
import time
from collections.abc import Iterator
from typing import Any

from probes.readers import verbs
from probes.readers.payload import REGION_BYTES, SLOT_BYTES, SLOTS

# The queue depth and QP timers of perftest's ib_write_bw, so that the two can be compared.
DEPTH = 128
_CHAIN = 32
_TIMEOUT_CODE = 14  # 4.096 µs × 2^14 = 67 ms per try
_HOP_LIMIT = 0xFF
_MIN_RNR_TIMER = 12
# 7 means "for ever" to rxe, and a lost partner would hold the probe until its deadline.
_RETRIES = 6

# Far above every retry of a queue pair (0.5 s by the formula; HCAs may stretch it), and above the
# time that the slowest software RDMA needs for what is in flight.
STALL_SECONDS = 10.0

# ibv_wc_status of <infiniband/verbs.h>, as ibv_wc_status_str shortens them.
_STATUS = {
    1: "local length error",
    2: "local QP operation error",
    4: "local protection error",
    5: "work request flushed",
    9: "remote invalid request",
    10: "remote access error",
    11: "remote operation error",
    12: "transport retries exceeded",
    13: "receiver-not-ready retries exceeded",
    21: "general error",
}

OPERATION_TIMED_OUT = -1
"""`Failure.code` of a transfer that was still waiting when its own deadline passed."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """What the other end must know to reach this one.

    `rkey` opens the memory until the end closes.
    """

    qp_number: int
    psn: int
    lid: int
    gid: str
    rkey: int
    address: int
    mtu_code: int


class Failure(Exception):  # noqa: N818  (a fact about a transfer)
    """A step that did not work. `step`: memory, queue, connect, post, write, read.

    `code` is a completion status (write, read; `OPERATION_TIMED_OUT` for none at all) or an errno
    (the other steps).
    """

    def __init__(self, *, step: str, code: int, why: str) -> None:
        super().__init__(f"{step}: {why}")
        self.step = step
        self.code = code
        self.why = why


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Payload bytes that completed, and seconds from the first post to the last completion."""

    payload_bytes: int
    seconds: float

    @property
    def bits_per_second(self) -> float:
        """Payload rate."""
        return 8 * self.payload_bytes / self.seconds if self.seconds > 0 else 0.0


class End:
    """One RC queue pair with its memory: a region to send from and a region to receive into."""

    def __init__(self, pyverbs: verbs.Modules, context: Any, port: int, gid_index: int) -> None:
        self._pyverbs = pyverbs
        self._context = context
        self._port = port
        self._gid_index = gid_index
        self._closing = contextlib.ExitStack()
        self.pattern = b""
        enums = pyverbs.enums
        self._access = (
            enums.IBV_ACCESS_LOCAL_WRITE
            | enums.IBV_ACCESS_REMOTE_WRITE
            | enums.IBV_ACCESS_REMOTE_READ
        )
        try:
            self._make()
        except BaseException:
            self.close()
            raise

    def _make(self) -> None:
        library = self._pyverbs.verbs
        with _step("memory", self._pyverbs):
            self._domain = self._owned(library.pd.PD(self._context))
            self._memory = self._owned(library.mr.MR(self._domain, 2 * REGION_BYTES, self._access))
        capacity = library.qp.QPCap(
            max_send_wr=DEPTH, max_recv_wr=1, max_send_sge=1, max_recv_sge=1, max_inline_data=0
        )
        with _step("queue", self._pyverbs):
            self._completions = self._owned(library.cq.CQ(self._context, DEPTH + 8))
            wanted = library.qp.QPInitAttr(
                qp_type=self._pyverbs.enums.IBV_QPT_RC,
                scq=self._completions,
                rcq=self._completions,
                cap=capacity,
                sq_sig_all=0,
            )
            self._queue = self._owned(library.qp.QP(self._domain, wanted))
        self._psn = int.from_bytes(os.urandom(3), "big")
        self._attributes = self._context.query_port(self._port)

    def _owned(self, thing: Any) -> Any:
        self._closing.callback(thing.close)
        return thing

    def close(self) -> None:
        """Gives everything back to the driver, queue pair first."""
        self._closing.close()

    @property
    def address(self) -> Address:
        """What the partner needs."""
        return Address(
            qp_number=self._queue.qp_num,
            psn=self._psn,
            lid=self._attributes.lid,
            gid=str(self._context.query_gid(self._port, self._gid_index)),
            rkey=self._memory.rkey,
            address=self._memory.buf,
            mtu_code=self._attributes.active_mtu,
        )

    def connect(self, partner: Address) -> None:
        """Takes the queue pair to RTS, ready to send to and be written by `partner`.

        Raises:
            Failure: the device refuses a transition (GID families differ, MTU too large, …).
        """
        library = self._pyverbs.verbs
        with _step("connect", self._pyverbs):
            wanted = library.qp.QPAttr(port_num=self._port)
            wanted.pkey_index = 0
            wanted.qp_access_flags = self._access
            self._queue.to_init(wanted)
            wanted.path_mtu = min(self._attributes.active_mtu, partner.mtu_code)
            wanted.dest_qp_num = partner.qp_number
            wanted.rq_psn = partner.psn
            wanted.max_dest_rd_atomic = 1
            wanted.min_rnr_timer = _MIN_RNR_TIMER
            wanted.ah_attr = self._route(partner)
            self._queue.to_rtr(wanted)
            wanted.timeout = _TIMEOUT_CODE
            wanted.retry_cnt = _RETRIES
            wanted.rnr_retry = _RETRIES
            wanted.sq_psn = self._psn
            wanted.max_rd_atomic = 1
            self._queue.to_rts(wanted)

    def _route(self, partner: Address) -> Any:
        """By GID on Ethernet; inside an InfiniBand subnet by LID, which spares each packet a 40-byte header."""
        library = self._pyverbs.verbs.addr
        if self._attributes.link_layer == verbs.INFINIBAND:
            return library.AHAttr(port_num=self._port, is_global=0, dlid=partner.lid, sl=0)
        route = library.GlobalRoute(
            dgid=library.GID(partner.gid),
            sgid_index=self._gid_index,
            hop_limit=_HOP_LIMIT,
            traffic_class=0,
        )
        return library.AHAttr(port_num=self._port, is_global=1, gr=route, dlid=partner.lid, sl=0)

    def fill(self, pattern: bytes) -> None:
        """Puts `pattern` (one region long) where this end sends from, and zeroes where it receives."""
        self.pattern = pattern
        self._memory.write(pattern, REGION_BYTES)
        self.clear()

    def clear(self) -> None:
        """Zeroes the region that this end receives into."""
        self._memory.write(bytes(REGION_BYTES), REGION_BYTES, REGION_BYTES)

    def received(self) -> memoryview:
        """The region that this end receives into, as it is now, without a copy."""
        start = self._memory.buf + REGION_BYTES
        return memoryview((ctypes.c_char * REGION_BYTES).from_address(start)).cast("B")

    def write(self, partner: Address, payload_bytes: int, until: float) -> Measured:
        """Writes this end's pattern into the partner's receive region, over and over.

        Args:
            partner: where to.
            payload_bytes: at least so much, rounded up to whole passes over the region.
            until: `time.monotonic()` at which no more is posted; what is in flight still completes.

        Raises:
            Failure: a completion has an error, or none came.
        """
        chain = self._chain(self._pyverbs.enums.IBV_WR_RDMA_WRITE, partner, _CHAIN, 0, REGION_BYTES)
        return self._run("write", chain, payload_bytes, until)

    def read(self, partner: Address) -> Measured:
        """Reads the partner's pattern into this end's receive region, once."""
        chain = self._chain(self._pyverbs.enums.IBV_WR_RDMA_READ, partner, SLOTS, REGION_BYTES, 0)
        return self._run("read", chain, REGION_BYTES, time.monotonic())

    def _chain(
        self, opcode: int, partner: Address, length: int, mine: int, theirs: int
    ) -> list[Any]:
        """Linked work requests, slot after slot, the last one signalled; the list keeps them alive for the C side."""
        library = self._pyverbs.verbs
        requests: list[Any] = []
        following = None
        for position in reversed(range(length)):
            offset = (position % SLOTS) * SLOT_BYTES
            piece = library.wr.SGE(self._memory.buf + mine + offset, SLOT_BYTES, self._memory.lkey)
            following = library.wr.SendWR(
                wr_id=position,
                opcode=opcode,
                num_sge=1,
                sg=[piece],
                send_flags=self._pyverbs.enums.IBV_SEND_SIGNALED if position == length - 1 else 0,
                next_wr=following,
            )
            following.set_wr_rdma(partner.rkey, partner.address + theirs + offset)
            requests.append(following)
        requests.reverse()
        return requests

    def _run(self, step: str, chain: list[Any], payload_bytes: int, until: float) -> Measured:
        per_chain = len(chain) * SLOT_BYTES
        wanted = -(-payload_bytes // per_chain)
        in_flight_max = DEPTH // len(chain)
        posted = done = 0
        started = last_progress = time.monotonic()
        while True:
            while (
                posted < wanted
                and posted - done < in_flight_max
                and (not posted or time.monotonic() < until)
            ):
                self._post(chain[0])
                posted += 1
            count, completions = self._completions.poll(in_flight_max)
            now = time.monotonic()
            if count:
                for completion in completions:
                    self._check(step, completion)
                done += count
                last_progress = now
                if done == posted and (done >= wanted or now >= until):
                    return Measured(payload_bytes=done * per_chain, seconds=now - started)
            elif now - last_progress > STALL_SECONDS:
                why = f"no completion for {STALL_SECONDS:g} s ({done} of {posted} chains done)"
                raise Failure(step=step, code=OPERATION_TIMED_OUT, why=why)

    def _post(self, head: Any) -> None:
        with _step("post", self._pyverbs):
            self._queue.post_send(head)

    def _check(self, step: str, completion: Any) -> None:
        if completion.qp_num != self._queue.qp_num:
            raise Failure(
                step=step,
                code=OPERATION_TIMED_OUT,
                why=f"a completion of QP {completion.qp_num}, not mine",
            )
        if completion.status:
            name = _STATUS.get(completion.status, "unknown")
            vendor = f"vendor error 0x{completion.vendor_err:x}"
            why = f"completion status {completion.status} ({name}), {vendor}"
            raise Failure(step=step, code=completion.status, why=why)


@contextlib.contextmanager
def _step(step: str, pyverbs: verbs.Modules) -> Iterator[None]:
    """Turns pyverbs' error into a Failure of that step."""
    try:
        yield
    except pyverbs.error as error:
        raise Failure(step=step, code=verbs.errno_of(error), why=verbs.describe(error)) from error
