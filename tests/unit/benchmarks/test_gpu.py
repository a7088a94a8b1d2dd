"""The GPU benchmark: its figures and goals, and that all of it runs, interpreted and on a tiny model."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest.mock import create_autospec

import pytest
import torch
from kernel_support.recorder import Recorder
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

import goals
import plimsoll_kernels
from gpu import (
    attention,
    candidates,
    choosing,
    clock,
    experts,
    idle,
    load,
    mixed,
    model,
    run,
    sleeping,
    small_ops,
    start,
    steps,
    users,
)
from gpu.clock import Limits
from gpu.model import LLAMA_8B, program_for, random_decoder
from gpu.sheet import table
from options import Options
from plimsoll_runtime.driver.build.engine import build_engine
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.engine.core import EngineCore
from plimsoll_runtime.execution.attention.backends.reference import ReferenceBackend
from plimsoll_runtime.execution.attention.backends.triton import TritonBackend
from plimsoll_runtime.execution.attention.capabilities import Capabilities
from plimsoll_runtime.execution.attention.registry import BACKENDS
from plimsoll_runtime.execution.attention.shared_prefix import grouping
from plimsoll_runtime.models.decoder import TorchDecoder
from plimsoll_runtime.models.spec.attention import AttentionShape
from plimsoll_runtime.utils.progress import silent
from serving import models
from serving.models import Shape

CPU = torch.device("cpu")
TINY = Shape("tiny", 64, 32, 48, layers=2, heads=4, kv_heads=2, head_dim=16)
LIMITS = Limits(bandwidth=1e9, rate=1e12)
ZERO = {"copy_gb_s": 0.0, "product_tflop_s": 0.0}


@pytest.fixture(autouse=True)
def _seen_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit repetitions, because interpreted kernels are slow."""
    pytest.importorskip("triton")
    monkeypatch.setattr(clock, "WARM", 0)
    monkeypatch.setattr(steps, "STEPS", 2)


def interpreted(device: str) -> None:
    if device != "cpu":
        pytest.skip("measured by the bench itself")


def test_the_model_has_8_billion_parameters() -> None:
    shapes = program_for(LLAMA_8B).facts.attention
    shape = shapes[0]
    assert (len(shapes), shape.heads, shape.kv_heads, shape.head_dim) == (32, 32, 8, 128)
    assert round((LLAMA_8B.body + 2 * LLAMA_8B.head) / 1e9, 2) == 8.03


def test_without_a_gpu_nothing_is_measured(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["run"])
    assert run.main() == 0
    assert capsys.readouterr().out == "skipped: no GPU\n"


def test_an_unknown_question(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["run", "--only", "decodes"])
    with pytest.raises(SystemExit):
        run.main()


ASKED = {
    "attention": (attention, "measure", len(attention.CASES)),
    "candidates": (candidates, "measure", len(candidates.BLOCK_SIZES) * len(candidates.PROMPTS) + 1),
    "latent": (attention, "measure", len(attention.LATENT_CASES)),
    "experts": (experts, "measure", len(experts.CASES)),
    "sampling": (choosing, "measure", len(choosing.BATCHES) * len(choosing.WISHES)),
    "decode": (steps, "decode", 1),
    "batches": (steps, "decode", len(steps.BATCHES)),
    "prefill": (steps, "prefill", 1),
    "chunks": (steps, "prefill", 1),
    "idle": (idle, "measure", 1),
    "host": (idle, "measure", len(idle.HOST)),
    "mixed": (mixed, "measure", 1),
    "users": (users, "measure", 1),
    "sleep": (sleeping, "measure", 1),
    "start": (start, "measure", 1),
    "memory": (load, "measure", 1),
}
"""For each benchmark: the function that runs it, and its number of calls."""


@pytest.mark.parametrize("name", run.QUESTIONS)
def test_a_question_is_asked_with_what_its_answer_takes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, function, times = ASKED[name]
    answer = create_autospec(getattr(module, function), return_value={"seen": True})
    monkeypatch.setattr(module, function, answer)
    monkeypatch.setattr(attention, "cache_for", create_autospec(attention.cache_for))
    monkeypatch.setattr(models, "source", lambda shape: shape.name)
    monkeypatch.setattr(run.Bench, "capture", Recorder())
    monkeypatch.setattr(run.Bench, "model", "a folder")
    bench = run.Bench(CPU, Options(rounds=3))
    vars(bench).update(known=LIMITS, decoder="a decoder")
    found = run.measure([name], bench)
    assert found["limits"] == {"copy_gb_s": 1.0, "product_tflop_s": 1.0}
    if name == "candidates":  # Each answer is a list of rows.
        assert found[name] == ["seen"] * times
    else:
        assert found[name] == ({"seen": True} if not isinstance(found[name], list) else [{"seen": True}] * times)
    assert answer.call_count == times


def test_what_attention_costs() -> None:
    shape = AttentionShape(heads=4, kv_heads=2, head_dim=8, scale=1.0)
    case = attention.Case("", [(1, 10), (3, 5)])
    assert case.bytes(shape, 2) == (2 * 2 * 15 + 2 * 4 * 4) * 8 * 2
    assert case.flops(shape) == 4 * 4 * 8 * (10 + 3 + 4 + 5)
    latent = AttentionShape(heads=4, kv_heads=1, head_dim=8, scale=1.0, latent=True)
    assert case.bytes(latent, 2) == (15 + 2 * 4 * 4) * 8 * 2
    shared = attention.Case("", [(1, 170), (1, 165)], shared=160)
    assert shared.bytes(shape, 2) == (2 * 2 * 175 + 2 * 4 * 2) * 8 * 2
    assert shared.blocks(16) == 12


def test_the_floor_of_what_64_share() -> None:
    """For a layer of Llama 3 8B: 33.5 MB shared, 134 MB not; 2.28 GB if each sequence read all."""
    shape = program_for(LLAMA_8B).facts.attention[0]
    floors = {case.bytes(shape, 2) for case in attention.CASES if case.shared}
    assert floors == {(8192 + 64 * 512) * 4096 + 2 * 64 * 4096 * 2}
    apart = attention.Case("", [(1, 8704)] * 64)
    assert apart.bytes(shape, 2) / floors.pop() == pytest.approx(13.5, abs=0.1)


@pytest.mark.matrix(2)
@pytest.mark.parametrize("together", [True, False])
def test_what_is_shared_is_timed(triton_device: str, monkeypatch: pytest.MonkeyPatch, together: bool) -> None:
    interpreted(triton_device)
    shape = AttentionShape(heads=4, kv_heads=2, head_dim=16, scale=0.25)
    case = attention.Case("shared", [(1, 144)] * 3, shared=128, together=together)
    cache = attention.cache_for([case], shape, torch.float32, CPU)
    assert cache.num_blocks == 1 + 8 + 3
    tables = attention.batch_of(case, cache).block_tables.blocks
    assert tables[:8] == tables[9:17] == tables[18:26]
    assert len(set(tables)) == 11
    monkeypatch.setattr(attention, "LAUNCHES", 1)
    monkeypatch.setattr(grouping, "LAUNCH_BYTES", 0)
    seen: list[Any] = []
    real = TritonBackend.over

    def over(own: Any, paged: Any, cells: Any) -> Any:
        seen.append(paged[0].prefixes)
        return real(own, paged, cells)

    monkeypatch.setattr(TritonBackend, "over", over)
    found = attention.measure(case, shape, LIMITS, cache, Recorder(), 1)
    assert found["microseconds"] > 0
    assert [shared is not None for shared in seen] == [together]


@pytest.mark.parametrize("latent", [False, True])
def test_attention_is_timed(triton_device: str, monkeypatch: pytest.MonkeyPatch, latent: bool) -> None:
    interpreted(triton_device)
    shape = AttentionShape(heads=4, kv_heads=1 if latent else 2, head_dim=16, scale=0.25, latent=latent)
    case = attention.Case("mixed", [(1, 20), (5, 30)])
    cache = attention.cache_for([case], shape, torch.float32, CPU)
    monkeypatch.setattr(attention, "LAUNCHES", 1)
    found = attention.measure(case, shape, LIMITS, cache, Recorder(), 1)
    assert found["name"] == "mixed"
    seconds = found["microseconds"] / 1e6
    assert found["of_bandwidth"] == pytest.approx(case.bytes(shape, 4) / seconds / 1e9, rel=0.01, abs=1e-4)


def test_prompts_are_timed_by_every_backend_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidates, "LAUNCHES", 1)
    shape = AttentionShape(heads=4, kv_heads=2, head_dim=16, scale=0.25)
    case = attention.Case("a chunk", [(7, 30)])

    class Broken(ReferenceBackend):
        name: ClassVar[str] = "broken"
        capabilities: ClassVar[Capabilities] = Capabilities()

        def __init__(self, cache: Any) -> None:
            raise RuntimeError("no kernel image")

    class Wrong(ReferenceBackend):
        name: ClassVar[str] = "wrong"
        capabilities: ClassVar[Capabilities] = Capabilities()

        def begin(self, batch: Any) -> Any:
            real = super().begin(batch)
            return lambda *arguments: real(*arguments) + 1

    names = ("torch", "triton", "cudnn", "reference")
    backends = (*(BACKENDS[name] for name in names), Broken, Wrong)
    rows = candidates.measure(case, shape, 16, LIMITS, 1, torch.float32, CPU, backends)
    found = {row["backend"]: row for row in rows}
    assert list(found) == [*names, "broken", "wrong"]
    assert (found["torch"]["differs"], found["wrong"]["differs"]) == (0.0, pytest.approx(1.0, abs=1e-3))
    seconds = found["torch"]["microseconds"] / 1e6
    assert found["torch"]["of_rate"] == pytest.approx(case.flops(shape) / seconds / 1e12, rel=0.01, abs=1e-4)
    assert found["torch"]["new_length_ms"] > 0
    reasons = {name: row["reason"] for name, row in found.items() if "reason" in row}
    assert reasons == {
        "triton": "supports only these devices: cuda, rocm; the model is on cpu",
        "cudnn": "supports only these devices: cuda; the model is on cpu",
        "reference": "is for comparing",
        "broken": "failed: RuntimeError: no kernel image",
    }
    titles = [row[0] for row in table({"limits": ZERO, "candidates": rows}).rows]
    assert titles == [f"a chunk by {name}, blocks of 16" for name in ("torch", "wrong")]


def test_what_dividing_costs_is_asked_of_our_own_kernels() -> None:
    assert [backend.name for backend in candidates.halves()] == ["triton", "triton+triton"]
    assert [case.name for case in candidates.PROMPTS] == ["chunk of 8192", "chunk of 2048 after 6144"]
    assert candidates.MIXED.name == "64 decodes and a chunk of 512"


def test_what_experts_cost() -> None:
    shape = experts.MixtureShape(experts=8, chosen=2, hidden=16, inner=4)
    case = experts.Case("", 3)
    assert case.bytes(shape, 5, 2) == (5 * 3 * 16 * 4 + 6 * (16 + 8 + 4 + 16)) * 2
    assert case.flops(shape) == 2 * 6 * 3 * 16 * 4


def test_experts_are_timed(triton_device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    interpreted(triton_device)
    monkeypatch.setattr(experts, "LAUNCHES", 1)
    shape = experts.MixtureShape(experts=5, chosen=5, hidden=16, inner=4)
    case = experts.Case("few", 2)
    found = experts.measure(case, shape, LIMITS, Recorder(), 1, torch.float32, CPU)
    seconds = found["microseconds"] / 1e6
    assert found["of_bandwidth"] == pytest.approx(case.bytes(shape, 5, 4) / seconds / 1e9, rel=0.01, abs=1e-4)
    assert [row[0] for row in table({"limits": ZERO, "experts": [found]}).rows] == ["few"]


@pytest.mark.matrix(2)
@pytest.mark.parametrize("work", [steps.Decodes(1, 17), steps.Decodes(5, 30)], ids=str)
def test_decodes_are_timed(triton_device: str, work: steps.Decodes) -> None:
    interpreted(triton_device)
    decoder = random_decoder(program_for(TINY), torch.float32, CPU)
    found = steps.decode(decoder, Recorder(), LIMITS, work, 1, CPU)
    assert (found["sequences"], found["context"]) == (work.sequences, work.context)
    seconds = found["milliseconds"] / 1e3
    assert found["tokens_per_second"] == pytest.approx(work.sequences / seconds, rel=0.01, abs=0.1)
    assert found["of_roofline"] == found["of_bandwidth"] > 0, "where products cost nothing, bytes are the roofline"
    assert found["name"] in [row[0].split(":")[0] for row in table({"limits": ZERO, "batches": [found]}).rows]


def test_more_sequences_cost_their_caches_and_not_the_weights_again() -> None:
    decoder = random_decoder(program_for(TINY), torch.float32, CPU)
    one, five = (steps._cost(decoder, 30, 1, sequences) for sequences in (1, 5))
    assert one.bytes < five.bytes < 5 * one.bytes
    assert five.flops == pytest.approx(5 * one.flops)


@pytest.mark.matrix(2)
@pytest.mark.parametrize("chunk", [20, 8])
def test_prefill_is_timed(triton_device: str, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    interpreted(triton_device)
    decoder = random_decoder(program_for(TINY), torch.float32, CPU)
    rows: list[int] = []
    real = TorchDecoder.__call__

    def noted(own: TorchDecoder, ids: torch.Tensor, *more: Any) -> torch.Tensor:
        rows.append(len(ids))
        return real(own, ids, *more)

    monkeypatch.setattr(TorchDecoder, "__call__", noted)
    found = steps.prefill(decoder, LIMITS, 20, chunk, 1, CPU)
    assert (found["tokens"], found["chunk"]) == (20, chunk)
    assert rows == ([20] if chunk == 20 else [8, 8, 4])
    assert found["milliseconds"] > 0


@pytest.mark.matrix(6)
@pytest.mark.parametrize("wish", choosing.WISHES, ids=lambda wish: wish.name)
def test_choosing_is_timed(triton_device: str, wish: choosing.Wish, monkeypatch: pytest.MonkeyPatch) -> None:
    interpreted(triton_device)
    monkeypatch.setattr(choosing, "LAUNCHES", 1)
    found = choosing.measure(wish, 2, 300, LIMITS, Recorder(), 1, CPU)
    assert found["rows"] == 2
    assert found["of_reading"] == pytest.approx(found["microseconds"] / 1e6 / (2 * 300 * 4 / 1e9), rel=0.01)


def test_logits_as_models_give_them() -> None:
    peaked, flat = (choosing.logits_of(2, 5000, flat=flat).softmax(-1) for flat in (False, True))
    assert (peaked.topk(20).values.sum(-1) > 0.9).all()
    assert (flat.topk(20).values.sum(-1) < 0.1).all()


@pytest.mark.matrix(8)
@pytest.mark.parametrize("name", small_ops.OPS)
def test_small_ops(triton_device: str, name: str) -> None:
    found = small_ops.difference(name, torch.device(triton_device))
    assert found <= small_ops.TOLERANCE


def test_small_ops_are_all_that_there_are() -> None:
    """A new kernel needs a small case."""
    folders = {path.parent.name for path in Path(plimsoll_kernels.__path__[0]).rglob("op.py")}
    covered = {
        "paged_attention": "decode",
        "latent_attention": "latent_decode",
        "rms_norm": "rms_norm",
        "rotary": "rotary",
        "rotary_cache": "rotary_cache",
        "activation": "gated",
        "grouped_product": "grouped_product",
        "sampling": "sample",
        "decode_tables": "decode_tables",
    }
    assert folders - {"log_probabilities"} == set(covered), "log_probabilities has no kernel for a GPU"
    assert set(covered.values()) <= set(small_ops.OPS)


def test_limits() -> None:
    found = clock.limits(CPU, 1, scale=1e-4)
    assert found.bandwidth > 1e6
    assert found.rate > 1e6


@pytest.mark.parametrize(
    ("busy", "share", "between"),
    [
        ([(0.0, 100.0)], 0.0, 0.0),
        ([(0.0, 40.0), (60.0, 100.0)], 0.2, 20.0),
        ([(60.0, 100.0), (0.0, 40.0), (10.0, 50.0)], 0.1, 10.0),
        ([(0.0, 100.0), (20.0, 30.0), (105.0, 200.0)], 0.025, 0.0),
    ],
)
def test_what_a_device_idles(busy: list[idle.Span], share: float, between: float) -> None:
    found = idle.figures(busy, 2)
    assert found["idle"] == pytest.approx(share)
    assert found["between_ms"] == pytest.approx(between / 2 / 1e3)
    assert found["step_ms"] == pytest.approx(max(end for _, end in busy) / 2 / 1e3)


def test_a_trace_without_a_device() -> None:
    with pytest.raises(ValueError, match="no work of a device"):
        idle.figures([], 1)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A tiny model, created like the benchmark's large one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PLIMSOLL_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setattr(model, "FILE_BYTES", 8000)
        yield str(model.folder(TINY, CPU))


def test_a_drawn_model_is_there_once(drawn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    files = sorted(path.name for path in Path(drawn).glob("*.safetensors"))
    assert len(files) > 1
    monkeypatch.setenv("PLIMSOLL_CACHE", str(Path(drawn).parent.parent))
    monkeypatch.setattr(model, "_write", lambda *arguments: pytest.fail("it is there"))
    assert str(model.folder(TINY, CPU)) == drawn


def engine(source: str, **options: Any) -> EngineCore:
    defaults: dict[str, Any] = {"dtype": "float32", "threads": 1, "kv_memory": "8MiB", "max_model_len": 1024}
    return build_engine(EngineConfig(model=source, **{**defaults, **options}), silent)


@pytest.mark.parametrize("shared", [False, True])
def test_everybody_decodes_before_idling_is_measured(drawn: str, shared: bool) -> None:
    core = engine(drawn, max_batch_tokens=64, overlap=False)
    idle.begin(core, idle.Decoding(5, 160, shared=shared))
    stats = core.stats
    assert (stats.running, stats.waiting) == (5, 0)
    assert len(core.step().outputs) == 5
    assert (stats.cache_hit_tokens >= 4 * (160 - idle.OWN)) == shared


def test_requests_that_end_too_soon(drawn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle, "TOKENS", 1)
    with pytest.raises(RuntimeError, match="ended before all of them decoded"):
        idle.begin(engine(drawn, max_sequences=2, overlap=False), idle.Decoding(5, 40))


@pytest.mark.long
def test_sleeping_and_waking_are_timed(drawn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sleeping, "COPIED", 2**20)
    found = sleeping.measure(drawn, 2, CPU, dtype="float32")
    assert found["wake_seconds"] > 0
    assert found["of_pinned"] > 0
    rows = table({"limits": ZERO, "sleep": found}).rows
    assert rows[0][0].startswith("waking 0.0 GiB: ")


def test_random_load_fills_the_cache(drawn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Except for the blocks kept for running sequences: one each, which is a large share of a small cache."""
    monkeypatch.setattr(load, "FULL", 0.75)
    work = load.Load(seconds=2.0, prompts=(16, 100), answers=(4, 100), sequences=200)
    reads = iter(range(1000, 10**9))
    options = {"threads": 1, "kv_memory": "1600KiB", "max_batch_tokens": 512, "check_integrity_every": 10}
    found = load.measure(drawn, work, lambda: next(reads), **options)
    assert found["ended"] == ""
    assert found["kv_use"] >= load.FULL
    assert found["generated_tokens"] > found["steps"] > 0
    assert found["used_bytes"] > 1000
    assert found["predicted_bytes"] > 1000 + 100_000
    assert found["error"] > 0
    rows = table({"limits": ZERO, "memory": found}).rows
    assert "preemptions" in rows[0][0]


def test_an_engine_that_ends_under_load_is_the_result(drawn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real, steps_done = EngineCore.step, iter(range(20))

    def step(core: EngineCore) -> Any:
        if next(steps_done, None) is None:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(core)

    monkeypatch.setattr(EngineCore, "step", step)
    work = load.Load(seconds=60.0, prompts=(16, 40), answers=(4, 40), sequences=4)
    found = load.measure(drawn, work, lambda: 5, threads=1, kv_memory="160KiB")
    assert found["ended"] == "OutOfMemoryError: CUDA out of memory"
    figures = {"memory": {**found, "kv_use": 1.0}}
    verdicts = goals.judge(goals.Results([], {"gpu": figures}), goals.GPU_GOALS)
    assert [str(v.status) for v in verdicts if "5 minutes" in v.goal.wanted] == ["missed"]


@pytest.fixture
def few_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mixed, "INPUTS", (4, 40))
    monkeypatch.setattr(mixed, "OUTPUTS", (4, 20))


LOCAL: dict[str, Any] = {"threads": 1, "kv_memory": "8MiB"}


def test_requests_of_rounds_have_the_same_lengths() -> None:
    one, other = (mixed.requests(20, TINY, seed) for seed in (1, 2))
    assert [(len(r.prompt), r.output_len) for r in one] == [(len(r.prompt), r.output_len) for r in other]
    assert one != other


@pytest.mark.long
@pytest.mark.usefixtures("few_tokens")
@pytest.mark.filterwarnings("default")
def test_mixed_requests_beside_transformers(drawn: str) -> None:
    found = mixed.measure(drawn, TINY, LIMITS, 2, CPU, count=5, **LOCAL)
    assert found["absent"] == ""
    assert found["ratio"] == pytest.approx(found["transformers_seconds"] / found["seconds"], rel=0.2)
    assert found["of_roofline"] > 0
    assert judged({"mixed": {**found, "ratio": 2.9}})["256 requests: 3x Transformers' continuous batching"] == "missed"
    assert "2.90x Transformers" in table({"limits": ZERO, "mixed": {**found, "ratio": 2.9}}).rows[0][0]


@pytest.mark.usefixtures("few_tokens")
def test_a_peer_that_fails_takes_no_part(drawn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*arguments: Any) -> float:
        raise AttributeError("no such manager")

    monkeypatch.setattr(mixed, "of_transformers", fails)
    found = mixed.measure(drawn, TINY, LIMITS, 1, CPU, count=3, **LOCAL)
    assert found["absent"] == "Transformers failed: AttributeError: no such manager"
    assert "256 requests: 3x Transformers' continuous batching" not in judged({"mixed": found})
    assert "no such manager" in table({"limits": ZERO, "mixed": found}).rows[0][0]


@pytest.mark.long
@pytest.mark.usefixtures("few_tokens")
def test_users_of_a_server(drawn: str) -> None:
    options = ("--threads", "1", "--kv-memory", "8MiB")
    found = users.measure(drawn, TINY, LIMITS, *options, users=2, count=5, **LOCAL)
    assert found["of_offline"] == pytest.approx(found["offline_seconds"] / found["seconds"], rel=0.3)
    assert found["ttft_p99_of_bound"] > 0
    assert set(judged({"users": found})) == {
        "64 streaming: 0.93x offline",
        "TTFT p99 at most 1.2x the burst's bound",
        "ITL p99 at most 2x its median",
    }
    assert len(table({"limits": ZERO, "users": found}).rows) == 3


@pytest.mark.long
def test_starts_are_timed(drawn: str) -> None:
    options = ("--dtype", "float32", "--threads", "1", "--kv-memory", "8MiB", "--max-model-len", "512")
    found = start.measure(drawn, 1, *options)
    assert 0 < found["ready_seconds"] < found["first_token_seconds"] <= found["answer_seconds"]
    assert found["cold_first_token_seconds"] > 0
    assert len(table({"limits": ZERO, "start": found}).rows) == 2


@pytest.mark.long
def test_a_server_that_does_not_start(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="the server ended with"):
        start.start(str(tmp_path / "no-model"), tmp_path)


def test_only_the_devices_own_events_count() -> None:
    """Host events and named ranges do not count; torch's own device events do."""
    events = [
        SimpleNamespace(device_type=kind, is_user_annotation=named, time_range=SimpleNamespace(start=at, end=at + 2))
        for at, (kind, named) in enumerate(
            [(DeviceType.CPU, False), (DeviceType.CUDA, False), (DeviceType.CUDA, True), (DeviceType.CUDA, False)]
        )
    ]
    assert idle.device_spans(events) == [(1.0, 3.0), (3.0, 5.0)]
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        torch.ones(3).sum()
    found = profiler.events()
    assert found
    assert idle.device_spans(found) == []


def judged(figures: dict[str, Any]) -> dict[str, str]:
    """Return the status of the measured goals."""
    verdicts = goals.judge(goals.Results([], {"gpu": figures}), goals.GPU_GOALS)
    return {v.goal.wanted: str(v.status) for v in verdicts if v.status is not goals.Status.NOT_MEASURED}


def test_goals() -> None:
    decodes = [
        {"name": name, "of_bandwidth": share} for name, share in zip(goals.GPU_DECODES, (0.9, 0.89, 0.95), strict=True)
    ]
    figures: dict[str, Any] = {
        "decode": {"of_bandwidth": 0.86},
        "attention": decodes,
        "batches": [
            {"sequences": 64, "context": 2048, "of_roofline": 0.8},
            {"sequences": 256, "context": 1024, "of_roofline": 0.79},
        ],
        "idle": {"idle": 0.02, "between_ms": 0.16},
        "host": [{"sequences": 256, "prompt": 128, "between_ms": 0.4}],
        "sampling": [
            {"rows": 1, "microseconds": 50.0, "of_reading": 9.0},
            {"rows": 1, "microseconds": 61.0, "of_reading": 9.0},
            {"rows": 256, "microseconds": 900.0, "of_reading": 1.4},
        ],
        "memory": {"error": 0.01, "kv_use": 0.9, "ended": ""},
    }
    assert judged(figures) == {
        "batch 1: 85 % of the copy's bandwidth": "met",
        "batch 64 x 2048: 80 % of the roofline": "met",
        "batch 256 x 1024: 80 % of the roofline": "missed",
        "decode 1, context 131072: 90 % of the copy's bandwidth": "met",
        "decode 64, context 8192: 90 % of the copy's bandwidth": "missed",
        "decode 256, context 1024: 90 % of the copy's bandwidth": "met",
        "less than 3 % in steady decoding": "met",
        "32 x 128: at most 0.15 ms between two steps": "missed",
        "256 x 128: at most 0.5 ms between two steps": "met",
        "1 row of 152k: at most 60 us": "missed",
        "256 rows of 152k: at most 1.5x reading them": "met",
        "within 2 % of what was predicted": "met",
    }
    assert (
        judged({"memory": {"error": 0.01, "kv_use": 0.98, "ended": ""}})[
            "5 minutes on a full cache: 0 engines that ended"
        ]
        == "met"
    )
    assert set(goals.GPU_DECODES) <= {case.name for case in attention.CASES}


def test_goals_are_about_what_is_asked() -> None:
    """Goals refer to measured cases."""
    assert {(work.sequences, work.context) for work in steps.BATCHES} == {(64, 2048), (256, 1024)}
    assert (idle.IDLE.sequences, idle.IDLE.prompt) == (32, 128)
    assert {(work.sequences, work.prompt) for work in idle.HOST} == {(256, 128), (128, 32_000)}
    assert choosing.BATCHES == (1, 256)
    assert load.Load().seconds == 300
    assert (mixed.COUNT, users.USERS) == (256, 64)
    assert (run.PROMPT, run.CHUNK) == (8192, 2048)


@pytest.mark.parametrize("goal", goals.GPU_GOALS, ids=lambda goal: f"{goal.work} {goal.wanted}")
def test_the_text_of_a_goal_names_its_limit(goal: goals.Goal) -> None:
    assert any(text in goal.wanted for text in (f"{goal.limit:g}", f"{100 * goal.limit:g} %"))
