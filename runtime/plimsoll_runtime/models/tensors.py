"""The tensors of a program against those of a model's files."""

from __future__ import annotations

from collections.abc import Mapping

from plimsoll_runtime.errors import ModelError
from plimsoll_runtime.models.program import Program

_NAMED = 5
"""How many tensors an error lists."""


def check_tensors(program: Program, found: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse missing, unexpected and mis-shaped tensors by name.

    Buffers that are computed anyway are ignored, the copy of tied embeddings that some files carry, and layers beyond
    the last one.
    """
    expected = program.stored_shapes()
    unread = {n for n in found if n.endswith(program.ignored) or n.startswith(program.beyond)}
    unexpected = [n for n in found if n not in expected and n not in unread]
    wrong = [f"{n} {list(found[n])} instead of {list(s)}" for n, s in expected.items() if n in found and found[n] != s]
    missing = [n for n in expected if n not in found]
    for problem, names in (
        ("lack", missing),
        ("have unexpected tensors:", unexpected),
        ("have a wrong shape:", wrong),
    ):
        if names:
            more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
            raise ModelError(f"{program.facts.architecture}: the weights {problem} {', '.join(names[:_NAMED])}{more}")
