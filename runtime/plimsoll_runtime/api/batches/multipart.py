"""Reads multipart/form-data as it comes: parts begin, have data and end. Only what may be a boundary is kept."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto
from urllib.parse import unquote

MAX_HEADERS = 16 * 2**10
MAX_PARTS = 16
_BOUNDARY = re.compile(r"""boundary=(?:"([^"]{1,70})"|([^\s;"]{1,70}))""", re.IGNORECASE)
_PARAMETER = re.compile(r""";\s*(name|filename)="((?:[^"\\]|\\.)*)\"""", re.IGNORECASE)
_EXTENDED = re.compile(r""";\s*filename\*=utf-8''([^\s;]*)""", re.IGNORECASE)
_PADDING, _LINE_END, _HEADERS_END = b" \t", b"\r\n", b"\r\n\r\n"


class MultipartError(ValueError):
    """It is no such body; the message says why."""


@dataclass(frozen=True, slots=True)
class PartBegins:
    """A field of the form, or a file where it has a name."""

    name: str
    filename: str | None


@dataclass(frozen=True, slots=True)
class PartData:
    """More of the part that began last."""

    data: bytes


@dataclass(frozen=True, slots=True)
class PartEnds:
    """That part is whole."""


Event = PartBegins | PartData | PartEnds


class _State(Enum):
    PREAMBLE = auto()
    DATA = auto()
    AFTER_BOUNDARY = auto()
    HEADERS = auto()
    END = auto()


def boundary_of(content_type: str) -> bytes:
    """What stands between the parts of the body. Raises MultipartError where the header names none."""
    kind, _, rest = content_type.partition(";")
    found = _BOUNDARY.search(rest)
    if kind.strip().lower() != "multipart/form-data" or found is None:
        raise MultipartError("the body must be multipart/form-data with a boundary")
    return (found[1] or found[2]).encode("latin-1", "replace")


class MultipartReader:
    """One body."""

    def __init__(self, boundary: bytes) -> None:
        self._delimiter = b"\r\n--" + boundary
        self._rest = bytearray(b"\r\n")  # a body may begin with the boundary itself
        self._state = _State.PREAMBLE
        self._parts = 0

    def feed(self, data: bytes) -> Iterator[Event]:
        """What more of the body says. Raises MultipartError."""
        self._rest += data
        while self._state is not _State.END:
            before = self._state
            if before is _State.AFTER_BOUNDARY:
                self._read_boundary_end()
            elif before is _State.HEADERS:
                yield from self._read_headers()
            else:
                yield from self._read_data()
            if before is self._state:  # for more there must come more
                return
        self._rest.clear()

    def finish(self) -> None:
        """Nothing follows. Raises MultipartError where the body has not come to its end."""
        if self._state is not _State.END:
            raise MultipartError("the body ends before its last boundary")

    def _read_data(self) -> Iterator[Event]:
        inside = self._state is _State.DATA
        at = self._rest.find(self._delimiter)
        if at >= 0:
            if inside:
                if at:
                    yield PartData(bytes(self._rest[:at]))
                yield PartEnds()
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
            self._rest = bytearray(line)  # the line end begins the headers, which may be none
            self._state = _State.HEADERS
        elif line not in (b"", b"\r", b"-") or len(self._rest) > MAX_HEADERS:
            raise MultipartError("a boundary is followed by something else than a line's end")

    def _read_headers(self) -> Iterator[Event]:
        end = self._rest.find(_HEADERS_END)
        if (len(self._rest) if end < 0 else end) > MAX_HEADERS:
            raise MultipartError(f"a part's headers are longer than {MAX_HEADERS} bytes")
        if end < 0:
            return
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise MultipartError(f"it has more than {MAX_PARTS} parts")
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
