"""Paths as routes are compared with them."""

from __future__ import annotations

import re
from urllib.parse import unquote

from starlette.types import Scope

_SLASHES = re.compile("/{2,}")
_MODEL = re.compile("/+v1/+models/+(?=[^/])")
"""What precedes the name of a model."""


def make_plain(scope: Scope) -> None:
    """Give a request the path with single slashes and none at its end: base URLs that end in one make clients send
    others.
    """
    path = scope["path"]
    if "//" in path or path.endswith("/"):
        scope["path"] = unquote(plain_path(scope["raw_path"].decode("ascii")))


def plain_path(path: str) -> str:
    """The same of a path that is not yet decoded (the gateway's rule, tests/contract). Slashes that are encoded stay,
    and so do those in a model's name, which may have two.
    """
    path = path.rstrip("/") or "/"
    if "//" not in path:
        return path
    if (head := _MODEL.match(path)) is not None:
        return f"/v1/models/{path[head.end() :]}"
    return _SLASHES.sub("/", path)
