"""The target of a request: its path, as the API's paths are compared with it, and its query."""

from __future__ import annotations

import re
from functools import lru_cache
from urllib.parse import unquote

import httptools

SHORT = 64
"""Bytes of a target that is remembered with its parts; most are asked for again and again."""
_SLASHES = re.compile("/{2,}")
_MODEL = re.compile("/+v1/+models/+(?=[^/])")
"""What precedes the name of a model."""


def plain_path(path: str) -> str:
    """The path with single slashes and none at its end: base URLs that end in one make clients send others.

    `path` is not yet decoded, so that slashes that are encoded stay. So do those in a model's name, which may have two.
    """
    path = path.rstrip("/") or "/"
    if "//" not in path:
        return path
    if (head := _MODEL.match(path)) is not None:
        return f"/v1/models/{path[head.end() :]}"
    return _SLASHES.sub("/", path)


def parts_of(url: bytes) -> tuple[str, bytes, bytes]:
    """The path of a target, plain and decoded, and as it came, and its query. Raises httptools.HttpParserError."""
    return _known(url) if len(url) < SHORT else _parts(url)


def _parts(url: bytes) -> tuple[str, bytes, bytes]:
    target = httptools.parse_url(url)
    path = plain_path(target.path.decode("ascii"))
    return unquote(path) if "%" in path else path, target.path, target.query or b""


_known = lru_cache(512)(_parts)
