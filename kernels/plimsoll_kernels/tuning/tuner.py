"""Selects the fastest of some configurations by measuring them."""

from __future__ import annotations

import logging
import statistics
from collections.abc import Callable, Sequence

import torch

from plimsoll_kernels.tuning.config import LaunchConfig
from plimsoll_kernels.tuning.key import TuningKey
from plimsoll_kernels.tuning.store import TuningStore

logger = logging.getLogger(__name__)

WARM, TIMED = 2, 7
Measure = Callable[[LaunchConfig], float]
"""Returns the milliseconds of a launch. Raises the launch's error if a configuration does not fit the device."""


def tuned(key: TuningKey, candidates: Sequence[LaunchConfig], measure: Measure, store: TuningStore) -> LaunchConfig:
    """Return the fastest of the candidates, from the store or from new measurements, which are stored.

    A candidate that cannot be launched is skipped. Raises RuntimeError, with each one's reason, if none can.
    """
    known = store.load(key)
    if known is not None and known in candidates:
        return known
    times: dict[LaunchConfig, float] = {}
    refused: dict[LaunchConfig, Exception] = {}
    for candidate in candidates:
        try:
            times[candidate] = measure(candidate)
        except Exception as error:  # noqa: BLE001 - compilers and drivers have errors of their own; all are reported below
            refused[candidate] = error
            logger.debug("%s: %s does not run: %s", key.kernel, candidate, error)
    if not times:
        reasons = "; ".join(f"{candidate}: {error}" for candidate, error in refused.items())
        raise RuntimeError(f"no configuration of the kernel {key.kernel} works on {key.device}: {reasons}")
    best = min(times, key=times.__getitem__)
    logger.info("%s %s: %s takes %.3f ms, of %d tried", key.kernel, key.shape, best, times[best], len(times))
    store.save(key, best, times[best])
    return best


def device_milliseconds(work: Callable[[], object]) -> float:
    """Return the median time of a GPU's work, by its own events, after launches that compile and warm up."""
    for _ in range(WARM):
        work()
    marks = []
    for _ in range(TIMED):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        work()
        end.record()
        marks.append((start, end))
    torch.cuda.synchronize()
    return statistics.median([float(start.elapsed_time(end)) for start, end in marks])
