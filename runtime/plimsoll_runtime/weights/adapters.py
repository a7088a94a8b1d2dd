"""Rejects adapters (LoRA and others) in a model's folder: Plimsoll does not apply adapters."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from plimsoll_runtime.errors import ModelError
from plimsoll_runtime.weights.files import check_size

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_FILES = (ADAPTER_CONFIG, "adapter_model.safetensors", "adapter_model.bin", "adapters.safetensors")
"""File names of adapters as peft and MLX write them."""
_WEIGHTS = ("model*.safetensors", "pytorch_model*.bin")
_MERGE = (
    "merge it with peft (PeftModel.from_pretrained(BASE, ADAPTER).merge_and_unload().save_pretrained(FOLDER)) "
    "and serve that folder"
)


def refuse_adapter(root: Path, name: str, *, listing: bool = True) -> None:
    """Raise ModelError if a folder has an adapter, with or without the model that it changes.

    `name` is the model's folder or hub name, for messages. `listing` is False if `root` has only config files.
    """
    found = [each for each in ADAPTER_FILES if (root / each).is_file()]
    if not found:
        return
    files = ", ".join(found)
    has_weights = not listing or any(any(root.glob(form)) for form in _WEIGHTS)
    if not (root / "config.json").is_file() or not has_weights:
        base = _base(root / ADAPTER_CONFIG)
        raise ModelError(
            f"{name} is an adapter ({files}) without its base model"
            f"{f', which is {base}' if base else ''}; {_MERGE}, or serve the base model alone"
        )
    raise ModelError(
        f"{name} has an adapter next to the model ({files}), and Plimsoll does not apply adapters: the model would run "
        f"without it; {_MERGE}, or, to serve the model without it, serve a copy of the folder without these files "
        "(from the hub: hf download NAME --exclude 'adapter*' --local-dir FOLDER)"
    )


def refuse_gguf_adapter(path: Path, metadata: Mapping[str, Any]) -> None:
    """Raise ModelError if a GGUF file is an adapter."""
    if metadata.get("general.type") == "adapter":
        raise ModelError(
            f"{path.name} is an adapter without its base model; merge both with llama.cpp's "
            "llama-export-lora and serve the result, or serve the base model alone"
        )


def _base(config: Path) -> str | None:
    """Return the base model that an adapter's config names, or None if the config is missing or unreadable."""
    if not config.is_file():
        return None
    check_size(config)
    try:
        said = json.loads(config.read_text())
    except (OSError, ValueError, RecursionError):
        return None
    base = said.get("base_model_name_or_path") if isinstance(said, dict) else None
    return base if isinstance(base, str) else None
