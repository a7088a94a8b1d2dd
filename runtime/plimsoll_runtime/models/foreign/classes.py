"""Which class of Transformers computes a config, and which of its classes are no decoders of text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plimsoll_runtime.errors import ModelError

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


def class_of(config: Mapping[str, Any]) -> tuple[type[Any], Any]:
    """The class that computes a config.json, and Transformers' own record of it.

    Nothing outside of the installed Transformers is run, whatever the config says. Raises ModelError naming the
    architecture and why it cannot be served.
    """
    import transformers
    from transformers.models.auto import modeling_auto as auto
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    kind = str(config.get("model_type"))
    name = architecture_of(config)
    if kind not in CONFIG_MAPPING:
        version = transformers.__version__
        raise refused(name, f"neither we nor Transformers {version} have its model_type {kind}; see plimsoll models")
    if (other := what_else(kind)) is not None:
        raise refused(name, f"it is {other}")
    if kind in DRAFTS:
        raise refused(name, DRAFTS[kind])
    known = auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(kind)
    if known is None:
        raise refused(name, f"{kind} is no causal language model to Transformers {transformers.__version__}")
    if name not in (known, kind):
        raise refused(name, f"the class of Transformers that generates text with a {kind} is {known}")
    if config.get("is_encoder_decoder"):
        raise refused(name, "it is an encoder-decoder, and only decoders are served")
    try:
        theirs = CONFIG_MAPPING[kind].from_dict(
            {
                key: _decoded(value)
                for key, value in config.items()
                if not key.startswith("output_") and key not in _OURS
            }
        )
        if hasattr(theirs, "rescale_every"):
            # Of an RWKV: for float16's sake it would scale weights where they lie, which other processes may read.
            theirs.rescale_every = 0
        kind_of: Any = auto.MODEL_FOR_CAUSAL_LM_MAPPING
        return kind_of[type(theirs)], theirs
    except Exception as error:
        raise refused(name, f"Transformers does not take its config: {error}") from error


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
    names = config.get("architectures")
    return str(names[0]) if isinstance(names, list) and names else str(config.get("model_type"))


def refused(name: str, reason: str) -> ModelError:
    """What is said of an architecture that cannot be served."""
    return ModelError(f"config.json: architecture {name} is not supported: {reason}")
