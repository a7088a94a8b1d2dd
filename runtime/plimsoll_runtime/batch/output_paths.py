"""Where a run writes: its output, and beside it what failed, what it came to, and its work while it goes on."""

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
    """What a file's name says of it: its format, and the suffix of its compression, empty where there is none."""

    format: str
    compression: str
    stem: str


def kind_of(path: Path) -> FileKind:
    """Raises UsageError for a name that says nothing known."""
    name, compression = path.name, ""
    if path.suffix.lower() in COMPRESSIONS:
        name, compression = path.stem, path.suffix.lower()
    stem, suffix = os.path.splitext(name)  # noqa: PTH122 (a Path of a bare suffix has none)
    found = FORMATS.get(suffix.lower())
    if found is None or not stem:
        raise UsageError(
            f"{path} has no suffix that says what it is: {', '.join(FORMATS)}, "
            f"all but .parquet also with {', '.join(COMPRESSIONS)} behind it"
        )
    if found == PARQUET and compression:
        raise UsageError(f"{path}: Parquet compresses by itself; leave {compression} out")
    return FileKind(found, compression, stem)


@dataclass(frozen=True, slots=True)
class OutputPaths:
    """All of one run, in the folder of its output."""

    output: Path

    @property
    def kind(self) -> FileKind:
        """Of the output. Raises UsageError."""
        return kind_of(self.output)

    @property
    def errors(self) -> Path:
        """The lines of rows that failed; there only if some did."""
        return self.output.with_name(f"{self.kind.stem}.errors.jsonl")

    @property
    def summary(self) -> Path:
        """What the run came to; there once it is complete."""
        return self.output.with_name(f"{self.kind.stem}.summary.json")

    @property
    def work(self) -> Path:
        """A folder, there until the run is complete."""
        return self.output.with_name(f"{self.output.name}.work")

    @property
    def made(self) -> tuple[Path, ...]:
        """Whatever a complete run leaves."""
        return self.output, self.errors, self.summary


def sync(path: Path) -> None:
    """What is in a file, or the names that are in a folder, outlive the machine's end from here on."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_durably(path: Path, data: bytes) -> None:
    """Put a file in its place, whole or not at all; it outlives the machine's end from here on."""
    fresh = path.with_name(f"{path.name}.new")
    with fresh.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    sync(path.parent)
