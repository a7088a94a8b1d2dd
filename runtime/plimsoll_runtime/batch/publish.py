"""Moves a complete run's files to their final paths, in the format of the output's name.

Every step can be repeated after a crash: a converted file is written in the work folder first and then moved as a
whole.
"""

from __future__ import annotations

import csv
import importlib
import io
import shutil
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import IO, Any

import msgspec

from plimsoll_runtime.batch.compression import wrapped
from plimsoll_runtime.batch.inputs import PIECE_ROWS
from plimsoll_runtime.batch.job import Tally
from plimsoll_runtime.batch.journal import End
from plimsoll_runtime.batch.output_paths import CSV, JSONL, PARQUET, OutputPaths, sync, write_durably
from plimsoll_runtime.batch.store import ANSWERS, ERRORS

Table = Mapping[str, type]
"""Names and types of an output's columns."""
Flatten = Callable[[bytes], list[dict[str, Any]]]
"""Returns the table rows of one line of the output."""


class Summary(msgspec.Struct, frozen=True):
    """Summary of a run. `seconds` is the working time of all its attempts, without loading the model."""

    job: dict[str, Any]
    tally: Tally
    seconds: float


def publish(places: OutputPaths, job: Mapping[str, Any], end: End, table: Table, flatten: Flatten) -> Summary:
    """Move all files to their final paths, the summary last. Afterwards the work folder may be removed."""
    answers, errors = places.work / ANSWERS, places.work / ERRORS
    if answers.exists():
        _put_answers(answers, places, table, flatten)
    if errors.exists():
        if end.tally.failed:
            errors.replace(places.errors)
        else:
            places.errors.unlink(missing_ok=True)
            errors.unlink()
    sync(places.output.parent)
    summary = Summary(dict(job), end.tally, end.seconds)
    write_durably(places.summary, msgspec.json.format(msgspec.json.encode(summary)) + b"\n")
    return summary


def read_summary(places: OutputPaths) -> Summary | None:
    """Return the summary of a complete run, None if there is none."""
    try:
        return msgspec.json.decode(places.summary.read_bytes(), type=Summary)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None


def _put_answers(answers: Path, places: OutputPaths, table: Table, flatten: Flatten) -> None:
    kind, made = places.kind, answers
    if kind.format != JSONL or kind.compression:
        made = places.work / "output"
        if kind.format == PARQUET:
            _write_parquet(answers, made, table, flatten)
        else:
            with made.open("wb") as raw, wrapped(raw, kind.compression, "wb") as file:
                if kind.format == CSV:
                    _write_csv(answers, file, table, flatten)
                else:
                    _copy(answers, file)
        sync(made)
    made.replace(places.output)
    answers.unlink(missing_ok=True)


def _copy(source: Path, target: IO[bytes]) -> None:
    with source.open("rb") as file:
        shutil.copyfileobj(file, target, 2**20)


def _write_csv(source: Path, target: IO[bytes], table: Table, flatten: Flatten) -> None:
    text = io.TextIOWrapper(target, encoding="utf-8", newline="", write_through=True)
    writer = csv.DictWriter(text, list(table), lineterminator="\r\n")
    writer.writeheader()
    writer.writerows(_rows(source, flatten))
    text.flush()
    text.detach()


def _write_parquet(source: Path, target: Path, table: Table, flatten: Flatten) -> None:
    arrow, parquet = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    kinds = {int: arrow.int64(), str: arrow.string()}
    schema = arrow.schema([(name, kinds[kind]) for name, kind in table.items()])
    rows = _rows(source, flatten)
    with parquet.ParquetWriter(target, schema) as writer:
        while piece := list(islice(rows, PIECE_ROWS)):
            writer.write_batch(arrow.RecordBatch.from_pylist(piece, schema=schema))


def _rows(source: Path, flatten: Flatten) -> Iterator[dict[str, Any]]:
    with source.open("rb") as file:
        for line in file:
            yield from flatten(line)
