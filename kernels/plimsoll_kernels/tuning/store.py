"""Tuning results on disk: a small file for each key, written atomically.

A disk that is full or read-only means that the next start tunes again, and logs one warning; requests are not affected.
"""

from __future__ import annotations

import json
import logging
from dataclasses import asdict
from pathlib import Path

from plimsoll_kernels.tuning.config import LaunchConfig
from plimsoll_kernels.tuning.key import TuningKey
from plimsoll_kernels.whole_file import write_whole

logger = logging.getLogger(__name__)


class TuningStore:
    """Stores configurations in a folder, which is created with the first file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._warned = False

    def load(self, key: TuningKey) -> LaunchConfig | None:
        """Return the stored configuration of a key; None if there is none or it cannot be read."""
        path = self._path(key)
        try:
            record = json.loads(path.read_text())
            if record["key"] != asdict(key):
                raise ValueError("it has another key")
            return LaunchConfig(**record["config"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError) as error:
            self._warn(f"cannot use {path} ({error}); tuning again")
            return None

    def save(self, key: TuningKey, config: LaunchConfig, milliseconds: float) -> None:
        """Store the configuration for the next start."""
        record = {"key": asdict(key), "config": asdict(config), "milliseconds": milliseconds}
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            write_whole(self._path(key), json.dumps(record, indent=1).encode())
        except OSError as error:
            self._warn(f"cannot write to the folder {self._folder} ({error}); the next start tunes again")

    def _path(self, key: TuningKey) -> Path:
        return self._folder / f"{key.name}.json"

    def _warn(self, problem: str) -> None:
        """Log a problem once: most problems with one file affect all."""
        if not self._warned:
            logger.warning("tuned kernels: %s", problem)
        self._warned = True
