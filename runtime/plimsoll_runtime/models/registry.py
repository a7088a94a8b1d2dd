"""Which family describes a config: by its architecture, else by its model_type; third parties by entry point."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import Any

from plimsoll_runtime.errors import ModelError
from plimsoll_runtime.models.families import gemma3, llama, mistral, qwen2, qwen3
from plimsoll_runtime.models.spec.decoder import DecoderSpec

Describe = Callable[[Mapping[str, Any]], DecoderSpec]
ENTRY_POINTS = "plimsoll.models"
"""Group of entry points: the name is an architecture (LlamaForCausalLM), the object a `Describe`."""

FAMILIES: Mapping[str, Describe] = {
    "LlamaForCausalLM": llama.describe,
    "MistralForCausalLM": mistral.describe,
    "Qwen2ForCausalLM": qwen2.describe,
    "Qwen3ForCausalLM": qwen3.describe,
    "Gemma3ForCausalLM": gemma3.describe,
}
MODEL_TYPES: Mapping[str, str] = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
}


def describe(config: Mapping[str, Any]) -> DecoderSpec:
    """The spec of a config.json. Raises ModelError naming the architecture or the field that is not supported."""
    if quantisation := config.get("quantization_config"):
        method = quantisation.get("quant_method", "unknown") if isinstance(quantisation, Mapping) else quantisation
        raise ModelError(f"config.json: quantization_config ({method}) is not supported yet; use unquantised weights")
    name = _architecture(config)
    plugins = {e.name: e for e in entry_points(group=ENTRY_POINTS)}
    if name in plugins:
        found: Describe = plugins[name].load()
        return found(config)
    if name not in FAMILIES:
        known = ", ".join(sorted({*FAMILIES, *plugins}))
        raise ModelError(f"config.json: architecture {name} is not supported; known are {known}")
    return FAMILIES[name](config)


def _architecture(config: Mapping[str, Any]) -> str:
    names = config.get("architectures") or []
    if isinstance(names, list) and names:
        return str(names[0])
    kind = str(config.get("model_type"))
    return MODEL_TYPES.get(kind, kind)
