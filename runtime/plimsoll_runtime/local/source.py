"""Converts model sources on the command line of `plimsoll up` into ModelDeployments."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path

from plimsoll_runtime.errors import UsageError
from plimsoll_runtime.local.manifest import crd
from plimsoll_runtime.local.manifest.manifest import STDIN

LONGEST_NAME = 52
"""Maximum length of an object's name; the schema has the same limit because the operator appends to it."""
URL = re.compile(r"[a-z][a-z0-9+.-]*://")
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(@[\w./-]+)?(:[\w./-]+)?", re.ASCII)


def manifests_of(arguments: Sequence[str]) -> dict[str, str]:
    """Return, by argument, the YAML of a ModelDeployment for each argument that is a model source, not a YAML file.
    Raises UsageError.

    Sources are demo://NAME, hf://ORG/NAME[@REVISION][:FILE], a folder with config.json and a .gguf file.
    """
    made: dict[str, str] = {}
    names: set[str] = set()
    for argument in arguments:
        source = None if argument == STDIN or argument in made else _source(argument)
        if source is not None:
            name = _unused(object_name(source), names)
            names.add(name)
            made[argument] = _manifest(name, source)
    return made


def object_name(source: str) -> str:
    """Return a valid object name for a source: hf://Qwen/Qwen3-0.6B@main:Q8_0 becomes qwen3-0-6b."""
    scheme, _, rest = source.partition("://")
    if scheme == "hf":
        rest = re.split("[@:]", rest, maxsplit=1)[0]
    last = rest.rstrip("/").rpartition("/")[2]
    if scheme == "file":
        last = re.sub(r"\.gguf$", "", last, flags=re.IGNORECASE)
    plain = unicodedata.normalize("NFKD", last).encode("ascii", "ignore").decode().lower()
    words = re.sub(r"[^a-z0-9]+", "-", plain).strip("-")
    if not words[:1].isalpha():  # names of Services start with a letter
        words = f"model-{words}"
    return words[:LONGEST_NAME].rstrip("-")


def _unused(name: str, taken: set[str]) -> str:
    """Return the name, with a number if another source has it."""
    found, number = name, 1
    while found in taken:
        number += 1
        found = f"{name[: LONGEST_NAME - len(f'-{number}')].rstrip('-')}-{number}"
    return found


def _source(argument: str) -> str | None:
    """Return `spec.model.source` for an argument, or None if it is a file to read."""
    if URL.match(argument):
        return argument
    path = Path(argument).expanduser()
    if path.is_dir():
        return _folder(argument, path)
    if argument.lower().endswith(".gguf"):
        if not path.is_file():
            raise UsageError(f"{argument}: no such file; check the path")
        return f"file://{path.resolve()}"
    if not path.exists() and HUB_ID.fullmatch(argument) and not argument.endswith((".yaml", ".yml", ".json")):
        raise UsageError(
            f"{argument}: no such file or folder; for a model of the Hugging Face hub write hf://{argument}"
        )
    return None


def _folder(argument: str, path: Path) -> str:
    if (path / "config.json").is_file():
        return f"file://{path.resolve()}"
    if found := sorted(entry.name for entry in path.glob("*.gguf")):
        raise UsageError(
            f"{argument}: the folder has no config.json; to run one of its models name the file: {path / found[0]}"
        )
    raise UsageError(
        f"{argument}: the folder has no config.json, so it is not a model; name a model's folder, a .gguf file or a "
        "YAML file of ModelDeployments"
    )


def _manifest(name: str, source: str) -> str:
    """Return the YAML of a ModelDeployment. Strings are quoted as in JSON, which is valid YAML."""
    here = "  # a path on this machine; in a cluster, mount it with spec.template.volumes"
    return (
        f"apiVersion: {crd.api_version()}\n"
        f"kind: {crd.kind()}\n"
        "metadata:\n"
        f"  name: {json.dumps(name)}\n"
        "spec:\n"
        "  model:\n"
        f"    source: {json.dumps(source, ensure_ascii=False)}{here if source.startswith('file://') else ''}\n"
    )
