"""What the operator asks of the API in the namespaces that it watches; the chart's rules are held to it by a test."""

from __future__ import annotations

RIGHTS: frozenset[tuple[str, str, str]] = frozenset(
    {
        ("plimsoll.dev", "modeldeployments", "get"),
        ("plimsoll.dev", "modeldeployments", "list"),
        ("plimsoll.dev", "modeldeployments", "watch"),
        ("plimsoll.dev", "modeldeployments/status", "patch"),
        ("", "pods", "list"),
        ("", "pods", "watch"),
        ("", "pods", "create"),
        ("", "pods", "delete"),
        ("", "services", "get"),
        ("", "services", "list"),
        ("", "services", "watch"),
        ("", "services", "create"),
        ("", "services", "patch"),
        ("events.k8s.io", "events", "create"),
    }
)
"""(API group, resource, verb). Server-side apply of an object that is not there needs both create and patch."""
