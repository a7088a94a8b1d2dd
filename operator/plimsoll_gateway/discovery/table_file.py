"""The routing table from a file, for a gateway without a cluster. Replace the file atomically."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Set
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from plimsoll_cluster.decode_errors import UNREADABLE
from plimsoll_gateway.discovery.routing_table import Model, ObjectKey, Replica, RoutingTable, TableStore, build_table

log = logging.getLogger(__name__)

POLL_SECONDS = 0.2
MISSING = (0, 0, 0)


class TableFileError(ValueError):
    """The file is not a routing table; the message names the wrong field."""


def parse_table(text: str) -> RoutingTable:
    """Parse `{"models": [{"namespace", "name", "servedNames", "created", "message", "replicas": [...]}]}`.

    A model may have `files`: the claim for files and batches of its replicas. Raises TableFileError, also for unknown
    keys: a misspelt one would otherwise be ignored.
    """
    try:
        document = json.loads(text)
    except UNREADABLE as error:
        raise TableFileError(f"not JSON: {error}") from None
    top = _Fields(document, "the file", {"models"})
    models = [_model(entry, f"models[{index}]") for index, entry in enumerate(top.list("models"))]
    try:
        return build_table(models)
    except ValueError as error:
        raise TableFileError(str(error)) from None


def _model(entry: Any, where: str) -> Model:
    fields = _Fields(entry, where, {"namespace", "name", "servedNames", "created", "message", "replicas"}, {"files"})
    names = fields.list("servedNames")
    if not all(isinstance(name, str) and name for name in names):
        _wrong(f"{where}.servedNames", "must contain only non-empty strings")
    files = fields.text("files", "")
    found = (_replica(item, f"{where}.replicas[{i}]") for i, item in enumerate(fields.list("replicas")))
    replicas = tuple(replace(replica, files=files) for replica in found)
    return Model(
        key=ObjectKey(fields.text("namespace"), fields.text("name")),
        served_names=tuple(names),
        created=_seconds(fields.text("created"), f"{where}.created"),
        message=fields.text("message"),
        replicas=replicas,
        files=files,
    )


def _replica(entry: Any, where: str) -> Replica:
    fields = _Fields(entry, where, {"id", "url", "ready"})
    url = fields.text("url")
    if not url.startswith(("http://", "https://")):
        _wrong(f"{where}.url", "must begin with http:// or https://")
    return Replica(id=fields.text("id"), url=url.rstrip("/"), ready=fields.flag("ready"))


def _seconds(text: str, where: str) -> float:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        _wrong(where, "must be an RFC 3339 time")
    if moment.tzinfo is None:
        _wrong(where, "must have a time zone")
    return moment.timestamp()


class _Fields:
    """Typed access to one JSON object; errors name the field."""

    def __init__(self, entry: Any, where: str, known: set[str], optional: Set[str] = frozenset()) -> None:
        if not isinstance(entry, dict):
            _wrong(where, "must be an object")
        if unknown := sorted(set(entry) - known - optional):
            _wrong(where, f"has unknown keys: {', '.join(unknown)}")
        if missing := sorted(known - set(entry)):
            _wrong(where, f"lacks keys: {', '.join(missing)}")
        self._entry: dict[str, Any] = entry
        self._where = where

    def text(self, key: str, usual: str | None = None) -> str:
        value = self._entry.get(key, usual)
        return value if isinstance(value, str) else _wrong(f"{self._where}.{key}", "must be a string")

    def list(self, key: str) -> list[Any]:
        value = self._entry[key]
        return value if isinstance(value, list) else _wrong(f"{self._where}.{key}", "must be a list")

    def flag(self, key: str) -> bool:
        value = self._entry[key]
        return value if isinstance(value, bool) else _wrong(f"{self._where}.{key}", "must be true or false")


def _wrong(where: str, what: str) -> NoReturn:
    raise TableFileError(f"{where} {what}")


class TableFile:
    """Follows one file into a store."""

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
