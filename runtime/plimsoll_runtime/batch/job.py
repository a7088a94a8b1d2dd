"""What a run is to do, as far as its answers depend on it: another run goes on with its work only if it is the same."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from plimsoll_runtime.batch.inputs import InputFile
from plimsoll_runtime.errors import UsageError

ID_LENGTH = 16


@dataclass(frozen=True, slots=True)
class Shard:
    """Every `count`-th row, beginning with row `index` (from 0)."""

    index: int
    count: int


ALL = Shard(0, 1)


def describe(inputs: Sequence[InputFile], shard: Shard, options: Mapping[str, Any]) -> dict[str, Any]:
    """The job in plain data. `options` are all that its answers depend on beside its rows."""
    files = [[str(file.path.absolute()), file.size, file.modified_ns] for file in inputs]
    return {"inputs": files, "shard": [shard.index, shard.count], **options}


def id_of(job: Mapping[str, Any]) -> str:
    """The same for the same job, wherever and whenever it runs."""
    text = json.dumps(job, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:ID_LENGTH]


def check_same(job: Mapping[str, Any], found: Mapping[str, Any], where: str) -> None:
    """Raises UsageError that says in what the job found `where` differs."""
    differing = [key for key in {**found, **job} if job.get(key) != found.get(key)]
    if differing:
        raise UsageError(
            f"{where} belongs to another run ({', '.join(differing)} differ): "
            "run that one, give another OUTPUT, or begin anew with --restart"
        )
