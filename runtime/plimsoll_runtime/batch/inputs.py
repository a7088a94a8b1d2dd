"""Finds input files by name, pattern or folder, and reads CSV and Parquet in chunks."""

from __future__ import annotations

import csv
import glob
import importlib
import io
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from plimsoll_runtime.batch.compression import library, zstandard
from plimsoll_runtime.batch.output_paths import PARQUET, FileKind, kind_of
from plimsoll_runtime.errors import UsageError

MAX_FIELD = 32 * 2**20
"""Most characters of one CSV field."""
PIECE_ROWS = 1024

Columns = Mapping[str, Any]
Found = tuple[Columns | None, str | None]
"""A row, or the reason why it cannot be read."""


def csv_rows(stream: IO[bytes], path: Path) -> Iterator[Found]:
    """Yield the rows of UTF-8 CSV with a header. Raises UsageError if the header is unusable."""
    csv.field_size_limit(MAX_FIELD)
    with io.TextIOWrapper(stream, encoding="utf-8-sig", errors="surrogateescape", newline="") as text:
        reader = csv.reader(text, strict=True)
        names = _header(reader, path)
        while True:
            try:
                values = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                yield None, f"is not valid CSV: {error}"
                continue
            if values:
                yield _row(names, values)


def parquet_rows(path: Path) -> Iterator[tuple[Columns, float]]:
    """Yield each row with the share of the file that has been read, from 0 to 1. Raises UsageError for a damaged
    file."""
    parquet, errors = _parquet(), importlib.import_module("pyarrow").ArrowException
    try:
        with parquet.ParquetFile(path) as file:
            total, seen = file.metadata.num_rows, 0
            for piece in file.iter_batches(batch_size=PIECE_ROWS):
                for row in piece.to_pylist():
                    seen += 1
                    yield row, seen / total
    except (errors, OSError) as error:
        raise UsageError(f"{path} cannot be read as Parquet: {error}") from error


def _header(reader: Iterator[list[str]], path: Path) -> list[str]:
    try:
        names = next(reader, [])
    except csv.Error as error:
        raise UsageError(f"{path} is not valid CSV: {error}") from error
    if not names or len(set(names)) < len(names):
        raise UsageError(f"{path} needs a first line that gives each column a different name")
    return names


def _row(names: list[str], values: list[str]) -> Found:
    if len(values) != len(names):
        return None, f"has {len(values)} fields, and the header has {len(names)}"
    if any("\udc80" <= character <= "\udcff" for value in values for character in value):
        return None, "is not in UTF-8"
    return dict(zip(names, values, strict=True)), None


@dataclass(frozen=True, slots=True)
class InputFile:
    """An input file, with its size and modification time at the start of the run."""

    path: Path
    kind: FileKind
    size: int
    modified_ns: int


def find_inputs(given: str, made: Collection[Path]) -> list[InputFile]:
    """Return the files of INPUT: a file, a glob pattern, or a folder, of which files with a known suffix are read.

    The run's own output files (`made`) are left out. Raises UsageError if there is nothing to read.
    """
    own = {path.absolute() for path in made}
    path = Path(given)
    if path.is_dir():
        found = [each for each in sorted(path.iterdir()) if each.is_file() and _is_known(each)]
    elif path.is_file():
        found = [path]
        if path.absolute() in own:
            raise UsageError(f"{path} is the input and would be overwritten; choose another OUTPUT")
    else:
        found = [each for each in map(Path, sorted(glob.glob(given, recursive=True))) if each.is_file()]  # noqa: PTH207
    inputs = [_input(each) for each in found if each.absolute() not in own]
    if not inputs:
        raise UsageError(f"{given} matches no input file; give a file, a folder or a pattern that matches files")
    return inputs


def _is_known(path: Path) -> bool:
    if path.name.startswith("."):
        return False
    try:
        kind_of(path)
    except UsageError:
        return False
    return True


def checked_kind(path: Path) -> FileKind:
    """Return the kind that a file's name implies. Raises UsageError for an unknown suffix, or if a library for it is
    missing.
    """
    kind = kind_of(path)
    try:
        if kind.compression == ".zst":
            zstandard()
        if kind.format == PARQUET:
            _parquet()
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error
    return kind


def _parquet() -> Any:
    return library("pyarrow.parquet", "Parquet")


def _input(path: Path) -> InputFile:
    kind = checked_kind(path)
    status = path.stat()
    return InputFile(path, kind, status.st_size, status.st_mtime_ns)
