"""What is ours in a cluster, by exact name: a prefix would take what others wrote.

An administrator's labels (`fabric-readiness.dev/pool`, `fabric-readiness.dev/fabric`) are not here.
"""

from agent.gate import fabricnodes, records

CONDITIONS = (records.CONDITION, "FabricTransport")
LABELS = ("fabric-readiness.dev/verified",)
ANNOTATIONS = (
    records.VERIFIED_BOOT_ID,
    "fabric-readiness.dev/profile-hash",
    records.BLOCKED_RUNG,
)
TAINT_KEYS = (
    "readiness.k8s.io/FabricReady",
    "startup-taint.cluster-autoscaler.kubernetes.io/FabricReady",
)
"""Those that the manifests know; the settings may name another."""

PART_OF = "app.kubernetes.io/part-of=fabric-readiness-agent"
"""Label selector of all that the manifests install."""

RULES = "/apis/readiness.node.x-k8s.io/v1alpha1/nodereadinessrules"
CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/fabricnodes.fabric-readiness.dev"
FABRIC_NODES = fabricnodes.PATH

_ADMISSION = "/apis/admissionregistration.k8s.io/v1"
_RBAC = "/apis/rbac.authorization.k8s.io/v1"
_VALIDATING = (
    "fabric-agent-own-events",
    "fabric-agent-own-fabricnode",
    "fabric-agent-own-node",
    "fabric-gate-own-fabricnodes",
    "fabric-gate-taint-only",
    "fabric-reserved-names",
)

STARTUP_TAINT = (
    f"{_ADMISSION}/mutatingadmissionpolicybindings/fabric-startup-taint",
    f"{_ADMISSION}/mutatingadmissionpolicies/fabric-startup-taint",
)
"""What gives new nodes our taint: it would close each of them for ever."""

RIGHTS = (
    *(
        f"{_RBAC}/{kind}/{name}"
        for kind in ("clusterrolebindings", "clusterroles")
        for name in ("fabric-agent", "fabric-gate")
    ),
    f"{_RBAC}/clusterrolebindings/fabric-taint-writer",
    f"{_RBAC}/clusterroles/fabric-taint-writer",
    # Events of objects that have no namespace, such as nodes, live in `default`.
    *(
        f"{_RBAC}/namespaces/default/{kind}/{name}"
        for kind in ("rolebindings", "roles")
        for name in ("fabric-agent", "fabric-gate")
    ),
)
"""What the two accounts may do outside the namespace."""

POLICIES = tuple(
    f"{_ADMISSION}/{kind}/{name}"
    for kind in ("validatingadmissionpolicybindings", "validatingadmissionpolicies")
    for name in _VALIDATING
)
"""What keeps others from our names."""


def workloads(namespace: str) -> tuple[str, ...]:
    """What runs the gate and the agents."""
    apps = f"/apis/apps/v1/namespaces/{namespace}"
    return f"{apps}/deployments/fabric-gate", f"{apps}/daemonsets/fabric-agent"


def lease(namespace: str) -> str:
    """The gates' Lease. Its age tells a gate which nodes were there before the installation."""
    return f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/fabric-gate"


def namespaced(namespace: str) -> tuple[str, ...]:
    """What the manifests install in the namespace beside the workloads; settings have no fixed name."""
    return (
        *(
            f"{_RBAC}/namespaces/{namespace}/{kind}/fabric-gate"
            for kind in ("rolebindings", "roles")
        ),
        f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets/fabric-gate",
        *(
            f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}"
            for name in ("fabric-agent", "fabric-gate")
        ),
    )
