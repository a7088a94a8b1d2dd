"""A pass that fails on one attention backend is computed again on the next, without any trace of the first."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import pytest
import torch
from kernel_support.recorder import Recorder
from kernel_support.rows import rows_of, state_of
from model_support.tiny import make_model, save_model
from torch import Tensor

from plimsoll_kernels.paged_attention.batch import PagedBatch
from plimsoll_runtime.engine.protocol.messages import RequestContext
from plimsoll_runtime.engine.protocol.plan import ScheduledSequence, SlotInit, StepPlan, StepResult, TableChange
from plimsoll_runtime.engine.protocol.sampling_params import SamplingParams
from plimsoll_runtime.engine.step_timing import Timeline
from plimsoll_runtime.execution.attention.backends.reference import ReferenceBackend
from plimsoll_runtime.execution.attention.base import AttentionBackend, AttentionBatch, BlockTables
from plimsoll_runtime.execution.forward import ForwardPass, GraphForwardPass, NoBackendError
from plimsoll_runtime.execution.graphs.capture import CaptureBounds
from plimsoll_runtime.execution.graphs.decode import DecodeGraphs
from plimsoll_runtime.execution.inputs.batch_state import StepInputs
from plimsoll_runtime.execution.inputs.device_state import DeviceState
from plimsoll_runtime.execution.kv.cache import KvCache
from plimsoll_runtime.execution.kv.offload.host_memory import HostBlocks
from plimsoll_runtime.execution.memory import workspace
from plimsoll_runtime.execution.memory.workspace import LargestStep
from plimsoll_runtime.execution.parts import StepParts
from plimsoll_runtime.execution.runners.cpu import CpuRunner
from plimsoll_runtime.execution.sampling.sampler import Sampler
from plimsoll_runtime.models.compose.decoder import program_of
from plimsoll_runtime.models.decoder import Decoder, TorchDecoder
from plimsoll_runtime.models.layers.attention import Attention, NormOfHeads
from plimsoll_runtime.models.load import load_decoder
from plimsoll_runtime.models.registry.registry import describe
from plimsoll_runtime.weights.sources.resolve import resolve

CPU = torch.device("cpu")
BLOCK, BLOCKS = 4, 20
TABLE = [7, 2, 9, 4]
GREEDY = SamplingParams(temperature=0.0)
WIDE = CaptureBounds(60.0, 2**30)


class Failing(ReferenceBackend):
    """Fails at the layer and call of `at`, after it has written garbage to the step's cells."""

    name: ClassVar[str] = "failing"
    at: ClassVar[str | int] = 0
    error: ClassVar[Exception] = RuntimeError("no kernel image is available")

    def __init__(self, cache: KvCache) -> None:
        if self.at == "made":
            raise self.error
        super().__init__(cache)

    def begin(self, batch: AttentionBatch) -> Attention:
        if self.at == "begun":
            raise self.error
        inner = super().begin(batch)

        def attention(
            layer: int, query: Tensor, key: Tensor | None, value: Tensor | None, sinks: Tensor | None = None
        ) -> Tensor:
            if layer != self.at:
                return inner(layer, query, key, value)
            assert key is not None
            assert value is not None
            inner(layer, query, key * float("nan"), value * float("nan"))
            raise self.error

        return attention


class FailingToRotate(ReferenceBackend):
    """Fails in `of_heads`, like a backend that rotates heads as it writes them to the cache."""

    name: ClassVar[str] = "rotating"
    error: ClassVar[Exception] = RuntimeError("out of shared memory")

    def begin(self, batch: AttentionBatch) -> Attention:
        backend = self

        class Step:
            def __call__(
                self, layer: int, query: Tensor, key: Tensor | None, value: Tensor | None, sinks: Tensor | None = None
            ) -> Tensor:
                raise AssertionError("heads are for of_heads")

            def of_heads(
                self,
                layer: int,
                heads: Tensor,
                cos: Tensor,
                sin: Tensor,
                norm: NormOfHeads | None,
                sinks: Tensor | None = None,
            ) -> Tensor:
                heads.fill_(float("nan"))
                raise backend.error

        return Step()


def failing(where: str | int, what: Exception = Failing.error, called: str = "failing") -> type[AttentionBackend]:
    return type("Made", (Failing,), {"at": where, "error": what, "name": called})


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> TorchDecoder:
    folder = tmp_path_factory.mktemp("model")
    save_model(make_model("Qwen3Config", {"head_dim": 16}), folder)
    files = resolve(str(folder))
    loaded = load_decoder(files, program_of(describe(files.config)), torch.float32, device=CPU)
    assert isinstance(loaded, TorchDecoder)
    return loaded


def new_cache(decoder: Decoder) -> KvCache:
    """Return a cache whose unwritten cells must not be read."""
    cache = KvCache(decoder.outline.facts.attention, BLOCKS, BLOCK, torch.float32, CPU)
    for tensor in (*cache.keys, *cache.values):
        tensor.fill_(float("nan"))
    return cache


@torch.inference_mode()
def hidden_states(run: Callable[[StepInputs], Tensor], decoder: Decoder, chunks: tuple[int, ...] = (6, 1, 1)) -> Tensor:
    """Return hidden states of one sequence, a chunk a step."""
    rows, start = [], 0
    for count in chunks:
        positions = torch.arange(start, start + count)
        cells = torch.tensor([TABLE[p // BLOCK] * BLOCK + p % BLOCK for p in positions.tolist()])
        batch = AttentionBatch([count], [start + count], BlockTables.of([TABLE]), cells)
        inputs = StepInputs(positions * 7 % decoder.outline.facts.vocab_size, positions, batch)
        rows.append(run(inputs).clone())
        start += count
    return torch.cat(rows)


def replaying(forward_pass: GraphForwardPass, state: DeviceState) -> Callable[[StepInputs], Tensor]:
    """Return the pass of rows that are sent to a device, with graphs if there are some."""
    return lambda step: forward_pass.run_rows(rows_of(state, BLOCK, step.token_ids, step.positions, step.batch))


def undisturbed(decoder: Decoder) -> tuple[Tensor, KvCache]:
    cache = new_cache(decoder)
    return hidden_states(ForwardPass(StepParts(decoder, cache), [ReferenceBackend]).run, decoder), cache


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


@pytest.mark.parametrize("at", ["made", "begun", 0, 1, 2, "rotating"])
def test_the_next_backend_takes_over(decoder: TorchDecoder, at: str | int, caplog: pytest.LogCaptureFixture) -> None:
    first = FailingToRotate if at == "rotating" else failing(at)
    cache = new_cache(decoder)
    timeline = Timeline()
    forward_pass = ForwardPass(StepParts(decoder, cache, timeline=timeline), [first, ReferenceBackend])
    actual = hidden_states(forward_pass.run, decoder)
    expected, clean = undisturbed(decoder)
    assert torch.equal(actual, expected)
    for mine, theirs in zip((*cache.keys, *cache.values), (*clean.keys, *clean.values), strict=True):
        assert torch.equal(mine.nan_to_num(), theirs.nan_to_num()), "the cache is as if nothing had failed"
    assert (forward_pass.fallbacks, forward_pass.backends) == (1, [ReferenceBackend])
    [warning] = warnings_of(caplog)
    assert f"{first.name} failed with RuntimeError: " in warning
    assert (
        "reference computes attention from here on (select it at the start with --attention-backend reference)"
        in warning
    )
    assert caplog.records[0].exc_info, "the traceback goes with it"
    timeline.check_integrity()


def test_one_after_the_other(decoder: TorchDecoder, caplog: pytest.LogCaptureFixture) -> None:
    backends = [failing(1, called="a"), failing("made", called="b"), failing("begun", called="c"), ReferenceBackend]
    forward_pass = ForwardPass(StepParts(decoder, new_cache(decoder)), backends)
    assert forward_pass.backends == backends
    assert torch.equal(hidden_states(forward_pass.run, decoder), undisturbed(decoder)[0])
    assert forward_pass.fallbacks == len(warnings_of(caplog)) == 3


def test_a_backend_that_was_asked_for_is_not_replaced(decoder: TorchDecoder, caplog: pytest.LogCaptureFixture) -> None:
    forward_pass = ForwardPass(StepParts(decoder, new_cache(decoder)), [failing(1, called="wanted")])
    message = (
        "the attention backend wanted failed with RuntimeError: no kernel image is available; no other .* --attention-"
    )
    for _ in range(2):
        with pytest.raises(NoBackendError, match=message) as caught:
            hidden_states(forward_pass.run, decoder)
        assert caught.value.__cause__ is Failing.error
    assert not warnings_of(caplog)
    assert forward_pass.fallbacks == 0


def test_where_all_fail_the_first_failure_is_what_counts(decoder: TorchDecoder) -> None:
    others = [failing("begun", ValueError("not this one"), "b"), failing("made", OSError("nor this"), "c")]
    forward_pass = ForwardPass(StepParts(decoder, new_cache(decoder)), [failing(1, called="a"), *others])
    with pytest.raises(NoBackendError, match="backend a failed with RuntimeError: no kernel image"):
        hidden_states(forward_pass.run, decoder)
    with pytest.raises(NoBackendError, match="backend c failed with OSError: nor this"):
        ForwardPass(StepParts(decoder, new_cache(decoder)), others[1:])


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("full"), MemoryError("full"), KeyboardInterrupt()])
@pytest.mark.parametrize("at", ["begun", 1])
def test_what_is_not_the_backends_fault(decoder: TorchDecoder, at: str | int, error: BaseException) -> None:
    forward_pass = ForwardPass(StepParts(decoder, new_cache(decoder)), [failing(at, error), ReferenceBackend])  # type: ignore[arg-type]
    with pytest.raises(type(error)):
        hidden_states(forward_pass.run, decoder)
    assert forward_pass.fallbacks == 0


def test_errors_of_the_rest_of_the_model_come_out(decoder: TorchDecoder) -> None:
    def broken(token_ids: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        raise RuntimeError("the products are wrong")

    forward_pass = ForwardPass(StepParts(broken, new_cache(decoder)), [ReferenceBackend, ReferenceBackend])  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="the products are wrong"):
        hidden_states(forward_pass.run, decoder)
    assert forward_pass.fallbacks == 0


class Graphable(ReferenceBackend):
    """A backend whose steps may be captured: over a decode's tables on the device."""

    name: ClassVar[str] = "graphable"

    def over(self, paged: Sequence[PagedBatch], cells: Sequence[Tensor]) -> Attention:
        [group], [own] = paged, cells
        begin = super().begin

        def attention(
            layer: int, query: Tensor, key: Tensor | None, value: Tensor | None, sinks: Tensor | None = None
        ) -> Tensor:
            contexts, tables = group.context_lens.tolist(), BlockTables.of(group.block_tables.tolist())
            return begin(AttentionBatch([1] * len(own), contexts, tables, own))(layer, query, key, value)

        return attention

    def launch_key(self, sequences: int, longest: int) -> int:
        return 0

    def launch_lengths(self, sequences: int, most: int) -> Sequence[int]:
        return [most]


class GraphableThatFails(Graphable):
    """Fails at its first decode, captured or not."""

    name: ClassVar[str] = "broken"

    def over(self, paged: Sequence[PagedBatch], cells: Sequence[Tensor]) -> Attention:
        raise TypeError("cannot be compiled")

    def begin(self, batch: AttentionBatch) -> Attention:
        if max(batch.query_lens) == 1:
            raise TypeError("cannot be compiled")
        return super().begin(batch)


def test_graphs_go_with_their_backend(decoder: TorchDecoder, caplog: pytest.LogCaptureFixture) -> None:
    cache = new_cache(decoder)
    for tensor in (*cache.keys, *cache.values):
        tensor[:, 0] = 0.0  # padding attends to it
    made, parts, state = list[DecodeGraphs](), StepParts(decoder, cache), state_of(cache, 2, 16)

    def graphs_of(backend: Any) -> DecodeGraphs:
        made.append(DecodeGraphs(parts, backend, state, Recorder(), max_sequences=2, max_model_len=16))
        return made[-1]

    forward_pass = GraphForwardPass(parts, [GraphableThatFails, Graphable], graphs_of)
    forward_pass.capture_graphs(Recorder(), WIDE)
    actual = hidden_states(replaying(forward_pass, state), decoder)
    torch.testing.assert_close(actual, undisturbed(decoder)[0])
    assert [len(graphs._graphs) for graphs in made] == [0], "in service nothing is captured, over no backend"
    graph, backend = warnings_of(caplog)
    assert graph.startswith("a CUDA graph failed with TypeError: cannot be compiled; steps are launched")
    assert "the attention backend broken failed with TypeError" in backend


def test_graphs_of_the_backend_that_is_left(decoder: TorchDecoder) -> None:
    """If a backend fails before the capture, its replacement's steps are captured."""
    cache = new_cache(decoder)
    for tensor in (*cache.keys, *cache.values):
        tensor[:, 0] = 0.0  # padding attends to it
    made, parts, state = list[DecodeGraphs](), StepParts(decoder, cache), state_of(cache, 2, 16)

    def graphs_of(backend: Any) -> DecodeGraphs:
        made.append(DecodeGraphs(parts, backend, state, Recorder(), max_sequences=2, max_model_len=16))
        return made[-1]

    forward_pass = GraphForwardPass(parts, [failing("begun"), Graphable], graphs_of)
    hidden_states(forward_pass.run, decoder)
    with torch.inference_mode():
        forward_pass.capture_graphs(Recorder(), WIDE)
    actual = hidden_states(replaying(forward_pass, state), decoder)
    torch.testing.assert_close(actual, undisturbed(decoder)[0])
    assert [len(graphs._graphs) for graphs in made] == [0, 2]


def test_graphs_alone_may_fail(decoder: TorchDecoder, caplog: pytest.LogCaptureFixture) -> None:
    cache = new_cache(decoder)
    state = state_of(cache, 2, 16)
    capture = Recorder(TypeError("cannot be captured"))

    def graphs_of(backend: Any) -> DecodeGraphs:
        return DecodeGraphs(StepParts(decoder, cache), backend, state, capture, max_sequences=2, max_model_len=16)

    forward_pass = GraphForwardPass(StepParts(decoder, cache), [Graphable, ReferenceBackend], graphs_of)
    forward_pass.capture_graphs(capture, WIDE)
    actual = hidden_states(replaying(forward_pass, state), decoder)
    torch.testing.assert_close(actual, undisturbed(decoder)[0])
    assert capture.captures == len(warnings_of(caplog)) == 1
    assert forward_pass.fallbacks == 0


def test_the_largest_step_tells_who_fails_at_it(decoder: TorchDecoder) -> None:
    cache = KvCache(decoder.outline.facts.attention, 2, BLOCK, torch.float32, CPU)
    backends = [failing(2), failing("made"), ReferenceBackend, Graphable]
    assert workspace._run(decoder, backends, cache, LargestStep(8, 2, 8)) == [ReferenceBackend, Graphable]


def test_blocks_are_moved_once_and_tokens_chosen_once(decoder: TorchDecoder) -> None:
    """The step overwrites the blocks that it has spilled and copied: a second copy would be wrong."""
    results, frames, blocks = [], [], []
    for backends in ([failing(2), ReferenceBackend], [ReferenceBackend]):
        cache = KvCache(decoder.outline.facts.attention, BLOCKS, BLOCK, torch.float32, CPU)
        generator = torch.Generator().manual_seed(0)
        for tensor in (*cache.keys, *cache.values):
            tensor.copy_(torch.randn(tensor.shape, generator=generator))
        host = HostBlocks(cache, 3)
        runner = CpuRunner(ForwardPass(StepParts(decoder, cache, host=host), backends), Sampler(20, (2,)), 2)
        drawn = SamplingParams(temperature=1.0, repetition_penalty=1.5, frequency_penalty=0.5)
        host.move([(5, 2)])
        plan = StepPlan(
            [ScheduledSequence(0, 4, [3, 4, 5], [TableChange(0, 0, 0, [6, 1])], sample=True)],
            new_slots=[SlotInit(0, RequestContext(drawn, seed=5), prompt_ids=[1, 1, 1, 1, 3, 4, 5])],
            spills=[(1, 1)],
            restores=[(2, 6)],
            block_copies=[(1, 3)],
        )
        after = StepPlan([ScheduledSequence(0, 7, [8], (), sample=True)])
        steps: list[StepResult] = [runner.run(each).result() for each in (plan, after)]
        results.append([step.outputs for step in steps])
        assert [step.attention_fallbacks for step in steps] == [len(backends) - 1] * 2
        frames.append([bytes(host.row(frame)) for frame in (1, 2)])
        blocks.append(torch.stack([t[:, [1, 3, 6]] for t in (*cache.keys, *cache.values)]))
    assert results[0] == results[1]
    assert frames[0] == frames[1]
    assert torch.equal(*blocks)
