"""In whatever order the objects are applied, and however the policies break: kubelets register and report.

On an API server of its own, since what is missing here is what all other tests need.
"""

import pathlib
from collections.abc import Iterator

import pytest
import yaml

from agent.cluster import api, errors, token
from tests.cluster import controlplane, waiting
from tests.manifests import callers
from tests.manifests.conftest import FOLDER

_POLICY, _BINDING = "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"
_FILES = ("reserved-names.yaml", "agent-policies.yaml", "gate-policies.yaml")


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[controlplane.ApiServer]:
    """An API server where nothing of ours is installed, not even the CRD."""
    server = controlplane.ApiServer.start(tmp_path_factory.mktemp("fresh"))
    yield server
    server.stop()


@pytest.mark.apiserver
def test_kubelets_live_through_any_order_of_an_install(
    fresh: controlplane.ApiServer, tmp_path: pathlib.Path
) -> None:
    """Bindings, then policies, then accounts, then the CRD: after each step, and with every policy broken."""
    _apply(fresh, _BINDING)
    callers.live(fresh, tmp_path)
    _apply(fresh, _POLICY)
    callers.live(fresh, tmp_path)
    for file in ("namespace.yaml", "agent-rbac.yaml", "gate-rbac.yaml"):
        fresh.kubectl("apply", "--filename", str(FOLDER / "base" / file))
    node = callers.create_node(fresh)
    agent, unbound = _agent(fresh, tmp_path, node), _agent(fresh, tmp_path, "")
    _wait_refused(unbound, node, "names no node")
    agent.patch_node_status(node, callers.GOOD_REPORT)
    callers.live(fresh, tmp_path)
    fresh.kubectl("apply", "--filename", str(FOLDER / "base/fabricnodes.yaml"))
    callers.live(fresh, tmp_path)
    _apply(fresh, _POLICY, broken=True)
    _wait_refused(agent, node, "division by zero")
    callers.live(fresh, tmp_path)


def _agent(server: controlplane.ApiServer, folder: pathlib.Path, node: str) -> api.Api:
    """The agent's own client, with a token that is bound to a node, or to none."""
    path = folder / f"token-{node}"
    path.write_text(server.token("fabric-agent", callers.NAMESPACE, node=node))
    return api.Api(api.Server(url=server.url, ca_file=server.ca_file), token.Token(path))


def _apply(server: controlplane.ApiServer, kind: str, *, broken: bool = False) -> None:
    """All objects of the policies of a kind; `broken`: none of their rules can be evaluated."""
    found = [
        one
        for file in _FILES
        for one in yaml.safe_load_all((FOLDER / "base" / file).read_text())
        if one["kind"] == kind
    ]
    if broken:
        for one in found:
            for rule in one["spec"]["validations"]:
                rule["expression"] = "size(request.name) / 0 == 1"
    server.kubectl("apply", "--filename", "-", stdin=yaml.safe_dump_all(found))


def _wait_refused(agent: api.Api, node: str, words: str) -> None:
    def refused() -> bool:
        try:
            agent.patch_node_status(node, callers.condition())
        except errors.ApiError as error:
            return words in str(error)
        return False

    waiting.until(f"a refusal: {words}", refused, seconds=callers.EFFECT_SECONDS)
