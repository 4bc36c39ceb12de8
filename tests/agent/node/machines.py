"""A small machine as a file tree: one InfiniBand port that is up, as far as the rungs below the loopback look."""

import dataclasses
from pathlib import Path

BOOT = "11111111-0000-4000-8000-000000000001"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Machine:
    """The tree's root, and what a test changes in it."""

    root: Path

    @property
    def port(self) -> Path:
        """The port's folder."""
        return self.root / "sys/class/infiniband/mlx5_0/ports/1"

    def set_state(self, state: str, phys_state: str) -> None:
        """Changes the port's state files."""
        (self.port / "phys_state").write_text(phys_state + "\n")
        (self.port / "state").write_text(state + "\n")

    def pull(self) -> None:
        """The link goes down."""
        self.set_state("1: DOWN", "3: Disabled")

    def plug(self) -> None:
        """It comes back."""
        self.set_state("4: ACTIVE", "5: LinkUp")

    def boot(self, boot_id: str) -> None:
        """Another boot."""
        (self.root / "proc/sys/kernel/random/boot_id").write_text(boot_id + "\n")


def make(root: Path) -> Machine:
    """Writes the tree."""
    device = root / "sys/devices/pci0000:00/0000:00:03.0"
    port = device / "infiniband/mlx5_0/ports/1"
    files = {
        root / "proc/sys/kernel/random/boot_id": BOOT,
        root / "proc/sys/kernel/osrelease": "6.8.0",
        root / "sys/module/ib_uverbs/refcnt": "1",
        root / "dev/infiniband/uverbs0": "",
        root / "sys/class/infiniband_verbs/uverbs0/ibdev": "mlx5_0",
        device / "vendor": "0x15b3",
        device / "device": "0x1021",
        device / "class": "0x020700",
        device / "infiniband/mlx5_0/node_type": "1: CA",
        port / "state": "4: ACTIVE",
        port / "phys_state": "5: LinkUp",
        port / "link_layer": "InfiniBand",
        port / "rate": "400 Gb/sec (4X NDR)",
        port / "lid": "0x11",
        port / "sm_lid": "0x1",
        port / "gids/0": "fe80:0000:0000:0000:0002:c903:00aa:bb01",
    }
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    classes = root / "sys/class/infiniband"
    classes.mkdir(parents=True)
    (classes / "mlx5_0").symlink_to(device / "infiniband/mlx5_0")
    (device / "infiniband/mlx5_0/device").symlink_to(device)
    return Machine(root=root)
