"""Recurrent layers of any shape on the CPU kernels: torch's results, and the same bits for any steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_support.instructions import FLOAT32, Build
from model_support.random_weights import reader_of
from model_support.tiny import prompts
from torch import Tensor

from plimsoll_kernels.cpu.library import VARIABLE, kernels
from plimsoll_kernels.cpu.step import PagedCache, PagedStep
from plimsoll_runtime.execution.attention.base import AttentionBatch, BlockTables
from plimsoll_runtime.execution.attention.registry import BACKENDS
from plimsoll_runtime.execution.kv.cache import KvCache
from plimsoll_runtime.execution.kv.states import StateCache
from plimsoll_runtime.models.compose.decoder import program_of
from plimsoll_runtime.models.cpu_executor.decoder import CpuExecutor
from plimsoll_runtime.models.cpu_executor.lowering import why_not_fused
from plimsoll_runtime.models.decoder import Decoder, TorchDecoder
from plimsoll_runtime.models.program import Program
from plimsoll_runtime.models.spec.decoder import DecoderSpec, LayerSpec
from plimsoll_runtime.models.spec.feed_forward import GatedMlp
from plimsoll_runtime.models.spec.norm import Norm
from plimsoll_runtime.models.spec.recurrent import (
    DeltaShape,
    DualShape,
    GatedDelta,
    Griffin,
    Mamba,
    Mamba2,
    Recurrent,
    ShortConvolution,
)

CPU, BLOCK, HIDDEN = torch.device("cpu"), 16, 40
RMS = Norm(1e-5)
small, taps = st.integers(1, 40), st.integers(1, 6)


@st.composite
def duals(draw: st.DrawFn) -> Mamba2:
    groups, each = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    shape = DualShape(groups * each, draw(st.integers(1, 20)), groups, draw(small))
    limits = draw(st.sampled_from([(0.0, float("inf")), (0.2, 0.9)]))
    return Mamba2(shape, draw(taps), draw(st.none() | st.just(1e-5)), gate_after=draw(st.booleans()), limits=limits)


@st.composite
def deltas(draw: st.DrawFn) -> GatedDelta:
    heads, each = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    shape = DeltaShape(heads, heads * each, draw(small), draw(st.integers(1, 80)), in_turns=draw(st.booleans()))
    return GatedDelta(shape, draw(taps), 1e-6)


griffins = st.builds(
    lambda heads, block, k: Griffin(heads * block, heads, k, "gelu_tanh"), st.integers(1, 3), small, taps
)
mixers: st.SearchStrategy[Recurrent] = (
    duals()
    | deltas()
    | griffins
    | st.builds(Mamba, small, small, st.integers(1, 5), taps)
    | st.builds(ShortConvolution, st.integers(1, 150), taps, st.booleans())
)


class Stepped:
    """A decoder's sequences, which keep their states between steps."""

    def __init__(self, decoder: Decoder, backend: str, texts: Sequence[list[int]]) -> None:
        self._decoder = decoder
        self._texts = texts
        self._backend = BACKENDS[backend](KvCache((), 2, BLOCK, torch.float32, CPU)) if backend == "cpu" else None
        self._states = StateCache(decoder.outline.facts.states, len(texts), torch.float32, CPU)
        for tensor in self._states.tensors:
            tensor.fill_(torch.nan)
        self.at = [0] * len(texts)
        self.hidden: list[list[Tensor]] = [[] for _ in texts]

    def step(self, lengths: Mapping[int, int]) -> None:
        """Compute these numbers of further tokens."""
        counts = [*lengths.values()]
        tokens = torch.tensor([t for s, n in lengths.items() for t in self._texts[s][self.at[s] : self.at[s] + n]])
        positions = torch.cat([torch.arange(self.at[s], self.at[s] + n) for s, n in lengths.items()])
        ends = [self.at[s] + n for s, n in lengths.items()]
        blocks = BlockTables.of([[0] * -(-end // BLOCK) for end in ends])
        batch = AttentionBatch(counts, ends, blocks, torch.zeros_like(tokens))
        with torch.inference_mode():
            states = self._states.begin([*lengths], counts, positions)
            attention = self._backend.begin(batch) if self._backend is not None else _nobody
            found = self._decoder(tokens, positions, attention, states)  # type: ignore[arg-type]
            states.commit()
        for s, part in zip(lengths, torch.split(found, counts), strict=True):
            self.hidden[s].append(part)
            self.at[s] += lengths[s]

    def whole(self) -> list[Tensor]:
        """Return the hidden states of each sequence [T, hidden], computed alone."""
        for s, text in enumerate(self._texts):
            self.step({s: len(text)})
        return [torch.cat(parts) for parts in self.hidden]


def _nobody(*args: object) -> Tensor:
    raise AssertionError("nothing attends")


def program_with(mixer: Recurrent) -> Program:
    return program_of(DecoderSpec("Walked", 20, HIDDEN, (LayerSpec(mixer, GatedMlp(24), RMS),) * 2, 256, RMS))


@pytest.mark.long
@pytest.mark.parametrize("instructions", FLOAT32, ids=str)
@settings(deadline=None, max_examples=25)
@given(data=st.data(), mixer=mixers, lengths=st.lists(st.integers(1, 70), min_size=1, max_size=4))
def test_any_schedule_gives_the_same_bits(
    instructions: Build, data: st.DataObject, mixer: Recurrent, lengths: list[int]
) -> None:
    instructions.kernels()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, instructions.instructions)
        program, texts = program_with(mixer), prompts(tuple(lengths))
        decoder = CpuExecutor(program, reader_of(program, torch.float32))
        whole = Stepped(decoder, "cpu", texts).whole()
        stepped = Stepped(decoder, "cpu", texts)
        while going := [s for s, n in enumerate(lengths) if stepped.at[s] < n]:
            chosen = data.draw(st.lists(st.sampled_from(going), min_size=1, unique=True))
            left = {s: lengths[s] - stepped.at[s] for s in chosen}
            stepped.step({s: min(n, data.draw(st.sampled_from((1, 2, 15, 16, 17, 70)))) for s, n in left.items()})
        for parts, one in zip(stepped.hidden, whole, strict=True):
            assert torch.equal(torch.cat(parts), one)
        torchs = Stepped(TorchDecoder(program, reader_of(program, torch.float32)), "torch", texts).whole()
        for ours, theirs in zip(whole, torchs, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=2e-3, atol=2e-3)


def test_sequences_have_rows_of_their_own() -> None:
    if kernels(torch.float32) is None:
        pytest.skip("the kernels were not built")
    tables = AttentionBatch([1, 1], [1, 1], BlockTables.of([[0], [0]]), torch.zeros(2, dtype=torch.int64))
    step = PagedStep(PagedCache((), (), block_size=BLOCK), [1, 1], tables.groups)
    for rows in ([3, 3], [1]):
        with pytest.raises(ValueError, match="2 sequences need one row of states each"):
            step.hold([], rows)
    step.hold([], [2, 0])


def test_a_decoder_that_is_called_without_states_says_so() -> None:
    if kernels(torch.float32) is None:
        pytest.skip("the kernels were not built")
    program = program_with(ShortConvolution(24, 3))
    decoder = CpuExecutor(program, reader_of(program, torch.float32))
    batch = AttentionBatch([1], [1], BlockTables.of([[0]]), torch.zeros(1, dtype=torch.int64))
    paged = BACKENDS["cpu"](KvCache((), 2, BLOCK, torch.float32, CPU)).begin(batch)
    with pytest.raises(ValueError, match="without the states of its sequences"):
        decoder(torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64), paged)


@pytest.mark.parametrize(
    ("mixer", "reason"),
    [
        (ShortConvolution(24, 17), "supports convolutions over at most 16 tokens"),
        (GatedDelta(DeltaShape(1, 1, 257, 4), 4, 1e-6), "supports delta rules with at most 256 key dimensions"),
        (Mamba(24, 257, 3, 4), "supports at most 256 state numbers for each column of Mamba's scan"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_too_large_is_said(mixer: Recurrent, reason: str) -> None:
    assert why_not_fused(program_with(mixer)) == reason
