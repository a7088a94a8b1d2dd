"""The masks of a step's rows are the same for every way to compute them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from plimsoll_runtime.engine.protocol.constraint import Constraint
from plimsoll_runtime.engine.protocol.messages import RequestContext, Vocabulary
from plimsoll_runtime.engine.protocol.plan import SlotInit
from plimsoll_runtime.engine.protocol.sampling_params import SamplingParams
from plimsoll_runtime.execution.sampling.constraints import ROWS_A_THREAD, ConstrainedRows
from plimsoll_runtime.structured.matcher import Grammars
from plimsoll_runtime.text.tokenizer import Tokenizer

CPU = torch.device("cpu")
CONSTRAINTS = (
    Constraint.regex("[a-f]{2,9}"),
    Constraint.choice(["abc", "abd", "b"]),
    None,
    Constraint.json({"type": "array", "items": {"type": "integer"}}),
)


def rows_of(grammars: Grammars, vocabulary: Vocabulary, count: int, threads: int) -> ConstrainedRows:
    rows = ConstrainedRows(len(vocabulary.lengths) // 4, grammars, threads=threads)
    for slot in range(count):
        params = SamplingParams(constraint=CONSTRAINTS[slot % len(CONSTRAINTS)])
        rows.fill(SlotInit(slot, RequestContext(params, seed=slot), prompt_ids=(5,)))
    return rows


def step(rows: ConstrainedRows, slots: Sequence[int]) -> tuple[list[int], list[list[int]]]:
    rows.begin(slots)
    masks = rows.finish(CPU)
    assert masks is not None
    return masks.masked.tolist(), masks.bits.tolist()


def test_one_thread_and_the_pool_find_the_same(
    grammars: Grammars, vocabulary: Vocabulary, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 4 * ROWS_A_THREAD
    alone, shared = (rows_of(grammars, vocabulary, count, threads) for threads in (1, 4))
    monkeypatch.setattr(alone, "_shared", lambda: pytest.fail("the pool was asked"))
    slots = [*range(count)][::-1]
    first = step(alone, slots)
    assert first == step(shared, slots)
    assert shared._executor is not None
    assert [row for row, place in enumerate(first[0]) if place < 0] == [r for r, s in enumerate(slots) if s % 4 == 2]
    tokens = [tokenizer.encode("[" if slot % 4 == 3 else "ab"[slot % 2])[0] for slot in slots]
    for rows in (alone, shared):
        assert rows.record(slots, tokens) == ({}, {})
    second = step(alone, slots)
    assert second == step(shared, slots) != first


def test_a_token_that_was_chosen_counts_when_the_next_masks_are_computed(
    grammars: Grammars, vocabulary: Vocabulary, tokenizer: Tokenizer
) -> None:
    rows = rows_of(grammars, vocabulary, 2, 1)
    step(rows, [0, 1])
    wrong = tokenizer.encode("z")[0]
    assert rows.record([0, 1], [tokenizer.encode("a")[0], wrong]).failed == {}
    masked, _ = step(rows, [0, 1])
    assert masked == [0, -1]
    assert list(rows.record([0, 1], [tokenizer.encode("b")[0], wrong]).failed) == [1]
    rows.free(1)
    assert step(rows, [0])[0] == [0]
