"""Why a pod cannot serve, read from its status: the runtime's own words where it left some."""

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
"""How the line begins that the runtime writes to its termination log, by its exit code (a contract test compares)."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a pod cannot serve, and the same for people."""

    reason: Reason
    message: str


def failure_of(status: Object, conditions: Mapping[str, Any]) -> Failure | None:
    """What is wrong with a pod; None while nothing is known to be."""
    if status.get("phase") == "Failed" and status.get("reason"):
        # The kubelet or a controller ended it: evicted, refused by its node, node shut down or lost.
        return Failure(Reason.EVICTED, f"{status['reason']}: {status.get('message') or 'no message'}")
    for container in status.get("containerStatuses") or ():
        if container["name"] == CONTAINER and (found := _container_failure(container)) is not None:
            return found
    placed = conditions.get("PodScheduled", {})
    if placed.get("status") == "False" and placed.get("reason") == "Unschedulable":
        return Failure(Reason.UNSCHEDULABLE, str(placed.get("message") or "no node fits"))
    return None


def node_failure(node: str) -> Failure:
    """Of a pod whose node does not answer."""
    return Failure(Reason.NODE_LOST, f"node {node} does not answer")


def _container_failure(container: Object) -> Failure | None:
    """From the waiting state, or from how the container ended the last time, as long as it is not ready again."""
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
        return None  # it drained and ended as it was told to
    reason = Reason.OUT_OF_MEMORY if ended.get("reason") == OOM_KILLED else EXIT_REASONS.get(code, Reason.CRASHED)
    restarts = int(container.get("restartCount") or 0)
    return Failure(reason, f"{_words(ended, code)} ({restarts} restart{'' if restarts == 1 else 's'})")


def _words(ended: Mapping[str, Any], code: int) -> str:
    """The line that the runtime wrote to its termination log, else how it ended.

    Any other message is the end of the container's log, which pods of earlier operators have there if the runtime wrote
    nothing (`FallbackToLogsOnError`). It may name requests, responses and files of any tenant.
    """
    if ended.get("reason") == OOM_KILLED:
        return "the runtime took more memory than resources.memory allows; raise it or lower runtime.kvMemory"
    words, kind = (ended.get("message") or "").strip(), LAST_WORDS.get(code)
    if kind is not None and words.startswith(f"{kind}: ") and "\n" not in words:
        return " ".join(words.split())
    how = f"the runtime ended with code {code} ({ended.get('reason') or 'no reason given'})"
    return f"{how}; see kubectl logs POD --previous"
