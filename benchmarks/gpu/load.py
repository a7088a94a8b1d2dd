"""Minutes of random load with a cache that is full: does memory suffice, and is it what was predicted?"""

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
"""Of the cache's blocks. The scheduler keeps one free for each sequence that runs, and lets nobody in before there is
room for all of a prompt: of a GPU's tens of thousands that is less than the rest."""
WAITING = 16
"""Requests that wait: the next one is there as soon as there is room."""
ABORTED = 0.01
"""Of the steps, after which somebody goes away."""

Used = Callable[[], int]


@dataclass(frozen=True, slots=True)
class Load:
    """So many seconds of prompts and answers of random lengths within these, on the longest sequences."""

    seconds: float = 300.0
    prompts: tuple[int, int] = (64, 4096)
    answers: tuple[int, int] = (16, 1024)
    sequences: int = 512


def measure(model: str, load: Load, used: Used | None = None, **options: Any) -> dict[str, Any]:
    """An engine under such load. `used` says how many bytes of the device are taken; None: by the driver.

    An engine that ends is the result, with the reason: `ended` is empty where it did not.
    """
    if used is None:
        torch.cuda.empty_cache()  # of what this process did before
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
    """What an engine says that it takes of the device."""
    return info.weight_bytes + info.workspace_bytes + info.kv_bytes


class _Watched:
    """The most memory that was taken, and the cache's use after each step since it was first full."""

    def __init__(self, used: Used) -> None:
        self._used = used
        self.most = 0
        self.use: list[float] = []

    def look(self, core: EngineCore) -> None:
        """After a step."""
        self.most = max(self.most, self._used())
        stats = core.stats
        use = stats.blocks_used / stats.blocks_total
        if self.use or use >= FULL:
            self.use.append(use)


def drive(core: EngineCore, load: Load, watched: _Watched, clock: Callable[[], float] = time.monotonic) -> None:
    """Keep the line filled until the time is up, then forget whoever is left. Raises what steps raise."""
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
    """Every third answer is the most likely one; the others are drawn, with all filters."""
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
    """Bytes of the first GPU that are taken, by whomever."""
    free, total = torch.cuda.mem_get_info()
    return int(total - free)
