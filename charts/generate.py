"""Generate the chart's derived files: schema and README table from values.yaml, copies of the CRDs, and dashboards.

    python charts/generate.py [--check]

values.yaml is the single source of the values. The comment above a key is its description, the value its type and
default, and a line `# @schema {...}` adds constraints. A key without a description is an error. The schema refuses
unknown keys, so that a misspelt value is not ignored.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from dashboards import build as dashboards

CHART = Path(__file__).parent / "plimsoll"
CRDS = Path(__file__).parent.parent / "crds"
MARK = "@schema "
README = """# The Plimsoll chart

[docs/start/install.md](../../docs/start/install.md) describes how to install, upgrade and uninstall it. These are its
values, generated from `values.yaml` by `make chart`; unknown names are refused.

"""
TYPES = {
    "tag:yaml.org,2002:str": "string",
    "tag:yaml.org,2002:int": "integer",
    "tag:yaml.org,2002:float": "number",
    "tag:yaml.org,2002:bool": "boolean",
    "tag:yaml.org,2002:seq": "array",
    "tag:yaml.org,2002:map": "object",
}


class ValuesError(Exception):
    """values.yaml cannot be converted to a schema; the message has the key and the reason."""


@dataclass(frozen=True)
class Value:
    """One key of values.yaml. `extra`: the constraints in its `# @schema` lines."""

    path: tuple[str, ...]
    type: str
    default: Any
    description: str
    extra: dict[str, Any] = field(default_factory=dict)
    children: tuple["Value", ...] = ()

    @property
    def name(self) -> str:
        """The key as written with `--set`."""
        return ".".join(self.path)

    @property
    def is_section(self) -> bool:
        """Whether its keys are values of the chart, not a free map of the user."""
        return bool(self.children)

    def schema(self) -> dict[str, Any]:
        """Return the JSON schema of the value."""
        return {"description": self.description, "type": self.type, **section(self.children), **self.extra}

    def leaves(self) -> Iterator["Value"]:
        """Yield the values that can be set: this one or those below it."""
        if not self.is_section:
            yield self
        for child in self.children:
            yield from child.leaves()


def section(values: tuple[Value, ...]) -> dict[str, Any]:
    """Return the part of a schema that lists the keys of a map and refuses others."""
    if not values:
        return {}
    return {"properties": {value.path[-1]: value.schema() for value in values}, "additionalProperties": False}


def read_values(text: str) -> tuple[Value, ...]:
    """Parse the text of a values.yaml. Returns its top-level values in order, with nested ones as `children`. Raises
    ValuesError.
    """
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    if not isinstance(root, yaml.MappingNode):
        raise ValuesError("values.yaml must be a map")
    return tuple(_entries(root, (), text.splitlines()))


def _entries(node: yaml.MappingNode, above: tuple[str, ...], lines: list[str]) -> Iterator[Value]:
    for key, value in node.value:
        path = (*above, key.value)
        description, extra = _comment(path, lines, key.start_mark.line)
        free = "additionalProperties" in extra
        below = value if isinstance(value, yaml.MappingNode) and not free else None
        if value.tag not in TYPES:
            raise ValuesError(
                f"{'.'.join(path)}: the default's type {value.tag} is not supported; use an empty value of its type"
            )
        if value.tag.endswith(":seq") and "items" not in extra:
            raise ValuesError(f'{".".join(path)}: a list needs `# {MARK}{{"items": ...}}`')
        if below is not None and not below.value:
            raise ValuesError(f'{".".join(path)}: an empty map needs `# {MARK}{{"additionalProperties": ...}}`')
        yield Value(
            path=path,
            type=TYPES[value.tag],
            default=yaml.safe_load(yaml.serialize(value)),
            description=description,
            extra=extra,
            children=tuple(_entries(below, path, lines)) if below is not None else (),
        )


def _comment(path: tuple[str, ...], lines: list[str], at: int) -> tuple[str, dict[str, Any]]:
    words: list[str] = []
    extra: dict[str, Any] = {}
    first = at
    while first and lines[first - 1].lstrip().startswith("#"):
        first -= 1
    for line in lines[first:at]:
        text = line.strip().removeprefix("#").strip()
        if text.startswith(MARK):
            _add(extra, json.loads(text.removeprefix(MARK)))
        else:
            words.append(text)
    if not words:
        raise ValuesError(f"{'.'.join(path)}: it has no description; write a comment above it")
    return " ".join(words), extra


def _add(schema: dict[str, Any], more: dict[str, Any]) -> None:
    """Merge the constraints `more` into `schema`: maps are merged recursively, other values are replaced."""
    for name, value in more.items():
        if isinstance(value, dict) and isinstance(schema.get(name), dict):
            _add(schema[name], value)
        else:
            schema[name] = value


def schema_text(values: tuple[Value, ...]) -> str:
    """Return the text of values.schema.json. It allows `global`, which Helm passes to a chart that is used as a
    subchart.
    """
    properties = section(values)
    properties["properties"]["global"] = {"description": "Values that Helm shares with subcharts.", "type": "object"}
    document = {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object", **properties}
    return json.dumps(document, indent=2) + "\n"


def table_text(values: tuple[Value, ...]) -> str:
    """Return the table of README.md."""
    rows = ["| value | default | |", "| --- | --- | --- |"]
    for value in values:
        if value.is_section:
            rows.append(f"| **{value.name}** | | {value.description} |")
        rows.extend(f"| `{leaf.name}` | {_default(leaf)} | {leaf.description} |" for leaf in value.leaves())
    return "\n".join(rows) + "\n"


def _default(value: Value) -> str:
    text = json.dumps(value.default)
    return f"`{text}`" if len(text) <= 60 else "see values.yaml"


def outputs() -> dict[Path, str]:
    """Return each generated file with its content."""
    values = read_values((CHART / "values.yaml").read_text())
    return {
        CHART / "values.schema.json": schema_text(values),
        CHART / "README.md": README + table_text(values),
        **{CHART / "files" / "crds" / crd.name: crd.read_text() for crd in sorted(CRDS.glob("*.yaml"))},
        **{CHART / "files" / "dashboards" / name: text for name, text in dashboards.files().items()},
    }


def stale(wanted: dict[Path, str]) -> list[Path]:
    """Return the generated files that are missing, outdated or superfluous."""
    kept = {*(CHART / "files" / "crds").glob("*.yaml"), *(CHART / "files" / "dashboards").glob("*.json")}
    differing = [path for path, text in wanted.items() if not path.exists() or path.read_text() != text]
    return differing + sorted(kept - set(wanted))


def write(wanted: dict[Path, str]) -> None:
    """Update all generated files."""
    for path in stale(wanted):
        if path in wanted:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(wanted[path])
        else:
            path.unlink()


def main(arguments: list[str]) -> int:
    """Write the generated files, or with --check only list outdated ones (exit code 1)."""
    parser = argparse.ArgumentParser(description="Generate the chart's schema, README, CRD copies and dashboards.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a file is out of date")
    options = parser.parse_args(arguments)
    wanted = outputs()
    if not options.check:
        write(wanted)
        return 0
    for path in stale(wanted):
        sys.stderr.write(f"{path.relative_to(CHART.parent.parent)} is out of date: run `make chart`\n")
    return 1 if stale(wanted) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
