"""`python -m step_calls.run`: counts Python calls and bytecodes of a decode step, independently of other load on the
machine.

The model is "tiny" on the CPU kernels; steps do not overlap, so that one thread runs the whole step. The counts are of
whole engine steps, over as many steps as fill blocks, with greedy decoding.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from msgspec.structs import replace

import question
from options import Options
from plimsoll_runtime.engine.core import EngineCore
from plimsoll_runtime.engine.protocol.sampling_params import SamplingParams
from plimsoll_runtime.engine.step_tracing import StepTracing
from tables import Sheet
from tiny_engine import start_decoding, tiny_engine

BATCHES, PROMPT, STEPS = (1, 16, 64), 256, 64


def measure(chosen: Options) -> dict[str, Any]:
    """Return calls and bytecodes per step, by batch."""
    engine, names = tiny_engine(max(BATCHES)), itertools.count()
    return {"steps": STEPS, "context": PROMPT, "batches": {size: _counts(engine, size, names) for size in BATCHES}}


def calls_of_a_step(step_tracing: StepTracing | None, sequences: int = 16) -> float:
    """Return the Python calls of a decode step."""
    engine, params = tiny_engine(sequences, step_tracing), SamplingParams(temperature=0.0, max_tokens=4 * STEPS)
    start_decoding(engine, sequences, PROMPT, replace(params, ignore_eos=True), itertools.count())
    return _counted(engine, _calls, sys.setprofile)


def table(result: dict[str, Any]) -> Sheet:
    """Return a row per batch."""
    rows = [[str(size), f"{each['calls']:.1f}", f"{each['bytecodes']:.0f}"] for size, each in result["batches"].items()]
    title = f"A decode step in Python, means of {result['steps']} steps, {result['context']} tokens of context"
    return Sheet(title, ["sequences", "calls", "bytecodes"], rows)


def _counts(engine: EngineCore, size: int, names: Iterator[int]) -> dict[str, float]:
    params = SamplingParams(temperature=0.0, max_tokens=2 * STEPS + 2, ignore_eos=True)
    start_decoding(engine, size, PROMPT, params, names)
    counts = {
        "calls": _counted(engine, _calls, sys.setprofile),
        "bytecodes": _counted(engine, _bytecodes, sys.settrace),
    }
    while engine.has_work:
        engine.step()
    return counts


See = Callable[[FrameType, str, Any], Any]


def _counted(engine: EngineCore, see_into: Callable[[list[int]], See], install: Callable[[See | None], None]) -> float:
    """Return the mean count per step. `see_into` makes a trace function that increments the list's only number;
    `install` sets it, or removes it for None.
    """
    found = [0]
    see = see_into(found)
    for _ in range(STEPS):
        install(see)
        engine.step()
        install(None)
    return found[0] / STEPS


def _calls(found: list[int]) -> See:
    def see(frame: FrameType, event: str, argument: object) -> None:
        found[0] += event == "call"

    return see


def _bytecodes(found: list[int]) -> See:
    def see(frame: FrameType, event: str, argument: object) -> See:
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        found[0] += event == "opcode"
        return see

    return see


if __name__ == "__main__":
    sys.exit(question.main(__doc__, measure, table))
