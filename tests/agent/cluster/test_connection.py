"""The gate's connection says which of the four things went wrong, and outlives a rotated authority."""

import pathlib

import pytest
import trustme
from kubernetes import client

from agent.cluster import connection, errors
from tests.agent.gate import objects
from tests.cluster import controlplane


def test_missing_object_is_gone(apiserver: controlplane.ApiServer) -> None:
    """404 is a conflict of kind gone, with the server's words."""
    with pytest.raises(errors.Conflict, match='nodes "nobody" not found') as caught:
        objects.connect(apiserver).get("/api/v1/nodes/nobody")
    assert caught.value.gone


def test_existing_object_is_a_conflict(apiserver: controlplane.ApiServer) -> None:
    """409 is a conflict that is not gone."""
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}}
    with pytest.raises(errors.Conflict, match="already exists") as caught:
        objects.connect(apiserver).create("/api/v1/namespaces", body)
    assert "conflict" == caught.value.kind


def test_stranger_is_refused(apiserver: controlplane.ApiServer) -> None:
    """Without credentials the text names the right that is missing."""
    configuration = client.Configuration()
    configuration.host = apiserver.url
    configuration.ssl_ca_cert = str(apiserver.ca_file)
    with pytest.raises(errors.Refused, match='cannot list resource "nodes"'):
        connection.Connection(configuration).get("/api/v1/nodes")


def test_token_leaves_the_process(apiserver: controlplane.ApiServer) -> None:
    """A bearer token is sent: a wrong one is refused as such, not taken for a stranger's call."""
    configuration = client.Configuration()
    configuration.host = apiserver.url
    configuration.ssl_ca_cert = str(apiserver.ca_file)
    configuration.api_key["BearerToken"] = "Bearer nonsense"
    with pytest.raises(errors.Refused, match="401") as caught:
        connection.Connection(configuration).get("/api/v1/nodes")
    assert "nonsense" not in str(caught.value)


def test_closed_port_is_unreachable() -> None:
    """Nothing listens: Unreachable, at once."""
    configuration = client.Configuration()
    configuration.host = f"https://127.0.0.1:{controlplane.free_port()}"
    with pytest.raises(errors.Unreachable):
        connection.Connection(configuration).get("/version")


def test_rotated_authority_is_read_again(
    apiserver: controlplane.ApiServer, tmp_path: pathlib.Path
) -> None:
    """A server whose certificate is not trusted is not talked to, until the file trusts it."""
    authority = tmp_path / "ca.crt"
    trustme.CA().cert_pem.write_to_path(str(authority))
    configuration = client.Configuration()
    configuration.host = apiserver.url
    configuration.ssl_ca_cert = str(authority)
    made = connection.Connection(configuration)
    with pytest.raises(errors.Unreachable, match="certificate verify failed"):
        made.get("/version")
    authority.write_bytes(apiserver.ca_file.read_bytes())
    assert "1" == made.get("/version")["major"]
