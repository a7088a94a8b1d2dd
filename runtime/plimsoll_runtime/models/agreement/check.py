"""All contradictions of a checkpoint apart from its head's (see `heads`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from plimsoll_runtime.models.agreement.classes import check_classes
from plimsoll_runtime.models.agreement.layers import check_windows, list_warnings
from plimsoll_runtime.models.agreement.ropes import rope_warnings
from plimsoll_runtime.models.agreement.stored import stored_warnings
from plimsoll_runtime.models.families.parts import text_part
from plimsoll_runtime.models.outline import Outline
from plimsoll_runtime.models.program import Program
from plimsoll_runtime.models.registry import describe
from plimsoll_runtime.models.tasks import TOLD, is_encoder
from plimsoll_runtime.weights.files import ModelFiles

_TIE = "tie_word_embeddings"


def contradictions(files: ModelFiles, config: Mapping[str, Any], outline: Outline) -> Iterator[str]:
    """A warning for each that is settled, with both statements. `config`: with what the model is served for.

    Raises ModelError for one that cannot be settled. A GGUF file has one statement of each fact: its metadata.
    """
    if files.format == "gguf":
        return
    part = text_part(config)
    values = config if part is None else part
    if part is not None:
        yield from _tie(config)
    yield from rope_warnings(values)
    if isinstance(outline, Program) and not is_encoder(config):
        if config.get(TOLD, "generate") != "generate":
            values = {**values, "architectures": None}  # the class may be one without a head
        spec = describe(values)
        check_classes(values, spec)
        check_windows(values, spec)
        yield from list_warnings(values, spec)
    yield from stored_warnings(files)


def _tie(config: Mapping[str, Any]) -> Iterator[str]:
    text = config.get("text_config")
    said = config.get(_TIE), text.get(_TIE) if isinstance(text, Mapping) else None
    if None not in said and said[0] != said[1]:
        yield f"config.json: {_TIE} = {said[0]!r}, and in text_config it is {said[1]!r}: the first one counts"
