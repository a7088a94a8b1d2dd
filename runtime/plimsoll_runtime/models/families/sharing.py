"""Which layers read the keys and values of another, as Gemma 3n and 4 say it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from plimsoll_runtime.errors import ModelError
from plimsoll_runtime.models.families.reading import Config

UNREAD = ("k_proj", "v_proj", "k_norm", "v_norm")
"""Modules that files may have of such a layer, and nobody reads."""


def owners_of(config: Config, kinds: Sequence[str], default: int) -> list[int | None]:
    """For each layer the number of the one whose keys and values it reads; None: its own.

    The last num_kv_shared_layers (`default`) of them read those of the last layer of their kind before these.
    """
    shared = config.get("num_kv_shared_layers", int, default)
    own = kinds[: max(0, len(kinds) - shared)]
    if missing := [kind for kind in kinds if kind not in own]:
        raise ModelError(
            f"config.json: num_kv_shared_layers is {shared}, and before these of {len(kinds)} layers is no "
            f"{missing[0]} whose keys and values they could read"
        )
    last = {kind: number for number, kind in enumerate(own)}
    return [None if number < len(own) else last[kind] for number, kind in enumerate(kinds)]


def unread(owners: Sequence[int | None]) -> Iterator[str]:
    """How the names of tensors end that files may have of layers without keys and values of their own."""
    for number, owner in enumerate(owners):
        if owner is not None:
            for module in UNREAD:
                yield from (f".layers.{number}.self_attn.{module}.{kind}" for kind in ("weight", "bias"))
