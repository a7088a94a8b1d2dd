"""Ctrl-C anywhere in `LLM.generate`: the next call answers as if nothing had happened."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from model_support.tiny import make_model, save_model

import plimsoll_runtime
from plimsoll_runtime import LLM, SamplingParams
from plimsoll_runtime.driver.clients import blocking_client
from plimsoll_runtime.engine import core, pipeline
from plimsoll_runtime.engine.core import EngineCore
from plimsoll_runtime.offline import interrupts

pytestmark = pytest.mark.usefixtures("ctrl_c")

OURS = str(Path(plimsoll_runtime.__file__).parent)
CORE = frozenset(str(module.__file__) for module in (core, interrupts, pipeline, blocking_client))
PROMPTS = [[*range(1, 19), 3], [*range(1, 19), 4], [5, 6]]
GREEDY = SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True)
DRAWN = SamplingParams(temperature=1.0, seed=4, max_tokens=3, ignore_eos=True, frequency_penalty=0.4)
ENGINES: dict[str, dict[str, Any]] = {
    "one by one": {"overlap": False},
    "overlapping": {"overlap": True},
    "disk": {"overlap": True, "kv_disk_size": "1MiB", "kv_memory": "96KiB"},
    "child": {"engine": "child"},
}


class CtrlC:
    """Presses Ctrl-C after a number of bytecodes (optionally of some files only) in this thread."""

    def __init__(self, when: int, files: frozenset[str] | None = None) -> None:
        self._when = when
        self._files = files
        self.seen = 0

    def during(self, work: Callable[[], object]) -> bool:
        """Whether it interrupted the work. It may have come when only the last return was left."""
        sys.settrace(self._trace)
        try:
            work()
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(None)
        return False

    def _trace(self, frame: FrameType, event: str, arg: object) -> Any:
        file = frame.f_code.co_filename
        if not file.startswith(OURS) or (self._files is not None and file not in self._files):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            self.seen += 1
            if self.seen == self._when:
                signal.raise_signal(signal.SIGINT)
        return self._trace


def load(folder: Path, kind: str) -> LLM:
    options: dict[str, Any] = {"dtype": "float32", "threads": 1, "kv_memory": "1MiB", "max_model_len": 64}
    options |= ENGINES[kind]
    if kind == "disk":
        options["kv_disk"] = str(folder / "blocks")
    return LLM(str(folder), check_integrity_every=1, **options)


def ask(llm: LLM) -> list[list[int]]:
    return [r.outputs[0].token_ids for r in llm.generate(PROMPTS, [GREEDY, DRAWN, GREEDY])]


@pytest.fixture(scope="module", params=ENGINES)
def llm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    folder = tmp_path_factory.mktemp("model")
    save_model(make_model("LlamaConfig", {}), folder)
    with load(folder, request.param) as made:
        yield made


@pytest.fixture(scope="module")
def expected(llm: LLM) -> list[list[int]]:
    return ask(llm)


def check_usable(llm: LLM, expected: list[list[int]]) -> None:
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if isinstance(llm._engine, EngineCore):
        llm._engine.check_integrity()
    assert ask(llm) == expected
    assert not llm._engine.has_work
    assert (llm.stats.running, llm.stats.waiting) == (0, 0)


@pytest.fixture(scope="module")
def whole(llm: LLM, expected: list[list[int]]) -> int:
    """Return the bytecodes of a call that finds its prefixes cached."""
    counting = CtrlC(0)
    assert not counting.during(lambda: ask(llm))
    return counting.seen


@pytest.mark.long
@settings(deadline=None, max_examples=60)
@given(share=st.floats(0, 1))
def test_anywhere(share: float, llm: LLM, expected: list[list[int]], whole: int) -> None:
    CtrlC(1 + int(share * whole)).during(lambda: ask(llm))
    check_usable(llm, expected)


@pytest.mark.long
def test_everywhere_around_a_step(llm: LLM, expected: list[list[int]]) -> None:
    """At every seventh bytecode of the core, which is more than one for each line, to the end of a call."""
    when = 1
    while True:
        pressed = CtrlC(when, CORE)
        pressed.during(lambda: ask(llm))
        check_usable(llm, expected)
        if pressed.seen < when:
            return
        when += 7
