"""The backends for a target, the fastest first: every one that can run is checked and measured, the table logged."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

import torch
from torch import Tensor

from plimsoll_kernels.cpu.compile import library_path
from plimsoll_kernels.cpu.library import kernels
from plimsoll_runtime.errors import UsageError
from plimsoll_runtime.execution.attention import remembered
from plimsoll_runtime.execution.attention.base import AttentionBackend
from plimsoll_runtime.execution.attention.catalogue import ENTRIES, Entry
from plimsoll_runtime.execution.attention.mix import Mix, expected_mix
from plimsoll_runtime.execution.attention.reference import ReferenceBackend
from plimsoll_runtime.execution.attention.target import Target
from plimsoll_runtime.execution.attention.trial import (
    Clock,
    Stopwatch,
    TimeUpError,
    Timing,
    check,
    measure,
    small_steps,
)
from plimsoll_runtime.hardware import device_name

logger = logging.getLogger(__name__)

CPU_SECONDS, GPU_SECONDS = 0.4, 20.0
"""How long measuring may go on once a backend has run. Kernels of a GPU are compiled first."""
FUSED_GAIN = 1.9
"""How much slower the products of a step may be without a fused decoder: 1.2 to 1.9 times for 1 to 64 rows (see
docs/design/20261121-cpu-kernels.md). Attention is measured alone, so an unfused backend has to make up for that."""
NO_TIME = "was not measured: the time for it was up"
NOT_NEEDED = "is for comparing, and for where nothing else runs"
PACKAGES = ("plimsoll-serving", "triton", "flashinfer-python", "flash-attn")


@dataclass(frozen=True, slots=True)
class Row:
    """A backend in the table: its timing, or why it has none."""

    name: str
    timing: Timing | None = None
    reason: str = ""


def fastest_first(
    target: Target,
    entries: Mapping[str, Entry] = ENTRIES,
    clock: Clock = time.perf_counter,
) -> list[type[AttentionBackend]]:
    """The class of the fastest backend that can serve the target, remembered or measured, then who may follow it.

    Those are to be tried, in this order, where one fails while it serves: what is measured, then last resorts. A fused
    backend is followed by none and follows none: decoder and cache are made for it.
    Raises UsageError with all reasons when none can serve.
    """
    mix = expected_mix(target.device)
    able = [name for name, entry in entries.items() if entry.why_not(target) is None and not entry.last_resort]
    key = _key(target, mix, able)
    known = remembered.recall(key)
    if known is not None and known.keys() == set(able):
        rows = [Row(name, known.get(name), entry.why_not(target) or NOT_NEEDED) for name, entry in entries.items()]
        source = f"remembered in {remembered.path_of(key)}"
    else:
        rows, source = _measure_all(target, mix, entries, clock), "measured"
        timings = {row.name: row.timing for row in rows if row.timing is not None}
        if timings.keys() == set(able):
            remembered.remember(key, timings)
    order = _by_time(rows, entries)
    if not order:
        listed = "; ".join(f"{row.name} {row.reason}" for row in rows)
        raise UsageError(f"no attention backend runs on {target.device.type}: {listed}")
    logger.info("%s", _table(rows, order[0], f"{_heading(target, mix)}, {source}"))
    order += [row.name for row in rows if row.timing is None and row.reason == NOT_NEEDED]
    first, *others = (entries[name].load() for name in order)
    return [first] if first.fused else [first, *(other for other in others if not other.fused)]


@torch.inference_mode()
def _measure_all(target: Target, mix: Mix, entries: Mapping[str, Entry], clock: Clock) -> list[Row]:
    """A row for each backend, in order."""
    deadline = clock() + (CPU_SECONDS if target.device.type == "cpu" else GPU_SECONDS)
    expected = small_steps(ReferenceBackend, target)
    rows: list[Row] = []
    for name, entry in entries.items():
        works = any(row.timing for row in rows)
        if reason := entry.why_not(target):
            rows.append(Row(name, reason=reason))
        elif entry.last_resort and works:
            rows.append(Row(name, reason=NOT_NEEDED))
        elif works and clock() >= deadline:
            rows.append(Row(name, reason=NO_TIME))
        else:
            rows.append(_try(name, entry, target, mix, Stopwatch(clock, deadline, patient=not works), expected))
    return rows


def _try(name: str, entry: Entry, target: Target, mix: Mix, watch: Stopwatch, expected: Sequence[Tensor]) -> Row:
    """Check and measure; a backend that fails, however it does, is left out with a warning."""
    try:
        backend = entry.load()
        check(backend, target, expected)
        return Row(name, measure(backend, target, mix, watch))
    except TimeUpError:
        return Row(name, reason=NO_TIME)
    except Exception as error:
        reason = f"failed: {type(error).__name__}: {error}"
        logger.warning("the attention backend %s %s; it is left out", name, reason, exc_info=True)
        return Row(name, reason=reason)


def _by_time(rows: list[Row], entries: Mapping[str, Entry]) -> list[str]:
    """The names from the least time on, where a fused backend's rivals have to make up for its decoder."""
    times = {
        row.name: row.timing.total_ms * (1.0 if entries[row.name].load().fused else FUSED_GAIN)
        for row in rows
        if row.timing is not None
    }
    return sorted(times, key=times.__getitem__)


def _key(target: Target, mix: Mix, able: list[str]) -> remembered.Key:
    """All that figures depend on."""
    found = kernels(target.dtype) if target.device.type == "cpu" else None
    return {
        "hardware": device_name(target.device),
        "threads": torch.get_num_threads() if target.device.type == "cpu" else None,
        "versions": {name: _version(name) for name in PACKAGES},
        "torch": str(torch.__version__),
        "kernels": None if found is None else [found.name.decode(), library_path().name],
        "dtype": str(target.dtype),
        "block_size": target.block_size,
        "layers": [[dataclasses.asdict(shape), count] for shape, count in Counter(target.shapes).items()],
        "mix": dataclasses.asdict(mix),
        "backends": able,
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _heading(target: Target, mix: Mix) -> str:
    dtype = str(target.dtype).removeprefix("torch.")
    where = device_name(target.device)
    if target.device.type == "cpu":
        where += f" (threads: {torch.get_num_threads()})"
    return f"attention on {where}, {dtype}, blocks of {target.block_size}: {mix}"


def _table(rows: list[Row], chosen: str, heading: str) -> str:
    lines = [heading, f"  {'backend':<12}{'decode ms':>10}{'prompt ms':>11}"]
    for row in rows:
        if row.timing is None:
            lines.append(f"  {row.name:<12}  {row.reason}")
        else:
            taken = "  taken" if row.name == chosen else ""
            lines.append(f"  {row.name:<12}{row.timing.decode_ms:>10.2f}{row.timing.chunk_ms:>11.2f}{taken}")
    return "\n".join(lines)
