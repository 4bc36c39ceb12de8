"""A real control plane: etcd and kube-apiserver alone, or with controllers and scheduler.

Authorization is Node and RBAC with NodeRestriction, as in a real cluster: what the product may not
do there it may not do here.
"""

import contextlib
import dataclasses
import pathlib
import shlex
import socket
import ssl
import urllib.request
from collections.abc import Sequence

import trustme

from tests.cluster import binaries, certificates, network, processes, waiting

_SERVICES = "10.96.0.0/16"
_ISSUER = "https://kubernetes.default.svc"
# etcd and the API server start in 5 s on two idle cores, and in four times that beside a build.
_START_SECONDS = 90


@dataclasses.dataclass(slots=True, kw_only=True)
class ApiServer:
    """etcd and kube-apiserver. Everything about them lies in `folder`.

    `server.pause()` makes the API server silent: connections open, and nothing is answered.
    """

    folder: pathlib.Path
    address: str
    port: int
    authority: trustme.CA
    programs: pathlib.Path
    arguments: Sequence[str]
    survives: bool
    etcd: processes.Program
    server: processes.Program

    @classmethod
    def start(
        cls,
        folder: pathlib.Path,
        *,
        address: str = "127.0.0.1",
        port: int | None = None,
        arguments: Sequence[str] = (),
        programs: pathlib.Path | None = None,
        survives: bool = False,
    ) -> "ApiServer":
        """Starts both and returns when the API server says that it is ready.

        Args:
            folder: an empty or missing folder for certificates, data and logs.
            address: what clients connect to; anything but loopback listens on all addresses.
            port: a free one when not given.
            arguments: further flags of kube-apiserver.
            programs: the folder of kube-apiserver, etcd and kubectl; `$KUBEBUILDER_ASSETS` or the
                rig's own when not given.
            survives: whether the programs outlive this process.

        Raises:
            RigError: a program ended or is not ready in time; its log's end is in the text.
        """
        folder.mkdir(parents=True, exist_ok=True)
        authority = trustme.CA(organization_name="fabric-readiness rig")
        certificates.write_all(folder, authority, address)
        programs = programs or binaries.kube_programs()
        etcd = _start_etcd(folder, programs, survives=survives)
        port = port or free_port()
        server = _start_server(
            folder, programs, address=address, port=port, arguments=arguments, survives=survives
        )
        api = cls(
            folder=folder,
            address=address,
            port=port,
            authority=authority,
            programs=programs,
            arguments=arguments,
            survives=survives,
            etcd=etcd,
            server=server,
        )
        with contextlib.ExitStack() as on_failure:
            on_failure.callback(api.stop)
            api.write_kubeconfig(api.admin_kubeconfig, "admin", "system:masters")
            api.wait_ready()
            on_failure.pop_all()
        return api

    @property
    def url(self) -> str:
        """Where the API server answers."""
        return f"https://{self.address}:{self.port}"

    @property
    def ca_file(self) -> pathlib.Path:
        """The authority that signed the server's certificate and every client's."""
        return self.folder / "ca.crt"

    @property
    def admin_kubeconfig(self) -> pathlib.Path:
        """A kubeconfig that may do anything."""
        return self.folder / "admin.kubeconfig"

    def kubectl(self, *arguments: str, stdin: str | None = None, timeout: float = 60) -> str:
        """What kubectl prints, as admin.

        Raises:
            RigError: it failed; what it said is in the text.
        """
        return processes.run(
            self.programs / "kubectl",
            "--kubeconfig",
            self.admin_kubeconfig,
            *arguments,
            stdin=stdin,
            timeout=timeout,
        )

    def apply(self, manifest: str) -> str:
        """Applies a manifest, on the server's side."""
        return self.kubectl("apply", "--server-side", "--filename", "-", stdin=manifest)

    def token(self, service_account: str, namespace: str, *, node: str = "") -> str:
        """A token for a service account, bound to a node's name and uid where one is given."""
        bound = ("--bound-object-kind", "Node", "--bound-object-name", node) if node else ()
        said = self.kubectl("create", "token", service_account, "--namespace", namespace, *bound)
        return said.strip()

    def write_kubeconfig(self, path: pathlib.Path, user: str, group: str) -> None:
        """Writes a kubeconfig for a user of a group, by a certificate."""
        certificates.write_kubeconfig(path, self.url, self.authority, user, group)

    def wait_ready(self) -> None:
        """Returns when the API server answers that it is ready."""
        waiting.until(
            "the API server to be ready", self._is_ready, seconds=_START_SECONDS,
            detail=self.server.tail,
        )  # fmt: skip

    def stop_server(self) -> None:
        """Ends the API server alone: connections are refused from now on. etcd keeps its data."""
        self.server.stop()

    def start_server(self) -> None:
        """Starts the API server again at the same address, and returns when it is ready."""
        self.server = _start_server(
            self.folder,
            self.programs,
            address=self.address,
            port=self.port,
            arguments=self.arguments,
            survives=self.survives,
        )
        self.wait_ready()

    def stop(self) -> None:
        """Ends both programs."""
        self.server.stop()
        self.etcd.stop()

    @property
    def running(self) -> list[processes.Program]:
        """The programs of this API server."""
        return [self.server, self.etcd]

    def _is_ready(self) -> bool:
        self.etcd.require_running()
        self.server.require_running()
        trust = ssl.create_default_context(cafile=str(self.ca_file))
        try:
            with urllib.request.urlopen(  # noqa: S310 - always https
                f"{self.url}/readyz", context=trust, timeout=2
            ) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


@dataclasses.dataclass(slots=True, kw_only=True)
class ControlPlane:
    """An API server with controller manager and scheduler, at the rig's own address."""

    api: ApiServer
    programs: list[processes.Program]

    @classmethod
    def start(cls, folder: pathlib.Path, *, survives: bool = False) -> "ControlPlane":
        """Starts all of it in the rig's network."""
        # The port is the one of the service `kubernetes`, so that pods reach it with no proxy in
        # between.
        api = ApiServer.start(
            folder,
            address=network.GATEWAY,
            port=443,
            programs=binaries.kube().get(),
            survives=survives,
        )
        plane = cls(api=api, programs=[])
        plane._start(
            "kube-controller-manager",
            f"--service-account-private-key-file={folder / 'service-accounts.key'}",
            f"--root-ca-file={api.ca_file}",
            "--use-service-account-credentials",
            # Pod ranges follow node numbers in the rig; there is no cloud to ask.
            "--controllers=*,-node-ipam-controller",
        )
        plane._start("kube-scheduler")
        return plane

    def stop(self) -> None:
        """Ends all of it."""
        for program in self.programs:
            program.stop()
        self.api.stop()

    @property
    def running(self) -> list[processes.Program]:
        """The programs of this control plane."""
        return [*self.programs, *self.api.running]

    def _start(self, name: str, *arguments: str) -> None:
        kubeconfig = self.api.folder / f"{name}.kubeconfig"
        self.api.write_kubeconfig(kubeconfig, f"system:{name}", "rig")
        command = [
            str(self.api.programs / name),
            f"--kubeconfig={kubeconfig}",
            "--leader-elect=false",
            *arguments,
        ]
        self.programs.append(
            processes.Program.start(
                name, command, folder=self.api.folder, survives=self.api.survives
            )
        )


def free_port() -> int:
    """A TCP port that nothing listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def _start_etcd(
    folder: pathlib.Path, programs: pathlib.Path, *, survives: bool
) -> processes.Program:
    clients, peers = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
    (folder / "etcd.url").write_text(clients)
    command = shlex.split(
        f"{programs / 'etcd'} --data-dir {folder / 'etcd'} --unsafe-no-fsync"
        f" --listen-client-urls {clients} --advertise-client-urls {clients}"
        f" --listen-peer-urls {peers} --initial-advertise-peer-urls {peers}"
        f" --initial-cluster default={peers}"
    )
    return processes.Program.start("etcd", command, folder=folder, survives=survives)


def _start_server(
    folder: pathlib.Path,
    programs: pathlib.Path,
    *,
    address: str,
    port: int,
    arguments: Sequence[str],
    survives: bool,
) -> processes.Program:
    alone = address == "127.0.0.1"
    # Without a default route the server finds no address to announce by itself, and it refuses to
    # announce a loopback address as the endpoint of the service `kubernetes`.
    announced = ["--endpoint-reconciler-type=none"] if alone else []
    command = [
        str(programs / "kube-apiserver"),
        f"--etcd-servers={(folder / 'etcd.url').read_text()}",
        f"--bind-address={address if alone else '0.0.0.0'}",  # noqa: S104 - the rig's own namespace
        f"--secure-port={port}",
        f"--advertise-address={address}",
        *announced,
        f"--tls-cert-file={folder / 'server.pem'}",
        f"--tls-private-key-file={folder / 'server.pem'}",
        f"--client-ca-file={folder / 'ca.crt'}",
        f"--kubelet-client-certificate={folder / 'kubelet-client.pem'}",
        f"--kubelet-client-key={folder / 'kubelet-client.pem'}",
        "--kubelet-preferred-address-types=InternalIP",
        f"--service-account-key-file={folder / 'service-accounts.key'}",
        f"--service-account-signing-key-file={folder / 'service-accounts.key'}",
        f"--service-account-issuer={_ISSUER}",
        f"--service-cluster-ip-range={_SERVICES}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        *arguments,
    ]
    return processes.Program.start("kube-apiserver", command, folder=folder, survives=survives)
