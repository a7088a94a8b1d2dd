"""What sentence-transformers keeps beside a model: which modules follow it, and how texts are prepared for it.

https://sbert.net/docs/package_reference/base/modules.html says what the files are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from plimsoll_runtime.errors import ModelError

MODULES = "modules.json"
DENSE_WEIGHTS = "model.safetensors"
MOST_MODULES = 32
SETTINGS = ("config_sentence_transformers.json", "sentence_bert_config.json")
_TAKEN = ("prompts", "default_prompt_name", "activation_fn", "max_seq_length", "do_lower_case")
"""What of these files matters here."""

ReadJson = Callable[[Path], Any]
"""What a file says; an empty object where it is not there."""


def described_modules(root: Path, read: ReadJson) -> dict[str, Any] | None:
    """The modules of a folder, each with its kind, path and config, and what is said beside them; None without any.

    Raises ModelError where they are not as sentence-transformers writes them.
    """
    listed = read(root / MODULES)
    settings: dict[str, Any] = {}
    for name in SETTINGS:
        said = read(root / name)
        if isinstance(said, Mapping):
            settings |= {key: said[key] for key in _TAKEN if said.get(key) is not None}
    if not listed and not settings:
        return None
    if not isinstance(listed, list | dict) or len(listed) > MOST_MODULES:
        raise ModelError(f"{root / MODULES} holds no list of modules")
    modules = [_module(root, entry, read) for entry in listed]
    return {**settings, "modules": modules}


def module_paths(listed: Any) -> list[str]:
    """The folders that a modules.json names; those that are none are left out."""
    entries = listed if isinstance(listed, list) else []
    found = (entry.get("path") for entry in entries if isinstance(entry, Mapping))
    return [path for path in found if isinstance(path, str) and _is_folder(path)]


def _module(root: Path, entry: Any, read: ReadJson) -> dict[str, Any]:
    if not isinstance(entry, Mapping) or not isinstance(kind := entry.get("type"), str):
        raise ModelError(f"{root / MODULES} has an entry without a type")
    path = entry.get("path") or ""
    if not isinstance(path, str) or (path and not _is_folder(path)):
        raise ModelError(f"{root / MODULES} names {path!r}, which is no folder beside it")
    config = read(root / path / "config.json") if path else {}
    return {"kind": kind.rpartition(".")[2], "path": path, "config": config}


def _is_folder(path: str) -> bool:
    """Whether it names a folder below."""
    parts = PurePosixPath(path).parts
    return bool(parts) and not path.startswith("/") and ".." not in parts
