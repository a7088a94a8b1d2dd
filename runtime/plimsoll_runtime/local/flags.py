"""The command line of a ModelDeployment's runtime: each field of `spec.runtime` is the camelCase of a flag.

The operator builds the same line for pods; a contract test holds both to the parser of `plimsoll serve`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

ON = frozenset({"prefixCaching"})
"""Fields that are true by default: `plimsoll serve` has no flag that switches them on."""


def serve_arguments(name: str, spec: Mapping[str, Any]) -> tuple[str, ...]:
    """What follows `plimsoll serve` for a valid spec of the object `name`."""
    model = spec["model"]
    arguments = [_model_argument(model["source"])]
    if revision := model.get("revision"):
        arguments += ["--revision", revision]
    if model.get("trustRemoteCode"):
        arguments.append("--trust-remote-code")
    for served in model.get("servedNames") or [name]:
        arguments += ["--name", served]
    for field, value in sorted(spec.get("runtime", {}).items()):
        arguments += _option(field, value)
    return tuple(arguments)


def _model_argument(source: str) -> str:
    """`file:///path` is a path; everything else the runtime understands as it is."""
    return source.removeprefix("file://") if source.startswith("file://") else source


def _option(field: str, value: Any) -> list[str]:
    """`maxModelLen: 4096` -> `--max-model-len 4096`; `prefixCaching: false` -> `--no-prefix-caching`."""
    flag = re.sub(r"[A-Z]", lambda letter: f"-{letter[0].lower()}", field)
    if value is True:
        return [] if field in ON else [f"--{flag}"]
    if value is False:
        return [f"--no-{flag}"]
    if isinstance(value, list):
        return [part for item in value for part in (f"--{flag}", str(item))]
    return [f"--{flag}", str(value)]
