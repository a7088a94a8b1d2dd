"""Which class of Transformers computes a config, and which of its classes are no decoders of text."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from plimsoll_runtime.models.foreign.errors import UnservedError
from plimsoll_runtime.models.foreign.known import (
    architecture_of,
    check_decoder,
    check_own_code,
    check_plain,
    refused,
    unknown,
)
from plimsoll_runtime.models.foreign.shipped import own_class

_OTHERS = (
    ("MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES", "an encoder-decoder, and only decoders are served"),
    ("MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES", "an encoder-decoder of speech, and only decoders of text are served"),
    ("MODEL_FOR_TEXT_TO_WAVEFORM_MAPPING_NAMES", "a model of sound, and only decoders of text are served"),
    ("MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES", "a model of images and text, and only decoders of text are served"),
    ("MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES", "a multimodal model, and only decoders of text are served"),
    ("MODEL_FOR_MASKED_LM_MAPPING_NAMES", "an encoder (a masked language model), and only decoders are served"),
)
"""Tables of Transformers' that name model types, the first that has one saying why it is not served."""


def class_of(config: Mapping[str, Any], code: Path | None = None) -> tuple[type[Any], Any]:
    """The class that computes a config.json, and its own record of it.

    Nothing outside of the installed Transformers is run, whatever the config says, unless `code` is a folder: then what
    lies there is, where Transformers has no class for the config. Raises ModelError naming the architecture and why it
    cannot be served.
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
            # Of an RWKV: for float16's sake it would scale weights where they lie, which other processes may read.
            theirs.rescale_every = 0
        return model or _of_transformers(theirs), theirs
    except Exception as error:
        raise refused(name, f"Transformers does not take its config: {error}") from error


def _classes(config: Mapping[str, Any], name: str, code: Path | None) -> tuple[type[Any] | None, type[Any]]:
    """The model's own class, None for Transformers', and that of its record."""
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
        raise refused(name, f"{reason}, and the code that comes with it {error}") from error


def _why_not_theirs(kind: str, name: str) -> str | None:
    """Why no class of Transformers computes a model_type and an architecture; None where one does."""
    from transformers import __version__
    from transformers.models.auto import modeling_auto as auto
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    if kind not in CONFIG_MAPPING:
        return unknown(kind)
    known = auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(kind)
    if known is None:
        return f"{kind} is no causal language model to Transformers {__version__}"
    return None if name in (known, kind) else f"the class of Transformers that generates text with a {kind} is {known}"


def _of_transformers(record: Any) -> type[Any]:
    from transformers.models.auto import modeling_auto as auto

    kind_of: Any = auto.MODEL_FOR_CAUSAL_LM_MAPPING
    found: type[Any] = kind_of[type(record)]
    return found


def what_else(kind: str) -> str | None:
    """What a model_type is by Transformers' own tables, if it is no decoder of text alone."""
    from transformers.models.auto import modeling_auto as auto

    return next((reason for table, reason in _OTHERS if kind in getattr(auto, table, {})), None)


_OURS = frozenset({"auto_map", "return_dict", "torchscript", "use_return_dict", "use_cache"})
"""Keys of a config that would run code of the model's own, or change in which form a class answers."""


def _decoded(value: Any) -> Any:
    """Numbers that JSON does not have, from how Transformers writes them."""
    if isinstance(value, Mapping):
        return (
            float(value["__float__"]) if value.keys() == {"__float__"} else {k: _decoded(v) for k, v in value.items()}
        )
    return [_decoded(v) for v in value] if isinstance(value, list) else value
