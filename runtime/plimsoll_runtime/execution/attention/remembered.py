"""What was measured on a machine, kept on disk: the next start on the same machine need not measure again.

A file is named by a digest of all that the figures depend on: hardware, threads, versions, shapes, dtype, blocks, mix.
It is written whole or not at all. A cache that cannot be read or written costs a warning and a measurement, no more.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from pathlib import Path

import msgspec

from plimsoll_kernels.whole_file import write_whole
from plimsoll_runtime.execution.attention.trial import Timing
from plimsoll_runtime.weights.cache import cache_root

logger = logging.getLogger(__name__)

FOLDER = "attention"

Key = Mapping[str, object]


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Milliseconds (decode, chunk) by backend, and what they depend on, for people to read."""

    key: dict[str, object]
    backends: dict[str, tuple[float, float]]


def recall(key: Key) -> dict[str, Timing] | None:
    """What was measured for this key; None where nothing was, or it cannot be read."""
    path = path_of(key)
    try:
        found = msgspec.json.decode(path.read_bytes(), type=_File)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        logger.warning("%s cannot be read (%s): attention is measured again", path, error)
        return None
    return {name: Timing(*times) for name, times in found.backends.items()}


def remember(key: Key, timings: Mapping[str, Timing]) -> None:
    """Keep what was measured; a disk that is full or read-only leaves it unkept."""
    path = path_of(key)
    times = {name: (t.decode_ms, t.chunk_ms) for name, t in timings.items()}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, msgspec.json.format(msgspec.json.encode(_File(dict(key), times))))
    except OSError as error:
        logger.warning(
            "what was measured of attention cannot be kept in %s (%s): every start measures again; free some space or "
            "set PLIMSOLL_CACHE to a folder that can be written to",
            path.parent,
            error,
        )


def path_of(key: Key) -> Path:
    """The file of a key."""
    digest = hashlib.sha256(msgspec.json.encode(key, order="sorted")).hexdigest()[:24]
    return cache_root() / FOLDER / f"{digest}.json"
