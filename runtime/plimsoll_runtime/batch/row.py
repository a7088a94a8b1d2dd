"""What goes through a batch: rows in, answered rows out."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the input.

    `index` counts all rows from 0, `number` those of this shard. `file` and `line` (from 1; of a table its row) say
    where it stands, and `size` how many bytes of the file it took. `data` is a line of JSON; a row that cannot be read
    has a `fault` instead, which says why.
    """

    index: int
    number: int
    file: str
    line: int
    size: int
    data: bytes
    fault: str | None = None


class Answered(msgspec.Struct, frozen=True, tag="row"):
    """A row that is done: its line of the output, or of the file of errors where it `failed`."""

    number: int
    line: bytes
    failed: bool = False
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0


class Tally(msgspec.Struct, frozen=True):
    """Sums over rows."""

    rows: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0

    def plus(self, row: Answered) -> Tally:
        """With one row more."""
        return Tally(
            self.rows + 1,
            self.failed + row.failed,
            self.prompt_tokens + row.prompt_tokens,
            self.cached_tokens + row.cached_tokens,
            self.completion_tokens + row.completion_tokens,
        )
