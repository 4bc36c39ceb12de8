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

    def add_device(self) -> None:
        """A second device comes up, all at once."""
        _add_device(self.root, "mlx5_1", "0000:00:04.0", 1)

    def remove_device(self) -> None:
        """It is gone again."""
        (self.root / "sys/class/infiniband/mlx5_1").unlink()

    def boot(self, boot_id: str) -> None:
        """Another boot."""
        (self.root / "proc/sys/kernel/random/boot_id").write_text(boot_id + "\n")


def make(root: Path) -> Machine:
    """Writes the tree."""
    _write(
        {
            root / "proc/sys/kernel/random/boot_id": BOOT,
            root / "proc/sys/kernel/osrelease": "6.8.0",
            root / "sys/module/ib_uverbs/refcnt": "1",
        }
    )
    (root / "sys/class/infiniband").mkdir(parents=True)
    _add_device(root, "mlx5_0", "0000:00:03.0", 0)
    return Machine(root=root)


def _add_device(root: Path, name: str, address: str, number: int) -> None:
    device = root / "sys/devices/pci0000:00" / address
    folder = device / "infiniband" / name
    port = folder / "ports/1"
    _write(
        {
            root / f"dev/infiniband/uverbs{number}": "",
            root / f"sys/class/infiniband_verbs/uverbs{number}/ibdev": name,
            device / "vendor": "0x15b3",
            device / "device": "0x1021",
            device / "class": "0x020700",
            folder / "node_type": "1: CA",
            port / "state": "4: ACTIVE",
            port / "phys_state": "5: LinkUp",
            port / "link_layer": "InfiniBand",
            port / "rate": "400 Gb/sec (4X NDR)",
            port / "lid": "0x11",
            port / "sm_lid": "0x1",
            port / "gids/0": "fe80:0000:0000:0000:0002:c903:00aa:bb01",
        }
    )
    (folder / "device").symlink_to(device)
    (root / "sys/class/infiniband" / name).symlink_to(folder)


def _write(files: dict[Path, str]) -> None:
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
