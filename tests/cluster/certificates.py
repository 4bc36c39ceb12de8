"""Certificates and kubeconfigs of a run: one authority, made for it and gone with it."""

import base64
import json
import pathlib

import trustme
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.cluster import network


def write_all(folder: pathlib.Path, authority: trustme.CA, address: str) -> None:
    """Writes the files that the API server starts with, signed by the run's authority."""
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


def write_kubeconfig(
    path: pathlib.Path, url: str, authority: trustme.CA, user: str, group: str
) -> None:
    """Writes a kubeconfig with which a client is `user` of `group`."""
    issued = _client_certificate(authority, user, group)
    credentials = {
        "client-certificate-data": _base64(issued.cert_chain_pems[0].bytes()),
        "client-key-data": _base64(issued.private_key_pem.bytes()),
    }
    trusted = _base64(authority.cert_pem.bytes())
    cluster = {"server": url, "certificate-authority-data": trusted}
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


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
