"""`python -m host_times.run`: the host's work in a decode step while a GPU computes, on a fake GPU.

The engine's own scheduler, inputs, block tables, upload buffer, sampling state and async results run like for a GPU;
launches of graphs are replaced by calls that return immediately. So the figures are of Python and of torch's calls on
small tensors, which take about as long on a CPU as their launches on a GPU. The host must finish a step before the
device does, or the device waits.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import torch
from torch import Tensor

import question
from no_model import no_model
from options import Options
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.engine.core import EngineCore
from plimsoll_runtime.engine.protocol.messages import AddRequest, RequestContext
from plimsoll_runtime.engine.protocol.sampling_params import SamplingParams
from plimsoll_runtime.engine.step_timing import StepPhase, Timeline
from plimsoll_runtime.execution.attention.backends.triton import TritonBackend
from plimsoll_runtime.execution.forward import GraphForwardPass
from plimsoll_runtime.execution.graphs.capture import CaptureBounds, Captured
from plimsoll_runtime.execution.graphs.decode import DecodeGraphs
from plimsoll_runtime.execution.graphs.sampling import SamplingGraphs
from plimsoll_runtime.execution.inputs.device_state import DeviceState, columns_of
from plimsoll_runtime.execution.kv.cache import KvCache
from plimsoll_runtime.execution.parts import StepParts
from plimsoll_runtime.execution.runners.gpu import GpuRunner
from plimsoll_runtime.execution.sampling.sampler import Sampler
from plimsoll_runtime.models.decoder import Decoder
from plimsoll_runtime.models.spec.attention import AttentionShape
from tables import Sheet

CASES = ((32, 128, 0.15), (256, 128, 0.5), (128, 32_000, 1.0))
"""Sequences, tokens of context, and the milliseconds available to the host between two steps."""
STEPS, BEFORE = 128, 8
BLOCK, HIDDEN, VOCAB, CHUNK = 16, 8, 8, 8192
SHAPE = AttentionShape(heads=1, kv_heads=1, head_dim=8, scale=1.0)
PHASES = (StepPhase.SCHEDULE, StepPhase.FORWARD, StepPhase.HEAD, StepPhase.SAMPLE, StepPhase.COMMIT)
"""Phases in the table. Preparing the inputs of a graph's replay counts as FORWARD."""


class Device:
    """A fake device: decoder, graph capture, and the event after a step's tokens; everything completes immediately."""

    used = 0
    dtype = torch.bfloat16

    def __init__(self) -> None:
        self.outline = SimpleNamespace(facts=SimpleNamespace(vocab_size=VOCAB, hidden_size=HIDDEN))

    def __call__(self, *args: Any) -> Tensor | Captured:
        """As a decoder, return the hidden states of a step; as a graph capture (for a function), run the function once
        and return a graph whose replay does nothing.
        """
        if callable(args[0]):
            work: Callable[[], Tensor] = args[0]
            return Captured(work(), lambda: None)
        return torch.zeros(len(args[0]), HIDDEN, dtype=self.dtype)

    def logits(self, hidden: Tensor) -> Tensor:
        return torch.zeros(len(hidden), VOCAB)

    def record(self) -> None:
        pass

    def synchronize(self) -> None:
        pass


def measure(chosen: Options) -> dict[str, Any]:
    """Return, for each case, the milliseconds of each phase and of the whole step: the median over rounds of the
    medians over steps.
    """
    rows = []
    for sequences, prompt, most in CASES:
        rounds = [_round(sequences, prompt, max(8, round(STEPS * chosen.scale))) for _ in range(chosen.rounds)]
        medians = {name: round(statistics.median(r[name] for r in rounds), 4) for name in rounds[0]}
        rows.append({"sequences": sequences, "prompt": prompt, "most": most, **medians})
    return {"steps": STEPS, "cases": rows}


def table(result: dict[str, Any]) -> Sheet:
    """Return a row for each case."""
    names = [*(p.name.lower() for p in PHASES), "step"]
    rows = [[f"{r['sequences']} x {r['prompt']}", *(f"{r[n]:.3f}" for n in names)] for r in result["cases"]]
    return Sheet("Milliseconds of the host in a step of decodes, medians", ["sequences x context", *names], rows)


@torch.inference_mode()
def _round(sequences: int, prompt: int, steps: int) -> dict[str, float]:
    # Sequences whose prompts are computed first decode until the last prompt is computed.
    tokens = BEFORE + steps + 2 * (1 + sequences * prompt // CHUNK)
    core, timeline = _engine(sequences, prompt + tokens)
    wanted = RequestContext(SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True), seed=0)
    for number in range(sequences):
        core.add(AddRequest(str(number), [2 + (number + i) % 5 for i in range(prompt)], wanted))
    while len(core.step().outputs) < sequences:
        if not core.has_work:
            raise RuntimeError(f"{sequences} sequences were never decoded together")
    for _ in range(BEFORE):
        core.step()
    before, taken = timeline.totals(), list[tuple[float, ...]]()
    for _ in range(steps):
        core.step()
        now = timeline.totals()
        taken.append(tuple(1e3 * (b - a) for a, b in zip(before, now, strict=True)))
        before = now
    phases = {p.name.lower(): statistics.median(each[p] for each in taken) for p in PHASES}
    return {**phases, "step": statistics.median(sum(each) for each in taken)}


def _engine(sequences: int, longest: int) -> tuple[EngineCore, Timeline]:
    """Return an engine for this number of sequences with a large enough cache; one thread runs its steps."""
    blocks = 1 + sequences * (-(-longest // BLOCK) + 1)
    device, timeline = Device(), Timeline()
    decoder = cast(Decoder, device)
    cache = KvCache([SHAPE], blocks, BLOCK, torch.bfloat16, torch.device("cpu"))

    parts = StepParts(decoder, cache, timeline=timeline)
    capture, sampler = cast(Any, device), Sampler(VOCAB, ())
    state = DeviceState(sequences, 1, blocks, columns_of(longest, BLOCK), cache.device)
    choices = SamplingGraphs(decoder, sampler, state, capture)

    def graphs_of(backend: Any) -> DecodeGraphs:
        return DecodeGraphs(parts, backend, state, capture, max_sequences=sequences, max_model_len=longest)

    forward = GraphForwardPass(parts, [TritonBackend], graphs_of)
    forward.capture_graphs(capture, CaptureBounds(60.0, 1), beside=choices)
    config = EngineConfig(
        model="none", overlap=False, prefix_caching=False, max_sequences=sequences, max_batch_tokens=CHUNK
    )
    runner = GpuRunner(forward, sampler, state, device, choices)
    info = no_model(device="cuda", vocab_size=VOCAB, max_model_len=longest, block_size=BLOCK, num_blocks=blocks)
    return EngineCore(config, info, runner, timeline), timeline


if __name__ == "__main__":
    sys.exit(question.main(__doc__, measure, table))
