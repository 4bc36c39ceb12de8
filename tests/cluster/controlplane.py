"""A real control plane: etcd and kube-apiserver alone, or with controllers and scheduler.

Authorization is Node and RBAC with NodeRestriction, as in a real cluster: what the product may not
do there it may not do here.
"""

import base64
import dataclasses
import json
import pathlib
import shlex
import socket
import ssl
import urllib.request
from collections.abc import Sequence

import trustme
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.cluster import binaries, cache, network, processes, waiting

_SERVICES = "10.96.0.0/16"
_ISSUER = "https://kubernetes.default.svc"
# etcd and the API server start in 5 s on two idle cores, and in four times that beside a build.
_START_SECONDS = 90


@dataclasses.dataclass(slots=True, kw_only=True)
class ApiServer:
    """etcd and kube-apiserver. Everything about them lies in `folder`."""

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
        survives: bool = False,
    ) -> "ApiServer":
        """Starts both and returns when the API server says that it is ready.

        Args:
            folder: an empty or missing folder for certificates, data and logs.
            address: what clients connect to; anything but loopback listens on all addresses.
            port: a free one when not given.
            arguments: further flags of kube-apiserver.
            survives: whether the programs outlive this process.

        Raises:
            RigError: a program ended or is not ready in time; its log's end is in the text.
        """
        folder.mkdir(parents=True, exist_ok=True)
        authority = trustme.CA(organization_name="fabric-readiness rig")
        _write_certificates(folder, authority, address)
        programs = binaries.kube_programs()
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
        api.write_kubeconfig(api.admin_kubeconfig, "admin", "system:masters")
        try:
            api.wait_ready()
        except cache.RigError:
            api.stop()
            raise
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
        issued = _client_certificate(self.authority, user, group)
        credentials = {
            "client-certificate-data": _base64(issued.cert_chain_pems[0].bytes()),
            "client-key-data": _base64(issued.private_key_pem.bytes()),
        }
        authority = _base64(self.authority.cert_pem.bytes())
        cluster = {"server": self.url, "certificate-authority-data": authority}
        # JSON is YAML.
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "rig", "cluster": cluster}],
            "users": [{"name": user, "user": credentials}],
            "contexts": [{"name": "rig", "context": {"cluster": "rig", "user": user}}],
            "current-context": "rig",
        }
        path.touch(mode=0o600)
        path.write_text(json.dumps(config, indent=1))

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

    def pause_server(self) -> None:
        """Makes the API server silent: connections open, and nothing is answered."""
        self.server.pause()

    def resume_server(self) -> None:
        """Lets a paused API server answer again."""
        self.server.resume()

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
        api = ApiServer.start(folder, address=network.GATEWAY, port=443, survives=survives)
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


def _write_certificates(folder: pathlib.Path, authority: trustme.CA, address: str) -> None:
    authority.cert_pem.write_to_path(str(folder / "ca.crt"))
    names = {address, "127.0.0.1", network.SERVICE_ADDRESS, "localhost", "kubernetes.default.svc"}
    server = authority.issue_cert(*sorted(names), common_name="kube-apiserver")
    server.private_key_and_cert_chain_pem.write_to_path(str(folder / "server.pem"))
    kubelet_client = _client_certificate(authority, "admin", "system:masters")
    kubelet_client.private_key_and_cert_chain_pem.write_to_path(str(folder / "kubelet-client.pem"))
    key = ec.generate_private_key(ec.SECP256R1())
    (folder / "service-accounts.key").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        )
    )


def _client_certificate(authority: trustme.CA, user: str, group: str) -> trustme.LeafCert:
    # A name of a host is needed though no client is asked for it: Go refuses a certificate whose
    # list of names is empty.
    return authority.issue_cert("client.rig.invalid", common_name=user, organization_name=group)


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


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
