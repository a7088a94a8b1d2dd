"""Faults in processes that a test does not start itself, such as the ranks of a server.

Each Python process imports `sitecustomize` at its start. One in a folder of the test patches a module when it is
imported.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

SUPPORT = Path(__file__).parents[1]
TORCH_BACKEND = "plimsoll_runtime.execution.attention.backends.gather.backend"
STEPS_BEFORE = 12
"""Steps of a rank before its backend fails: more than its warm-up has."""


def planted(folder: Path, module: str, function: str) -> str:
    """Return a PYTHONPATH with which each process calls a function of this file with a module after its import."""
    code = f"from groups_support import plants\nplants.install({module!r}, {function!r})\n"
    (folder / "sitecustomize.py").write_text(code)
    before = os.environ.get("PYTHONPATH", "")
    return os.pathsep.join([str(folder), str(SUPPORT), *([before] if before else [])])


def install(module: str, function: str) -> None:
    """Call the function when the module is imported."""
    sys.meta_path.insert(0, _Finder(module, function))


class _Finder(MetaPathFinder):
    def __init__(self, module: str, function: str) -> None:
        self._module = module
        self._function = function

    def find_spec(self, name: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != self._module:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.loader is not None
        spec.loader = _Loader(spec.loader, self._function)
        return spec


class _Loader(Loader):
    def __init__(self, inner: Loader, function: str) -> None:
        self._inner = inner
        self._function = function

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._inner.exec_module(module)
        globals()[self._function](module)


def fail_on_rank_1(module: ModuleType) -> None:
    """Let the torch backend fail on rank 1 when it has run some steps."""
    _fail(module, STEPS_BEFORE)


def fail_on_rank_1_at_once(module: ModuleType) -> None:
    """Let the torch backend fail on rank 1 in the warm-up."""
    _fail(module, 0)


def _fail(module: ModuleType, steps_before: int) -> None:
    backend: Any = module.GatheredBackend
    begin, steps = backend.begin, 0

    def failing(own: Any, batch: Any) -> Any:
        nonlocal steps
        if Path("/proc/self/comm").read_text().strip() != "plimsoll-rank-1" or own.name != "torch":
            return begin(own, batch)
        steps += 1
        if steps > steps_before:
            raise RuntimeError("no kernel image is available")
        return begin(own, batch)

    backend.begin = failing


def graphs_on_a_cpu(module: ModuleType) -> None:
    """Let ranks on a CPU run steps as on a GPU, with graphs that are recorded and repeated."""
    from parallel_support.graphs import DeviceExchange, NoEvent, RankRecorder

    from plimsoll_runtime.driver.build import assembly
    from plimsoll_runtime.execution.graphs.capture import CaptureBounds
    from plimsoll_runtime.parallel.captures import RankCapture

    def capture(rank: Any) -> RankCapture:
        recorder = RankRecorder()
        rank.collectives._exchanging = DeviceExchange(rank.collectives._exchanging, recorder)
        return RankCapture(recorder, rank.collectives, lambda: recorder.phase != "")

    def stages_of(config: Any, model: Any, probe: Any, rank: Any, choice: Any) -> assembly.Stages:
        stages = assembly.GPU_MEMBER if rank.number else assembly.GPU_FIRST
        if choice is not None:
            stages = assembly.GPU_CHOOSING
            if rank.number:
                stages = {**stages, "sampler": assembly.no_sampler}
        return {**stages, "capture": capture, "event": NoEvent}

    warm_up = module.warm_up

    def capturing(config: Any, loaded: Any, budget: Any, assembled: Any, progress: Any, *, rank: Any) -> Any:
        import torch

        found = warm_up(config, loaded, budget, assembled, progress, rank=rank)
        with torch.inference_mode():
            assembled.capture_graphs(CaptureBounds(600.0, 2**40), lambda fraction: None)
        return found

    vars(assembly)["stages_of"] = stages_of
    vars(module)["warm_up"] = capturing
