"""What a config alone shows that Transformers' code cannot be served for, by tables that need no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plimsoll_runtime.errors import ModelError
from plimsoll_runtime.models.families.fields import saved_class
from plimsoll_runtime.models.foreign.shipped import HOW_TO_TRUST, own_code
from plimsoll_runtime.weights.quantisation import quantisation_of

DRAFTS: Mapping[str, str] = dict.fromkeys(
    ("gemma4_assistant", "gemma4_unified_assistant"),
    "it drafts for another model, whose hidden states and cache it takes, and generates nothing alone",
)
"""Model types that Transformers lists among causal language models, and why they are not served."""


def check_known(config: Mapping[str, Any], *, trusted: bool) -> None:
    """What `class_of` refuses, as far as it can be seen without torch. Raises ModelError as that does."""
    check_plain(config)
    check_decoder(config)
    try:
        from transformers.models.auto.auto_mappings import CONFIG_MAPPING_NAMES
    except ImportError:  # older ones have the table where torch is
        return
    if (kind := str(config.get("model_type"))) not in CONFIG_MAPPING_NAMES:
        check_own_code(config, unknown(kind), trusted=trusted)


def check_plain(config: Mapping[str, Any]) -> None:
    """Raises ModelError for quantised weights."""
    if (quantised := quantisation_of(config)) is not None:
        reason = f"Transformers' code is given no weights in {quantised.method}: take the model unquantised"
        raise refused(architecture_of(config), reason)


def check_decoder(config: Mapping[str, Any]) -> None:
    """Raises ModelError for what generates nothing alone."""
    if (kind := str(config.get("model_type"))) in DRAFTS:
        raise refused(architecture_of(config), DRAFTS[kind])
    if config.get("is_encoder_decoder"):
        raise refused(architecture_of(config), "it is an encoder-decoder, and only decoders are served")


def check_own_code(config: Mapping[str, Any], reason: str, *, trusted: bool) -> None:
    """Raises ModelError where no code of the model's own may stand in for a class that is missing for a `reason`."""
    name, own = architecture_of(config), own_code(config)
    if own is None:
        raise refused(name, reason)
    if not trusted:
        raise refused(name, f"{reason}. Its own code comes with it ({own}), {HOW_TO_TRUST}")


def unknown(kind: str) -> str:
    """The reason for a model_type that neither we nor Transformers have."""
    from transformers import __version__

    return f"neither we nor Transformers {__version__} have its model_type {kind}; see plimsoll models"


def architecture_of(config: Mapping[str, Any]) -> str:
    """What a config calls its class, else its kind."""
    return saved_class(config) or str(config.get("model_type"))


def refused(name: str, reason: str) -> ModelError:
    """What is said of an architecture that cannot be served."""
    return ModelError(f"config.json: architecture {name} is not supported: {reason}")
