"""Request head: the normalised path, and the check of Host headers."""

from __future__ import annotations

import re
from urllib.parse import unquote

from plimsoll_gateway.errors.refusals import wrong_host
from plimsoll_gateway.proxy.body import Message

_SLASHES = re.compile("/{2,}")
_MODEL = re.compile("/+v1/+models/+(?=[^/])")
"""The part of a path before a model's name."""


def path_of(scope: Message) -> str:
    """Return the normalised, decoded path of a request."""
    path = plain_path(scope["raw_path"].decode("ascii"))
    return unquote(path) if "%" in path else path


def plain_path(path: str) -> str:
    """Return the path with single slashes and none at its end. Clients send other paths if their base URL ends in a
    slash.

    `path` is not yet decoded, so that encoded slashes stay. So do the slashes in a model's name, which may have two in
    a row.
    """
    path = path.rstrip("/") or "/"
    if "//" not in path:
        return path
    if (head := _MODEL.match(path)) is not None:
        return f"/v1/models/{path[head.end() :]}"
    return _SLASHES.sub("/", path)


def check_host(scope: Message) -> None:
    """Raise Refusal 400 unless the request has one Host header, or none in HTTP/1.0 (RFC 9112 section 3.2)."""
    hosts = sum(name == b"host" for name, _ in scope["headers"])
    if hosts > 1 or (hosts == 0 and scope["http_version"] != "1.0"):
        raise wrong_host(hosts)
