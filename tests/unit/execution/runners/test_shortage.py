"""If a device runs out of memory during steps, outputs are the same as with enough memory."""

from __future__ import annotations

import gc
import logging
import random
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from kernel_support.late import Copies
from model_support.tiny import make_model, save_model
from torch import Tensor

from plimsoll_runtime import LLM, SamplingParams
from plimsoll_runtime.engine.protocol.plan import StepPlan
from plimsoll_runtime.engine.scheduler.scheduler import NO_MEMORY
from plimsoll_runtime.engine.scheduler.token_budget import StepMemoryError
from plimsoll_runtime.execution.runners.base import StepRunner
from plimsoll_runtime.execution.runners.cpu import CpuRunner
from plimsoll_runtime.execution.runners.gpu import GpuRunner
from plimsoll_runtime.execution.runners.pooling import PoolingRunner
from plimsoll_runtime.execution.sampling.constraints import ConstrainedRows
from plimsoll_runtime.execution.sampling.sampler import Sampler
from plimsoll_runtime.structured.matcher import Grammars

FULL = "CUDA out of memory. Tried to allocate 2.00 GiB.\nSee documentation for Memory Management"
REST = 12
"""Three steps without a failure: a sequence that fails a second time, alone, is given an error."""
PROMPTS = [[8 + (i + j) % 12 for j in range(20 - 2 * i)] for i in range(4)]


def params(**wishes: Any) -> SamplingParams:
    return SamplingParams(**{"temperature": 0.0, "max_tokens": 12, "ignore_eos": True, **wishes})


WISHES = [
    params(),
    params(temperature=1.0, seed=3),
    params(temperature=0.9, seed=4, top_p=0.8, repetition_penalty=1.5, frequency_penalty=0.5),
    params(prompt_logprobs=2, logprobs=0),
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of a decoder, and of one with recurrent layers."""
    made = {}
    for name, kind in (("llama", "LlamaConfig"), ("mamba", "MambaConfig")):
        made[name] = tmp_path_factory.mktemp(name)
        save_model(make_model(kind, {}), made[name])
    return made


def load(folder: Path, **options: Any) -> LLM:
    defaults = {"dtype": "float32", "threads": 1, "kv_memory": "4MiB", "check_integrity_every": 1}
    return LLM(str(folder), **{**defaults, "attention_backend": "sdpa", **options})


class Scarcity:
    """Memory that runs out sometimes: before or after a pass, or while sampling; or always."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.chance = 0.0
        self.times = self._rest = 0
        self._random = random.Random(7)
        for kind, name in ((StepRunner, "_forward"), (Sampler, "choose")):
            patch.setattr(kind, name, self._wrapped(getattr(kind, name)))

    def _wrapped(self, work: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any) -> Any:
            self._strike()
            done = work(*args)
            self._strike()
            return done

        return wrapped

    def _strike(self) -> None:
        self._rest -= 1
        if self._random.random() < self.chance and (self._rest < 0 or self.chance == 1.0):
            self._rest = REST
            self.times += 1
            raise torch.OutOfMemoryError(FULL)


@pytest.mark.parametrize(
    ("model", "options", "late"),
    [
        ("llama", {"overlap": True}, True),
        ("llama", {"overlap": False, "prefix_caching": False}, False),
        ("mamba", {"overlap": True}, True),
    ],
)
def test_the_same_answers(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch, model: str, options: dict[str, Any], late: bool
) -> None:
    wanted = load(folders[model], overlap=False).generate(PROMPTS, WISHES)
    if late:
        Copies().install(monkeypatch)
    scarcity = Scarcity(monkeypatch)
    llm = load(folders[model], max_batch_tokens=64, **options)
    scarcity.chance = 0.04
    found = llm.generate(PROMPTS, WISHES)
    assert scarcity.times > 3
    assert [r.outputs[0].token_ids for r in found] == [r.outputs[0].token_ids for r in wanted]
    assert [r.outputs[0].finish_reason for r in found] == ["length"] * len(PROMPTS)
    assert llm.stats.preemptions > 0


def test_without_any_memory_each_request_is_told_so_and_the_engine_lives(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    scarcity = Scarcity(monkeypatch)
    llm = load(folders["llama"], overlap=True)
    wanted = llm.generate(PROMPTS[:2], params())
    scarcity.chance = 1.0
    with caplog.at_level(logging.WARNING):
        told = llm.generate(PROMPTS[:2], params())
    assert [r.outputs[0].error for r in told] == [NO_MEMORY] * 2
    assert any(
        "ran out of device memory (CUDA out of memory. Tried to allocate 2.00 GiB.)" in r.getMessage()
        for r in caplog.records
    )
    scarcity.chance = 0.0
    again = llm.generate(PROMPTS[:2], params())
    assert [r.outputs[0].token_ids for r in again] == [r.outputs[0].token_ids for r in wanted]


class Masks:
    """Masks of a step, which are computed until `result` is called."""

    waited = False

    def result(self) -> None:
        self.waited = True


def test_masks_of_a_step_that_was_not_computed_are_nobodys() -> None:
    """The step waits for the thread that computes them, because its guides are freed next."""
    rows, masks = ConstrainedRows(8, Grammars()), Masks()
    rows._under_way, rows._forced = masks, {0: [1, 2]}  # type: ignore[assignment]
    rows.break_off()
    assert masks.waited
    assert rows._forced == {}
    assert rows.finish(torch.device("cpu")) is None
    rows.break_off()


class Broken:
    """Parts of a runner that runs out of memory in a pass, while the pass holds a tensor."""

    def __init__(self, error: Callable[[], Exception]) -> None:
        self.error = error
        self.log: list[str] = []
        self.held: weakref.ref[Tensor] | None = None
        self.fallbacks = 0
        self.constrains = False
        self.host = self

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args: self.log.append(name)

    def pass_on(self, *_given: Any) -> None:
        hidden = torch.zeros(3)
        self.held = weakref.ref(hidden)
        raise self.error()


KINDS = [CpuRunner, GpuRunner, PoolingRunner]


def run_broken(kind: type[StepRunner], parts: Broken) -> None:
    runner: Any = object.__new__(kind)
    runner._shortages, runner._parts = 0, parts
    runner._sampler = runner._params = runner._tables = parts
    runner._compute = parts.pass_on
    plan: Any = StepPlan([object()])  # type: ignore[list-item]
    kind.run(runner, plan)


@pytest.mark.parametrize("kind", KINDS)
def test_memory_is_given_back_once_nobody_holds_it(kind: type[StepRunner], monkeypatch: pytest.MonkeyPatch) -> None:
    parts = Broken(lambda: torch.OutOfMemoryError(FULL))
    monkeypatch.setattr(StepPlan, "num_tokens", 1)

    def given_back() -> None:
        assert parts.held is not None
        parts.log.append("held" if parts.held() is not None else "given back")

    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "empty_cache", given_back)
    gc.disable()
    try:
        with pytest.raises(StepMemoryError, match=r"Tried to allocate 2\.00 GiB\.$") as caught:
            run_broken(kind, parts)
    finally:
        gc.enable()
    assert caught.value.__cause__ is caught.value.__context__ is None
    assert parts.log == ["begin", "begin", "break_off", "given back"], "tables and copies are begun before"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "error", [torch.AcceleratorError("CUDA error: unspecified launch failure"), MemoryError(), ValueError("a bug")]
)
def test_other_errors_come_out(kind: type[StepRunner], error: Exception) -> None:
    with pytest.raises(type(error)) as caught:
        run_broken(kind, Broken(lambda: error))
    assert caught.value is error
