"""A marked torch decoder computes the same values, and the times of its ops are complete."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from model_support.tiny import make_model, save_model
from torch.profiler import ProfilerActivity, profile

from plimsoll_runtime.models.compose.decoder import program_of
from plimsoll_runtime.models.decoder import TorchDecoder
from plimsoll_runtime.models.load import load_decoder
from plimsoll_runtime.models.ops.cost import OpKind, TimesOps
from plimsoll_runtime.models.registry.registry import describe
from plimsoll_runtime.profiling.op_timer import CudaOpTimer, HostOpTimer, MarkedDecoder
from plimsoll_runtime.profiling.summary import FORWARD_OPS
from plimsoll_runtime.weights.sources.resolve import resolve

ATTENTION = (OpKind.NORM, OpKind.QKV, OpKind.ROPE, OpKind.ATTENTION, OpKind.OUTPUT)
LAYER = (*ATTENTION, OpKind.NORM, OpKind.GATE_UP, OpKind.DOWN)
DENSE_OPS = tuple(
    kind
    for kind in FORWARD_OPS
    if kind not in (OpKind.ROUTE, OpKind.EXPERTS, OpKind.STATE, OpKind.REDUCE, OpKind.STAGE)
)


class Clock:
    """Advances one second per reading."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


class Listener:
    """Records the ops that start."""

    def __init__(self) -> None:
        self.seen: list[OpKind | None] = []

    def switch(self, kind: OpKind | None) -> None:
        self.seen.append(kind)

    def take_seconds(self) -> dict[str, float]:
        return {}


def first_value(
    layer: int,
    query: torch.Tensor,
    key: torch.Tensor | None,
    value: torch.Tensor | None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attention of each token to itself only."""
    assert value is not None
    return value.repeat_interleave(query.shape[1] // value.shape[1], dim=1)


def loaded(folder: Path) -> TorchDecoder:
    files = resolve(str(folder))
    decoder = load_decoder(files, program_of(describe(files.config)), torch.float32, device=torch.device("cpu"))
    assert isinstance(decoder, TorchDecoder)
    return decoder


@torch.inference_mode()
def run(decoder: TorchDecoder | MarkedDecoder) -> torch.Tensor:
    tokens = torch.tensor([3, 1, 4])
    return decoder.logits(decoder(tokens, torch.arange(3), first_value))


def test_marks_change_no_number(tiny_model: Path) -> None:
    expected = run(loaded(tiny_model))
    assert torch.equal(run(MarkedDecoder(loaded(tiny_model), HostOpTimer())), expected)


def test_ops_come_in_the_order_of_the_layers(tiny_model: Path) -> None:
    listener = Listener()
    run(MarkedDecoder(loaded(tiny_model), listener))
    assert listener.seen == [OpKind.EMBED, *LAYER * 3, OpKind.NORM, None]


def test_post_norms_are_marked_too(tmp_path: Path) -> None:
    save_model(make_model("Gemma3TextConfig", {"head_dim": 12, "num_hidden_layers": 1}), tmp_path)
    listener = Listener()
    run(MarkedDecoder(loaded(tmp_path), listener))
    assert listener.seen.count(OpKind.NORM) == 5


def test_an_attention_that_rotates_still_does(tiny_model: Path) -> None:
    """Otherwise the profiled computation would differ from serving."""
    seen: list[int] = []

    class Rotating:
        def __call__(
            self,
            layer: int,
            query: torch.Tensor,
            key: torch.Tensor | None,
            value: torch.Tensor | None,
            sinks: torch.Tensor | None = None,
        ) -> torch.Tensor:
            raise AssertionError("the decoder rotated by itself")

        def of_heads(
            self,
            layer: int,
            heads: torch.Tensor,
            cos: torch.Tensor,
            sin: torch.Tensor,
            norm: object,
            sinks: torch.Tensor | None = None,
        ) -> torch.Tensor:
            seen.append(layer)
            shape = decoder.outline.facts.attention[layer]
            return heads[:, : shape.heads]

    listener = Listener()
    decoder = MarkedDecoder(loaded(tiny_model), listener)
    decoder(torch.tensor([3]), torch.tensor([0]), Rotating())
    assert seen == [0, 1, 2]
    assert listener.seen.count(OpKind.ATTENTION) == 3


def test_every_moment_belongs_to_an_op(tiny_model: Path) -> None:
    """Each op lasts until the next starts: 25 marks after the first, one second each."""
    clock = Clock()
    decoder = MarkedDecoder(loaded(tiny_model), HostOpTimer(clock))
    assert isinstance(decoder, TimesOps)
    run(decoder)
    run(decoder)
    seconds = decoder.take_seconds()
    assert set(seconds) == set(DENSE_OPS)
    assert seconds == {kind: 2.0 * [OpKind.EMBED, *LAYER * 3, OpKind.NORM].count(kind) for kind in DENSE_OPS}
    assert decoder.take_seconds() == {}


def test_an_op_that_fails_does_not_last_for_ever(tiny_model: Path) -> None:
    clock = Clock()
    decoder = MarkedDecoder(loaded(tiny_model), HostOpTimer(clock))

    def broken(
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor | None,
        value: torch.Tensor | None,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        raise RuntimeError("no attention")

    with pytest.raises(RuntimeError, match="no attention"):
        decoder(torch.tensor([1]), torch.tensor([0]), broken)
    clock.now += 1000
    run(decoder)
    assert max(decoder.take_seconds().values()) < 20


def test_ops_are_ranges_in_torchs_trace_while_they_are_shown(tiny_model: Path) -> None:
    decoder = MarkedDecoder(loaded(tiny_model), HostOpTimer())
    run(decoder)
    decoder.show_ranges(True)
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        run(decoder)
    decoder.show_ranges(False)
    counts = {e.key: e.count for e in profiler.key_averages() if e.key.startswith("plimsoll::")}
    assert counts == {f"plimsoll::{kind}": [OpKind.EMBED, *LAYER * 3, OpKind.NORM].count(kind) for kind in DENSE_OPS}


@pytest.mark.gpu
def test_events_of_a_device_time_its_ops() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA or ROCm device")
    timer = CudaOpTimer()
    square = torch.randn(4096, 4096, device="cuda")
    for kind in (OpKind.QKV, OpKind.DOWN, None):
        timer.switch(kind)
        square = square @ square.softmax(-1)
    seconds = timer.take_seconds()
    assert set(seconds) == {"qkv", "down"}
    assert all(0 < s < 10 for s in seconds.values())
    assert timer.take_seconds() == {}
