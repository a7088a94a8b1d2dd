"""Recurrent states: under any schedule, each sequence continues from its own states, or from zeros at its start."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_support.late import Copies
from kernel_support.recorder import Recorder
from kernel_support.rows import state_of
from torch import Tensor

from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.engine.core import EngineCore
from plimsoll_runtime.engine.kv.cache_groups import NOTHING_READ, ONE_FULL, Rule
from plimsoll_runtime.engine.protocol.messages import AddRequest, EngineInfo, RequestContext
from plimsoll_runtime.engine.protocol.sampling_params import SamplingParams
from plimsoll_runtime.execution.attention.backends.reference import ReferenceBackend
from plimsoll_runtime.execution.attention.base import AttentionBackend, AttentionBatch, BlockTables, NoAttention
from plimsoll_runtime.execution.forward import ForwardPass, GraphForwardPass
from plimsoll_runtime.execution.graphs.capture import CaptureBounds
from plimsoll_runtime.execution.graphs.decode import DecodeGraphs
from plimsoll_runtime.execution.graphs.sampling import SamplingGraphs
from plimsoll_runtime.execution.inputs.batch_state import StepInputs
from plimsoll_runtime.execution.kv.cache import KvCache
from plimsoll_runtime.execution.kv.states import StateCache
from plimsoll_runtime.execution.parts import StepParts
from plimsoll_runtime.execution.runners.base import StepRunner
from plimsoll_runtime.execution.runners.cpu import CpuRunner
from plimsoll_runtime.execution.runners.gpu import GpuRunner
from plimsoll_runtime.execution.sampling.sampler import Sampler
from plimsoll_runtime.models.layers.attention import Attention
from plimsoll_runtime.models.layers.states import Spans, States, scanned
from plimsoll_runtime.models.program import Facts
from plimsoll_runtime.models.spec.attention import AttentionShape
from plimsoll_runtime.models.spec.recurrent import StateShape

CPU = torch.device("cpu")
VOCAB, PRIME, BLOCK, SLOTS, POISON = 11, 101, 4, 4, 10
FACTS = Facts("Remembering", VOCAB, 2, 64, (), (StateShape((1,), wide=True), StateShape((2, 1))))


def remembered(hashed: Tensor, token: Tensor) -> Tensor:
    return (hashed * 7 + token + 1) % PRIME


def scan(values: Sequence[Tensor], before: Tensor) -> tuple[Tensor, Tensor]:
    """Scan tokens + 1 [B, Q, 1], zero in padding; a sequence's state depends on all of its tokens."""
    results, state = [], before
    for token in values[0].unbind(1):
        known = remembered(state, token - 1)
        known = torch.where(token == POISON + 1, torch.nan, known)
        state = torch.where(token == 0, state, known)
        results.append(state)
    return torch.stack(results, 1), state


class Remembering:
    """A decoder that outputs a hash of all tokens, and of the two before a row's own, which it keeps like a
    convolution.

    After the token POISON, a sequence's states are NaN.
    """

    outline: Any = SimpleNamespace(facts=FACTS)
    dtype = torch.float32
    weight_bytes = 0

    def __call__(self, token_ids: Tensor, positions: Tensor, attention: Attention, states: States) -> Tensor:
        tokens = token_ids[:, None].float() + 1
        hashed = scanned(states, 0, 3, scan, [tokens])
        window = states.spans.window(2)
        row = tokens.new_full((len(tokens) + 2 * len(states.spans.lengths), 1), torch.nan)
        row[window.before] = states.read(1).flatten(0, 1)
        row[window.rows] = tokens
        states.write(1, row[window.last].view(-1, 2, 1))
        before = row[window.rows - 2] * 3 + row[window.rows - 1]
        return torch.cat([hashed, before], 1)

    def logits(self, hidden: Tensor) -> Tensor:
        chosen = (hidden.sum(1) % (VOCAB - 1)).nan_to_num(0).long()
        logits = torch.nn.functional.one_hot(chosen, VOCAB).float()
        return torch.where(hidden.isnan().any(1, keepdim=True), torch.nan, logits)


def answer(prompt: Sequence[int], count: int) -> list[int] | None:
    """Return the output of a prompt alone; None if it breaks."""
    if POISON in prompt:
        return None
    tokens = list(prompt)
    for _ in range(count):
        hashed = 0
        for token in tokens:
            hashed = (hashed * 7 + token + 1) % PRIME
        last = [0, 0, *[t + 1 for t in tokens]]
        tokens.append((hashed + last[-3] * 3 + last[-2]) % (VOCAB - 1))
    return tokens[len(prompt) :]


def graph_runner(parts: StepParts, sampler: Sampler) -> GpuRunner:
    state = state_of(parts.cache, SLOTS, 256)
    token_graphs = SamplingGraphs(parts.decoder, sampler, state, Recorder())

    def graphs_of(backend: AttentionBackend) -> DecodeGraphs:
        assert isinstance(backend, NoAttention)
        limits = {"max_sequences": SLOTS, "max_model_len": 256}
        return DecodeGraphs(parts, backend, state, Recorder(), **limits)

    forward = GraphForwardPass(parts, [NoAttention], graphs_of)
    forward.capture_graphs(Recorder(), CaptureBounds(60.0, 2**30), beside=token_graphs)
    return GpuRunner(forward, sampler, state, Copies(), token_graphs)


def make_core(
    num_blocks: int,
    tokens: int,
    *,
    overlap: bool,
    graphs: bool,
    snapshots: int = 0,
    groups: Sequence[Rule] = ONE_FULL,
    longest: int = 40,
) -> EngineCore:
    cache = KvCache([], num_blocks, BLOCK, torch.float32, CPU)
    states = StateCache(FACTS.states, SLOTS, torch.float32, CPU, snapshots=snapshots)
    for tensor in states.tensors:
        tensor.fill_(torch.nan)
    decoder: Any = Remembering()
    parts, sampler = StepParts(decoder, cache, states), Sampler(VOCAB, ())
    if graphs:
        runner: StepRunner = graph_runner(parts, sampler)
    else:
        runner = CpuRunner(ForwardPass(parts, [NoAttention]), sampler, SLOTS)
    config = EngineConfig(
        model="m", max_batch_tokens=tokens, max_sequences=SLOTS, overlap=overlap, check_integrity_every=1
    )
    info = EngineInfo(
        "m",
        "Remembering",
        "float32",
        "cpu",
        "none",
        VOCAB,
        longest,
        BLOCK,
        num_blocks,
        0,
        0,
        [],
        recurrent=True,
        snapshots=snapshots,
        groups=tuple(groups),
    )
    return EngineCore(config, info, runner)


PROMPTS = st.lists(st.integers(0, VOCAB - 2), min_size=1, max_size=20)
ADDS = st.tuples(st.just("add"), st.one_of(PROMPTS, PROMPTS.map(lambda p: [*p, POISON])), st.integers(1, 12))
STEPS = st.tuples(st.just("step"), st.integers(1, 4))
ABORTS = st.tuples(st.just("abort"), st.integers(0, 12))


@pytest.mark.parametrize("graphs", [False, True])
@settings(deadline=None, max_examples=50)
@given(
    actions=st.lists(st.one_of(ADDS, STEPS, ABORTS), max_size=30),
    num_blocks=st.integers(11, 24),
    tokens=st.integers(1, 24),
    overlap=st.booleans(),
)
def test_each_sequence_says_what_it_says_alone(
    graphs: bool, actions: list[Any], num_blocks: int, tokens: int, overlap: bool
) -> None:
    core = make_core(num_blocks, tokens, overlap=overlap, graphs=graphs)
    wanted: dict[str, tuple[list[int], int]] = {}
    heard: dict[str, list[int]] = {}
    broken: set[str] = set()
    aborted: set[str] = set()

    def step() -> None:
        for output in core.step().outputs:
            heard.setdefault(output.request_id, []).extend(output.token_ids)
            if output.finish_reason == "error":
                broken.add(output.request_id)

    for action in actions:
        if action[0] == "add":
            name = str(len(wanted))
            wanted[name] = (action[1], action[2])
            params = SamplingParams(temperature=0.0, max_tokens=action[2], ignore_eos=True)
            core.add(AddRequest(name, action[1], RequestContext(params, params.output_seed())))
        elif action[0] == "abort":
            aborted.add(str(action[1]))
            core.abort([str(action[1])])
        else:
            for _ in range(action[1]):
                step()
    while core.has_work:
        step()
    for name, (prompt, count) in wanted.items():
        expected = answer(prompt, count)
        if expected is None:
            assert name in broken | aborted
        elif name in aborted:
            assert expected[: len(heard.get(name, []))] == heard.get(name, [])
        else:
            assert heard[name] == expected


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("overlap", [False, True])
def test_somebody_is_preempted(overlap: bool, graphs: bool) -> None:
    """With few blocks the schedules above do preempt sequences, which start again."""
    core = make_core(11, 24, overlap=overlap, graphs=graphs)
    for name in "abc":
        params = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)
        core.add(AddRequest(name, [1, 2, 3, 4, 5, 6, ord(name) - 97], RequestContext(params, params.output_seed())))
    heard: dict[str, list[int]] = {}
    while core.has_work:
        for output in core.step().outputs:
            heard.setdefault(output.request_id, []).extend(output.token_ids)
    assert core.stats.preemptions > 0
    for name in "abc":
        assert heard[name] == answer([1, 2, 3, 4, 5, 6, ord(name) - 97], 20)


SHARED = [(3 * i + i // 7) % (VOCAB - 1) for i in range(200)]
FOLLOWING = st.tuples(st.integers(60, 180), st.lists(st.integers(0, VOCAB - 2), min_size=1, max_size=80))


@pytest.mark.matrix(2)
@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("groups", [ONE_FULL, NOTHING_READ])
@settings(deadline=None, max_examples=8)
@given(
    asked=st.lists(FOLLOWING, min_size=3, max_size=8),
    tokens=st.integers(20, 300),
    overlap=st.booleans(),
    snapshots=st.integers(1, 8),
    steps=st.integers(0, 3),
)
def test_whoever_goes_on_from_a_snapshot_says_what_it_says_alone(
    graphs: bool,
    groups: Sequence[Rule],
    asked: Sequence[tuple[int, list[int]]],
    tokens: int,
    overlap: bool,
    snapshots: int,
    steps: int,
) -> None:
    """Prompts that share a prefix, then each of them again, with few blocks and rows."""
    core = make_core(90, tokens, overlap=overlap, graphs=graphs, snapshots=snapshots, groups=groups, longest=320)
    prompts = [[*SHARED[:length], *tail] for length, tail in asked] * 2
    heard: dict[str, list[int]] = {}

    def step() -> None:
        for output in core.step().outputs:
            heard.setdefault(output.request_id, []).extend(output.token_ids)

    for name, prompt in enumerate(prompts):
        params = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
        core.add(AddRequest(str(name), prompt, RequestContext(params, seed=0)))
        for _ in range(steps):
            step()
    while core.has_work:
        step()
    assert [heard[str(name)] for name in range(len(prompts))] == [answer(prompt, 24) for prompt in prompts]
    assert core.stats.snapshots is not None
    assert core.stats.snapshots.resumed or snapshots < 3


class FailsOnce(ReferenceBackend):
    """Fails in the last layer, once."""

    name = "failing"
    failed = False

    def begin(self, batch: AttentionBatch) -> Attention:
        def attention(
            layer: int, query: Tensor, key: Tensor | None, value: Tensor | None, sinks: Tensor | None = None
        ) -> Tensor:
            raise RuntimeError("no kernel image is available")

        return attention


class Attending(Remembering):
    """Remembering with attention after its states, whose result is ignored."""

    def __call__(self, token_ids: Tensor, positions: Tensor, attention: Attention, states: States) -> Tensor:
        hidden = super().__call__(token_ids, positions, attention, states)
        heads = torch.zeros(len(token_ids), 1, 4)
        attention(0, heads, heads, heads)
        return hidden


def test_a_pass_that_broke_off_has_moved_no_state() -> None:
    cache = KvCache([AttentionShape(1, 1, 4, 1.0)], 9, BLOCK, torch.float32, CPU)
    states = StateCache(FACTS.states, SLOTS, torch.float32, CPU)
    decoder: Any = Attending()
    whole = ForwardPass(StepParts(decoder, cache, states), [ReferenceBackend])
    tokens, positions = torch.tensor([4, 7, 1]), torch.arange(3)

    def step(forward: ForwardPass, first: int, end: int) -> Tensor:
        batch = AttentionBatch([end - first], [end], BlockTables.of([[1]]), torch.arange(4 + first, 4 + end))
        return forward.run(StepInputs(tokens[first:end], positions[first:end], batch, [1]))

    step(whole, 0, 2)
    kept = [tensor.clone() for tensor in states.tensors]
    expected = step(whole, 2, 3)
    for tensor, before in zip(states.tensors, kept, strict=True):
        tensor.copy_(before)
    again = ForwardPass(StepParts(decoder, cache, states), [FailsOnce, ReferenceBackend])
    assert torch.equal(step(again, 2, 3), expected)
    assert again.fallbacks == 1


LENGTHS = st.lists(st.integers(1, 9), min_size=1, max_size=7)


@given(lengths=LENGTHS, size=st.integers(1, 5))
def test_waves_hold_each_row_once_and_in_order(lengths: list[int], size: int) -> None:
    spans = Spans(lengths, CPU)
    rows = torch.arange(1, sum(lengths) + 1)
    seen: dict[int, list[int]] = {i: [] for i in range(len(lengths))}
    copied = torch.zeros_like(rows)
    for wave in spans.waves(size):
        taken = wave.take(rows)
        assert taken.shape == (len(wave.sequences), wave.length)
        assert wave.length <= size
        for sequence, row in zip(wave.sequences.tolist(), taken.tolist(), strict=True):
            seen[sequence] += [value for value in row if value]
        wave.put(copied, taken)
    assert torch.equal(copied, rows)
    split = torch.split(rows, lengths)
    assert [seen[i] for i in range(len(lengths))] == [part.tolist() for part in split]


@given(lengths=LENGTHS, width=st.integers(1, 4))
def test_windows_put_what_is_kept_before_each_sequence(lengths: list[int], width: int) -> None:
    window = Spans(lengths, CPU).window(width)
    rows = [-1] * (sum(lengths) + width * len(lengths))
    expected, last, number = [], [], 0
    for i, length in enumerate(lengths):
        own = [*range(-100 * i - width, -100 * i), *range(number, number + length)]
        expected += own
        last += own[-width:]
        number += length
    before = [-100 * i - width + k for i in range(len(lengths)) for k in range(width)]
    for places, values in ((window.before, before), (window.rows, range(number))):
        for place, value in zip(places.tolist(), values, strict=True):
            rows[place] = value
    assert rows == expected
    assert [rows[i] for i in window.last.tolist()] == last


def test_padding_takes_nothing_from_a_broken_sequence() -> None:
    wave = Spans([1, 3, 2], CPU).waves(4)[-1]
    values = torch.tensor([torch.nan, 1, 2, 3, 4, 5])
    assert wave.take(values).tolist() == [[1, 2, 3], [4, 5, 0]]


def test_whoever_attends_to_nothing_says_so() -> None:
    with pytest.raises(ValueError, match="1 attention layers"):
        NoAttention(KvCache([AttentionShape(1, 1, 4, 1.0)], 9, BLOCK, torch.float32, CPU))
