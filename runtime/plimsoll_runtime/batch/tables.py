"""Rows of CSV and Parquet as mappings from column to value, read in pieces."""

from __future__ import annotations

import csv
import importlib
import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from plimsoll_runtime.errors import UsageError

MAX_FIELD = 32 * 2**20
"""Characters of one field of CSV."""
PIECE_ROWS = 1024

Columns = Mapping[str, Any]
Found = tuple[Columns | None, str | None]
"""A row, or why it cannot be read."""


def csv_rows(stream: IO[bytes], path: Path) -> Iterator[Found]:
    """The rows of CSV with a header, which must be in UTF-8. Raises UsageError where there is no usable header."""
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
                yield None, f"is no CSV: {error}"
                continue
            if values:
                yield _row(names, values)


def check_parquet(path: Path) -> None:
    """Raises UsageError where the library is missing."""
    try:
        _parquet()
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error


def parquet_rows(path: Path) -> Iterator[tuple[Columns, float]]:
    """The rows of a file, and what share of the file has been read with each. Raises UsageError for a damaged one."""
    library, errors = _parquet(), importlib.import_module("pyarrow").ArrowException
    try:
        with library.ParquetFile(path) as file:
            total, seen = file.metadata.num_rows, 0
            for piece in file.iter_batches(batch_size=PIECE_ROWS):
                for row in piece.to_pylist():
                    seen += 1
                    yield row, seen / total
    except (errors, OSError) as error:
        raise UsageError(f"{path} cannot be read as Parquet: {error}") from error


def _parquet() -> Any:
    try:
        return importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise UsageError("Parquet needs the library pyarrow: pip install 'plimsoll-serving[batch]'") from error


def _header(reader: Iterator[list[str]], path: Path) -> list[str]:
    try:
        names = next(reader, [])
    except csv.Error as error:
        raise UsageError(f"{path} is no CSV: {error}") from error
    if not names or len(set(names)) < len(names):
        raise UsageError(f"{path} has no first line with a name of its own for each column")
    return names


def _row(names: list[str], values: list[str]) -> Found:
    if len(values) != len(names):
        return None, f"has {len(values)} fields, and the header has {len(names)}"
    if any("\udc80" <= character <= "\udcff" for value in values for character in value):
        return None, "is not in UTF-8"
    return dict(zip(names, values, strict=True)), None
