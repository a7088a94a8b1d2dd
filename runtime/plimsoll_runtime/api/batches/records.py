"""Files and batches: as OpenAI's clients see them, and as they are stored."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from pydantic import Field

from plimsoll_runtime.api.batches.limits import KeyTerms
from plimsoll_runtime.api.schemas.outputs import CompletionTokensDetails, PromptTokensDetails
from plimsoll_runtime.api.schemas.sampling import Lenient
from plimsoll_runtime.batch.job import Tally

WINDOW: Final = "24h"
WINDOW_SECONDS = 24 * 3600
VALIDATING, FAILED, IN_PROGRESS, FINALIZING = "validating", "failed", "in_progress", "finalizing"
COMPLETED, EXPIRED, CANCELLING, CANCELLED = "completed", "expired", "cancelling", "cancelled"
FINAL = frozenset({FAILED, COMPLETED, EXPIRED, CANCELLED})
INPUT, OUTPUT = "batch", "batch_output"
"""Purposes of files."""


class FileAnswer(msgspec.Struct, tag_field="object", tag="file"):
    """A file. Sizes in bytes, times in Unix time; `expires_at` is null for a file that does not expire."""

    id: str
    bytes: int
    created_at: int
    filename: str
    purpose: str
    status: str = "processed"
    expires_at: int | None = None


class FileList(msgspec.Struct, tag_field="object", tag="list"):
    """A page of files, and whether more follow."""

    data: list[FileAnswer]
    has_more: bool
    first_id: str | None
    last_id: str | None


class FileDeleted(msgspec.Struct, tag_field="object", tag="file"):
    """A deleted file."""

    id: str
    deleted: bool = True


class BatchCounts(msgspec.Struct):
    """How many lines there are, and how many have completed or failed."""

    total: int = 0
    completed: int = 0
    failed: int = 0


class BatchFault(msgspec.Struct):
    """A fault of line `line` of the input (from 1); without `line`, of the whole file or batch."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None


class BatchFaults(msgspec.Struct, tag_field="object", tag="list"):
    """The first faults of a batch."""

    data: list[BatchFault]


class BatchUsage(msgspec.Struct):
    """The tokens of all finished lines. Reasoning tokens are not counted separately."""

    input_tokens: int
    output_tokens: int
    total_tokens: int
    input_tokens_details: PromptTokensDetails
    output_tokens_details: CompletionTokensDetails

    @classmethod
    def of(cls, tally: Tally) -> BatchUsage:
        """Return the usage of finished rows."""
        given, made = tally.prompt_tokens, tally.completion_tokens
        return cls(given, made, given + made, PromptTokensDetails(tally.cached_tokens), CompletionTokensDetails(0))


class BatchAnswer(msgspec.Struct, tag_field="object", tag="batch", kw_only=True):
    """A batch. Times are Unix time, null for events that have not happened."""

    id: str
    endpoint: str
    model: str | None = None
    errors: BatchFaults | None = None
    input_file_id: str
    completion_window: str = WINDOW
    status: str = VALIDATING
    output_file_id: str | None = None
    error_file_id: str | None = None
    created_at: int
    in_progress_at: int | None = None
    expires_at: int
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    request_counts: BatchCounts = msgspec.field(default_factory=BatchCounts)
    usage: BatchUsage | None = None
    metadata: dict[str, str] | None = None


class BatchList(msgspec.Struct, tag_field="object", tag="list"):
    """A page of batches, and whether more follow."""

    data: list[BatchAnswer]
    has_more: bool
    first_id: str | None
    last_id: str | None


class KeptFile(msgspec.Struct):
    """A stored file."""

    told: FileAnswer

    def is_over(self, now: float) -> bool:
        """Return whether the file has expired."""
        return self.told.expires_at is not None and self.told.expires_at <= now


class KeptBatch(msgspec.Struct):
    """A stored batch. `owner` and `tenant` are those of its creator (see `RequestRecord`), `ends_as` is its final
    status once that is known. `tries` counts the starts since it had `rows` results. `terms` are the limits of its
    key, if a gateway sent them."""

    told: BatchAnswer
    owner: str
    tenant: str
    ends_as: str | None = None
    tries: int = 0
    rows: int = 0
    terms: KeyTerms | None = None

    def fail(self, faults: list[BatchFault], now: float) -> None:
        """End the batch as failed, with these faults."""
        self.told.errors, self.told.status, self.told.failed_at = BatchFaults(faults), FAILED, int(now)


class BatchRequest(Lenient):
    """The body of a request that creates a batch."""

    input_file_id: Annotated[str, Field(max_length=128)]
    endpoint: str
    completion_window: Literal["24h"]
    metadata: Annotated[dict[str, Annotated[str, Field(max_length=512)]] | None, Field(max_length=16)] = None
