"""The API rights that the operator needs; a test compares them with the chart's roles."""

from __future__ import annotations

Right = tuple[str, str, str]
"""(API group, resource, verb)."""

RIGHTS: frozenset[Right] = frozenset(
    {
        ("plimsoll.dev", "modeldeployments", "list"),
        ("plimsoll.dev", "modeldeployments", "watch"),
        ("plimsoll.dev", "modeldeployments/status", "patch"),
        ("plimsoll.dev", "modeldeployments/finalizers", "update"),
        ("plimsoll.dev", "runtimepools", "list"),
        ("plimsoll.dev", "runtimepools", "watch"),
        ("plimsoll.dev", "runtimepools/status", "patch"),
        ("plimsoll.dev", "runtimepools/finalizers", "update"),
        ("plimsoll.dev", "modelhosts", "list"),
        ("plimsoll.dev", "modelhosts", "watch"),
        ("plimsoll.dev", "modelhosts", "create"),
        ("plimsoll.dev", "modelhosts/status", "patch"),
        ("", "pods", "list"),
        ("", "pods", "watch"),
        ("", "pods", "create"),
        ("", "pods", "delete"),
        ("", "services", "get"),
        ("", "services", "list"),
        ("", "services", "watch"),
        ("", "services", "create"),
        ("", "services", "patch"),
        ("policy", "poddisruptionbudgets", "get"),
        ("policy", "poddisruptionbudgets", "list"),
        ("policy", "poddisruptionbudgets", "watch"),
        ("policy", "poddisruptionbudgets", "create"),
        ("policy", "poddisruptionbudgets", "patch"),
        ("policy", "poddisruptionbudgets", "delete"),
        ("apps", "controllerrevisions", "list"),
        ("apps", "controllerrevisions", "watch"),
        ("apps", "controllerrevisions", "create"),
        ("apps", "controllerrevisions", "patch"),
        ("apps", "controllerrevisions", "delete"),
        ("events.k8s.io", "events", "create"),
    }
)
"""Rights in the watched namespaces. The operator creates children, and corrects them by server-side apply, which is a
patch. It reads Services and budgets that have the name of one of ours, to see their owners.

With the API server's OwnerReferencesPermissionEnforcement, creating a child that blocks its owner's deletion needs the
right to update the owner's finalizers.
"""

NAMESPACE_RIGHTS: frozenset[Right] = frozenset({("", "namespaces", "list"), ("", "namespaces", "watch")})
"""Without these, pools can select namespaces only by name. Namespaces are cluster-scoped."""

TOKEN_RIGHTS: frozenset[Right] = frozenset({("", "secrets", "get")})
"""In the namespaces that the chart lists for it, none by default: for `spec.model.tokenSecret` of models in pools."""

NODE_RIGHTS: frozenset[Right] = frozenset({("", "nodes", "list"), ("", "nodes", "watch")})
"""Without these the operator works, but does not move pods before their node is drained. Nodes are cluster-scoped."""

LEASE_RIGHTS: frozenset[Right] = frozenset(
    {
        ("coordination.k8s.io", "leases", "get"),
        ("coordination.k8s.io", "leases", "update"),
        ("coordination.k8s.io", "leases", "create"),
    }
)
"""Rights on its Lease. `create` cannot be limited to a name; the others can."""

RECORD_RIGHTS: frozenset[Right] = frozenset(
    {("", "configmaps", "list"), ("", "configmaps", "watch"), ("", "configmaps", "patch")}
)
"""Rights on the ConfigMap with the record of served names, if there is one."""

OWNER_RIGHTS: frozenset[Right] = frozenset({("apps", "deployments", "get")})
"""Rights on its own Deployment, which owns a Lease that it creates."""
