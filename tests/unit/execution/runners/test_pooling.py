"""Prompts in several steps give the same vectors as in one."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from plimsoll_runtime.engine.protocol.plan import ScheduledSequence
from plimsoll_runtime.execution.runners.pooling import Pooler
from plimsoll_runtime.models.spec.pooling import PoolingKind

SLOTS, HIDDEN = 4, 6
CPU = torch.device("cpu")


def chunk(slot: int, start: int, count: int, *, last: bool) -> ScheduledSequence:
    return ScheduledSequence(slot, start, [0] * count, (), last)


@pytest.mark.parametrize("kind", ["last", "first", "mean"])
@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_chunks_are_pooled_as_wholes(kind: PoolingKind, data: st.DataObject) -> None:
    """Two prompts in each slot, one after the other, so that state left by the first is detected."""
    pooler = Pooler(kind, HIDDEN, SLOTS, CPU)
    for turn in range(2):
        lengths = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=SLOTS))
        slots = data.draw(st.permutations(range(SLOTS)))[: len(lengths)]
        states = [torch.randn(n, HIDDEN, generator=torch.Generator().manual_seed(turn * 10 + n)) for n in lengths]
        done = [0] * len(lengths)
        found: dict[int, torch.Tensor] = {}
        while any(at < n for at, n in zip(done, lengths, strict=True)):
            step, rows, ending = [], [], []
            for index, (slot, n) in enumerate(zip(slots, lengths, strict=True)):
                left = n - done[index]
                count = left - data.draw(st.integers(0, left))
                if count:
                    step.append(chunk(slot, done[index], count, last=done[index] + count == n))
                    rows.append(states[index][done[index] : done[index] + count])
                    ending += [index] * (done[index] + count == n)
                    done[index] += count
            if step:
                pooled = pooler.pool(step, torch.cat(rows))
                found |= dict(zip(ending, pooled, strict=True))
        for index, each in enumerate(states):
            wanted = {"last": each[-1], "first": each[0], "mean": each.mean(0)}[kind]
            assert torch.allclose(found[index], wanted, atol=1e-6)


def test_half_precision_is_summed_in_float32() -> None:
    pooler = Pooler("mean", 1, 1, CPU)
    hidden = torch.full((4096, 1), 1.0 + 2**-7, dtype=torch.bfloat16)
    for start, end in itertools.pairwise([0, 1000, 3000, 4096]):
        pooled = pooler.pool([chunk(0, start, end - start, last=end == 4096)], hidden[start:end])
    assert pooled.item() == pytest.approx(1.0 + 2**-7, rel=1e-6)
