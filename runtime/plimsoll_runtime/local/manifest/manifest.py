"""Reads files of Kubernetes objects like `kubectl`: YAML with one or more documents, from files or standard input."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import yaml

from plimsoll_runtime.errors import UsageError
from plimsoll_runtime.local.manifest.crd import field_path

STDIN = "-"
# Kubernetes stores integers in 64 bits, and larger numbers as floating point.
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
# Kubernetes reads YAML 1.1 without dates and sexagesimal numbers.
UNREAD_TAGS = ("tag:yaml.org,2002:timestamp",)


@dataclass(frozen=True, slots=True)
class Document:
    """One object of a file. `origin` names the file, and the document's number if there are several. `lines` maps each
    field (`spec.template.env[0].name`) to its line, counted from 1.
    """

    origin: str
    body: Mapping[str, Any]
    lines: Mapping[str, int] = field(default_factory=dict)


def read_documents(sources: Sequence[str], stdin: TextIO, texts: Mapping[str, str] | None = None) -> list[Document]:
    """Return all objects of the files, in order; `-` is standard input. Raises UsageError with file and line.

    `texts` maps sources that are not files to their content.
    """
    documents = [document for source in sources for document in _read(source, stdin, texts or {})]
    if not documents:
        raise UsageError(f"{', '.join(sources)}: no object found; expected a ModelDeployment")
    return documents


def _read(source: str, stdin: TextIO, texts: Mapping[str, str]) -> list[Document]:
    title = "standard input" if source == STDIN else source
    text = texts[source] if source in texts else _text(source, title, stdin)
    try:
        parsed = list(_parse(text, title))
    except yaml.YAMLError as error:
        raise UsageError(f"{title}: error converting YAML to JSON: {error}") from None
    except RecursionError:
        raise UsageError(f"{title}: the YAML is nested too deeply") from None
    several = len(parsed) > 1
    return [
        Document(f"{title} (document {index})" if several else title, _object(title, body), lines)
        for index, (body, lines) in enumerate(parsed, 1)
    ]


def _text(source: str, title: str, stdin: TextIO) -> str:
    try:
        return stdin.read() if source == STDIN else Path(source).read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{title}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{title}: not UTF-8 text (byte {error.start})") from None


def _object(title: str, body: Any) -> Mapping[str, Any]:
    if not isinstance(body, dict):
        raise UsageError(f"{title}: expected an object with apiVersion and kind, found {json.dumps(body)[:80]}")
    return body


def _parse(text: str, title: str) -> Iterator[tuple[Any, Mapping[str, int]]]:
    """Yield the documents that are not empty, with the lines of their fields. Errors give `title` as the file name."""
    loader = _Loader(text)
    loader.name = title
    try:
        while loader.check_node():
            node = loader.get_node()
            body = None if node is None else loader.construct_document(node)
            if node is not None and body is not None:
                yield body, dict(_lines(node, (), set()))
    finally:
        loader.dispose()


def _lines(node: yaml.Node, path: tuple[str | int, ...], seen: set[int]) -> Iterator[tuple[str, int]]:
    """Yield the line on which each field starts. Each node is visited once, so fields repeated by an alias have no
    line.
    """
    if id(node) in seen:
        return
    seen.add(id(node))
    members: list[tuple[str | int, yaml.Node, yaml.Node]] = []
    if isinstance(node, yaml.MappingNode):
        members = [(str(key.value), key, value) for key, value in node.value]
    elif isinstance(node, yaml.SequenceNode):
        members = [(index, value, value) for index, value in enumerate(node.value)]
    for part, at, value in members:
        yield field_path((*path, part)), at.start_mark.line + 1
        yield from _lines(value, (*path, part), seen)


class _Loader(yaml.SafeLoader):
    """A YAML loader that accepts only values that JSON can hold, and rejects duplicate keys."""

    yaml_implicit_resolvers = {  # noqa: RUF012 (as in the base class)
        first: [(tag, pattern) for tag, pattern in resolvers if tag not in UNREAD_TAGS]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        if isinstance(node, yaml.MappingNode):
            self.flatten_mapping(node)
        mapping: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = _key(self.construct_object(key_node, deep=True), key_node)
            if key in mapping:
                raise _error(f'key "{key}" already set in map', key_node)
            mapping[key] = self.construct_object(value_node, deep=True)
        return mapping


def _key(value: Any, node: yaml.Node) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    raise _error("a key must be a string", node)


def _construct_map(loader: _Loader, node: yaml.MappingNode) -> dict[str, Any]:
    return loader.construct_mapping(node, deep=True)


def _construct_int(loader: _Loader, node: yaml.ScalarNode) -> Any:
    text = str(node.value)
    if ":" in text:
        return text
    number = yaml.SafeLoader.construct_yaml_int(loader, node)
    return number if INT64_MIN <= number <= INT64_MAX else float(number)


def _construct_float(loader: _Loader, node: yaml.ScalarNode) -> Any:
    text = str(node.value)
    if ":" in text:
        return text
    number = yaml.SafeLoader.construct_yaml_float(loader, node)
    if not math.isfinite(number):
        raise _error(f"{text} cannot be written as JSON", node)
    return number


def _construct_other(loader: _Loader, node: yaml.Node) -> Any:
    raise _error(f"{node.tag} cannot be written as JSON", node)


def _error(problem: str, node: yaml.Node) -> yaml.YAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)


_Loader.add_constructor("tag:yaml.org,2002:map", _construct_map)
_Loader.add_constructor("tag:yaml.org,2002:int", _construct_int)
_Loader.add_constructor("tag:yaml.org,2002:float", _construct_float)
for _tag in ("binary", "omap", "pairs", "set", "timestamp"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_tag}", _construct_other)
