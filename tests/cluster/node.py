"""An emulated node: a virtual machine with a kubelet, software RDMA, and a cable to pull."""

import dataclasses
import pathlib
import shlex
import subprocess
import time
from collections.abc import Sequence

from tests.cluster import cache, controlplane, machine, monitor, network, processes, waiting

# sshd answers 8 s after power-on on an idle machine; five nodes on two cores take several times
# that.
_BOOT_SECONDS = 180
# The kernel allows 107 bytes for a socket's path, and ssh appends 17 to its own while it makes it.
_LONGEST_FOLDER = 80


@dataclasses.dataclass(slots=True, kw_only=True)
class Node:
    """A running guest. `eth0` is its management network, `eth1` with `rxe0` on it the fabric.

    `number` counts from 1 and gives its addresses: 10.9.0.N, 10.10.0.N, pods in 10.244.N.0/24.
    """

    name: str
    number: int
    folder: pathlib.Path
    command: Sequence[str]
    survives: bool
    power: processes.Program
    monitor: monitor.Monitor
    started: float
    """When the power was switched on, by the monotonic clock."""
    console_start: int = 0
    """Where in the console's log this boot begins, bytes."""
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
        if len(str(folder)) > _LONGEST_FOLDER:
            raise cache.RigError(f"{folder} is too long for a socket in it: choose a shorter one")
        folder.mkdir(parents=True, exist_ok=True)
        config = folder / "config"
        machine.write_config(config, name, number, api, extra_setup)
        taps = machine.lay_cables(number)
        command = machine.command_line(folder, number, taps, images)
        return cls(
            name=name,
            number=number,
            folder=folder,
            command=command,
            survives=survives,
            power=machine.power_on(name, folder, command, survives=survives),
            monitor=monitor.Monitor(path=folder / "monitor.sock"),
            started=time.monotonic(),
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

    def _is_booted(self) -> bool:
        self.power.require_running()
        if not self.console.exists():
            return False
        said = self.console.read_bytes()[self.console_start :]
        return b"rig: booted" in said and self.run("true", timeout=20, check=False).returncode == 0

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
        try:
            done = subprocess.run(
                [*self.ssh(), line],
                input=stdin,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=timeout,
                check=False,
            )
        except subprocess.TimeoutExpired as expired:
            raise cache.RigError(f"`{line}` on {self.name} took over {timeout:.0f} s") from expired
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
        self.run("sync")
        self._forget_boot()
        self.monitor.execute("system_reset")
        self.wait_booted()

    def boot_id(self) -> str:
        """The kernel's id of this boot, as in the node's status."""
        return self.run("cat /proc/sys/kernel/random/boot_id").stdout.strip()

    def power_off(self) -> None:
        """Pulls the plug. Its cables stay with nobody at their end until `remove`."""
        self.power.stop(seconds=2)
        self._forget_boot()

    def power_on(self) -> None:
        """Switches it on again, with the disk as new, and returns at once."""
        self._forget_boot()
        self.power = machine.power_on(self.name, self.folder, self.command, survives=self.survives)

    def _forget_boot(self) -> None:
        # A shell's connection that the guest no longer knows would only hang.
        subprocess.run([*self.ssh(), "-O", "exit"], capture_output=True, check=False)
        self.console_start = self.console.stat().st_size
        self.started = time.monotonic()

    def remove(self) -> None:
        """Pulls the plug and takes its cables away."""
        self.power_off()
        for interface in ("eth0", "eth1"):
            network.remove_tap(f"{interface}-{self.number}")

    def evidence(self) -> str:
        """The ends of its console and of its kubelet's log, for failure messages."""
        try:
            kubelet = self.run("tail -n 8 /var/log/kubelet.log", check=False, timeout=20).stdout
        except cache.RigError as error:
            kubelet = str(error)
        return f"{self.name} console:\n{processes.tail(self.console, 6)}\nkubelet:\n{kubelet}"

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
