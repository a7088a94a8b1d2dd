"""The spec of a model that generates nothing, from its config alone and without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from plimsoll_runtime.errors import ModelError
from plimsoll_runtime.models.encoders import ENCODERS
from plimsoll_runtime.models.families.fields import typed
from plimsoll_runtime.models.registry import describe
from plimsoll_runtime.models.spec.decoder import DecoderSpec
from plimsoll_runtime.models.tasks import is_encoder, settings_of


def pooled_spec(config: Mapping[str, Any]) -> DecoderSpec:
    """With as many positions as sentence-transformers' files allow. Raises ModelError for what cannot be served so."""
    settings, spec = settings_of(config), _described(config)
    if settings.get("max_seq_length") is None:
        return spec
    longest = typed(settings, "max_seq_length", int, None)
    return replace(spec, max_positions=max(1, min(spec.max_positions, longest)))


def _described(config: Mapping[str, Any]) -> DecoderSpec:
    """By its type: the class that the files were saved from may be one without a head, or with one of labels."""
    kind = config.get("model_type")
    if not isinstance(kind, str):
        raise ModelError("config.json: model_type is missing, and says what computes vectors")
    if is_encoder(config):
        return ENCODERS[kind].describe(config)
    return describe({**config, "architectures": None})
