"""`batch.flat`: the measured processes, the times of readings, and the judgement of the series."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from batch.flat import EVERY_SECONDS, Sampler, judged
from soak.growth import FEWEST, MIB, Reading


def flat(readings: int) -> list[Reading]:
    return [Reading(EVERY_SECONDS * n, 700 * MIB) for n in range(readings)]


def test_readings_are_as_far_apart_as_asked_for_and_begin_at_zero() -> None:
    times: Iterator[float] = iter([100.0, 100.0, 104.0, 110.0, 119.0, 121.5])
    sampler = Sampler(10.0, lambda: next(times))
    for _ in range(5):
        sampler.look(os.getpid())
    assert [each.seconds for each in sampler.readings] == [0.0, 10.0, 21.5]


def test_processes_under_the_one_that_is_watched_count() -> None:
    asleep = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    with subprocess.Popen(asleep, stdin=subprocess.PIPE) as child:
        sampler = Sampler(0.0)
        sampler.look(os.getpid())
        under = psutil.Process(child.pid).memory_info().rss
        child.communicate()
    own = psutil.Process().memory_info().rss
    assert sampler.readings[0].resident > under > 0
    assert sampler.readings[0].resident > 0.5 * own


def test_a_process_that_has_ended_has_no_reading() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait()
    sampler = Sampler(0.0)
    with pytest.raises(ProcessLookupError):
        sampler.look(child.pid)
    assert sampler.readings == []


def test_a_flat_series_has_no_complaint_a_short_or_rising_one_has() -> None:
    assert judged(flat(60)) == {"complaint": None, "late_rise_mib": 0.0, "peak_over_median_mib": 0.0}
    assert "too few" in judged(flat(FEWEST - 1))["complaint"]
    rising = [Reading(each.seconds, each.resident + n * MIB) for n, each in enumerate(flat(60))]
    assert "grew by 29.0 MiB" in judged(rising)["complaint"]
