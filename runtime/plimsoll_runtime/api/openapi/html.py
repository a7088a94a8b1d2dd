"""The OpenAPI document as one HTML page, without scripts or other files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from plimsoll_runtime.api.openapi.words import Words

POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""The page's Content-Security-Policy: browsers run no script, even if text were inserted as markup."""

STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}"
    "code{font-family:ui-monospace,monospace;font-size:.9em}table{border-collapse:collapse;width:100%}"
    "td,th{border-bottom:1px solid #ddd;padding:.25rem .75rem .25rem 0;text-align:left;vertical-align:top}"
    "pre{background:#f4f4f4;padding:.75rem;white-space:pre-wrap;overflow-wrap:anywhere}"
    "h2{margin-top:2.5rem;border-bottom:2px solid #222}h3{margin-top:2rem}"
)


_WORDS = Words(
    lambda name: f'<a href="#{escape(name)}">{escape(name)}</a>',
    lambda value: f"<code>{escape(json.dumps(value))}</code>",
    nulls=True,
)


def page(document: Mapping[str, Any]) -> str:
    """Return the page of a document: its operations first, then its types."""
    info = document["info"]
    parts = [
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(info["title"])}</title>',
        f"<style>{STYLE}</style></head><body><h1>{escape(info['title'])} {escape(info['version'])}</h1>",
        f'<p>{escape(info["description"])}</p><p>For programs: <a href="openapi.json">openapi.json</a>.</p>',
        "<h2>Operations</h2>",
        *(part for path, methods in document["paths"].items() for part in _operations(path, methods)),
        "<h2>Types</h2>",
        *(part for name, schema in document["components"]["schemas"].items() for part in _type(name, schema)),
        "</body></html>",
    ]
    return "\n".join(parts)


def _operations(path: str, methods: Mapping[str, Any]) -> Iterator[str]:
    for method, operation in methods.items():
        yield f"<h3><code>{escape(method.upper())} {escape(path)}</code></h3><p>{escape(operation['summary'])}</p><ul>"
        if "requestBody" in operation:
            yield from _contents("Request", operation["requestBody"]["content"])
        for status, answer in operation["responses"].items():
            yield from _contents("Error" if status == "default" else "Answer", answer.get("content", {}))
            for header, described in answer.get("headers", {}).items():
                yield f"<li>Header <code>{escape(header)}</code>: {escape(described['description'])}</li>"
        yield "</ul>"


def _contents(what: str, contents: Mapping[str, Any]) -> Iterator[str]:
    for media, content in contents.items():
        schema = content.get("schema", {})
        event = f", each event {_WORDS.kind(schema['x-event'])}" if "x-event" in schema else ""
        kind = f": {_WORDS.kind(schema)}" if schema else ""
        yield f"<li>{what} <code>{escape(media)}</code>{kind}{event}. {escape(schema.get('description', ''))}</li>"


def _type(name: str, schema: Mapping[str, Any]) -> Iterator[str]:
    yield f'<h3 id="{escape(name)}"><code>{escape(name)}</code></h3><p>{escape(schema.get("description", ""))}</p>'
    yield "<table><tr><th>Field</th><th>Kind</th><th></th></tr>"
    for field, kind in schema.get("properties", {}).items():
        needed = "required" if field in schema.get("required", ()) else ""
        told = escape(kind.get("description", needed))
        yield f"<tr><td><code>{escape(field)}</code></td><td>{_WORDS.kind(kind)}</td><td>{told}</td></tr>"
    yield "</table>"
