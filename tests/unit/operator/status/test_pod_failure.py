"""Why a pod cannot serve, from the status that kubelets write."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from plimsoll_operator.status.pod_failure import LAST_WORDS, PULL_FAILURES, START_FAILURES, Failure, failure_of
from plimsoll_operator.status.reasons import EXIT_REASONS, Reason

Json = dict[str, Any]


def container(state: Json, *, last: Json | None = None, restarts: int = 0, ready: bool = False) -> Json:
    entry = {"name": "runtime", "image": "reg/rt:1", "ready": ready, "restartCount": restarts}
    return {"phase": "Running", "containerStatuses": [{**entry, "state": state, "lastState": last or {}}]}


def ended(code: int, **more: Any) -> Json:
    return {"terminated": {"exitCode": code, **more}}


def waiting(reason: str, message: str | None = None) -> Json:
    return {"waiting": {"reason": reason, **({"message": message} if message else {})}}


def failure(status: Json) -> Failure | None:
    return failure_of(status, {c["type"]: c for c in status.get("conditions") or ()})


@pytest.mark.parametrize(
    "status",
    [
        {},
        {"phase": "Pending"},
        {"phase": "Running", "containerStatuses": None, "conditions": None},
        container({}),
        container({"running": {}}),
        container(waiting("ContainerCreating")),
        container(waiting("PodInitializing")),
        container(ended(0, reason="Completed")),
        container({"running": {}}, last=ended(0), restarts=1),
        container({"running": {}}, last=ended(4), restarts=3, ready=True),
        {"phase": "Running", "containerStatuses": [{"name": "sidecar", "state": ended(1)}]},
        {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}]},
    ],
)
def test_nothing_is_wrong(status: Json) -> None:
    assert failure(status) is None


@pytest.mark.parametrize(("code", "reason"), EXIT_REASONS.items())
@pytest.mark.parametrize("again", [False, True])
def test_the_runtimes_last_words_are_told(code: int, reason: Reason, again: bool) -> None:
    last = ended(code, reason="Error", message=f"{LAST_WORDS[code]}: no such tensor\n")
    state, before = (waiting("CrashLoopBackOff", "back-off 5m0s"), last) if again else (last, None)
    expected = Failure(reason, f"{LAST_WORDS[code]}: no such tensor (2 restarts)")
    assert failure(container(state, last=before, restarts=2)) == expected


@given(code=st.sampled_from([*LAST_WORDS, 7, 137, 139]), log=st.text())
@example(6, "INFO engine started\nengine-died: resp_0123 of team-b\n")
@example(1, "2026-11-26 INFO 9f3c POST /v1/files 200, first token -, team-b.jsonl")
@example(2, "usage: plimsoll serve MODEL\nplimsoll: error: resp_0123")
@example(5, "engine-died: a line of another end")
def test_the_end_of_a_log_is_in_no_status(code: int, log: str) -> None:
    """The kubelet puts it in place of a missing termination message if a pod asks for that."""
    found = failure(container(ended(code, reason="Error", message=log), restarts=1))
    assert found is not None
    if log.strip().startswith(f"{LAST_WORDS.get(code)}: ") and "\n" not in log.strip():
        return  # indeed last words
    assert found.message == f"the runtime ended with code {code} (Error); see kubectl logs POD --previous (1 restart)"


def test_while_it_loads_again_the_failure_stays_known() -> None:
    found = failure(container({"running": {}}, last=ended(5, message="out-of-memory: too large"), restarts=1))
    assert found == Failure(Reason.OUT_OF_MEMORY, "out-of-memory: too large (1 restart)")


def test_the_kernels_kill_is_out_of_memory() -> None:
    found = failure(container(ended(137, reason="OOMKilled", message="half a line")))
    assert found is not None
    assert found.reason is Reason.OUT_OF_MEMORY
    assert "resources.memory" in found.message


@pytest.mark.parametrize("code", [1, 7, 134, 137, 139, 255])
def test_any_other_end_is_a_crash(code: int) -> None:
    found = failure(container(ended(code, reason="Error")))
    assert found == Failure(
        Reason.CRASHED, f"the runtime ended with code {code} (Error); see kubectl logs POD --previous (0 restarts)"
    )


def test_a_runtime_that_always_ends_well_crashes_too() -> None:
    found = failure(container(waiting("CrashLoopBackOff"), last=ended(0), restarts=4))
    assert found == Failure(
        Reason.CRASHED, "the runtime ended with code 0 (no reason given); see kubectl logs POD --previous (4 restarts)"
    )


@pytest.mark.parametrize("word", sorted(PULL_FAILURES))
def test_an_image_that_cannot_be_pulled(word: str) -> None:
    assert failure(container(waiting(word, "not found"))) == Failure(Reason.IMAGE_NOT_PULLED, "not found")
    assert failure(container(waiting(word))) == Failure(Reason.IMAGE_NOT_PULLED, f"{word}: reg/rt:1")


@pytest.mark.parametrize("word", sorted(START_FAILURES))
def test_a_container_that_cannot_be_started(word: str) -> None:
    found = failure(container(waiting(word, 'secret "hub" not found')))
    assert found == Failure(Reason.CONTAINER_NOT_STARTED, 'secret "hub" not found')
    assert failure(container(waiting(word))) == Failure(Reason.CONTAINER_NOT_STARTED, word)


def test_no_node_fits() -> None:
    why = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/2 nodes are available"}
    assert failure({"conditions": [why]}) == Failure(Reason.UNSCHEDULABLE, "0/2 nodes are available")
    assert failure({"conditions": [{**why, "message": None}]}) == Failure(Reason.UNSCHEDULABLE, "no node fits")


def test_a_node_gave_it_up() -> None:
    status = {"phase": "Failed", "reason": "Evicted", "message": "low on memory"}
    assert failure(status) == Failure(Reason.EVICTED, "Evicted: low on memory")
    assert failure({"phase": "Failed", "reason": "NodeLost"}) == Failure(Reason.EVICTED, "NodeLost: no message")
