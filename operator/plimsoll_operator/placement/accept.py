"""Host reports are input: what goes back in time or cannot be true is told, and never planned with."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

from msgspec import Struct

from plimsoll_operator.placement.host import Copy, Host
from plimsoll_operator.placement.words import size, span

SKEW = 60.0
"""Seconds that a host's clock may be ahead of the operator's."""


class Accepted(Struct, frozen=True):
    """The report to plan with: the new one, or the one before it (None if there is none) and what is wrong."""

    report: Host | None
    complaint: str = ""


def accept(before: Host | None, report: Host, now: float) -> Accepted:
    """Judge a report by itself and by the last one that was accepted of the same host."""
    if before is not None and before.key != report.key:
        raise ValueError(f"a report of {report.key} cannot follow one of {before.key}")
    for complaint in (*_impossible(report, now), *(_out_of_order(before, report) if before is not None else ())):
        return Accepted(before, f"{report.key}, report {report.instance}/{report.sequence}: {complaint}")
    return Accepted(report)


def _out_of_order(before: Host, report: Host) -> Iterator[str]:
    if report.instance != before.instance:
        if report.time < before.time:
            yield f"it is {span(before.time - report.time)} older than the one before it, and of another process"
        return
    if report.sequence < before.sequence:
        yield f"it goes back in time, after {before.sequence}"
    elif report.time < before.time:
        yield f"its clock went back by {span(before.time - report.time)}"
    elif report.sequence == before.sequence and _states(report) != _states(before):
        yield "it tells other states than another report of the same number"


def _states(report: Host) -> dict[object, object]:
    return {copy.model: (copy.revision, copy.state, copy.pod) for copy in report.models}


def _impossible(report: Host, now: float) -> Iterator[str]:
    if report.time > now + SKEW:
        yield f"it comes from {span(report.time - now)} ahead"
    if twice := [str(key) for key, count in Counter(copy.model for copy in report.models).items() if count > 1]:
        yield f"it names {', '.join(sorted(twice))} more than once"
    sizes = (report.capacity, report.line, report.reserved, report.sleepers.capacity, report.sleepers.used)
    if min(sizes) < 0:
        yield "it has sizes below 0"
    if report.line > report.capacity:
        yield f"its line of {size(report.line)} is above its capacity of {size(report.capacity)}"
    if report.sleepers.used < (images := sum(copy.host for copy in report.models if not copy.state.awake)):
        yield f"its images are {size(images)} together, and {size(report.sleepers.used)} are used by them"
    device = report.reserved + sum(c.weights + c.workspace + c.kv for c in report.models if c.state.on_device)
    if device > report.capacity:
        yield f"its models and its reserve hold {size(device)} of a capacity of {size(report.capacity)}"
    for copy in report.models:
        for complaint in _impossible_copy(copy, now):
            yield f"{copy.model} {complaint}"


def _impossible_copy(copy: Copy, now: float) -> Iterator[str]:
    if min(copy.weights, copy.workspace, copy.kv, copy.host, copy.active, copy.waiting, copy.failures) < 0:
        yield "has sizes or counts below 0"
    figures = (copy.rate, copy.load_seconds, copy.wake_seconds, copy.last_used, copy.since, copy.retry)
    if not all(math.isfinite(figure) and figure >= 0 for figure in figures):
        yield "has times or rates that are no finite numbers from 0"
    if max(copy.last_used, copy.since) > now + SKEW:
        yield f"was used or changed {span(max(copy.last_used, copy.since) - now)} ahead"
    if copy.active and not copy.state.on_device:
        yield f"has {copy.active} requests in flight while it is {copy.state}"
