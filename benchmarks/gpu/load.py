"""Minutes of random load with a full cache: checks that memory suffices, and equals the prediction."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from plimsoll_runtime.driver.build.engine import build_engine
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.engine.core import EngineCore
from plimsoll_runtime.engine.protocol.messages import AddRequest, EngineInfo, RequestContext
from plimsoll_runtime.engine.protocol.sampling_params import SamplingParams
from plimsoll_runtime.errors import EngineDeadError
from plimsoll_runtime.utils.progress import silent

FULL = 0.98
"""Share of the cache's blocks that counts as full. The scheduler keeps one block free per running sequence, and admits
a prompt only if all of it fits: less than the remaining 2 % of a GPU's tens of thousands of blocks.
"""
WAITING = 16
"""Number of waiting requests, so that the next one is ready as soon as memory is free."""
ABORTED = 0.01
"""Share of steps after which a request is aborted."""

Used = Callable[[], int]


@dataclass(frozen=True, slots=True)
class Load:
    """Duration in seconds, ranges of random prompt and output lengths in tokens, and the most sequences that run at
    once.
    """

    seconds: float = 300.0
    prompts: tuple[int, int] = (64, 4096)
    answers: tuple[int, int] = (16, 1024)
    sequences: int = 512


def measure(model: str, load: Load, used: Used | None = None, **options: Any) -> dict[str, Any]:
    """Run an engine under `load`, and return its counters and its memory. `used` returns the used bytes of the device
    (None: from the driver). `error`: difference between the peak of used bytes and the prediction, as a share of the
    peak. If the engine ends, `ended` has the reason, else "".
    """
    if used is None:
        torch.cuda.empty_cache()  # peaks of earlier work in this process
    taken = used or _used
    before = taken()
    config = EngineConfig(
        model=model,
        dtype="bfloat16",
        max_sequences=load.sequences,
        max_model_len=load.prompts[1] + load.answers[1],
        **options,
    )
    core = build_engine(config, silent)
    predicted = before + predicted_bytes(core.info)
    watched = _Watched(taken)
    ended = ""
    try:
        drive(core, load, watched)
    except (EngineDeadError, torch.OutOfMemoryError) as error:
        ended = f"{type(error).__name__}: {error}"
    stats = core.stats
    return {
        "seconds": load.seconds,
        "steps": stats.steps,
        "generated_tokens": stats.generated_tokens,
        "preemptions": stats.preemptions,
        "blocks": stats.blocks_total,
        "kv_use": round(statistics.median(watched.use), 4) if watched.use else 0.0,
        "ended": ended,
        "predicted_bytes": predicted,
        "used_bytes": watched.most,
        "error": round(abs(watched.most - predicted) / watched.most, 4) if watched.most else 1.0,
    }


def predicted_bytes(info: EngineInfo) -> int:
    """Return the device memory that an engine predicts."""
    return info.weight_bytes + info.workspace_bytes + info.kv_bytes


class _Watched:
    """Peak memory, and the cache's use after each step since it was first full."""

    def __init__(self, used: Used) -> None:
        self._used = used
        self.most = 0
        self.use: list[float] = []

    def look(self, core: EngineCore) -> None:
        """Record the state after a step."""
        self.most = max(self.most, self._used())
        stats = core.stats
        use = stats.blocks_used / stats.blocks_total
        if self.use or use >= FULL:
            self.use.append(use)


def drive(core: EngineCore, load: Load, watched: _Watched, clock: Callable[[], float] = time.monotonic) -> None:
    """Keep WAITING requests in the waiting queue until the time is up, then abort all. Raises the errors of steps."""
    chance = random.Random(0)
    living: list[str] = []
    ends = clock() + load.seconds
    number = 0
    while clock() < ends:
        while core.stats.waiting < WAITING:
            core.add(_request(str(number), load, core.info.vocab_size, chance))
            living.append(str(number))
            number += 1
        gone = {output.request_id for output in core.step().outputs if output.finish_reason}
        living = [name for name in living if name not in gone]
        if chance.random() < ABORTED and living:
            core.abort([living.pop(chance.randrange(len(living)))])
        watched.look(core)
    core.abort(living)
    while core.has_work:
        core.step()


def _request(name: str, load: Load, vocabulary: int, chance: random.Random) -> AddRequest:
    """Return a random request: about a third are greedy, the others sample with random temperature, top-p and top-k."""
    drawn = chance.randrange(3) > 0
    params = SamplingParams(
        temperature=chance.uniform(0.5, 1.2) if drawn else 0.0,
        top_p=chance.choice([1.0, 0.95]) if drawn else 1.0,
        top_k=chance.choice([0, 40]) if drawn else 0,
        seed=chance.randrange(2**31),
        max_tokens=chance.randint(*load.answers),
        ignore_eos=True,
    )
    prompt = [chance.randrange(vocabulary) for _ in range(chance.randint(*load.prompts))]
    return AddRequest(name, prompt, RequestContext(params, params.output_seed()))


def _used() -> int:
    """Return the used bytes of the first GPU, of all processes."""
    free, total = torch.cuda.mem_get_info()
    return int(total - free)
