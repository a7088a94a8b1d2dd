"""The API as it is told: a document for programs, and a page of it. Both files are made of the runtime's types, by
`make reference`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files

PAGES: Mapping[str, tuple[str, bytes]] = {
    "/openapi.json": ("openapi.json", b"application/json"),
    "/docs": ("docs.html", b"text/html; charset=utf-8"),
}
"""The file of each path, and what it is."""
POLICY = ((b"content-security-policy", b"default-src 'none'; style-src 'unsafe-inline'"),)
"""Were text to get into the page as markup, a browser would not run it."""


@cache
def page_at(path: str) -> tuple[bytes, bytes]:
    """What a path is, and its text."""
    name, kind = PAGES[path]
    return kind, (files(__package__) / name).read_bytes()
