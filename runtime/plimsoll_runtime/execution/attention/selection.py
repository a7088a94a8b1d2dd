"""Selects the attention backend: the requested one, the fastest on this machine, or one for prompts and one for
decodes.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch
from torch import Tensor

from plimsoll_kernels.cpu.compile import library_path
from plimsoll_kernels.cpu.library import kernels
from plimsoll_kernels.tuning.key import package_version
from plimsoll_kernels.whole_file import write_whole
from plimsoll_runtime.errors import UsageError
from plimsoll_runtime.execution.attention import machine
from plimsoll_runtime.execution.attention.backends.bidirectional import BidirectionalBackend
from plimsoll_runtime.execution.attention.backends.cpu import CpuBackend, CpuBidirectionalBackend
from plimsoll_runtime.execution.attention.backends.reference import ReferenceBackend
from plimsoll_runtime.execution.attention.base import AttentionBackend, NoAttention
from plimsoll_runtime.execution.attention.benchmark import (
    Clock,
    Mix,
    Stopwatch,
    TimeUpError,
    Timing,
    check,
    expected_mix,
    measure,
    small_steps,
)
from plimsoll_runtime.execution.attention.capabilities import Target, dtypes_text
from plimsoll_runtime.execution.attention.registry import BACKENDS
from plimsoll_runtime.execution.attention.split import SplitBackend, split_backend
from plimsoll_runtime.execution.device.faults import fault_of
from plimsoll_runtime.execution.device.gpus import device_name
from plimsoll_runtime.weights.cache import cache_root

DIVIDING = 1.05
"""The factor on the time of a step that two backends share, because rows of both parts are copied once more. An
estimate: 2,048 rows of 32 heads are 16 MiB, some 10 us compared with the 200 and more of their attention on a GPU.
"""
_Backend = type[AttentionBackend]


def ranked(timings: Mapping[_Backend, Timing], *, divide: bool) -> list[_Backend]:
    """Return the timed backends, the fastest first.

    If `divide`, also return pairs: two backends that share a step, each faster than the other at its part, and faster
    together than either alone. At equal times a single backend comes first.
    """
    alone = {backend: timing.total_ms for backend, timing in timings.items()}
    found = alone | (dict(_pairs(timings)) if divide else {})
    return sorted(found, key=found.__getitem__)


def _pairs(timings: Mapping[_Backend, Timing]) -> Iterator[tuple[_Backend, float]]:
    """Yield the pairs that are faster than either backend alone, with their milliseconds."""
    for chunks, at_chunks in timings.items():
        for decodes, at_decodes in timings.items():
            taken = DIVIDING * (at_chunks.chunk_ms + at_decodes.decode_ms)
            if chunks is not decodes and taken < min(at_chunks.total_ms, at_decodes.total_ms):
                yield split_backend(chunks, decodes), taken


logger = logging.getLogger(__name__)

FOLDER = "attention"
"""Subfolder of the cache folder. A file's name is a digest of everything that its figures depend on."""
CPU_SECONDS, GPU_SECONDS = 0.4, 20.0
"""Seconds after which measuring ends, once a backend has run. On a GPU, kernels are compiled first."""
FUSED_GAIN = 1.9
"""The factor on a step's matrix products without the CPU executor: 1.2 to 1.9 for 1 to 64 rows (see
docs/design/20261121-cpu-kernels.md). Attention is measured alone, so an unfused backend must be faster by this factor.
"""
NO_TIME = "was not measured: the time limit for measuring was reached"
NOT_NEEDED = "is used only if no other backend runs"
PACKAGES = ("plimsoll-serving", "triton", "flashinfer-python", "flash-attn", "flash-attn-3")

_Key = Mapping[str, object]


def select(name: str, target: Target) -> _Backend:
    """Return the class of the backend `name`; "auto" selects the fastest that can serve the target.

    Raises UsageError if the name is unknown or the backend cannot serve the target.
    """
    return candidates(name, target)[0]


def candidates(name: str, target: Target) -> Sequence[_Backend]:
    """Return the selected backend, then those that replace it, in order, if it fails while serving.

    A requested backend has no replacement. A model without attention over the KV cache gets the backend without
    attention or a bidirectional one, whichever name is given, unless the CPU kernels compute the whole model.
    Raises UsageError as `select` does.
    """
    if name != "auto" and not {*_parts(name)} <= BACKENDS.keys():
        raise UsageError(f"--attention-backend {name} is unknown; choose auto, {', '.join(BACKENDS)}")
    if not target.shapes:
        return [_without_cache(name, target)]
    if name == "auto":
        return fastest_first(target)
    backend = backend_called(name)
    if reason := backend.capabilities.refusal(target):
        raise _cannot(name, reason)
    return [backend]


def measured(name: str, target: Target) -> Timing | None:
    """Return the stored times of a backend, or of the two of a pair ("cudnn+triton"); None if they were not measured
    here.
    """
    refusals = ((each, each.capabilities.refusal(target)) for each in BACKENDS.values())
    able = [each.name for each, reason in refusals if not (reason or each.capabilities.last_resort)]
    found = _recall(_key(target, expected_mix(target.device), able)) if target.shapes else None
    chunks, decodes = (None if found is None else found.get(part) for part in _parts(name))
    return None if chunks is None or decodes is None else Timing(decodes.decode_ms, chunks.chunk_ms)


def _without_cache(name: str, target: Target) -> _Backend:
    """Return the backend of a model without attention over the KV cache.

    It is that of the CPU kernels if `name` is "auto" or "cpu" and they can serve the target, otherwise
    `BidirectionalBackend` or `NoAttention`. Raises UsageError if "cpu" is requested for bidirectional attention that
    the kernels cannot serve.
    """
    if name in ("auto", "cpu"):
        reason = CpuBackend.capabilities.refusal(target)
        if reason is None:
            return CpuBidirectionalBackend if target.whole else CpuBackend
        if name == "cpu" and target.whole:
            raise _cannot(name, reason)
    return BidirectionalBackend if target.whole else NoAttention


def _cannot(name: str, reason: str) -> UsageError:
    return UsageError(f"--attention-backend {name} cannot be used here: it {reason}; choose another or auto")


@dataclass(frozen=True, slots=True)
class _Row:
    """A backend in the log's table: its timing, or why it has none."""

    backend: _Backend
    timing: Timing | None = None
    reason: str = ""


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Milliseconds (decode, chunk) by backend. The key is stored for people to read."""

    key: dict[str, object]
    backends: dict[str, tuple[float, float]]


def fastest_first(
    target: Target, backends: Iterable[_Backend] = BACKENDS.values(), clock: Clock = time.perf_counter
) -> list[_Backend]:
    """Return the fastest backend that can serve the target, from stored or new measurements, then its replacements.

    These are tried in order if one fails while serving: measured ones, then last resorts. On a GPU, two backends may
    share a step: see `ranked`. A fused backend neither has replacements nor replaces another, because decoder and cache
    are made for it. Raises UsageError with all reasons if none can serve.

    Checks and measures every backend that can run and logs the table. Measurements are kept on disk, so the next start
    on the same machine does not measure again.
    """
    mix = expected_mix(target.device)
    refusals = {backend: backend.capabilities.refusal(target) for backend in backends}
    able = [each.name for each, reason in refusals.items() if not (reason or each.capabilities.last_resort)]
    key = _key(target, mix, able)
    known = _recall(key)
    if known is not None and known.keys() == set(able):
        rows = [_Row(each, known.get(each.name), reason or NOT_NEEDED) for each, reason in refusals.items()]
        source = f"read from {_path_of(key)}"
    else:
        rows, source = _measure_all(target, mix, refusals, clock), "measured"
        timings = {row.backend.name: row.timing for row in rows if row.timing is not None}
        if timings.keys() == set(able):
            _remember(key, timings)
    order = _by_time(rows, divide=target.device.type != "cpu")
    if not order:
        listed = "; ".join(f"{row.backend.name} {row.reason}" for row in rows)
        raise UsageError(f"no attention backend runs on {target.device.type}: {listed}")
    logger.info("%s", _table(rows, order[0], f"{_heading(target, mix)}, {source}"))
    first, *others = order + [row.backend for row in rows if row.timing is None and row.reason == NOT_NEEDED]
    return [first] if first.fused else [first, *(other for other in others if not other.fused)]


@torch.inference_mode()
def _measure_all(target: Target, mix: Mix, refusals: Mapping[_Backend, str | None], clock: Clock) -> list[_Row]:
    """Check and measure the backends without a refusal, until time is over. Return a row for each backend, in order."""
    deadline = clock() + (CPU_SECONDS if target.device.type == "cpu" else GPU_SECONDS)
    expected = small_steps(ReferenceBackend, target)
    rows: list[_Row] = []
    for backend, reason in refusals.items():
        works = any(row.timing for row in rows)
        if reason:
            rows.append(_Row(backend, reason=reason))
        elif backend.capabilities.last_resort and works:
            rows.append(_Row(backend, reason=NOT_NEEDED))
        elif works and clock() >= deadline:
            rows.append(_Row(backend, reason=NO_TIME))
        else:
            rows.append(_try(backend, target, mix, Stopwatch(clock, deadline, patient=not works), expected))
    return rows


def _try(backend: _Backend, target: Target, mix: Mix, watch: Stopwatch, expected: Sequence[Tensor]) -> _Row:
    """Check and measure a backend, and return its row. If it fails, log a warning; the row then has no timing. Raises
    if the device itself failed.
    """
    try:
        check(backend, target, expected)
        return _Row(backend, measure(backend, target, mix, watch))
    except TimeUpError:
        return _Row(backend, reason=NO_TIME)
    except Exception as error:
        if not fault_of(error).process_can_go_on:
            raise
        reason = f"failed: {type(error).__name__}: {error}"
        logger.warning("the attention backend %s %s; it is left out", backend.name, reason, exc_info=True)
        return _Row(backend, reason=reason)


def _by_time(rows: list[_Row], *, divide: bool) -> list[_Backend]:
    """Return the measured backends, and pairs of them if `divide`, the fastest first. Times without the CPU executor
    are multiplied by FUSED_GAIN.
    """
    times = {}
    for row in rows:
        if row.timing is not None:
            gain = 1.0 if row.backend.fused else FUSED_GAIN
            times[row.backend] = Timing(gain * row.timing.decode_ms, gain * row.timing.chunk_ms)
    return ranked(times, divide=divide)


def backend_called(name: str) -> _Backend:
    """Return the class of the backend with this name, which may name a pair ("cudnn+triton")."""
    chunks, decodes = (BACKENDS[part] for part in _parts(name))
    return chunks if chunks is decodes else split_backend(chunks, decodes)


def _parts(name: str) -> tuple[str, str]:
    """Return the backend names for sequences with several rows and for decodes: the two names of "cudnn+triton", or a
    single name twice.
    """
    chunks, _, decodes = name.partition("+")
    return chunks, decodes or chunks


def _key(target: Target, mix: Mix, able: list[str]) -> _Key:
    """Return everything that measurements depend on: hardware, versions, model shapes, the mix, and the backends."""
    found = kernels(target.dtype) if target.device.type == "cpu" else None
    return {
        "hardware": device_name(target.device),
        "threads": torch.get_num_threads() if target.device.type == "cpu" else None,
        "versions": {name: package_version(name) for name in PACKAGES},
        "torch": str(torch.__version__),
        "cudnn": None if target.device.type == "cpu" else machine.installed("cudnn"),
        "kernels": None if found is None else [found.name.decode(), library_path().name],
        "dtype": str(target.dtype),
        "block_size": target.block_size,
        "layers": [[dataclasses.asdict(shape), count] for shape, count in Counter(target.shapes).items()],
        "mix": dataclasses.asdict(mix),
        "backends": able,
    }


def _recall(key: _Key) -> dict[str, Timing] | None:
    """Return the stored measurements of this key; None if there are none or the file cannot be read."""
    path = _path_of(key)
    try:
        found = msgspec.json.decode(path.read_bytes(), type=_File)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        logger.warning("cannot read %s (%s); measuring attention again", path, error)
        return None
    return {name: Timing(*times) for name, times in found.backends.items()}


def _remember(key: _Key, timings: Mapping[str, Timing]) -> None:
    """Store measurements; log a warning if the disk is full or read-only."""
    path = _path_of(key)
    times = {name: (t.decode_ms, t.chunk_ms) for name, t in timings.items()}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, msgspec.json.format(msgspec.json.encode(_File(dict(key), times))))
    except OSError as error:
        logger.warning(
            "cannot store the attention measurements in %s (%s), so every start measures again; free some space or "
            "set PLIMSOLL_CACHE to a writable folder",
            path.parent,
            error,
        )


def _path_of(key: _Key) -> Path:
    """Return the path of a key's file."""
    digest = hashlib.sha256(msgspec.json.encode(key, order="sorted")).hexdigest()[:24]
    return cache_root() / FOLDER / f"{digest}.json"


def _heading(target: Target, mix: Mix) -> str:
    where = device_name(target.device)
    if target.device.type == "cpu":
        where += f" (threads: {torch.get_num_threads()})"
    return f"attention on {where}, {dtypes_text(target.dtype)}, blocks of {target.block_size}: {mix}"


def _table(rows: list[_Row], chosen: _Backend, heading: str) -> str:
    taken = {chosen: "  taken"}
    if issubclass(chosen, SplitBackend) and all(row.backend is not chosen for row in rows):
        taken = {chosen.of_chunks: "  taken for prompts", chosen.of_decodes: "  taken for decodes"}
    lines = [heading, f"  {'backend':<13}{'decode ms':>10}{'prompt ms':>11}"]
    for row in rows:
        figures = f"  {row.reason}"
        if row.timing is not None:
            figures = f"{row.timing.decode_ms:>10.2f}{row.timing.chunk_ms:>11.2f}{taken.get(row.backend, '')}"
        lines.append(f"  {row.backend.name:<13}{figures}")
    return "\n".join(lines)
