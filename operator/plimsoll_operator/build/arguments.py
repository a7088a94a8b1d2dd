"""The command line of the runtime: each field of `spec.runtime` is the camelCase of a flag of `plimsoll serve`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from plimsoll_operator.identity import PORT
from plimsoll_operator.spec import Spec

CLAIMS = "/models"
STORES = "/var/lib/plimsoll"
FILES, RESPONSES = f"{STORES}/files", f"{STORES}/responses"
GROUP_VARIABLE = "PLIMSOLL_GROUP"
"""Of a pod that keeps its responses on a claim: its group, by which its file is found again."""
ON = frozenset({"prefixCaching"})
"""Options that are on by themselves: `plimsoll serve` has no flag that switches them on."""


def serve_arguments(spec: Spec) -> list[str]:
    """What follows `plimsoll`."""
    arguments = ["serve", model_argument(spec.source), "--host", "0.0.0.0", "--port", str(PORT)]
    if spec.revision:
        arguments += ["--revision", spec.revision]
    if spec.trust_remote_code:
        arguments.append("--trust-remote-code")
    for name in spec.served_names:
        arguments += ["--name", name]
    for field, value in sorted(spec.options.items()):
        arguments += _option(field, value)
    return [*arguments, *_responses(spec), *_files(spec)]


def _responses(spec: Spec) -> list[str]:
    found = spec.responses
    if found is None:
        return []
    file = None if found.claim is None else f"{RESPONSES}/{spec.key.name}-$({GROUP_VARIABLE}).sqlite"
    options = {
        "--response-store": file,
        "--max-responses": found.count,
        "--max-response-bytes": found.size,
        "--response-days": found.days,
        "--response-tenant-share": found.tenant_share,
    }
    return _said(options)


def _files(spec: Spec) -> list[str]:
    found = spec.files
    if found is None:
        return []
    options = {"--files-size": found.size, "--batch-lines": found.batch_lines}
    return ["--files-dir", FILES, "--files-shared", *_said(options)]


def _said(options: Mapping[str, str | int | None]) -> list[str]:
    return [word for option, value in options.items() if value is not None for word in (option, str(value))]


def model_argument(source: str) -> str:
    """MODEL: a claim's path is where it is mounted, a file's path is itself, the rest is for the runtime to resolve."""
    if claim := claim_name(source):
        path = source.removeprefix(f"pvc://{claim}").strip("/")
        return f"{CLAIMS}/{claim}" + (f"/{path}" if path else "")
    return source.removeprefix("file://") if source.startswith("file://") else source


def claim_name(source: str) -> str | None:
    """The PersistentVolumeClaim of a pvc:// source."""
    return source.removeprefix("pvc://").split("/")[0] if source.startswith("pvc://") else None


def _option(field: str, value: Any) -> list[str]:
    flag = "--" + re.sub(r"[A-Z]", lambda letter: f"-{letter[0].lower()}", field)
    if value is True:
        return [] if field in ON else [flag]
    if value is False:
        return [f"--no-{flag.removeprefix('--')}"]
    return [flag, str(value)]
