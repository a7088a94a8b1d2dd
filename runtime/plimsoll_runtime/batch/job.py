"""The identity of a batch job, by which a later run resumes it, and its rows."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from plimsoll_runtime.batch.inputs import InputFile
from plimsoll_runtime.errors import UsageError

ID_LENGTH = 16


@dataclass(frozen=True, slots=True)
class Shard:
    """Every `count`-th row, starting at row `index` (from 0)."""

    index: int
    count: int


ALL = Shard(0, 1)


def describe(inputs: Sequence[InputFile], shard: Shard, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the job as plain data. `options` are all other settings on which its outputs depend."""
    files = [[str(file.path.absolute()), file.size, file.modified_ns] for file in inputs]
    return {"inputs": files, "shard": [shard.index, shard.count], **options}


def id_of(job: Mapping[str, Any]) -> str:
    """Return the id of a job: the start of the SHA-256 of its JSON."""
    text = json.dumps(job, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:ID_LENGTH]


def check_same(job: Mapping[str, Any], found: Mapping[str, Any], where: str) -> None:
    """Raise UsageError if `job` differs from the job `found` in the folder `where`; the message names the differing
    keys.
    """
    differing = [key for key in {**found, **job} if job.get(key) != found.get(key)]
    if differing:
        raise UsageError(
            f"{where} belongs to another run ({', '.join(differing)} differ); "
            "resume that run, choose another OUTPUT, or start over with --restart"
        )


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the input.

    `index` counts all rows from 0, `number` those of this shard. `file` and `line` (from 1; a table's row) are its
    position in the input, and `size` is the number of bytes of the file from the end of the shard's previous row to the
    end of this one. `data` is a line of JSON; a row that cannot be read has a `fault` instead, the reason.
    """

    index: int
    number: int
    file: str
    line: int
    size: int
    data: bytes
    fault: str | None = None


class Answered(msgspec.Struct, frozen=True, tag="row"):
    """A finished row: its line of the output, or of the error file if it `failed`."""

    number: int
    line: bytes
    failed: bool = False
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0


class Tally(msgspec.Struct, frozen=True):
    """Counts of finished rows, and sums of their tokens."""

    rows: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0

    def plus(self, row: Answered) -> Tally:
        """Return the counts and sums with one more row."""
        return Tally(
            self.rows + 1,
            self.failed + row.failed,
            self.prompt_tokens + row.prompt_tokens,
            self.cached_tokens + row.cached_tokens,
            self.completion_tokens + row.completion_tokens,
        )
