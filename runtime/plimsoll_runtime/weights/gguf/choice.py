"""Which of a repository's GGUF files is meant."""

from __future__ import annotations

import re
from collections.abc import Sequence

from plimsoll_runtime.errors import SourceError

PREFERRED = ("Q4_K_M", "Q4_0", "Q8_0", "BF16", "F16")
"""Kinds that are taken where nobody says which, the first that there is."""
SHARD = re.compile(r"-(\d{5})-of-(\d{5})\.gguf\Z")
"""How the name of a file ends that is one of several."""
_NAMED = 12
"""How many files an error lists."""


def choose_gguf(source: str, files: Sequence[str], wanted: str | None) -> tuple[str, ...]:
    """The file, or all shards of it in order, by its name or by its kind (`Q4_K_M`), in any case.

    Raises SourceError where there is none, or more than one.
    """
    models = models_of(files)
    if wanted is None:
        found = next((fit for kind in PREFERRED if len(fit := _of_kind(models, kind)) == 1), list(models))
    elif wanted.endswith(".gguf"):
        found = [name for name in models if wanted in (name, *models[name])]
    else:
        found = _of_kind(models, wanted)
    if len(found) != 1:
        told = ", ".join(list(models)[:_NAMED]) + (" ..." if len(models) > _NAMED else "")
        what = "has no GGUF file of that name or kind" if not found else "has several GGUF files that may be meant"
        raise SourceError(f"{source} {what}: write hf://ORG/NAME:FILE with one of {told or 'none'}")
    return models[found[0]]


def shards_of(name: str) -> tuple[str, ...]:
    """All files of a model by the name of one of them, in order; that name where it is no shard."""
    if (found := SHARD.search(name)) is None:
        return (name,)
    stem, count = name[: found.start()], int(found[2])
    return tuple(f"{stem}-{number:05}-of-{count:05}.gguf" for number in range(1, count + 1))


def models_of(files: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Each model's files by the name of its first."""
    firsts = [name for name in files if (found := SHARD.search(name)) is None or int(found[1]) == 1]
    return {name: shards_of(name) for name in firsts if not name.rsplit("/", 1)[-1].startswith("mmproj")}


def _of_kind(models: dict[str, tuple[str, ...]], kind: str) -> list[str]:
    """Those whose name has it as a word of its own."""
    word = re.compile(rf"(?:^|[-._/]){re.escape(kind)}(?:[-./]|$)", re.IGNORECASE)
    return [name for name in models if word.search(name)]
