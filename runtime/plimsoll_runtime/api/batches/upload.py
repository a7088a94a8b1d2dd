"""Streams an upload to disk within limits: a multipart/form-data reader, and the file that it fills."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from pathlib import Path
from urllib.parse import unquote

from starlette.requests import Request

from plimsoll_runtime.api.batches.file_store import COMING, FILES, FileStore
from plimsoll_runtime.api.batches.records import INPUT, FileAnswer, KeptFile
from plimsoll_runtime.api.http.body import body_pieces, declared_bytes, linger
from plimsoll_runtime.api.http.errors import ApiError, too_large
from plimsoll_runtime.api.schemas.sampling import invalid
from plimsoll_runtime.api.server.limits import OPTION, body_limit
from plimsoll_runtime.batch.journal import write_at
from plimsoll_runtime.utils.threads import in_thread_to_its_end

MAX_HEADERS = 16 * 2**10
MAX_PARTS = 16
_BOUNDARY = re.compile(r"""boundary=(?:"([^"]{1,70})"|([^\s;"]{1,70}))""", re.IGNORECASE)
_PARAMETER = re.compile(r""";\s*(name|filename)="((?:[^"\\]|\\.)*)\"""", re.IGNORECASE)
_EXTENDED = re.compile(r""";\s*filename\*=utf-8''([^\s;]*)""", re.IGNORECASE)
_PADDING, _LINE_END, _HEADERS_END = b" \t", b"\r\n", b"\r\n\r\n"


class MultipartError(ApiError):
    """The body is not valid multipart/form-data; the message says why."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"Invalid body: {reason}.", code="invalid_multipart")


@dataclass(frozen=True, slots=True)
class PartBegins:
    """A field of the form begins; one with a filename is a file."""

    name: str
    filename: str | None


@dataclass(frozen=True, slots=True)
class PartData:
    """More data of the present part."""

    data: bytes


Event = PartBegins | PartData


class _State(Enum):
    PREAMBLE = auto()
    DATA = auto()
    AFTER_BOUNDARY = auto()
    HEADERS = auto()
    END = auto()


def boundary_of(content_type: str) -> bytes:
    """Return the boundary between the parts of a body. Raises MultipartError if the header has none."""
    kind, _, rest = content_type.partition(";")
    found = _BOUNDARY.search(rest)
    if kind.strip().lower() != "multipart/form-data" or found is None:
        raise MultipartError("it must be multipart/form-data with a boundary")
    return (found[1] or found[2]).encode("latin-1", "replace")


class MultipartReader:
    """A parser of one multipart body."""

    def __init__(self, boundary: bytes) -> None:
        self._delimiter = b"\r\n--" + boundary
        self._rest = bytearray(b"\r\n")  # a body may begin with the boundary itself
        self._state = _State.PREAMBLE
        self._parts = 0

    def feed(self, data: bytes) -> Iterator[Event]:
        """Parse more of the body and yield its events. Raises MultipartError."""
        self._rest += data
        while self._state is not _State.END:
            before = self._state
            if before is _State.AFTER_BOUNDARY:
                self._read_boundary_end()
            elif before is _State.HEADERS:
                yield from self._read_headers()
            else:
                yield from self._read_data()
            if before is self._state:  # needs more data
                return
        self._rest.clear()

    def finish(self) -> None:
        """Check that the body is complete. Raises MultipartError if its last boundary is missing."""
        if self._state is not _State.END:
            raise MultipartError("it ends before its last boundary")

    def _read_data(self) -> Iterator[Event]:
        inside = self._state is _State.DATA
        at = self._rest.find(self._delimiter)
        if at >= 0:
            if inside and at:
                yield PartData(bytes(self._rest[:at]))
            del self._rest[: at + len(self._delimiter)]
            self._state = _State.AFTER_BOUNDARY
            return
        certain = len(self._rest) - len(self._delimiter) + 1
        if certain > 0:
            if inside:
                yield PartData(bytes(self._rest[:certain]))
            del self._rest[:certain]

    def _read_boundary_end(self) -> None:
        if self._rest.startswith(b"--"):
            self._state = _State.END
            return
        line = bytes(self._rest.lstrip(_PADDING))
        if line.startswith(_LINE_END):
            self._rest = bytearray(line)  # keep the line end: it ends an empty list of headers
            self._state = _State.HEADERS
        elif line not in (b"", b"\r", b"-") or len(self._rest) > MAX_HEADERS:
            raise MultipartError("a multipart boundary is followed by text on the same line")

    def _read_headers(self) -> Iterator[Event]:
        end = self._rest.find(_HEADERS_END)
        if (len(self._rest) if end < 0 else end) > MAX_HEADERS:
            raise MultipartError(f"the headers of a part are longer than the limit of {MAX_HEADERS} bytes")
        if end < 0:
            return
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise MultipartError(f"it has more parts than the limit of {MAX_PARTS}")
        begins = _begins(self._rest[:end].decode("utf-8", "replace"))
        del self._rest[: end + len(_HEADERS_END)]
        self._state = _State.DATA
        yield begins


def _begins(headers: str) -> PartBegins:
    for line in headers.split("\r\n"):
        name, _, value = line.partition(":")
        if name.strip().lower() == "content-disposition":
            found = {key.lower(): re.sub(r"\\(.)", r"\1", text) for key, text in _PARAMETER.findall(value)}
            extended = _EXTENDED.search(value)
            filename = unquote(extended[1]) if extended is not None else found.get("filename")
            if "name" in found:
                return PartBegins(found["name"], filename)
    raise MultipartError("a part has no name")


FORM_BYTES = 2**20
"""Most bytes of the form around a file."""
MAX_FIELD_BYTES = 4096
PIECE_BYTES = 2**20
LOOK_BYTES = 16 * 2**20
"""Bytes of an upload between two checks of the limit of all files."""
EXPIRES = range(3600, 2_592_001)
"""Allowed lifetimes of a file, in seconds."""
UPLOAD = {
    "type": "object",
    "properties": {
        "file": {"type": "string", "format": "binary"},
        "purpose": {"const": INPUT},
        "expires_after[anchor]": {"const": "created_at"},
        "expires_after[seconds]": {"type": "integer", "minimum": EXPIRES[0], "maximum": EXPIRES[-1]},
    },
    "required": ["file", "purpose"],
    "additionalProperties": False,
}
"""JSON schema of the form."""
_FIELDS = ("purpose", "expires_after[anchor]", "expires_after[seconds]")


async def receive_file(request: Request, file_store: FileStore, owner: str) -> FileAnswer:
    """Read the form and store its file. Raises ApiError, ClientGoneError."""
    reader = MultipartReader(boundary_of(request.headers.get("content-type", "")))
    pieces = body_pieces(request)
    await _check_room(request, pieces, file_store)
    coming = _Coming(file_store, owner, body_limit(request.scope))
    try:
        async for piece in pieces:
            try:
                for event in reader.feed(piece):
                    coming.take(event)
                await coming.write()
            except ApiError:
                await linger(pieces)
                raise
        reader.finish()
        return await coming.keep()
    finally:
        await asyncio.shield(asyncio.to_thread(coming.close))


async def _check_room(request: Request, pieces: AsyncGenerator[bytes, None], file_store: FileStore) -> None:
    """Raise ApiError (413) if the declared size exceeds the limit of a body, or would bring all files above their
    limit."""
    size, most = declared_bytes(request), body_limit(request.scope)
    used = await asyncio.to_thread(file_store.used_bytes)
    if size > most + FORM_BYTES or used + size > file_store.most_bytes:
        if "expect" not in request.headers:
            await linger(pieces)
        raise _too_large(most) if size > most + FORM_BYTES else _full(file_store)


class _Coming:
    """An upload in progress: its fields, and its file of at most `most` bytes, written under a temporary name."""

    def __init__(self, file_store: FileStore, owner: str, most: int) -> None:
        self._file_store = file_store
        self._most = most
        self._owner = owner
        self._name = file_store.new_id(FILES)
        self._fields: dict[str, bytearray] = {}
        self._filename: str | None = None
        self._field: bytearray | None = None
        self._buffer = bytearray()
        self._size = 0
        self._looked = 0
        self._descriptor: int | None = None

    def take(self, event: Event) -> None:
        """Apply an event of the form. Raises ApiError."""
        match event:
            case PartBegins(name, filename):
                self._begin(name, filename)
            case PartData(data):
                self._add(data)

    async def write(self, *, all_of_it: bool = False) -> None:
        """Write the buffer if it is large enough, or always with `all_of_it`. Raises ApiError if the limit of all files
        is exceeded."""
        if len(self._buffer) >= PIECE_BYTES or all_of_it:
            data, self._buffer = self._buffer, bytearray()
            await in_thread_to_its_end(partial(self._write, data))
        if self._size - self._looked >= LOOK_BYTES or all_of_it:
            self._looked = self._size
            if await asyncio.to_thread(self._file_store.used_bytes) > self._file_store.most_bytes:
                raise _full(self._file_store)

    async def keep(self) -> FileAnswer:
        """Store the file of a complete form. Raises ApiError."""
        if self._filename is None:
            raise ApiError("Missing required parameter: 'file'.", param="file", code="missing_required_parameter")
        now = int(time.time())
        purpose, expires_at = self._purpose(), self._expires_at(now)
        await self.write(all_of_it=True)
        told = FileAnswer(self._name, self._size, now, self._filename, purpose, expires_at=expires_at)
        await in_thread_to_its_end(partial(self._keep, told))
        return told

    def close(self) -> None:
        """Delete the temporary file, if it was not stored."""
        if self._descriptor is not None:
            os.close(self._descriptor)
        with suppress(FileNotFoundError):
            self._path.unlink()

    @property
    def _path(self) -> Path:
        return self._file_store.path(self._owner, FILES, self._name, COMING)

    def _begin(self, name: str, filename: str | None) -> None:
        if name == "file" and filename is not None:
            if self._filename is not None:
                raise invalid("file", "the form has more than one; send a single file")
            self._filename, self._field = _plain_name(filename), None
        elif name in _FIELDS and filename is None:
            self._field = self._fields[name] = bytearray()
        else:
            raise ApiError(f"Unknown parameter: '{name[:200]}'.", param=name[:200], code="unknown_parameter")

    def _add(self, data: bytes) -> None:
        if self._field is not None:
            self._field += data
            if len(self._field) > MAX_FIELD_BYTES:
                raise ApiError(
                    f"A field of the form is longer than the limit of {MAX_FIELD_BYTES} bytes.", code="invalid_value"
                )
            return
        self._size += len(data)
        if self._size > self._most:
            raise _too_large(self._most)
        self._buffer += data

    def _write(self, data: bytearray) -> None:
        if self._descriptor is None:
            self._file_store.make_folder(self._owner, FILES)
            self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        write_at(self._descriptor, data, self._size - len(data))  # these are the last bytes of the file so far

    def _keep(self, told: FileAnswer) -> None:
        assert self._descriptor is not None
        os.fsync(self._descriptor)
        self._file_store.keep_file(self._owner, KeptFile(told), self._path)

    def _text(self, name: str) -> str | None:
        given = self._fields.get(name)
        return None if given is None else given.decode("utf-8", "replace")

    def _purpose(self) -> str:
        given = self._text("purpose")
        if given is None:
            raise ApiError("Missing required parameter: 'purpose'.", param="purpose", code="missing_required_parameter")
        if given != INPUT:
            raise invalid("purpose", f"it must be '{INPUT}'")
        return given

    def _expires_at(self, now: int) -> int | None:
        anchor, seconds = self._text("expires_after[anchor]"), self._text("expires_after[seconds]")
        if anchor is None and seconds is None:
            return None
        if anchor != "created_at":
            raise invalid("expires_after[anchor]", "it must be 'created_at'")
        if seconds is None or not re.fullmatch("[0-9]{1,9}", seconds) or int(seconds) not in EXPIRES:
            raise invalid("expires_after[seconds]", f"it must be an integer from {EXPIRES[0]} to {EXPIRES[-1]}")
        return now + int(seconds)


def _plain_name(given: str) -> str:
    """Return a file's base name, without unprintable characters."""
    name = given.replace("\\", "/").rpartition("/")[2]
    return "".join(c for c in name if c.isprintable())[:255] or "file"


def _too_large(most: int) -> ApiError:
    return too_large(
        f"The file is larger than {most} bytes, the limit of a file ({OPTION}); split it.", "file_too_large", "file"
    )


def _full(file_store: FileStore) -> ApiError:
    message = f"All files together exceed the limit of {file_store.most_bytes} bytes (--files-size); delete some first."
    return too_large(message, "files_full", "file")
