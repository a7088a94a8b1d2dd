"""Which class of Transformers computes a config, and which of its classes are no decoders of text."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from plimsoll_runtime.errors import ModelError
from plimsoll_runtime.models.families.fields import saved_class
from plimsoll_runtime.models.foreign.errors import UnservedError
from plimsoll_runtime.models.foreign.shipped import HOW_TO_TRUST, own_class, own_code
from plimsoll_runtime.weights.quantised.config import quantisation_of

_OTHERS = (
    ("MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES", "an encoder-decoder, and only decoders are served"),
    ("MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES", "an encoder-decoder of speech, and only decoders of text are served"),
    ("MODEL_FOR_TEXT_TO_WAVEFORM_MAPPING_NAMES", "a model of sound, and only decoders of text are served"),
    ("MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES", "a model of images and text, and only decoders of text are served"),
    ("MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES", "a multimodal model, and only decoders of text are served"),
    ("MODEL_FOR_MASKED_LM_MAPPING_NAMES", "an encoder (a masked language model), and only decoders are served"),
)
"""Tables of Transformers' that name model types, the first that has one saying why it is not served."""


DRAFTS: Mapping[str, str] = dict.fromkeys(
    ("gemma4_assistant", "gemma4_unified_assistant"),
    "it drafts for another model, whose hidden states and cache it takes, and generates nothing alone",
)
"""Model types that Transformers lists among causal language models, and why they are not served."""


def class_of(config: Mapping[str, Any], code: Path | None = None) -> tuple[type[Any], Any]:
    """The class that computes a config.json, and its own record of it.

    Nothing outside of the installed Transformers is run, whatever the config says, unless `code` is a folder: then what
    lies there is, where Transformers has no class for the config. Raises ModelError naming the architecture and why it
    cannot be served.
    """
    name = architecture_of(config)
    if (quantised := quantisation_of(config)) is not None:
        raise refused(name, f"Transformers' code is given no weights in {quantised.method}: take the model unquantised")
    model, record = _classes(config, name, code)
    if config.get("is_encoder_decoder"):
        raise refused(name, "it is an encoder-decoder, and only decoders are served")
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
    if kind in DRAFTS:
        raise refused(name, DRAFTS[kind])
    reason = _why_not_theirs(kind, name)
    if reason is None:
        return None, CONFIG_MAPPING[kind]
    if (own := own_code(config)) is None:
        raise refused(name, reason)
    if code is None:
        raise refused(name, f"{reason}. Its own code comes with it ({own}), {HOW_TO_TRUST}")
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
        return f"neither we nor Transformers {__version__} have its model_type {kind}; see plimsoll models"
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


def architecture_of(config: Mapping[str, Any]) -> str:
    """What a config calls its class, else its kind."""
    return saved_class(config) or str(config.get("model_type"))


def refused(name: str, reason: str) -> ModelError:
    """What is said of an architecture that cannot be served."""
    return ModelError(f"config.json: architecture {name} is not supported: {reason}")
