"""The virtual machine under a node: its configuration, cables and QEMU's command line.

Software emulation (TCG), as no KVM is asked for: one core and 1.8 GB each. Two disks that all nodes
share, each writing to a snapshot of its own, and two read-only shares: `/config`, which makes the
guest this node, and `/src`, the checkout.
"""

import pathlib
import shlex
import shutil
from collections.abc import Sequence

from tests.cluster import controlplane, disk, network, processes

_GUEST_FILES = pathlib.Path(__file__).parent / "guest"
_MEMORY_MB = 1800
POOL_LABEL = "fabric-readiness.dev/pool=rig"


def power_on(
    name: str, folder: pathlib.Path, command: Sequence[str], *, survives: bool
) -> processes.Program:
    """Starts the virtual machine; what it writes to its disks goes to unnamed files in `folder`."""
    return processes.Program.start(
        name, command, folder=folder, env={"TMPDIR": str(folder)}, survives=survives
    )


def make_keys(folder: pathlib.Path) -> None:
    """Makes the keys of a run's ssh, once: making their own would take guests seconds."""
    for name in ("ssh_key", "ssh_host_key"):
        if not (folder / name).exists():
            processes.run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name)


def write_config(
    config: pathlib.Path,
    name: str,
    number: int,
    api: controlplane.ApiServer | None,
    extra_setup: str,
) -> None:
    """Writes what makes a guest this node into the folder that it sees as `/config`."""
    config.mkdir(exist_ok=True)
    run = config.parents[1]
    make_keys(run)
    for file in _GUEST_FILES.iterdir():
        shutil.copy(file, config)
    shutil.copy(run / "ssh_host_key", config)
    shutil.copy(run / "ssh_key.pub", config / "authorized_keys")
    settings = {
        "NAME": name,
        "NUMBER": str(number),
        "FABRIC_MTU": str(network.FABRIC_MTU),
        "LABELS": POOL_LABEL,
    }
    lines = "".join(f"{key}={shlex.quote(value)}\n" for key, value in settings.items())
    (config / "environment").write_text(lines)
    if extra_setup:
        (config / "extra.sh").write_text(extra_setup)
    if api:
        shutil.copy(api.ca_file, config / "ca.crt")
        api.write_kubeconfig(config / "kubeconfig", f"system:node:{name}", "system:nodes")


def lay_cables(number: int) -> dict[str, str]:
    """Makes the host's ends of a guest's cables: interface in the guest -> tap."""
    taps = {"eth0": f"eth0-{number}", "eth1": f"eth1-{number}"}
    for tap, bridge in zip(taps.values(), ("br0", "br1"), strict=True):
        network.add_tap(tap, bridge)
    network.route_pods(number)
    return taps


def command_line(
    folder: pathlib.Path, number: int, taps: dict[str, str], images: pathlib.Path | None
) -> list[str]:
    """The command line of the virtual machine of one node."""
    files = disk.disk().get()
    drives = [files / "root.ext4", *([images] if images else [])]
    command = shlex.split(
        f"qemu-system-x86_64 -M q35 -accel tcg,thread=multi -cpu max -smp 1 -m {_MEMORY_MB}"
        " -nodefaults -display none -device virtio-rng-pci"
    )
    command += ["-kernel", str(files / "vmlinuz"), "-initrd", str(files / "initrd")]
    command += ["-append", "console=ttyS0 quiet net.ifnames=0"]
    console = f"file,id=console,path={folder / 'console.log'},append=on"
    command += ["-chardev", console, "-serial", "chardev:console"]
    command += ["-qmp", f"unix:{folder / 'monitor.sock'},server=on,wait=off"]
    for drive in drives:
        command += ["-drive", f"file={drive},if=virtio,format=raw,snapshot=on"]
    for tag, shared in (("config", folder / "config"), ("source", disk.REPOSITORY)):
        command += [
            "-virtfs",
            f"local,path={shared},mount_tag={tag},security_model=none,readonly=on",
        ]
    for net, (interface, tap) in enumerate(taps.items()):
        # The guest names its interfaces in the order of the PCI slots, which is the order here.
        mac = f"52:54:00:00:{net:02x}:{number:02x}"
        command += ["-netdev", f"tap,id={interface},ifname={tap},script=no,downscript=no"]
        command += ["-device", f"virtio-net-pci,netdev={interface},mac={mac},host_mtu=9000"]
    return command
