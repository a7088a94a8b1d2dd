"""Reports of hosts are input: what goes back in time or cannot be true is told, and never planned with."""

from __future__ import annotations

from collections.abc import Iterator

from plimsoll_operator.clock import AHEAD_SECONDS, FROM_THE_FUTURE
from plimsoll_operator.pools.report import Report


def complaint(before: Report | None, report: Report, now: float, memory: int | None = None) -> str | None:
    """Why a report cannot be true, None where nothing speaks against it; in the same words as long as that lasts.

    `before` is the last one of this process that was believed, `memory` the limit of a pod whose device is a CPU; None
    of one that has an accelerator of its own.
    """
    return next(_complaints(before, report, now, memory), None)


def _complaints(before: Report | None, report: Report, now: float, memory: int | None) -> Iterator[str]:
    device, sleepers = report.device, report.sleepers
    if before is not None and before.instance == report.instance:
        if report.sequence < before.sequence:
            yield "it goes back: its sequence is below that of an earlier report"
        if report.time < before.time - 1:
            yield "it goes back in time: it is older than an earlier report of the same process"
    if report.time > now + AHEAD_SECONDS:
        yield FROM_THE_FUTURE
    if device.line > device.capacity:
        yield f"its line of {device.line} bytes is above its capacity of {device.capacity}"
    if memory is not None and device.kind != "cpu":
        yield (
            f"it uses an accelerator ({device.kind}) that its pool has not claimed, and that another pool on the node "
            "may have: set resources.accelerator in the RuntimePool, or keep the device from its pods"
        )
    if memory is not None and device.kind == "cpu" and device.capacity + sleepers.capacity > memory:
        taken = device.capacity + sleepers.capacity
        yield f"its capacity and sleepers are {taken} bytes together, and its pod is limited to {memory}"
    granted = sum(entry.device for entry in report.models)
    if granted > device.capacity:
        yield f"its models are granted {granted} bytes of {device.capacity}"
    if sleepers.used > sleepers.capacity:
        yield f"its sleepers take {sleepers.used} bytes of {sleepers.capacity}"
    if len({entry.key for entry in report.models}) < len(report.models):
        yield "it names a model twice"
