"""Finds the class of Transformers, or of the model's own code, that runs a config, or the reason why there is none."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from plimsoll_runtime.errors import ModelError
from plimsoll_runtime.models.families.common.config import saved_class
from plimsoll_runtime.weights.quantisation import quantisation_of


class UnservedError(Exception):
    """A model cannot be served. The message completes a sentence whose subject is the model's code: "it ..."."""


_CONFIG, _MODEL = "AutoConfig", "AutoModelForCausalLM"
HOW_TO_TRUST = (
    "which runs only with --trust-remote-code (in a cluster, spec.model.trustRemoteCode); set it if you trust the "
    "authors of "
    "that code"
)


def own_code(config: Mapping[str, Any]) -> str | None:
    """Return the model's own text generation class as FILE.CLASS, from its config's `auto_map`; None if there is
    none.
    """
    return _reference(config, _MODEL)


def own_class(config: Mapping[str, Any], folder: Path) -> tuple[type[Any], type[Any]]:
    """Import the model's own class (see `own_code`) and its config class from a folder, which runs the code there.

    Raises UnservedError if that fails.
    """
    from transformers import PreTrainedModel

    named = own_code(config)
    if named is None:
        raise UnservedError(f"has no {_MODEL} in auto_map")
    model = _imported(named, folder)
    if not (isinstance(model, type) and issubclass(model, PreTrainedModel)):
        raise UnservedError(f"has a {named} that is not a PreTrainedModel of Transformers")
    named_record = _reference(config, _CONFIG)
    record = model.config_class if named_record is None else _imported(named_record, folder)
    if record is None:
        raise UnservedError(f"has no config class: {named} has no config_class and auto_map no {_CONFIG}")
    return model, record


def _reference(config: Mapping[str, Any], what: str) -> str | None:
    classes = config.get("auto_map")
    found = classes.get(what) if isinstance(classes, Mapping) else None
    return found if isinstance(found, str) else None


def _imported(reference: str, folder: Path) -> Any:
    from transformers.dynamic_module_utils import get_class_from_dynamic_module

    elsewhere, _, name = reference.rpartition("--")
    if elsewhere:
        raise UnservedError(
            f"is in another repository ({elsewhere}); copy it next to the weights and change auto_map to {name}"
        )
    if re.fullmatch(r"[A-Za-z_]\w*\.[A-Za-z_]\w*", name) is None:
        raise UnservedError(f"is {reference[:80]!r} in auto_map; it must be FILE.CLASS")
    try:
        return get_class_from_dynamic_module(name, str(folder), local_files_only=True)
    except Exception as error:  # arbitrary code may raise anything
        raise UnservedError(f"cannot be imported ({name}): {type(error).__name__}: {error}") from error


DRAFTS: Mapping[str, str] = dict.fromkeys(
    ("gemma4_assistant", "gemma4_unified_assistant"),
    "it is a drafter, which needs the hidden states and cache of another model",
)
"""Model types that Transformers lists as causal language models, with the reason why they are not served."""


def check_known(config: Mapping[str, Any], *, trusted: bool) -> None:
    """Raise the ModelErrors of `class_of` that can be found without torch."""
    check_plain(config)
    check_decoder(config)
    try:
        from transformers.models.auto.auto_mappings import CONFIG_MAPPING_NAMES
    except ImportError:  # older versions have the table in modules that import torch
        return
    if (kind := str(config.get("model_type"))) not in CONFIG_MAPPING_NAMES:
        check_own_code(config, unknown(kind), trusted=trusted)


def check_plain(config: Mapping[str, Any]) -> None:
    """Raise ModelError if the weights are quantised."""
    if (quantised := quantisation_of(config)) is not None:
        reason = f"Transformers code does not support weights in {quantised.method}; use the model unquantised"
        raise refused(architecture_of(config), reason)


def check_decoder(config: Mapping[str, Any]) -> None:
    """Raise ModelError for drafters and encoder-decoders."""
    if (kind := str(config.get("model_type"))) in DRAFTS:
        raise refused(architecture_of(config), DRAFTS[kind])
    if config.get("is_encoder_decoder"):
        raise refused(architecture_of(config), "it is an encoder-decoder; only decoders are supported")


def check_own_code(config: Mapping[str, Any], reason: str, *, trusted: bool) -> None:
    """Raise ModelError if the model has no code of its own, or may not run it.

    `reason`: why Transformers has no class for the model.
    """
    name, own = architecture_of(config), own_code(config)
    if own is None:
        raise refused(name, reason)
    if not trusted:
        raise refused(name, f"{reason}. The model has its own code ({own}), {HOW_TO_TRUST}")


def unknown(kind: str) -> str:
    """Return the reason for a model_type that neither we nor Transformers support."""
    from transformers import __version__

    return f"neither Plimsoll nor Transformers {__version__} supports the model_type {kind}; see plimsoll models"


def architecture_of(config: Mapping[str, Any]) -> str:
    """Return a config's class name, or its model_type."""
    return saved_class(config) or str(config.get("model_type"))


def refused(name: str, reason: str) -> ModelError:
    """Return the error for an architecture that cannot be served."""
    return ModelError(f"config.json: architecture {name} is not supported: {reason}")


_OTHERS = (
    ("MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES", "an encoder-decoder; only decoders are supported"),
    ("MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES", "a speech encoder-decoder; only text decoders are supported"),
    ("MODEL_FOR_TEXT_TO_WAVEFORM_MAPPING_NAMES", "an audio model; only text decoders are supported"),
    ("MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES", "a model of images and text; only text decoders are supported"),
    ("MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES", "a multimodal model; only text decoders are supported"),
    ("MODEL_FOR_MASKED_LM_MAPPING_NAMES", "an encoder (a masked language model); only decoders are supported"),
)
"""Transformers' tables of model types, with the reason why these are not served. The first match counts."""


def class_of(config: Mapping[str, Any], code: Path | None = None) -> tuple[type[Any], Any]:
    """Return the class that runs a config.json, and its config object.

    Only code of the installed Transformers is run, unless `code` is a folder: then its code is run if Transformers has
    no class for the config. Raises ModelError naming the architecture and the reason why it cannot be served.
    """
    name = architecture_of(config)
    check_plain(config)
    model, record = _classes(config, name, code)
    try:
        theirs = record.from_dict(
            {
                key: _decoded(value)
                for key, value in config.items()
                if not key.startswith("output_") and key not in _OURS
            }
        )
        if hasattr(theirs, "rescale_every"):
            # RWKV would rescale weights in place for float16, but other processes may read them.
            theirs.rescale_every = 0
        return model or _of_transformers(theirs), theirs
    except Exception as error:
        raise refused(name, f"Transformers rejects its config: {error}") from error


def _classes(config: Mapping[str, Any], name: str, code: Path | None) -> tuple[type[Any] | None, type[Any]]:
    """Return the model's own class (None: use Transformers') and the config class."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    kind = str(config.get("model_type"))
    if (other := what_else(kind)) is not None:
        raise refused(name, f"it is {other}")
    check_decoder(config)
    reason = _why_not_theirs(kind, name)
    if reason is None:
        return None, CONFIG_MAPPING[kind]
    check_own_code(config, reason, trusted=code is not None)
    assert code is not None
    try:
        return own_class(config, code)
    except UnservedError as error:
        raise refused(name, f"{reason}, and its own code {error}") from error


def _why_not_theirs(kind: str, name: str) -> str | None:
    """Return the reason why Transformers has no class for a model_type and architecture; None if it has one."""
    from transformers import __version__
    from transformers.models.auto import modeling_auto as auto
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    if kind not in CONFIG_MAPPING:
        return unknown(kind)
    known = auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(kind)
    if known is None:
        return f"Transformers {__version__} does not list {kind} as a causal language model"
    return None if name in (known, kind) else f"Transformers' text generation class for {kind} is {known}"


def _of_transformers(record: Any) -> type[Any]:
    from transformers.models.auto import modeling_auto as auto

    kind_of: Any = auto.MODEL_FOR_CAUSAL_LM_MAPPING
    found: type[Any] = kind_of[type(record)]
    return found


def what_else(kind: str) -> str | None:
    """Return the reason why a model_type is not a text decoder, by Transformers' tables; None if it may be one."""
    from transformers.models.auto import modeling_auto as auto

    return next((reason for table, reason in _OTHERS if kind in getattr(auto, table, {})), None)


_OURS = frozenset({"auto_map", "return_dict", "torchscript", "use_return_dict", "use_cache"})
"""Config keys that are left out: they would run the model's own code, or change the form of a class's outputs."""


def _decoded(value: Any) -> Any:
    """Return a value with special floats decoded, which Transformers writes as objects."""
    if isinstance(value, Mapping):
        return (
            float(value["__float__"]) if value.keys() == {"__float__"} else {k: _decoded(v) for k, v in value.items()}
        )
    return [_decoded(v) for v in value] if isinstance(value, list) else value
