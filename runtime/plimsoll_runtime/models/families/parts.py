"""The text decoders of models that see or hear as well: they are served alone, the rest is not loaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plimsoll_runtime.errors import ModelError

BY_TEXT_CONFIG = {
    "Gemma3ForConditionalGeneration",
    "Gemma3nForConditionalGeneration",
    "Gemma4ForConditionalGeneration",
    "Gemma4UnifiedForConditionalGeneration",
    "InternVLForConditionalGeneration",
    "Llama4ForConditionalGeneration",
    "Kimi_K25ForConditionalGeneration",
    "LlavaForConditionalGeneration",
    "Mistral3ForConditionalGeneration",
    "Qwen2VLForConditionalGeneration",
    "Qwen2_5_VLForConditionalGeneration",
    "Qwen3VLForConditionalGeneration",
    "Qwen3_5ForConditionalGeneration",
    "Qwen3_5MoeForConditionalGeneration",
}
"""Architectures whose text part is what their `text_config` says."""
OWN_TYPES = {"qwen2_vl_text": "qwen2", "qwen2_5_vl_text": "qwen2", "qwen3_vl_text": "qwen3"}
"""Types of text parts that compute what another type does, as long as there is nothing but text."""
_OF_IMAGES = ("mrope_section", "mrope_interleaved")
"""Rope parameters that say which dimensions turn by rows and columns of an image: of text all three are the same."""


def text_part(config: Mapping[str, Any]) -> dict[str, Any] | None:
    """The config of a model's text part, which is named by its model_type; None for one that is text alone.

    Raises ModelError where the text part has no type.
    """
    names = config.get("architectures")
    if not isinstance(names, list) or not names or str(names[0]) not in BY_TEXT_CONFIG:
        return None
    text = config.get("text_config") or {k: v for k, v in config.items() if k != "vision_config"}
    if not isinstance(text, Mapping) or not isinstance(kind := text.get("model_type"), str):
        raise ModelError("config.json: text_config does not say its model_type")
    kind = kind if text is not config else f"{kind}_text"
    tied = config.get("tie_word_embeddings", text.get("tie_word_embeddings"))
    ropes = {field: _of_text(text.get(field)) for field in ("rope_parameters", "rope_scaling")}
    found = {**text, **ropes, "architectures": None, "model_type": OWN_TYPES.get(kind, kind)}
    return found if tied is None else {**found, "tie_word_embeddings": tied}


def _of_text(rope: Any) -> Any:
    if not isinstance(rope, Mapping):
        return rope
    found = {k: v for k, v in rope.items() if k not in _OF_IMAGES}
    return {k: "default" if k in ("type", "rope_type") and v == "mrope" else v for k, v in found.items()}
