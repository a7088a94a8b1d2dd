"""Kills the operator like a crash of its node would, but without the time until its Lease expires."""

from __future__ import annotations

import contextlib

from kubernetes.client.exceptions import ApiException

from harness import crash, lease
from harness.release import Release
from harness.waiting import until

LEASE = "plimsoll-operator"
LEADS_WITHIN = 120


def kill_operator(release: Release) -> int:
    """Kill the operator with SIGKILL, and clear its Lease so that the next one need not wait. Return the number of
    killed processes: 1, or 0 if the operator was moved off its node in that moment.
    """
    before = wait_leader(release)
    until("one operator's process alone", lambda: crash.count("plimsoll-operator") == 1, timeout=60)
    killed = crash.kill("plimsoll-operator")
    with contextlib.suppress(ApiException):  # it was moved
        release.kill_now(before)
    lease.clear(release.namespace, LEASE)
    return killed


def wait_leader(release: Release) -> str:
    """Wait until a live operator holds the Lease, and return its pod."""

    def look() -> str | None:
        holder = lease.holder(release.namespace, LEASE)
        return holder if holder in release.ready_pods("operator") else None

    return until("an operator that holds the Lease", look, timeout=LEADS_WITHIN)
