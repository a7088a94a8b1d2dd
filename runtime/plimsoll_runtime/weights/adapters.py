"""Adapters (LoRA and others) in a model's folder: no adapter is applied, so each is refused by name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from plimsoll_runtime.errors import ModelError
from plimsoll_runtime.weights.files import check_size

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_FILES = (ADAPTER_CONFIG, "adapter_model.safetensors", "adapter_model.bin", "adapters.safetensors")
"""The names that peft gives an adapter's files, and that of MLX's."""
_WEIGHTS = ("model*.safetensors", "pytorch_model*.bin")
_MERGE = (
    "merge it with peft (PeftModel.from_pretrained(BASE, ADAPTER).merge_and_unload().save_pretrained(FOLDER)) "
    "and serve that folder"
)


def refuse_adapter(root: Path, name: str, *, listing: bool = True) -> None:
    """Raises ModelError for a folder that holds an adapter, alone or next to a model.

    `name`: of the model, a folder's or a hub's. `listing`: whether `root` has the weights, or config files only.
    """
    found = [each for each in ADAPTER_FILES if (root / each).is_file()]
    if not found:
        return
    files = ", ".join(found)
    has_weights = not listing or any(any(root.glob(form)) for form in _WEIGHTS)
    if not (root / "config.json").is_file() or not has_weights:
        base = _base(root / ADAPTER_CONFIG)
        raise ModelError(
            f"{name} is an adapter ({files}) without the model that it changes"
            f"{f', which is {base}' if base else ''}; {_MERGE}, or serve the base model, which answers without it"
        )
    raise ModelError(
        f"{name} has an adapter next to the model ({files}), and adapters are not applied: the model would answer "
        f"without it; {_MERGE}, or, if the adapter is not wanted, serve a copy of the folder without these files "
        "(of a hub: hf download NAME --exclude 'adapter*' --local-dir FOLDER)"
    )


def refuse_gguf_adapter(path: Path, metadata: Mapping[str, Any]) -> None:
    """Raises ModelError for a GGUF file that holds an adapter."""
    if metadata.get("general.type") == "adapter":
        raise ModelError(
            f"{path.name} is an adapter without the model that it changes; merge both with llama.cpp's "
            "llama-export-lora and serve the result, or serve the base model, which answers without it"
        )


def _base(config: Path) -> str | None:
    """The base model that an adapter's config names; None if it cannot be read: the adapter is refused anyway."""
    if not config.is_file():
        return None
    check_size(config)
    try:
        said = json.loads(config.read_text())
    except (OSError, ValueError, RecursionError):
        return None
    base = said.get("base_model_name_or_path") if isinstance(said, dict) else None
    return base if isinstance(base, str) else None
