"""What the operator asks of the API; the chart's rules are held to it by a test."""

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
"""In the namespaces that it watches. Children are created, and what is wrong of them is put right by server-side apply,
which is a patch. Whose a Service or a budget is that has the name of one of ours is asked for.

Who makes a child that its owner's deletion waits for must be allowed to change the owner's finalizers, where the API
server's OwnerReferencesPermissionEnforcement is on.
"""

NAMESPACE_RIGHTS: frozenset[Right] = frozenset({("", "namespaces", "list"), ("", "namespaces", "watch")})
"""Without them pools choose namespaces by their names alone: labels of namespaces belong to no namespace either."""

TOKEN_RIGHTS: frozenset[Right] = frozenset({("", "secrets", "get")})
"""In the namespaces that the chart lists for it, none by default: for `spec.model.tokenSecret` of models in pools."""

NODE_RIGHTS: frozenset[Right] = frozenset({("", "nodes", "list"), ("", "nodes", "watch")})
"""Without them it serves as well, and only sees no drain before it happens: nodes belong to no namespace."""

LEASE_RIGHTS: frozenset[Right] = frozenset(
    {
        ("coordination.k8s.io", "leases", "get"),
        ("coordination.k8s.io", "leases", "update"),
        ("coordination.k8s.io", "leases", "create"),
    }
)
"""On its Lease. Who may create cannot be limited to a name; the others can."""

RECORD_RIGHTS: frozenset[Right] = frozenset(
    {("", "configmaps", "list"), ("", "configmaps", "watch"), ("", "configmaps", "patch")}
)
"""On the ConfigMap with the record of served names, if it keeps one."""

OWNER_RIGHTS: frozenset[Right] = frozenset({("apps", "deployments", "get")})
"""On its own Deployment, which owns a Lease that it makes."""
