"""The GPU's bench: what is counted and judged, and that all of it runs, interpreted and on a tiny model."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from kernel_support.recorder import Recorder
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

import goals
from gpu import attention, clock, experts, idle, run, steps
from gpu.clock import Limits
from gpu.model import LLAMA_8B, program_for, random_decoder
from plimsoll_runtime.models.spec.attention import AttentionShape
from serving.models import Shape

CPU = torch.device("cpu")
TINY = Shape("tiny", 64, 32, 48, layers=2, heads=4, kv_heads=2, head_dim=16)
LIMITS = Limits(bandwidth=1e9, rate=1e12)
ZERO = {"copy_gb_s": 0.0, "product_tflop_s": 0.0}


@pytest.fixture(autouse=True)
def _seen_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is interpreted is slow."""
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


def test_what_attention_costs() -> None:
    shape = AttentionShape(heads=4, kv_heads=2, head_dim=8, scale=1.0)
    case = attention.Case("", [(1, 10), (3, 5)])
    assert case.bytes(shape, 2) == (2 * 2 * 15 + 2 * 4 * 4) * 8 * 2
    assert case.flops(shape) == 4 * 4 * 8 * (10 + 3 + 4 + 5)
    latent = AttentionShape(heads=4, kv_heads=1, head_dim=8, scale=1.0, latent=True)
    assert case.bytes(latent, 2) == (15 + 2 * 4 * 4) * 8 * 2


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
    assert [row[0] for row in run.table({"limits": ZERO, "experts": [found]}).rows] == ["few"]


def test_steps_are_timed(triton_device: str) -> None:
    interpreted(triton_device)
    decoder = random_decoder(program_for(TINY), torch.float32, CPU)
    found = steps.decode(decoder, Recorder(), LIMITS, 17, 1, CPU)
    assert found["context"] == 17
    assert found["of_bandwidth"] > 0
    found = steps.prefill(decoder, LIMITS, 20, 1, CPU)
    assert found["tokens"] == 20
    assert found["milliseconds"] > 0


def test_limits() -> None:
    found = clock.limits(CPU, 1, scale=1e-4)
    assert found.bandwidth > 1e6
    assert found.rate > 1e6


@pytest.mark.parametrize(
    ("busy", "share"),
    [
        ([(0.0, 10.0)], 0.0),
        ([(0.0, 4.0), (6.0, 10.0)], 0.2),
        ([(6.0, 10.0), (0.0, 4.0), (1.0, 5.0)], 0.1),
        ([(0.0, 10.0), (2.0, 3.0), (12.0, 20.0)], 0.1),
    ],
)
def test_idle_share(busy: list[idle.Span], share: float) -> None:
    assert idle.idle_share(busy) == pytest.approx(share)


def test_a_trace_without_a_device() -> None:
    with pytest.raises(ValueError, match="no work of a device"):
        idle.idle_share([])


def test_only_the_devices_own_events_count() -> None:
    """Neither the host's nor ranges that somebody named; and torch's own events are so."""
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


def test_goals() -> None:
    figures: dict[str, Any] = {
        "decode": {"of_bandwidth": 0.86},
        "attention": [{"name": goals.GPU_DECODE, "of_bandwidth": 0.89}],
        "idle": {"idle": 0.02},
    }
    verdicts = goals.judge(goals.Results([], {"gpu": figures}), goals.GPU_GOALS)
    assert [str(v.status) for v in verdicts] == ["met", "missed", "not measured", "met", "not measured"]
    assert goals.GPU_DECODE in [case.name for case in attention.CASES]
