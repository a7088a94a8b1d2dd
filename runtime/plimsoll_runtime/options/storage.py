"""Where a server stores responses and files, and how much of them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from plimsoll_runtime.utils.option import Option, declared, option
from plimsoll_runtime.utils.option_values import positive

DAY_SECONDS = 86_400

RESPONSES = Option(("serve", "host"), "responses", deployment="responses.*", pool="responses.*")
FOLDER = Option(("serve", "host"), "files and batches")
FILES = replace(FOLDER, deployment="files.*", pool="files.*")


@dataclass(frozen=True, slots=True)
class ResponseBounds:
    """How many responses are stored, their bytes, the share of both that one tenant may have, and the days that a
    response is stored after its last use.
    """

    count: int = option(
        10_000,
        "how many responses are kept; what was used least recently goes first, of tenants who have more than an "
        "even share",
        RESPONSES,
        flag="--max-responses",
    )
    bytes: int = option(
        64 * 2**20,
        "how many bytes they may have together",
        RESPONSES,
        flag="--max-response-bytes",
        unit="bytes",
        deployment="responses.size",
        pool="responses.size",
    )
    share: float = option(
        1.0,
        "how much of both one tenant may have, such as 50%",
        RESPONSES,
        flag="--response-tenant-share",
        unit="share",
        usual="all that nobody else needs",
        deployment="responses.tenantShare",
        pool="responses.tenantShare",
    )
    days: float = option(
        30.0,
        "how long after its last use a response is kept",
        RESPONSES,
        flag="--response-days",
        unit="days",
        parse=positive,
    )

    @property
    def seconds(self) -> float:
        """`days` in seconds."""
        return self.days * DAY_SECONDS

    @property
    def count_of_one(self) -> int:
        """Responses that one tenant may have."""
        return max(1, int(self.count * self.share))

    @property
    def bytes_of_one(self) -> int:
        """Bytes that they may have."""
        return int(self.bytes * self.share)


@dataclass(frozen=True, slots=True)
class BatchOptions:
    """Options of files and batches; without a folder a server has none of both."""

    folder: Path = field(
        metadata=declared(
            "a folder for /v1/files and /v1/batches, else PLIMSOLL_FILES_DIR in the environment; without one they "
            "answer 501",
            FOLDER,
            flag="--files-dir",
            metavar="DIR",
            variable="PLIMSOLL_FILES_DIR",
        )
    )
    shared: bool = option(
        False,
        "the folder is shared with other servers (one PersistentVolumeClaim), or PLIMSOLL_FILES_SHARED=1 in the "
        "environment: each works on the batches of its own models",
        FOLDER,
        flag="--files-shared",
        variable="PLIMSOLL_FILES_SHARED",
    )
    most_bytes: int = option(
        10 * 2**30,
        "how much all files may take",
        FILES,
        flag="--files-size",
        unit="bytes",
        deployment="files.size",
        pool="files.size",
    )
    at_once: int = option(
        32,
        "most lines of batches that are answered at once, a quarter of it while clients' requests are in flight",
        FILES,
        flag="--batch-lines",
        deployment="files.batchLines",
        pool="files.batchLines",
    )
