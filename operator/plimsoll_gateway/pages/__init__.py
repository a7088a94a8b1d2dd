"""API reference: an OpenAPI document and an HTML page. `make reference` generates both from the runtime's types."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files

PAGES: Mapping[str, tuple[str, bytes]] = {
    "/openapi.json": ("openapi.json", b"application/json"),
    "/docs": ("docs.html", b"text/html; charset=utf-8"),
}
"""File name and content type by path."""
POLICY = ((b"content-security-policy", b"default-src 'none'; style-src 'unsafe-inline'"),)
"""With this header, a browser runs no script, even if one got into the page's text."""


@cache
def page_at(path: str) -> tuple[bytes, bytes]:
    """Return content type and text of a page."""
    name, kind = PAGES[path]
    return kind, (files(__package__) / name).read_bytes()
