"""The fastest backend is selected, also next to slow or failing ones, or with a cache that cannot be written."""

from __future__ import annotations

import errno
import json
import logging
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from plimsoll_runtime.errors import UsageError
from plimsoll_runtime.execution.attention import benchmark
from plimsoll_runtime.execution.attention import selection as module
from plimsoll_runtime.execution.attention.backends.reference import ReferenceBackend
from plimsoll_runtime.execution.attention.base import AttentionBackend, AttentionBatch
from plimsoll_runtime.execution.attention.benchmark import MOST_REPEATS, SMALL, Mix, Stopwatch, lengths_of, measure
from plimsoll_runtime.execution.attention.capabilities import Capabilities, Target
from plimsoll_runtime.execution.attention.registry import BACKENDS
from plimsoll_runtime.execution.attention.selection import fastest_first
from plimsoll_runtime.execution.kv.cache import KvCache
from plimsoll_runtime.models.layers.attention import Attention
from plimsoll_runtime.models.spec.attention import AttentionShape

CPU = torch.device("cpu")
TARGET = Target(CPU, torch.float32, [AttentionShape(heads=4, kv_heads=2, head_dim=16, scale=0.25)] * 3, 16)
LOGGER = "plimsoll_runtime.execution.attention"
STALL = 0.003
"""Additional seconds of a run while another process has the core."""


@dataclass
class FakeClock:
    """A clock that only backends advance. `lengths`: the most rows of each step."""

    now: float = 0.0
    calls: list[str] = field(default_factory=list)
    lengths: set[int] = field(default_factory=set)

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PLIMSOLL_CACHE", str(tmp_path))
    return tmp_path / "attention"


def fake(
    clock: FakeClock,
    named: str,
    seconds: float,
    *,
    change: Callable[[Tensor], Tensor] = lambda out: out,
    fails: str | None = None,
    is_fused: bool = False,
    refusal: str | None = None,
    last_resort: bool = False,
    stalled_until: float = 0.0,
    decode_seconds: float | None = None,
) -> type[AttentionBackend]:
    """Return a backend that computes like the reference, in `seconds` for a layer; STALL more at first.

    A decode takes as long, unless its time is given.
    """

    class Fake:
        name: ClassVar[str] = named
        fused: ClassVar[bool] = is_fused
        capabilities: ClassVar[Capabilities] = Capabilities(checks=(lambda target: refusal,), last_resort=last_resort)

        def __init__(self, cache: KvCache) -> None:
            if fails == "made":
                raise RuntimeError("cannot be compiled")
            self._inner = ReferenceBackend(cache)

        def begin(self, batch: AttentionBatch) -> Attention:
            inner = self._inner.begin(batch)
            decodes = decode_seconds is not None and max(batch.query_lens) == 1
            clock.lengths.add(max(batch.query_lens))

            def attention(
                layer: int, query: Tensor, key: Tensor | None, value: Tensor | None, sinks: Tensor | None = None
            ) -> Tensor:
                taken = decode_seconds if decodes and decode_seconds is not None else seconds
                clock.now += taken + (STALL if clock.now < stalled_until else 0.0)
                clock.calls.append(named)
                if fails == "run":
                    raise RuntimeError("illegal instruction")
                return change(inner(layer, query, key, value))

            return attention

    return Fake


def chosen(clock: FakeClock, **backends: type[AttentionBackend]) -> str:
    return fastest_first(TARGET, backends.values(), clock)[0].name


def test_the_fastest_is_taken_and_the_table_says_so(clock: FakeClock, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    backends = {
        "slow": fake(clock, "slow", 0.01),
        "fast": fake(clock, "fast", 0.001),
        "absent": fake(clock, "absent", 0.0, refusal="needs a unicorn"),
        "right": fake(clock, "right", 0.0, last_resort=True),
    }
    assert chosen(clock, **backends) == "fast"
    [record] = caplog.records
    heading, columns, *rows = record.getMessage().splitlines()
    assert "float32, blocks of 16: 16 decodes after 512 tokens, 256 tokens of a prompt, measured" in heading
    assert columns.split() == ["backend", "decode", "ms", "prompt", "ms"]
    assert [row.split() for row in rows] == [
        ["slow", "30.00", "30.00"],
        ["fast", "3.00", "3.00", "taken"],
        ["absent", "needs", "a", "unicorn"],
        ["right", *module.NOT_NEEDED.split()],
    ]


@pytest.mark.parametrize("fails", ["made", "run"])
def test_a_backend_that_fails_is_left_out_with_one_warning(
    clock: FakeClock, fails: str, caplog: pytest.LogCaptureFixture
) -> None:
    broken = fake(clock, "broken", 0.0, fails=fails)
    assert chosen(clock, broken=broken, works=fake(clock, "works", 0.01)) == "works"
    [warning] = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert warning.startswith("the attention backend broken failed: RuntimeError: ")


@pytest.mark.parametrize("change", [lambda out: out * 1.01, lambda out: out * float("nan")], ids=["off", "nan"])
def test_a_backend_that_computes_something_else_is_left_out(
    clock: FakeClock, change: Callable[[Tensor], Tensor], caplog: pytest.LogCaptureFixture
) -> None:
    wrong = fake(clock, "wrong", 0.0, change=change)
    assert chosen(clock, wrong=wrong, right=fake(clock, "right", 0.01)) == "right"
    assert "its results differ from the reference's by" in caplog.text


def test_the_last_resort_is_taken_where_all_else_fails(clock: FakeClock, cache: Path) -> None:
    backends = {
        "broken": fake(clock, "broken", 0.0, fails="made"),
        "right": fake(clock, "right", 0.05, last_resort=True),
    }
    assert chosen(clock, **backends) == "right"
    assert not cache.exists(), "a failure may have been a passing one: the next start tries again"


def test_nothing_runs(clock: FakeClock) -> None:
    with pytest.raises(UsageError, match="no attention backend runs on cpu: one needs a unicorn; two failed: Runtime"):
        chosen(clock, one=fake(clock, "one", 0, refusal="needs a unicorn"), two=fake(clock, "two", 0, fails="run"))


@pytest.mark.parametrize(("rival", "taken"), [(0.006, "fused"), (0.005, "rival")])
def test_a_rival_has_to_make_up_for_the_fused_decoder(clock: FakeClock, rival: float, taken: str) -> None:
    backends = {"fused": fake(clock, "fused", 0.01, is_fused=True), "rival": fake(clock, "rival", rival)}
    assert chosen(clock, **backends) == taken


def test_a_core_that_was_busy_for_a_while_says_nothing_of_a_short_run(clock: FakeClock) -> None:
    until = 7.5 * STALL  # Three steps of the check, the run beforehand, and three that count.
    backends = {
        "stalled": fake(clock, "stalled", 0.0001, stalled_until=until),
        "rival": fake(clock, "rival", 0.001),
    }
    for _ in ("measured", "remembered"):
        assert chosen(clock, **backends) == "stalled"


def test_runs_that_take_no_time_come_to_an_end(clock: FakeClock) -> None:
    assert chosen(clock, instant=fake(clock, "instant", 0.0)) == "instant"
    assert clock.calls.count("instant") == 3 + 2 * (1 + MOST_REPEATS), "the check, and both batches after a run each"


def test_who_follows_where_one_fails_in_service(clock: FakeClock) -> None:
    backends = {
        "fused": fake(clock, "fused", 0.002, is_fused=True),
        "slow": fake(clock, "slow", 0.0011),
        "absent": fake(clock, "absent", 0.0, refusal="needs a unicorn"),
        "fast": fake(clock, "fast", 0.0010),
        "broken": fake(clock, "broken", 0.0, fails="run"),
        "right": fake(clock, "right", 0.0, last_resort=True),
        "rare": fake(clock, "rare", 0.0, last_resort=True, refusal="needs a unicorn"),
    }
    for _ in range(2):
        assert [b.name for b in fastest_first(TARGET, backends.values(), clock)] == ["fast", "slow", "right"]
    del backends["broken"]
    for _ in ("measured", "remembered"):
        assert [b.name for b in fastest_first(TARGET, backends.values(), clock)] == ["fast", "slow", "right"]
    backends["fused"] = fake(clock, "fused", 0.0001, is_fused=True)
    del backends["slow"]
    assert [b.name for b in fastest_first(TARGET, backends.values(), clock)] == ["fused"], (
        "its decoder fits no other backend"
    )


class OnGpu:
    """Treats the CPU as a GPU: backends are measured and selected as on one."""

    type = "cuda"


def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> Target:
    """Return a target whose device claims to be a GPU, with tensors on the CPU."""

    def measured(target: Target, *arguments: Any) -> Any:
        return real(TARGET, *arguments)

    real = module._measure_all
    monkeypatch.setattr(module, "_measure_all", measured)
    monkeypatch.setattr(module, "device_name", lambda device: "a GPU")
    monkeypatch.setattr(module, "expected_mix", lambda device: SMALL)
    monkeypatch.setattr(module, "CPU_SECONDS", 60.0)
    return replace(TARGET, device=OnGpu())  # type: ignore[arg-type]


def test_on_a_gpu_prompts_and_decodes_may_have_backends_of_their_own(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    backends = {
        "slow": fake(clock, "slow", 0.02),
        "decodes": fake(clock, "decodes", 0.01, decode_seconds=0.001),
        "prompts": fake(clock, "prompts", 0.004, decode_seconds=0.03),
        "right": fake(clock, "right", 0.0, last_resort=True),
    }
    target = on_a_gpu(monkeypatch)
    for _ in ("measured", "remembered"):
        found = [backend.name for backend in fastest_first(target, backends.values(), clock)]
        assert found == ["prompts+decodes", "decodes", "prompts+slow", "prompts", "slow", "right"]
    rows = [row.split() for row in caplog.records[0].getMessage().splitlines()[2:]]
    assert rows[:3] == [
        ["slow", "60.00", "60.00"],
        ["decodes", "3.00", "30.00", "taken", "for", "decodes"],
        ["prompts", "90.00", "12.00", "taken", "for", "prompts"],
    ]
    assert chosen(clock, **backends) == "decodes", "on a CPU backends do not share a step"


def test_prompts_of_a_gpu_are_of_several_lengths(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library may prepare for each new length."""
    reference = fake(clock, "reference", 0.001)
    mix = Mix(decodes=2, context=20, chunk=64)
    watch = Stopwatch(clock, 1e9)
    measure(reference, TARGET, mix, watch)
    assert clock.lengths == {1, 64}
    clock.lengths.clear()
    monkeypatch.setattr(benchmark, "lengths_of", lambda mix, device: [64, 63, 62, 61])
    measure(reference, TARGET, mix, watch)
    assert clock.lengths == {1, 64, 63, 62, 61}
    assert lengths_of(mix, torch.device("cuda")) == [64, 63, 62, 61]
    assert lengths_of(Mix(2, 20, 2), torch.device("cuda")) == [2, 1]
    assert lengths_of(mix, CPU) == [64]


def test_time_that_is_up_ends_the_measuring(clock: FakeClock, cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    backends = {
        "first": fake(clock, "first", module.CPU_SECONDS),
        "second": fake(clock, "second", 0.001),
    }
    assert chosen(clock, **backends) == "first"
    assert "second" not in clock.calls
    assert module.NO_TIME in caplog.text
    assert not cache.exists(), "half a table is not kept"
    slow = {"first": fake(clock, "first", 0.001), "second": fake(clock, "second", module.CPU_SECONDS)}
    clock.calls.clear()
    assert chosen(clock, **slow) == "first"
    assert clock.calls.count("second") == 4, "three small steps of the check, and one that was too long"


def test_the_next_start_remembers(clock: FakeClock, cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    backends = {"a": fake(clock, "a", 0.01), "b": fake(clock, "b", 0.001)}
    assert chosen(clock, **backends) == "b"
    clock.calls.clear()
    caplog.set_level(logging.INFO, LOGGER)
    assert chosen(clock, **backends) == "b"
    assert not clock.calls
    [file] = cache.iterdir()
    assert f"read from {file}" in caplog.text
    assert json.loads(file.read_text())["backends"]["b"] == pytest.approx([3.0, 3.0])


@pytest.mark.parametrize(
    "changed",
    [
        Target(CPU, torch.float32, TARGET.shapes, 32),
        Target(CPU, torch.bfloat16, TARGET.shapes, 16),
        Target(CPU, torch.float32, TARGET.shapes[:2], 16),
    ],
    ids=["blocks", "dtype", "layers"],
)
def test_another_target_is_measured_anew(clock: FakeClock, changed: Target) -> None:
    backends = {"a": fake(clock, "a", 0.01), "b": fake(clock, "b", 0.001)}
    chosen(clock, **backends)
    clock.calls.clear()
    fastest_first(changed, backends.values(), clock)
    assert {"a", "b"} == set(clock.calls)


@pytest.mark.long
@pytest.mark.parametrize("content", [b"", b"{", b'{"key": {}, "backends": {"a": "fast"}}', b"\xff\xfe"])
def test_a_file_that_is_damaged_costs_a_warning_and_a_measurement(
    clock: FakeClock, cache: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    backends = {"a": fake(clock, "a", 0.01), "b": fake(clock, "b", 0.001)}
    chosen(clock, **backends)
    [file] = cache.iterdir()
    file.write_bytes(content)
    clock.calls.clear()
    assert chosen(clock, **backends) == "b"
    assert clock.calls
    assert len(caplog.records) == 1
    assert "cannot read" in caplog.text
    assert json.loads(file.read_text())["backends"].keys() == {"a", "b"}


def full(**options: Any) -> tuple[int, str]:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_cache_that_is_full(
    clock: FakeClock, cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tempfile, "mkstemp", full)
    assert chosen(clock, a=fake(clock, "a", 0.01)) == "a"
    [warning] = [r.getMessage() for r in caplog.records]
    assert "No space left on device" in warning
    assert "set PLIMSOLL_CACHE" in warning
    assert list(cache.iterdir()) == []


def test_a_disk_that_fills_up_leaves_nothing_behind(
    clock: FakeClock, cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(self: Path, target: Path) -> Path:
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    monkeypatch.setattr(Path, "replace", refuse)
    assert chosen(clock, a=fake(clock, "a", 0.01)) == "a"
    assert "Disk quota exceeded" in caplog.text
    assert list(cache.iterdir()) == []


def test_a_cache_where_nothing_can_be_made(
    clock: FakeClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Like a read-only folder, in which root could write."""
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("PLIMSOLL_CACHE", str(tmp_path / "file"))
    assert chosen(clock, a=fake(clock, "a", 0.01)) == "a"
    assert "set PLIMSOLL_CACHE to a writable folder" in caplog.text


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_what_runs_on_this_processor(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With the real clock, on the shapes of the demo model: two kinds of layers."""
    monkeypatch.setattr(module, "CPU_SECONDS", 60.0)
    wide = AttentionShape(heads=4, kv_heads=1, head_dim=256, scale=256**-0.5)
    windowed = AttentionShape(heads=4, kv_heads=1, head_dim=256, scale=256**-0.5, window=512)
    target = Target(CPU, dtype, [*[windowed] * 5, wide], 16)
    able = {name for name, e in BACKENDS.items() if not (e.capabilities.refusal(target) or e.capabilities.last_resort)}
    assert able >= {"torch", "sdpa"}
    backend: type[AttentionBackend] = fastest_first(target)[0]
    [file] = cache.iterdir()
    assert json.loads(file.read_text())["backends"].keys() == able
    assert backend.name in able
    assert not caplog.records
