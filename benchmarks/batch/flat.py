"""`python -m batch.flat`: checks that the memory of `plimsoll batch` is flat over 1,000,000 short rows on "tiny".

Every ten seconds the resident memory of the command and its descendants is read, and judged by the rule of the soak
test (`soak/growth.py`): growth in the second half, and the peak over the median. Before that, a tenth of the rows runs,
to compare the time per row and the peak memory. Input and output take up to 1 GB of the temporary folder.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import psutil

import question
from batch.command import run_batch
from batch.run import rows_of
from options import Options
from serving import models
from soak.growth import MIB, Reading, growth
from tables import Sheet

ROWS = 1_000_000
EVERY_SECONDS = 10.0
LOADED_SECONDS = 10.0
"""Readings of these first seconds are dropped, because the model is loading."""


class Sampler:
    """Resident memory of a process and its descendants, read every `every` seconds, first at second 0."""

    def __init__(self, every: float = EVERY_SECONDS, clock: Callable[[], float] = time.monotonic) -> None:
        self.readings: list[Reading] = []
        self._every, self._clock = every, clock
        self._began: float | None = None

    def look(self, process: int) -> None:
        """Take a reading if one is due. Raises ProcessLookupError if the process has ended."""
        if self._began is None:
            self._began = self._clock()
        now = self._clock() - self._began
        if self.readings and now < self.readings[-1].seconds + self._every:
            return
        try:
            root = psutil.Process(process)
            family = [root, *root.children(recursive=True)]
            own = root.memory_info().rss
        except psutil.NoSuchProcess as error:
            raise ProcessLookupError(f"the process {process} has ended") from error
        self.readings.append(Reading(round(now, 1), own + sum(_resident(each) for each in family[1:])))


def _resident(process: psutil.Process) -> int:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.memory_info().rss
    return 0


def measure(chosen: Options) -> dict[str, Any]:
    """Run a tenth of the rows, then all of them. Return time and peak memory of both runs, and the judged readings of
    the second.
    """
    shape, rows = models.TINY, round(ROWS * chosen.scale)
    model, sampler = models.source(shape), Sampler()
    tenth = run_batch(shape, model, chosen.threads, rows_of(shape, rows // 10))
    whole = run_batch(shape, model, chosen.threads, rows_of(shape, rows), sampler.look)
    return {
        "tenth": asdict(tenth),
        "whole": asdict(whole),
        "memory_growth": whole.peak_bytes / tenth.peak_bytes - 1,
        "linearity": whole.seconds / whole.rows * tenth.rows / tenth.seconds,
        **judged([each for each in sampler.readings if each.seconds >= LOADED_SECONDS]),
        "resident_mib": [[each.seconds, round(each.resident / MIB, 1)] for each in sampler.readings],
    }


def judged(readings: Sequence[Reading]) -> dict[str, Any]:
    """Apply the soak test's memory rule (`growth`) to the readings. `complaint`: what is wrong, or None;
    `late_rise_mib`: growth over the second half, or None if there are too few readings, of which `complaint` then says
    so.
    """
    try:
        found = growth(readings)
    except ValueError as error:
        return {"complaint": f"{error}", "late_rise_mib": None}
    return {
        "complaint": found.complaint,
        "late_rise_mib": round(found.over_half / MIB, 2),
        "peak_over_median_mib": round(found.peak / MIB, 1),
    }


def table(result: dict[str, Any]) -> Sheet:
    """Return a table with one row."""
    whole = result["whole"]
    headings = ["rows", "rows /s", "a row's time", "peak MiB", "memory", "second half, MiB"]
    row = [
        f"{whole['rows']}",
        f"{whole['rows'] / whole['seconds']:.0f}",
        f"{result['linearity']:.2f}x",
        f"{whole['peak_bytes'] / MIB:.0f}",
        f"{result['memory_growth']:+.1%}",
        result["complaint"] or f"{result['late_rise_mib']:+.1f}",
    ]
    note = "a row's time, memory: relative to a tenth of the rows. second half: growth of resident memory in it."
    return Sheet('`plimsoll batch` on "tiny" (32 tokens in, 8 out), one run', headings, [row], note)


if __name__ == "__main__":
    sys.exit(question.main(__doc__, measure, table))
