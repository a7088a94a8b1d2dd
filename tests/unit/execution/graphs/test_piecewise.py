"""Steps in pieces equal steps without, bit by bit, for any padding; the cache only has the step's rows."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from kernel_support.late import Copies
from kernel_support.recorder import Recorder
from kernel_support.rows import rows_of, state_of
from model_support.configs import LATENT
from model_support.tiny import make_model, save_model
from torch import Tensor

from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.engine.core import EngineCore
from plimsoll_runtime.engine.protocol.messages import AddRequest, EngineInfo, RequestContext
from plimsoll_runtime.engine.protocol.sampling_params import SamplingParams
from plimsoll_runtime.execution.attention.backends.reference import ReferenceBackend
from plimsoll_runtime.execution.attention.base import AttentionBackend, AttentionBatch, BlockTables
from plimsoll_runtime.execution.forward import ForwardPass, GraphForwardPass
from plimsoll_runtime.execution.graphs.capture import NO_GRAPHS, CaptureBounds, StepGraphs
from plimsoll_runtime.execution.graphs.piecewise import PiecewiseDecoder, segments
from plimsoll_runtime.execution.graphs.sampling import SamplingGraphs
from plimsoll_runtime.execution.inputs.batch_state import StepInputs
from plimsoll_runtime.execution.inputs.device_state import DeviceState
from plimsoll_runtime.execution.inputs.step_rows import StepRows
from plimsoll_runtime.execution.kv.cache import KvCache
from plimsoll_runtime.execution.parts import StepParts
from plimsoll_runtime.execution.runners.gpu import GpuRunner
from plimsoll_runtime.execution.sampling.sampler import Sampler
from plimsoll_runtime.models.compose.decoder import program_of
from plimsoll_runtime.models.decoder import Stage, TorchDecoder
from plimsoll_runtime.models.layers.attention import Attention
from plimsoll_runtime.models.load import load_decoder
from plimsoll_runtime.models.ops.cost import OpKind
from plimsoll_runtime.models.ops.op import Step
from plimsoll_runtime.models.registry.registry import describe
from plimsoll_runtime.weights.sources.resolve import resolve

CPU = torch.device("cpu")
BLOCK, BLOCKS, MOST = 4, 64, 40
WIDE = CaptureBounds(600.0, 2**40)
MODELS: Mapping[str, Mapping[str, Any]] = {
    "LlamaConfig": {"num_hidden_layers": 3},
    "Qwen3Config": {"num_hidden_layers": 2, "head_dim": 24},
    "Gemma3TextConfig": {"num_hidden_layers": 2, "head_dim": 16},
    "GPT2Config": {"num_hidden_layers": 2},
    "Gemma3nTextConfig": {
        "head_dim": 16,
        "sliding_window": 9,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "num_hidden_layers": 4,
        "num_kv_shared_layers": 2,
        "intermediate_size": [80] * 4,
        "activation_sparsity_pattern": [0.5, 0.0] * 2,
        "vocab_size_per_layer_input": 20,
        "hidden_size_per_layer_input": 8,
        "laurel_rank": 8,
    },
    "YoutuConfig": {**LATENT, "num_hidden_layers": 2},
    "Qwen3MoeConfig": {"num_hidden_layers": 2, "num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24},
}
STEPS = ([5, 7], [1, 9, 1], [16], [1, 1], [3, 30, 1], [1, 1, 23], [2])
"""Rows of each sequence in some steps; each sequence continues from its last step."""


def loaded(config: str, options: Mapping[str, Any], folder: Path) -> TorchDecoder:
    save_model(make_model(config, dict(options)), folder)
    files = resolve(str(folder))
    decoder = load_decoder(files, program_of(describe(files.config)), torch.float32, device=CPU)
    assert isinstance(decoder, TorchDecoder)
    return decoder


@pytest.fixture(scope="module", params=MODELS)
def decoder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TorchDecoder:
    return loaded(request.param, MODELS[request.param], tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> TorchDecoder:
    return loaded("LlamaConfig", MODELS["LlamaConfig"], tmp_path_factory.mktemp("llama"))


def new_cache(decoder: TorchDecoder) -> KvCache:
    """Return a cache whose unwritten cells must not be read."""
    cache = KvCache(decoder.outline.facts.attention, BLOCKS, BLOCK, torch.float32, CPU)
    for tensor in (*cache.keys, *cache.values):
        tensor.fill_(float("nan"))
    return cache


def steps(lengths: Sequence[Sequence[int]] = STEPS) -> list[tuple[Tensor, Tensor, AttentionBatch]]:
    """Return tokens, positions and batches with these rows of each sequence, in consecutive blocks."""
    known = [0] * 3
    made = []
    for counts in lengths:
        tables, positions, contexts = [], [], []
        for sequence, count in enumerate(counts):
            positions.append(torch.arange(known[sequence], known[sequence] + count))
            known[sequence] += count
            contexts.append(known[sequence])
            tables.append([1 + 3 * i + sequence for i in range(-(-known[sequence] // BLOCK))])
        places = zip(positions, tables, strict=True)
        cells = torch.tensor([t[p // BLOCK] * BLOCK + p % BLOCK for at, t in places for p in at.tolist()])
        flat = torch.cat(positions)
        made.append((flat * 7 % 19 + 1, flat, AttentionBatch(list(counts), contexts, BlockTables.of(tables), cells)))
    return made


class Padded:
    """Attention of the first rows only; padding gets zeros. Like the reference, it does not rotate."""

    def __init__(self, inner: Attention, rows: int) -> None:
        self._inner = inner
        self._rows = rows

    def __call__(
        self, layer: int, query: Tensor, key: Tensor | None, value: Tensor | None, sinks: Tensor | None = None
    ) -> Tensor:
        own = [None if each is None else each[: self._rows] for each in (query, key, value)]
        assert own[0] is not None
        found = self._inner(layer, own[0], own[1], own[2], sinks)
        return torch.cat([found, found.new_zeros(len(query) - self._rows, *found.shape[1:])])


def padded(decoder: TorchDecoder, token_ids: Tensor, positions: Tensor, attention: Attention) -> Tensor:
    """Compute a step with as many rows in each op as the pieces have, because vectors of another length may round
    differently.
    """
    rows = len(token_ids)
    more = next(n for n in (16, 24, 32, MOST) if n >= rows) - rows
    tokens, places = (torch.cat([each, torch.zeros(more, dtype=torch.int64)]) for each in (token_ids, positions))
    return decoder(tokens, places, Padded(attention, rows))[:rows]


def pieced(
    decoder: TorchDecoder, cache: KvCache, capture: Recorder, backend: Any = ReferenceBackend
) -> PiecewiseDecoder:
    return PiecewiseDecoder(decoder, backend(cache), cache, capture, max_rows=MOST)


def equal(one: KvCache, other: KvCache) -> bool:
    pairs = zip((*one.keys, *one.values), (*other.keys, *other.values), strict=True)
    return all(torch.equal(mine.nan_to_num(7.0), theirs.nan_to_num(7.0)) for mine, theirs in pairs)


@pytest.mark.matrix(4)
@torch.inference_mode()
def test_bit_by_bit_what_they_are_without(decoder: TorchDecoder) -> None:
    caches = new_cache(decoder), new_cache(decoder)
    plain, alone, capture = ReferenceBackend(caches[1]), ReferenceBackend(new_cache(decoder)), Recorder()
    pieces = pieced(decoder, caches[0], capture)
    for each in pieces.wanted():
        each.add()
    assert all(tensor.isnan().all() for tensor in (*caches[0].keys, *caches[0].values)), "capturing writes to no cell"
    captures, state = capture.captures, state_of(caches[0], 3, 60)
    for token_ids, positions, batch in steps():
        for buffer in pieces._buffers.values():
            buffer.fill_(float("nan"))
        hidden = pieces.run(rows_of(state, BLOCK, token_ids, positions, batch))
        assert hidden is not None
        assert torch.equal(hidden, padded(decoder, token_ids, positions, plain.begin(batch)))
        torch.testing.assert_close(hidden, decoder(token_ids, positions, alone.begin(batch)))
        assert equal(*caches), "and the cache has the same cells"
    assert capture.captures == captures, "in service nothing is captured"


def test_where_a_decoder_is_cut(llama: TorchDecoder) -> None:
    """Before and after each attention; the residual stream passes by it."""
    found = list(segments(llama.stages))
    assert [each.attends for each in found] == [False, True] * 3 + [False]
    assert [stage for each in found for stage in each.stages] == llama.stages
    for before, attend, after in zip(found[:-1:2], found[1::2], found[2::2], strict=True):
        assert len(attend.reads) == len(attend.writes) == 1
        assert set(attend.reads) < set(before.writes)
        assert set(attend.writes) < set(after.reads)
        assert len(after.reads) == 2, "the attention's result, and the residual sum"
    assert found[0].reads == []
    assert found[-1].writes == [llama.count - 1]


class Swapping:
    """A decoder of artificial stages: two values pass the attention, and the last piece swaps them twice."""

    program: Any = SimpleNamespace(facts=SimpleNamespace(states=()))
    count = 4
    collectives = None

    def __init__(self) -> None:
        def begin(step: Step) -> tuple[Tensor, ...]:
            tokens = step.token_ids.float()[:, None]
            return tokens, tokens * 10, tokens * 100

        def attend(step: Step, query: Tensor) -> Tensor:
            return step.attention(0, query[:, None], None, None).flatten(1)

        def end(step: Step, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
            return torch.cat([x, y, z], 1)

        kind = OpKind.QKV
        self.stages = [
            Stage(kind, begin, (), (0, 1, 2), (), attends=False),
            Stage(OpKind.ATTENTION, attend, (0,), (0,), (), attends=True),
            Stage(kind, lambda step, x, y: (y, x), (1, 2), (1, 2), (), attends=False),
            Stage(OpKind.ATTENTION, attend, (0,), (0,), (), attends=True),
            Stage(kind, end, (0, 1, 2), (3,), (0, 1, 2), attends=False),
        ]

    def turns(self, positions: Tensor) -> Mapping[Any, Any]:
        return {}


@torch.inference_mode()
def test_values_that_change_places() -> None:
    """A piece's result may be a buffer that it overwrites."""
    decoder: Any = Swapping()
    backend: Any = SimpleNamespace(
        name="adding", fused=False, begin=lambda batch: lambda layer, query, *rest: query + 1
    )
    cache: Any = SimpleNamespace(device=CPU, shapes=())
    state = DeviceState(3, 1, BLOCKS, 20, CPU)
    pieces = PiecewiseDecoder(decoder, backend, cache, Recorder(), max_rows=MOST)
    for each in pieces.wanted():
        each.add()
    for token_ids, positions, batch in steps():
        hidden = pieces.run(rows_of(state, BLOCK, token_ids, positions, batch))
        assert hidden is not None
        assert hidden.tolist() == [[n + 2, n * 100, n * 10] for n in token_ids.tolist()]


@torch.inference_mode()
def test_values_that_are_not_of_rows_are_refused() -> None:
    """One row for all would be taken for the first of many."""
    decoder: Any = Swapping()
    decoder.stages[2] = Stage(OpKind.QKV, lambda step, x, y: (x[:1], y), (1, 2), (1, 2), (), attends=False)
    cache: Any = SimpleNamespace(device=CPU, shapes=())
    backend: Any = object()
    largest = PiecewiseDecoder(decoder, backend, cache, Recorder(), max_rows=MOST).wanted()[-1]
    with pytest.raises(RuntimeError, match=r"the capture of 40 rows gave values of the shapes \[\(1, 1\)\]; each must"):
        largest.add()


@torch.inference_mode()
def test_a_step_with_more_rows_than_have_graphs(llama: TorchDecoder) -> None:
    cache = new_cache(llama)
    pieces, state = pieced(llama, cache, Recorder()), state_of(cache, 3, 60)
    wanted = pieces.wanted()
    assert [(each.kind, each.rows) for each in wanted] == [("rows of steps with chunks", n) for n in (16, 24, 32, MOST)]
    [sixteen] = [rows_of(state, BLOCK, *step) for step in steps() if len(step[0]) == 16]
    [more] = [rows_of(state, BLOCK, *step) for step in steps() if len(step[0]) == 25]
    assert pieces.run(sixteen) is None
    wanted[0].add()
    assert pieces.run(sixteen) is not None
    assert pieces.run(more) is None
    for each in wanted:
        each.add()
    assert pieces.run(more) is not None
    assert pieces.run(rows_of(state, BLOCK, *steps([[MOST + 1]])[0])) is None
    assert len(pieces._passes) == 4


@torch.inference_mode()
def test_a_capture_that_fails_leaves_steps_as_they_are(llama: TorchDecoder, caplog: pytest.LogCaptureFixture) -> None:
    cache = new_cache(llama)
    capture = Recorder(RuntimeError("an op waits for the device"))
    forward_pass = GraphForwardPass(
        StepParts(llama, cache), [ReferenceBackend], lambda backend: pieced(llama, cache, capture)
    )
    forward_pass.capture_graphs(capture, WIDE)
    [warning] = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert warning.startswith("no CUDA graph for 40 rows of steps with chunks (an op waits for the device)")
    assert capture.captures == 1
    plain, state = ForwardPass(StepParts(llama, new_cache(llama)), [ReferenceBackend]), state_of(cache, 3, 60)
    for step in steps():
        assert torch.equal(forward_pass.run_rows(rows_of(state, BLOCK, *step)), plain.run(StepInputs(*step)))


class FailsAtChunks(ReferenceBackend):
    """Fails in the second layer, after writing to the first."""

    name: ClassVar[str] = "breaking"

    def begin(self, batch: AttentionBatch) -> Attention:
        inner = super().begin(batch)

        def attention(
            layer: int, query: Tensor, key: Tensor | None, value: Tensor | None, sinks: Tensor | None = None
        ) -> Tensor:
            if layer == 1:
                raise RuntimeError("out of shared memory")
            return inner(layer, query, key, value)

        return attention


@torch.inference_mode()
def test_a_backend_that_fails_in_a_piece_is_replaced(llama: TorchDecoder, caplog: pytest.LogCaptureFixture) -> None:
    """The next backend replaces it, and the pieces are kept."""
    caches = new_cache(llama), new_cache(llama)

    def graphs_of(backend: AttentionBackend) -> PiecewiseDecoder:
        return PiecewiseDecoder(llama, backend, caches[0], Recorder(), max_rows=MOST)

    forward_pass = GraphForwardPass(StepParts(llama, caches[0]), [FailsAtChunks, ReferenceBackend], graphs_of)
    forward_pass.capture_graphs(Recorder(), WIDE)
    plain, state = ForwardPass(StepParts(llama, caches[1]), [ReferenceBackend]), state_of(caches[0], 3, 60)
    for step in steps():
        assert torch.equal(forward_pass.run_rows(rows_of(state, BLOCK, *step)), plain.run(StepInputs(*step)))
    assert equal(*caches)
    assert forward_pass.backend_name == ReferenceBackend.name
    assert forward_pass.parts.graph_counts.launched == len(list(steps())), "the next backend has no graphs"
    [warning] = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert "failed with RuntimeError: out of shared memory; reference" in warning
    assert forward_pass.fallbacks == 1


class Noted:
    """Graphs that record the steps that they had a graph for."""

    def __init__(self, graphs: StepGraphs) -> None:
        self.wanted = graphs.wanted
        self._graphs = graphs
        self.rows: list[int] = []

    def run(self, rows: StepRows) -> Tensor | None:
        hidden = self._graphs.run(rows)
        if hidden is not None:
            self.rows.append(rows.known.size)
        return hidden


def texts(decoder: TorchDecoder, made: list[Noted], *, graphs: bool) -> dict[str, list[int]]:
    """Return an engine's outputs for prompts of several lengths that arrive one after the other, with chunks and
    decodes.
    """
    cache = KvCache(decoder.outline.facts.attention, BLOCKS, BLOCK, torch.float32, CPU)

    def graphs_of(backend: AttentionBackend) -> StepGraphs:
        if not graphs:
            return NO_GRAPHS
        made.append(Noted(PiecewiseDecoder(decoder, backend, cache, Recorder(), max_rows=24)))
        return made[-1]

    forward_pass = GraphForwardPass(StepParts(decoder, cache), [ReferenceBackend], graphs_of)
    with torch.inference_mode():
        forward_pass.capture_graphs(Recorder(), WIDE)
    vocab = decoder.outline.facts.vocab_size
    sampler, state = Sampler(vocab, ()), state_of(cache, 4, 60)
    sampling = SamplingGraphs(decoder, sampler, state, Recorder())
    runner = GpuRunner(forward_pass, sampler, state, Copies(), sampling)
    config = EngineConfig(model="m", max_batch_tokens=24, max_sequences=4, check_integrity_every=1)
    info = EngineInfo("m", "Llama", "float32", "cpu", "reference", vocab, 60, BLOCK, BLOCKS, 0, 0, [])
    core = EngineCore(config, info, runner)
    heard: dict[str, list[int]] = {}
    for number, length in enumerate((5, 31, 2, 17, 44)):
        context = RequestContext(SamplingParams(temperature=0.0, max_tokens=9, ignore_eos=True), seed=0)
        core.add(AddRequest(str(number), [(number + 3 * i) % vocab for i in range(length)], context))
        step(core, heard)
    while core.has_work:
        step(core, heard)
    return heard


def step(core: EngineCore, heard: dict[str, list[int]]) -> None:
    for output in core.step().outputs:
        heard.setdefault(output.request_id, []).extend(output.token_ids)


def test_an_engine_answers_as_it_does_without(llama: TorchDecoder) -> None:
    made: list[Noted] = []
    answers = texts(llama, made, graphs=True)
    assert [len(tokens) for tokens in answers.values()] == [9] * 5
    assert answers == texts(llama, made, graphs=False)
    [pieces] = made
    assert max(pieces.rows) == 24
    assert {1, 3, 4} < set(pieces.rows), "and decodes alone use them if there is no other graph"


def test_recurrent_layers_are_not_cut(tmp_path: Path) -> None:
    options = {"num_hidden_layers": 2, "state_size": 8}
    decoder = loaded("MambaConfig", options, tmp_path)
    with pytest.raises(ValueError, match="piecewise graphs do not support recurrent layers"):
        PiecewiseDecoder(
            decoder, ReferenceBackend.__new__(ReferenceBackend), new_cache(decoder), Recorder(), max_rows=8
        )
