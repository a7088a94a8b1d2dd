"""Parameters of rotary embeddings, which have moved within config.json over the years and may be there twice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from plimsoll_runtime.models.families.ropes import check_dictionaries

NEWER, OLDER = "rope_parameters", "rope_scaling"
_ORIGINAL = "original_max_position_embeddings"


def rope_warnings(config: Mapping[str, Any]) -> Iterator[str]:
    """Of each parameter that is said twice. Raises ModelError for two dictionaries of parameters that differ."""
    newer, older = config.get(NEWER), config.get(OLDER)
    if isinstance(newer, Mapping) and isinstance(older, Mapping):
        check_dictionaries(newer, older)
    field, found = (NEWER, newer) if newer else (OLDER, older)
    if not isinstance(found, Mapping):
        return
    by_type = {kind: each for kind, each in found.items() if isinstance(each, Mapping)}
    for kind, each in by_type.items():
        theta = "rope_local_base_freq" if kind == "sliding_attention" and "rope_local_base_freq" in config else None
        yield from _twice(config, each, f"{field}.{kind}", {theta or "rope_theta": "rope_theta"})
    if by_type:
        return
    yield from _twice(config, found, field, {name: name for name in ("rope_theta", "partial_rotary_factor")})
    kinds = [found.get("rope_type"), found.get("type")]
    if None not in kinds and kinds[0] != kinds[1]:
        yield f"config.json: {field} has rope_type = {kinds[0]!r} and type = {kinds[1]!r}: rope_type counts"
    lengths = config.get(_ORIGINAL), found.get(_ORIGINAL)
    if None not in lengths and lengths[0] != lengths[1]:
        yield f"config.json: {_ORIGINAL} = {lengths[0]!r}, and in {field} it is {lengths[1]!r}: the first one counts"


def _twice(config: Mapping[str, Any], found: Mapping[str, Any], place: str, fields: Mapping[str, str]) -> Iterator[str]:
    """Of parameters within `place` that fields of the config say otherwise."""
    for outer, inner in fields.items():
        said = config.get(outer), found.get(inner)
        if None not in said and said[0] != said[1]:
            yield f"config.json: {outer} = {said[0]!r}, and {inner} in {place} is {said[1]!r}: the latter counts"
