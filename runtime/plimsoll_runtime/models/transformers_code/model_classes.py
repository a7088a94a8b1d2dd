"""Which class of Transformers, or of the model's own code, computes a config, or why none can be served."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from plimsoll_runtime.errors import ModelError
from plimsoll_runtime.models.families.common.config import saved_class
from plimsoll_runtime.weights.quantisation import quantisation_of


class UnservedError(Exception):
    """The message is the second half of a sentence whose subject is the model's code: "it ..."."""


_CONFIG, _MODEL = "AutoConfig", "AutoModelForCausalLM"
HOW_TO_TRUST = (
    "which runs only with --trust-remote-code (in a cluster, spec.model.trustRemoteCode); give it if you trust whoever "
    "wrote that code"
)


def own_code(config: Mapping[str, Any]) -> str | None:
    """The class of the model's own that generates text, as FILE.CLASS of its config's `auto_map`; None without one."""
    return _reference(config, _MODEL)


def own_class(config: Mapping[str, Any], folder: Path) -> tuple[type[Any], type[Any]]:
    """That class, and the class of its config, out of a folder: importing them runs what is there.

    Raises UnservedError where they cannot be had.
    """
    from transformers import PreTrainedModel

    named = own_code(config)
    if named is None:
        raise UnservedError(f"has no {_MODEL} in auto_map")
    model = _imported(named, folder)
    if not (isinstance(model, type) and issubclass(model, PreTrainedModel)):
        raise UnservedError(f"has a {named} that is no PreTrainedModel of Transformers")
    named_record = _reference(config, _CONFIG)
    record = model.config_class if named_record is None else _imported(named_record, folder)
    if record is None:
        raise UnservedError(f"says no class for its config: {named} has no config_class, auto_map no {_CONFIG}")
    return model, record


def _reference(config: Mapping[str, Any], what: str) -> str | None:
    classes = config.get("auto_map")
    found = classes.get(what) if isinstance(classes, Mapping) else None
    return found if isinstance(found, str) else None


def _imported(reference: str, folder: Path) -> Any:
    from transformers.dynamic_module_utils import get_class_from_dynamic_module

    elsewhere, _, name = reference.rpartition("--")
    if elsewhere:
        raise UnservedError(f"lies in another repository ({elsewhere}): copy it beside the weights, and name it {name}")
    if re.fullmatch(r"[A-Za-z_]\w*\.[A-Za-z_]\w*", name) is None:
        raise UnservedError(f"is called {reference[:80]!r} in auto_map, and not FILE.CLASS")
    try:
        return get_class_from_dynamic_module(name, str(folder), local_files_only=True)
    except Exception as error:  # it is anybody's code
        raise UnservedError(f"cannot be imported ({name}): {type(error).__name__}: {error}") from error


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
