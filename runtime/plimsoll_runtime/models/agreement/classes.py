"""`architectures` against `model_type`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from plimsoll_runtime.errors import ModelError
from plimsoll_runtime.models.families.fields import saved_class
from plimsoll_runtime.models.registry import FAMILIES, MODEL_TYPES, describe
from plimsoll_runtime.models.spec.decoder import DecoderSpec


def check_classes(config: Mapping[str, Any], spec: DecoderSpec) -> None:
    """Raises ModelError if both name families of ours that compute different things. `spec`: by `architectures`."""
    named, kind = saved_class(config), str(config.get("model_type"))
    other = MODEL_TYPES.get(kind)
    if named not in FAMILIES or other is None or other == named:
        return
    try:
        same = replace(describe({**config, "architectures": None}), architecture=spec.architecture) == spec
    except ModelError:
        same = False
    if not same:
        raise ModelError(
            f"config.json: architectures says {named}, and model_type says {kind} ({other}), which compute different "
            "things; correct the one that is wrong"
        )
