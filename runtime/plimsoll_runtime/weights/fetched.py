"""Fetches a snapshot of a hub that is whole: broken files, new or left by an earlier start, are fetched again."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from plimsoll_runtime.errors import FetchError, SourceError
from plimsoll_runtime.weights.cached import Fault, faults, forget_list, remove_faults
from plimsoll_runtime.weights.files import INDEX

NAMED = 3
"""How many files a message names."""

logger = logging.getLogger(__name__)

Ask = Callable[..., object]
"""`huggingface_hub.snapshot_download` with a repository and a revision."""


def fetch_whole(name: str, ask: Ask, **wanted: Any) -> Path:
    """The folder of a snapshot, in which each file is what its name says.

    `name`: as `hub_name` has it. `wanted`: which files, as the library takes it. Raises FetchError where the hub sends
    it broken again, SourceError where it cannot be asked; and what the library raises.
    """
    from huggingface_hub import is_offline_mode

    snapshot = Path(str(ask(**wanted)))
    if not (broken := _broken(snapshot, wanted)):
        return snapshot
    if is_offline_mode() or wanted.get("local_files_only"):
        raise SourceError(
            f"{name}: files in the cache are broken: {_text(broken)}; remove it with `plimsoll models rm {name}` and "
            "fetch it again with a network"
        )
    logger.warning("%s: broken files are removed from the cache and fetched again: %s", name, _text(broken))
    remove_faults(snapshot, broken)
    snapshot = Path(str(ask(**wanted)))
    _check_sent(name, snapshot, _broken(snapshot, wanted))
    return snapshot


def matching(names: Iterable[str], allowed: Sequence[str], ignored: Sequence[str]) -> list[str]:
    """The names that the library would download with such patterns."""

    def fits(name: str, patterns: Sequence[str]) -> bool:
        return any(fnmatch(name, pattern) for pattern in patterns)

    return [name for name in names if fits(name, allowed) and not fits(name, ignored)]


def lacks_files(snapshot: Path) -> bool:
    """Whether it is not the whole folder of a model, by what lies in it."""
    if not (snapshot / "config.json").is_file():
        return True
    if not (index := snapshot / INDEX).is_file():
        return not any(snapshot.glob("*.safetensors"))
    try:
        named = json.loads(index.read_bytes())["weight_map"].values()
        return not all((snapshot / str(shard)).is_file() for shard in named)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return False  # who reads it says what is wrong with it


def fetch_unlisted(name: str, snapshot: Path, names: Sequence[str], fetch: Callable[[str], object]) -> None:
    """Fetch files that the hub lists now, and did not when the list was made that the library keeps."""
    logger.warning(
        "%s: the list of its files in the cache lacks %s: removed, and fetched", name, ", ".join(names[:NAMED])
    )
    forget_list(snapshot)
    for each in names:
        fetch(each)
    _check_sent(name, snapshot, faults(snapshot, names))


def _broken(snapshot: Path, wanted: Mapping[str, Any]) -> list[Fault]:
    """Of the files that are wanted: what else lies there is another program's."""
    names = sorted(str(path.relative_to(snapshot)) for path in snapshot.rglob("*") if path.is_file())
    return faults(snapshot, matching(names, wanted.get("allow_patterns", ["*"]), wanted.get("ignore_patterns", [])))


def _check_sent(name: str, snapshot: Path, broken: list[Fault]) -> None:
    """Raises FetchError for files that are broken though they have just come, and keeps none of them.

    Those that are as long as listed are the hub's own: who reads them says what is wrong.
    """
    if broken := [each for each in broken if not each.listed]:
        remove_faults(snapshot, broken)
        raise FetchError(
            f"{name}: the hub sends broken files: {_text(broken)}; look whether this network asks for a login, and at "
            "HF_ENDPOINT if it names a mirror. None of them is kept"
        )


def _text(broken: Sequence[Fault]) -> str:
    return ", ".join(map(str, broken[:NAMED])) + (" and others" if len(broken) > NAMED else "")
