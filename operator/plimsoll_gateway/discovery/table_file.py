"""The routing table from a file, for a gateway without a cluster. Replace the file atomically."""

from __future__ import annotations

import asyncio
import logging
from datetime import datetime
from pathlib import Path
from typing import Annotated

import msgspec

from plimsoll_cluster.decode_errors import UNREADABLE
from plimsoll_cluster.objectives import LATENCY_SHARE, read_objectives
from plimsoll_gateway.discovery.routing_table import Model, ObjectKey, Replica, RoutingTable, TableStore, build_table

log = logging.getLogger(__name__)

POLL_SECONDS = 0.2
MISSING = (0, 0, 0)


class TableFileError(ValueError):
    """The file is not a routing table; the message names the wrong field."""


class _ReplicaEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    id: str
    url: Annotated[str, msgspec.Meta(pattern="^https?://")]
    ready: bool


_Share = Annotated[str, msgspec.Meta(pattern=r"^[1-9][0-9]?([.][0-9]{1,3})?%$")]
_Milliseconds = Annotated[int, msgspec.Meta(ge=1, le=3_600_000)]


class _ObjectivesEntry(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    availability: _Share | None = None
    ttft_milliseconds: _Milliseconds | None = None
    ttft_share: _Share = LATENCY_SHARE
    itl_milliseconds: _Milliseconds | None = None
    itl_share: _Share = LATENCY_SHARE


class _ModelEntry(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    namespace: str
    name: str
    served_names: tuple[Annotated[str, msgspec.Meta(min_length=1)], ...]
    created: Annotated[datetime, msgspec.Meta(tz=True)]
    message: str
    replicas: tuple[_ReplicaEntry, ...]
    files: str = ""
    objectives: _ObjectivesEntry = _ObjectivesEntry()


class _Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    models: tuple[_ModelEntry, ...]


def parse_table(text: str) -> RoutingTable:
    """Parse `{"models": [{"namespace", "name", "servedNames", "created", "message", "replicas": [...]}]}`.

    A model may have `files`: the claim for files and batches of its replicas, and `objectives` as in the spec of a
    ModelDeployment. Raises TableFileError, also for unknown keys: a misspelt one would otherwise be ignored.
    """
    try:
        document = msgspec.json.decode(text, type=_Document)
        return build_table(map(_model, document.models))
    except UNREADABLE as error:
        raise TableFileError(str(error)) from None


def _model(entry: _ModelEntry) -> Model:
    return Model(
        key=ObjectKey(entry.namespace, entry.name),
        served_names=entry.served_names,
        created=entry.created.timestamp(),
        message=entry.message,
        replicas=tuple(Replica(one.id, one.url.rstrip("/"), one.ready, files=entry.files) for one in entry.replicas),
        files=entry.files,
        objectives=read_objectives({"objectives": msgspec.to_builtins(entry.objectives)}),
    )


class TableFile:
    """Keeps the routing table in a store equal to one file."""

    def __init__(self, path: Path, store: TableStore) -> None:
        self._path = path
        self._store = store
        self._seen: tuple[int, int, int] | None = None
        self._failure = ""  # message of the last read error

    def refresh(self) -> None:
        """Read the file if it has changed. An unusable or missing file is logged once, and the last table stays.

        A file that cannot be read is tried again the next time, changed or not.
        """
        try:
            status = self._path.stat()
            seen = (status.st_ino, status.st_mtime_ns, status.st_size)
            if seen == self._seen:
                return
            data = self._path.read_bytes()
            self._seen, self._failure = seen, ""
            self._store.replace(parse_table(data.decode("utf-8")))
        except FileNotFoundError:
            if self._seen != MISSING:
                log.warning("the table %s is missing; continuing with the last one", self._path)
            self._seen = MISSING
        except OSError as error:
            if str(error) != self._failure:
                log.error("cannot read the table %s, continuing with the last one: %s", self._path, error)
            self._failure = str(error)
        except (UnicodeDecodeError, TableFileError) as error:
            log.error("invalid table %s, continuing with the last one: %s", self._path, error)

    async def follow(self) -> None:
        """Refresh until cancelled."""
        while True:
            self.refresh()
            await asyncio.sleep(POLL_SECONDS)
