"""Marks of requests in cases that are made: what a request waited for, why it was preempted, and the limit of marks."""

from __future__ import annotations

from typing import Any

from builders import drain, make_core, request

from plimsoll_runtime.engine.protocol.messages import MOST_MARKS, Mark, MarkKind, RequestOutput, WaitReason
from plimsoll_runtime.engine.sequence import Report


def marks_of(outputs: list[RequestOutput]) -> list[Mark]:
    return [mark for output in outputs for mark in output.marks]


def kinds_of(marks: list[Mark]) -> list[str]:
    return [mark.kind.name for mark in marks]


def waits_of(marks: list[Mark]) -> list[WaitReason]:
    """Return what the request waited for, each time that it was scheduled."""
    return [mark.why for mark in marks if mark.kind is MarkKind.SCHEDULED]


def run(*prompts: int, max_tokens: int = 8, **options: Any) -> list[list[Mark]]:
    """Run requests that are added at once, with prompts of these lengths; return the marks of each."""
    core, _ = make_core(**options)
    for number, length in enumerate(prompts):
        core.add(request(f"r{number}", [(7 * number + i) % 50 for i in range(length)], max_tokens=max_tokens))
    outputs = drain(core)
    return [marks_of(outputs[f"r{number}"]) for number in range(len(prompts))]


def test_one_request_alone() -> None:
    ((queued, scheduled, *chunks, first, finished),) = run(40, max_batch_tokens=16)
    assert (queued.kind, scheduled.kind, scheduled.why) == (MarkKind.QUEUED, MarkKind.SCHEDULED, WaitReason.NOTHING)
    assert [chunk.value for chunk in chunks] == [16, 16, 8]
    assert (first.kind, finished.kind) == (MarkKind.FIRST_TOKEN, MarkKind.FINISHED)


def test_a_last_chunk_of_one_token_is_one_too() -> None:
    (marks,) = run(33, max_batch_tokens=16)
    assert [mark.value for mark in marks if mark.kind is MarkKind.CHUNK] == [16, 16, 1]


def test_it_waits_for_a_slot() -> None:
    first, second = run(4, 4, max_sequences=1)
    assert (waits_of(first), waits_of(second)) == ([WaitReason.NOTHING], [WaitReason.SLOTS])


def test_it_waits_for_a_slot_also_if_the_steps_are_full() -> None:
    """A larger budget would not help it."""
    *_, third = run(4, 4, 4, max_sequences=2, max_batch_tokens=2)
    assert waits_of(third) == [WaitReason.SLOTS]


def test_it_waits_for_kv_blocks() -> None:
    first, second = run(20, 20, num_blocks=9, block_size=4, max_batch_tokens=64)
    assert (waits_of(first), waits_of(second)) == ([WaitReason.NOTHING], [WaitReason.KV_BLOCKS])


def test_it_waits_for_the_token_budget() -> None:
    first, second = run(16, 4, max_batch_tokens=8)
    assert (waits_of(first), waits_of(second)) == ([WaitReason.NOTHING], [WaitReason.TOKEN_BUDGET])


def test_it_is_preempted_for_lack_of_blocks() -> None:
    first, second = run(8, 8, num_blocks=7, block_size=4, max_tokens=14)
    assert MarkKind.PREEMPTED not in [mark.kind for mark in first]
    (at,) = [i for i, mark in enumerate(second) if mark.kind is MarkKind.PREEMPTED]
    assert second[at].why is WaitReason.KV_BLOCKS
    assert second[at + 1].kind is MarkKind.SCHEDULED
    assert second[at + 1].why is WaitReason.KV_BLOCKS


def test_it_is_preempted_for_a_more_urgent_one() -> None:
    core, _ = make_core(policy="priority", max_sequences=1)
    core.add(request("low", [1, 2, 3], max_tokens=20))
    outputs: dict[str, list[RequestOutput]] = {}
    for _ in range(3):
        for output in core.step().outputs:
            outputs.setdefault(output.request_id, []).append(output)
    core.add(request("high", [4, 5, 6], priority=-5))
    for name, more in drain(core).items():
        outputs.setdefault(name, []).extend(more)
    low, high = marks_of(outputs["low"]), marks_of(outputs["high"])
    (why,) = [mark.why for mark in low if mark.kind is MarkKind.PREEMPTED]
    assert why is WaitReason.MORE_URGENT
    assert waits_of(low)[1] is WaitReason.SLOTS
    assert MarkKind.PREEMPTED not in [mark.kind for mark in high]
    assert low[-1].at_ns >= high[-1].at_ns


def test_chunks_beyond_the_limit_are_added_up_and_the_answer_is_kept() -> None:
    report = Report()
    report.mark(MarkKind.QUEUED, 1)
    report.mark(MarkKind.SCHEDULED, 2)
    for number in range(2 * MOST_MARKS):
        report.mark(MarkKind.CHUNK, 3 + number, 5)
    report.mark(MarkKind.FIRST_TOKEN, 9_000)
    for number in range(10):
        report.mark(MarkKind.PREEMPTED, 9_001 + number, why=WaitReason.KV_BLOCKS)
        report.mark(MarkKind.SCHEDULED, 9_001 + number)
    report.mark(MarkKind.FINISHED, 10_000)
    marks = report.take_marks()
    assert len(marks) == MOST_MARKS + 2
    assert sum(mark.value for mark in marks if mark.kind is MarkKind.CHUNK) == 2 * MOST_MARKS * 5
    assert kinds_of(marks)[-3:] == ["CHUNK", "FIRST_TOKEN", "FINISHED"]
    assert report.take_marks() == []


def test_the_limit_parts_no_preemption_from_what_follows_it() -> None:
    report = Report()
    for number in range(MOST_MARKS):
        report.mark(MarkKind.SCHEDULED if number % 2 else MarkKind.PREEMPTED, number)
    report.mark(MarkKind.PREEMPTED, 1000)
    report.mark(MarkKind.SCHEDULED, 1001)
    report.mark(MarkKind.FINISHED, 1002)
    assert kinds_of(report.take_marks())[-3:] == ["PREEMPTED", "SCHEDULED", "FINISHED"]


def test_a_long_prompt_in_many_steps_has_its_first_token_marked() -> None:
    (marks,) = run(4 * MOST_MARKS, num_blocks=1200, block_size=1, max_batch_tokens=2)
    assert sum(mark.value for mark in marks if mark.kind is MarkKind.CHUNK) == 4 * MOST_MARKS
    assert kinds_of(marks)[-2:] == ["FIRST_TOKEN", "FINISHED"]
