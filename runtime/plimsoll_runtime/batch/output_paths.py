"""Paths that a run writes: its output, its error lines, its summary, and its work folder."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from plimsoll_runtime.batch.compression import COMPRESSIONS
from plimsoll_runtime.errors import UsageError

JSONL, CSV, PARQUET = "jsonl", "csv", "parquet"
FORMATS = {".jsonl": JSONL, ".ndjson": JSONL, ".csv": CSV, ".parquet": PARQUET}


@dataclass(frozen=True, slots=True)
class FileKind:
    """Format, compression suffix (empty if there is none) and stem of a file name."""

    format: str
    compression: str
    stem: str


def kind_of(path: Path) -> FileKind:
    """Return the kind that a file's name implies. Raises UsageError for an unknown suffix."""
    name, compression = path.name, ""
    if path.suffix.lower() in COMPRESSIONS:
        name, compression = path.stem, path.suffix.lower()
    stem, suffix = os.path.splitext(name)  # noqa: PTH122 (a Path of a bare suffix has none)
    found = FORMATS.get(suffix.lower())
    if found is None or not stem:
        raise UsageError(
            f"{path} has no known suffix; use one of {', '.join(FORMATS)}, "
            f"all but .parquet optionally followed by {', '.join(COMPRESSIONS)}"
        )
    if found == PARQUET and compression:
        raise UsageError(f"{path}: Parquet files are already compressed; leave out {compression}")
    return FileKind(found, compression, stem)


@dataclass(frozen=True, slots=True)
class OutputPaths:
    """All paths of one run, in the folder of its output."""

    output: Path

    @property
    def kind(self) -> FileKind:
        """The kind of the output. Raises UsageError."""
        return kind_of(self.output)

    @property
    def errors(self) -> Path:
        """The lines of failed rows; the file exists only if some rows failed."""
        return self.output.with_name(f"{self.kind.stem}.errors.jsonl")

    @property
    def summary(self) -> Path:
        """The run's summary; the file exists once the run is complete."""
        return self.output.with_name(f"{self.kind.stem}.summary.json")

    @property
    def work(self) -> Path:
        """The work folder; it exists until the run is complete."""
        return self.output.with_name(f"{self.output.name}.work")

    @property
    def made(self) -> tuple[Path, ...]:
        """The files that a complete run leaves."""
        return self.output, self.errors, self.summary


def sync(path: Path) -> None:
    """Call fsync on a file or a folder, so that its content or its names survive a crash of the machine."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_durably(path: Path, data: bytes) -> None:
    """Replace a file atomically and durably."""
    fresh = path.with_name(f"{path.name}.new")
    with fresh.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    sync(path.parent)
