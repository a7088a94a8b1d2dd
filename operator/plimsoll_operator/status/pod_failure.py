"""Reads from a pod's status why it cannot serve, with the runtime's termination message if there is one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from plimsoll_operator.spec.identity import CONTAINER, Object
from plimsoll_operator.status.reasons import EXIT_REASONS, Reason

PULL_FAILURES = frozenset({"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"})
START_FAILURES = frozenset(
    {"CreateContainerConfigError", "CreateContainerError", "RunContainerError", "StartError", "PostStartHookError"}
)
BACKING_OFF, OOM_KILLED = "CrashLoopBackOff", "OOMKilled"
LAST_WORDS = {
    1: "internal",
    2: "usage",
    3: "model-source",
    4: "model-invalid",
    5: "out-of-memory",
    6: "engine-died",
    8: "device-failed",
    9: "model-fetch",
    10: "address-unavailable",
}
"""The first word of the runtime's termination message, by exit code; a contract test compares them."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a pod cannot serve, as a reason and a message."""

    reason: Reason
    message: str


def failure_of(status: Object, conditions: Mapping[str, Any]) -> Failure | None:
    """Return the failure of a pod; None if none is known."""
    if status.get("phase") == "Failed" and status.get("reason"):
        # The kubelet or a controller ended it: evicted, rejected by its node, node shut down or lost.
        return Failure(Reason.EVICTED, f"{status['reason']}: {status.get('message') or 'no message'}")
    for container in status.get("containerStatuses") or ():
        if container["name"] == CONTAINER and (found := _container_failure(container)) is not None:
            return found
    placed = conditions.get("PodScheduled", {})
    if placed.get("status") == "False" and placed.get("reason") == "Unschedulable":
        return Failure(Reason.UNSCHEDULABLE, str(placed.get("message") or "no node fits"))
    return None


def node_failure(node: str) -> Failure:
    """Return the failure of a pod whose node does not respond."""
    return Failure(Reason.NODE_LOST, f"node {node} does not answer")


def _container_failure(container: Object) -> Failure | None:
    """Return the failure in the container's waiting state, else in its last termination; None if it has neither, is
    ready again, or ended normally.
    """
    state = container.get("state") or {}
    waiting = state.get("waiting") or {}
    word, message = waiting.get("reason"), waiting.get("message") or ""
    if word in PULL_FAILURES:
        return Failure(Reason.IMAGE_NOT_PULLED, message or f"{word}: {container.get('image')}")
    if word in START_FAILURES:
        return Failure(Reason.CONTAINER_NOT_STARTED, message or str(word))
    ended = state.get("terminated") or (container.get("lastState") or {}).get("terminated")
    if ended is None or container.get("ready"):
        return None
    code = int(ended.get("exitCode") or 0)
    if code == 0 and word != BACKING_OFF:
        return None  # It drained and ended normally.
    reason = Reason.OUT_OF_MEMORY if ended.get("reason") == OOM_KILLED else EXIT_REASONS.get(code, Reason.CRASHED)
    restarts = int(container.get("restartCount") or 0)
    return Failure(reason, f"{_words(ended, code)} ({restarts} restart{'' if restarts == 1 else 's'})")


def _words(ended: Mapping[str, Any], code: int) -> str:
    """Return the line that the runtime wrote to its termination log, else a text about how the container ended.

    Other text is not shown. It could be the end of the container's log, which may name requests, responses and files of
    any tenant.
    """
    if ended.get("reason") == OOM_KILLED:
        return "the runtime used more memory than resources.memory; raise it or lower runtime.kvMemory"
    words, kind = (ended.get("message") or "").strip(), LAST_WORDS.get(code)
    if kind is not None and words.startswith(f"{kind}: ") and "\n" not in words:
        return " ".join(words.split())
    how = f"the runtime ended with code {code} ({ended.get('reason') or 'no reason given'})"
    return f"{how}; see kubectl logs POD --previous"
