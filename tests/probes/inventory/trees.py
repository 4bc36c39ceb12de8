"""Small trees of kernel files: only what the inventory rung reads, in the form in which a kernel shows it."""

from pathlib import Path

from probes import contract
from probes.readers import devices

GPU = {"vendor": "0x10de\n", "class": "0x030200\n"}


class Tree:
    """A machine's files under `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.host = contract.Host(root=root)
        self.write("proc/sys/kernel/osrelease", "6.8.0-60-generic\n")

    def write(self, path: str, text: str) -> None:
        """One file with its folders."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")

    def link(self, path: str, target: str) -> None:
        """A symbolic link; `target` is under the root as well."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        to = Path(*[".."] * (len(Path(path).parts) - 1)) / target
        file.symlink_to(to)

    def pci(self, address: str, *, driver: str = "", **files: str) -> None:
        """A PCI function; without its own folder in the tree of bridges, which this rung does not read."""
        for name, text in files.items():
            self.write(f"sys/bus/pci/devices/{address}/{name}", text)
        if driver:
            (self.root / f"sys/bus/pci/drivers/{driver}").mkdir(parents=True, exist_ok=True)
            self.link(f"sys/bus/pci/devices/{address}/driver", f"sys/bus/pci/drivers/{driver}")

    def gpus(self, *addresses: str) -> None:
        """GPUs, each with the audio function and the USB controller that some boards have beside them."""
        for address in addresses:
            self.pci(address, **GPU)
            self.pci(address[:-1] + "1", vendor="0x10de\n", **{"class": "0x040300\n"})

    def rdma(self, name: str, address: str, firmware: str = "28.43.2026") -> None:
        """A Mellanox RDMA device on a PCI function."""
        self.pci(
            address,
            driver="mlx5_core",
            vendor="0x15b3\n",
            device="0x1021\n",
            numa_node="0\n",
            **{"class": "0x020000\n"},
        )
        (self.root / f"sys/bus/pci/devices/{address}/infiniband/{name}").mkdir(parents=True)
        self.write(f"sys/class/infiniband/{name}/fw_ver", f"{firmware}\n")
        self.write(f"sys/class/infiniband/{name}/node_type", "1: CA\n")
        self.link(f"sys/class/infiniband/{name}/device", f"sys/bus/pci/devices/{address}")


def device(name: str, pci: str | None = None) -> devices.Device:
    """Facts about a device of which only name and place matter."""
    return devices.Device(
        name=name,
        driver="mlx5_core" if pci else "rdma_rxe",
        software=pci is None,
        pci=pci,
        pci_vendor_device="15b3:1021" if pci else "",
        node_type="CA",
        node_guid="",
        firmware="",
        board="",
        numa_node=None,
        virtual_function=False,
        netdevs=(),
        ports=(1,),
        uverbs="uverbs0",
        abi=1,
    )
