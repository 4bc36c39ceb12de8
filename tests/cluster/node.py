"""An emulated node: a virtual machine with a kubelet, software RDMA, and a cable to pull."""

import dataclasses
import pathlib
import shlex
import shutil
import subprocess
import time
from collections.abc import Sequence

from tests.cluster import cache, controlplane, disk, monitor, network, processes, waiting

_GUEST_FILES = pathlib.Path(__file__).parent / "guest"
_MEMORY_MB = 1800
# sshd answers 8 s after power-on on an idle machine; five nodes on two cores take several times
# that.
_BOOT_SECONDS = 180
POOL_LABEL = "fabric-readiness.dev/pool=rig"


@dataclasses.dataclass(slots=True, kw_only=True)
class Node:
    """A running guest. `eth0` is its management network, `eth1` with `rxe0` on it the fabric.

    `number` counts from 1 and gives its addresses: 10.9.0.N, 10.10.0.N, pods in 10.244.N.0/24.
    """

    name: str
    number: int
    folder: pathlib.Path
    machine: processes.Program
    monitor: monitor.Monitor
    started: float
    """When the power was switched on, by the monotonic clock."""
    boot_seconds: float = 0
    """Power-on to the first answer of its shell."""

    @classmethod
    def start(
        cls,
        number: int,
        folder: pathlib.Path,
        *,
        api: controlplane.ApiServer | None = None,
        images: pathlib.Path | None = None,
        extra_setup: str = "",
        survives: bool = False,
    ) -> "Node":
        """Switches a guest on and returns at once; `wait_booted` waits.

        Call it from a thread that lives as long as the node should: the kernel ends a child with
        the thread that made it.

        Args:
            number: from 1 to 250, unique in the run.
            folder: for its configuration, sockets and logs.
            api: what its kubelet registers with; without one it is a bare machine with verbs.
            images: the disk with containerd's images.
            extra_setup: shell lines that its init runs before containerd starts.
            survives: whether it outlives this process.
        """
        name = node_name(number)
        folder.mkdir(parents=True, exist_ok=True)
        config = folder / "config"
        _write_config(config, name, number, api, extra_setup)
        taps = _lay_cables(number)
        command = _machine(folder, number, taps, images)
        started = time.monotonic()
        machine = processes.Program.start(
            name, command, folder=folder, env={"TMPDIR": str(folder)}, survives=survives
        )
        return cls(
            name=name,
            number=number,
            folder=folder,
            machine=machine,
            monitor=monitor.Monitor(path=folder / "monitor.sock"),
            started=started,
        )

    @property
    def address(self) -> str:
        """Its management address."""
        return f"10.9.0.{self.number}"

    @property
    def fabric_address(self) -> str:
        """The address of the interface under `rxe0`."""
        return f"10.10.0.{self.number}"

    @property
    def console(self) -> pathlib.Path:
        """What its kernel and init said."""
        return self.folder / "console.log"

    def wait_booted(self) -> None:
        """Returns when its init is through and its shell answers.

        Raises:
            RigError: it does not in time; the end of its console is in the text.
        """
        waiting.until(
            f"{self.name} to boot",
            self._is_booted,
            seconds=_BOOT_SECONDS,
            every=0.5,
            detail=lambda: processes.tail(self.console),
        )
        self.boot_seconds = time.monotonic() - self.started

    def run(
        self,
        command: str | Sequence[str],
        *,
        timeout: float = 60,
        stdin: str = "",
        check: bool = True,
    ) -> "subprocess.CompletedProcess[str]":
        """Runs a command in the guest, as root: a line for its shell, or a list of arguments.

        Raises:
            RigError: it exited with another code than 0 (unless `check` is false), or the guest
            cannot be reached.
            TimeoutExpired: it took longer than `timeout` seconds.
        """
        line = command if isinstance(command, str) else shlex.join(command)
        done = subprocess.run(
            [*self.ssh(), line],
            input=stdin,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            check=False,
        )
        if check and done.returncode:
            said = (done.stdout + done.stderr)[-2000:]
            raise cache.RigError(f"`{line}` on {self.name} exited with {done.returncode}:\n{said}")
        return done

    def spawn(self, command: str, *, name: str) -> processes.Program:
        """Starts a command in the guest and leaves it running; it writes `name.log`."""
        return processes.Program.start(name, [*self.ssh(), command], folder=self.folder)

    def pull_cable(self, interface: str = "eth1") -> None:
        """Pulls the fabric's cable: the port goes down, the node stays reachable."""
        self.monitor.execute("set_link", name=interface, up=False)

    def plug_cable(self, interface: str = "eth1") -> None:
        """Plugs the cable in again."""
        self.monitor.execute("set_link", name=interface, up=True)

    def limit_rate(self, megabits_per_second: float | None, interface: str = "eth1") -> None:
        """Limits what the node receives from the fabric; None lifts the limit."""
        network.limit_rate(f"{interface}-{self.number}", megabits_per_second)

    def reboot(self) -> None:
        """Presses reset and waits until it is back: a new boot id, the same disk."""
        before = self.boot_id()
        self.started = time.monotonic()
        self.monitor.execute("system_reset")
        waiting.until(
            f"{self.name} to boot again",
            lambda: self._is_booted() and self.boot_id() != before,
            seconds=_BOOT_SECONDS,
            every=0.5,
            detail=lambda: processes.tail(self.console),
        )
        self.boot_seconds = time.monotonic() - self.started

    def boot_id(self) -> str:
        """The kernel's id of this boot, as in the node's status."""
        return self.run("cat /proc/sys/kernel/random/boot_id").stdout.strip()

    def power_off(self) -> None:
        """Pulls the plug. Its cables stay with nobody at their end until `remove`."""
        self.machine.stop(seconds=2)

    def remove(self) -> None:
        """Pulls the plug and takes its cables away."""
        self.power_off()
        for interface in ("eth0", "eth1"):
            network.remove_tap(f"{interface}-{self.number}")

    def evidence(self) -> str:
        """The ends of its console and of its kubelet's log, for failure messages."""
        kubelet = self.run("tail -n 8 /var/log/kubelet.log", check=False, timeout=20).stdout
        return f"{self.name} console:\n{processes.tail(self.console, 6)}\nkubelet:\n{kubelet}"

    def _is_booted(self) -> bool:
        self.machine.require_running()
        if not self.console.exists() or b"rig: booted" not in self.console.read_bytes():
            return False
        return self.run("true", check=False, timeout=20).returncode == 0

    def ssh(self) -> list[str]:
        """The command line that reaches its shell, from inside the rig's network."""
        run = self.folder.parent
        # One connection carries all commands: a handshake costs a second in emulation. Master and
        # run end together.
        options = {
            "ControlMaster": "auto",
            "ControlPath": str(self.folder / "ssh.sock"),
            "ControlPersist": "30",
            "ConnectTimeout": "10",
            "ServerAliveInterval": "5",
            "IdentitiesOnly": "yes",
            "StrictHostKeyChecking": "no",
            "UserKnownHostsFile": "/dev/null",
            "LogLevel": "ERROR",
            "BatchMode": "yes",
        }
        flags = [flag for name, value in options.items() for flag in ("-o", f"{name}={value}")]
        return ["ssh", "-F", "none", "-i", str(run / "ssh_key"), *flags, f"root@{self.address}"]


def node_name(number: int) -> str:
    """The name of a node by its number: node-a, node-b, …, node-z, node-27."""
    return f"node-{chr(ord('a') + number - 1)}" if number <= 26 else f"node-{number}"


def make_keys(folder: pathlib.Path) -> None:
    """Makes the keys of a run's ssh, once: making their own would take guests seconds."""
    for name in ("ssh_key", "ssh_host_key"):
        if not (folder / name).exists():
            processes.run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name)


def _write_config(
    config: pathlib.Path,
    name: str,
    number: int,
    api: controlplane.ApiServer | None,
    extra_setup: str,
) -> None:
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


def _lay_cables(number: int) -> dict[str, str]:
    taps = {"eth0": f"eth0-{number}", "eth1": f"eth1-{number}"}
    for tap, bridge in zip(taps.values(), ("br0", "br1"), strict=True):
        network.add_tap(tap, bridge)
    network.route_pods(number)
    return taps


def _machine(
    folder: pathlib.Path, number: int, taps: dict[str, str], images: pathlib.Path | None
) -> list[str]:
    """The command line of the virtual machine."""
    files = disk.disk().get()
    drives = [files / "root.ext4", *([images] if images else [])]
    command = shlex.split(
        f"qemu-system-x86_64 -M q35 -accel tcg,thread=multi -cpu max -smp 1 -m {_MEMORY_MB}"
        " -nodefaults -display none -device virtio-rng-pci"
    )
    command += ["-kernel", str(files / "vmlinuz"), "-initrd", str(files / "initrd")]
    command += ["-append", "console=ttyS0 quiet net.ifnames=0"]
    command += ["-serial", f"file:{folder / 'console.log'}"]
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
