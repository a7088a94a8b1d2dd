"""What tuning found, on disk: a small file for each key, written whole or not at all.

A disk that is full or read-only costs the next start its tuning, and one warning; it never costs a request.
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
    """Keeps configurations in a folder, which is made when something is first written."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._warned = False

    def load(self, key: TuningKey) -> LaunchConfig | None:
        """What was found for the key; None where there is nothing, or nothing that can be read."""
        path = self._path(key)
        try:
            record = json.loads(path.read_text())
            if record["key"] != asdict(key):
                raise ValueError("it belongs to another key")
            return LaunchConfig(**record["config"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError) as error:
            self._warn(f"{path} cannot be used ({error}); it is measured and written anew")
            return None

    def save(self, key: TuningKey, config: LaunchConfig, milliseconds: float) -> None:
        """Keep it for the next start: in a file beside, put into its place in one step."""
        record = {"key": asdict(key), "config": asdict(config), "milliseconds": milliseconds}
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            write_whole(self._path(key), json.dumps(record, indent=1).encode())
        except OSError as error:
            self._warn(f"the folder {self._folder} cannot be written to ({error}); the next start tunes again")

    def _path(self, key: TuningKey) -> Path:
        return self._folder / f"{key.name}.json"

    def _warn(self, problem: str) -> None:
        """Once: what is wrong with one file is most often wrong with all."""
        if not self._warned:
            logger.warning("tuned kernels: %s", problem)
        self._warned = True
