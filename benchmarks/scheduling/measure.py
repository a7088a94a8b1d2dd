"""Times steps of the real engine, for fitting the cost model."""

from __future__ import annotations

import itertools
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator

from plimsoll_runtime.driver.build.engine import build_engine
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.engine.core import EngineCore, Runner
from plimsoll_runtime.engine.protocol.messages import AddRequest, RequestContext
from plimsoll_runtime.engine.protocol.plan import Launched, StepPlan
from plimsoll_runtime.engine.protocol.sampling_params import SamplingParams
from plimsoll_runtime.engine.step_timing import Timeline
from plimsoll_runtime.models.decoder import Decoder
from scheduling.cost import StepWork, work_of
from serving import models

MODEL = models.SMALL
PROMPTS = (16, 64, 128, 256, 512, 1024)
BATCHES = ((1, 32), (1, 1024), (4, 256), (8, 64), (8, 512), (16, 128), (32, 32), (32, 256), (64, 16), (64, 128))
"""Number of sequences that decode together, and the length of their prompts."""
DECODES, REPEATS = 8, 3


class Recorder:
    """Observes an engine: `work` is the work of its last step."""

    def __init__(self) -> None:
        self.timeline = Timeline()
        self.work: StepWork | None = None
        self._runner: Runner | None = None

    def watch_decoder(self, decoder: Decoder) -> Decoder:
        """Return the decoder unchanged."""
        return decoder

    def watch_runner(self, runner: Runner) -> Runner:
        """Return a runner that records the work of each step and runs it with `runner`."""
        self._runner = runner
        return self

    def run(self, plan: StepPlan) -> Launched:
        """Record the work, and run the step."""
        assert self._runner is not None
        self.work = work_of(plan)
        return self._runner.run(plan)


def measure(threads: int) -> list[tuple[StepWork, float]]:
    """Return the work and the seconds of steps of many shapes, from schedule to commit; medians for repeated shapes."""
    recorder = Recorder()
    config = EngineConfig(
        model=models.source(MODEL),
        dtype="bfloat16",
        threads=threads,
        max_batch_tokens=1024,
        kv_memory="1GiB",
        max_model_len=2048,
        prefix_caching=False,
        overlap=False,
    )
    core = build_engine(config, lambda stage, fraction: None, recorder)
    seen: dict[StepWork, list[float]] = defaultdict(list)
    ids, tokens = itertools.count(), random.Random(0)

    def run(count: int, prompt: int, answer: int) -> None:
        for _ in range(count):
            params = SamplingParams(temperature=0.0, max_tokens=answer, ignore_eos=True)
            ask = [tokens.randrange(models.SMALL.vocab) for _ in range(prompt)]
            core.add(AddRequest(str(next(ids)), ask, RequestContext(params, params.output_seed())))
        for work, seconds in _steps(core, recorder):
            seen[work].append(seconds)

    run(1, 64, 4)
    seen.clear()
    for prompt in PROMPTS * REPEATS:
        run(1, prompt, 1)
    for count, prompt in BATCHES:
        run(count, prompt, DECODES)
    return [(work, statistics.median(times)) for work, times in seen.items()]


def _steps(core: EngineCore, recorder: Recorder) -> Iterator[tuple[StepWork, float]]:
    while core.has_work:
        started = time.perf_counter()
        core.step()
        seconds = time.perf_counter() - started
        assert recorder.work is not None
        yield recorder.work, seconds
