"""Classes whose code comes with the model, beside its weights. It runs only where somebody has said that it may."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from plimsoll_runtime.models.foreign.errors import UnservedError

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
