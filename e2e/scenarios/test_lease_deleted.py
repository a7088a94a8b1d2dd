"""The operator's Lease is deleted: the operator recreates it and continues."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from harness import lease
from harness.figures import Figures
from harness.kube import Kube
from harness.release import Release
from harness.waiting import Stopwatch, hold, until

MODEL = "lease-deleted"
LEASE = "plimsoll-operator"
EXPIRED_AFTER = 30
"""Seconds after which a holder that has not renewed its Lease must not act, with a margin."""
ACTS_WITHIN = 120


def test_the_operator_acts_on_without_its_lease(
    kube: Kube, release: Release, serve: Callable[..., dict[str, Any]], measured: Figures
) -> None:
    serve(1)
    with lease.deleted(release.namespace, LEASE):
        hold(EXPIRED_AFTER)
        since = Stopwatch()
        kube.scale(MODEL, 2)
        kube.wait_settled(MODEL, 2, timeout=ACTS_WITHIN)
        measured["settled_after_seconds"] = since.seconds
        holder = until("a new holder", lambda: lease.holder(release.namespace, LEASE), timeout=30)
        assert holder in release.component_pods("operator")
