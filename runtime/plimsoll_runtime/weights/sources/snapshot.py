"""Fetches a complete snapshot of a hub: broken files, new or left by an earlier start, are fetched again."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from plimsoll_runtime.errors import FetchError, PlimsollError, SourceError
from plimsoll_runtime.weights.files import INDEX
from plimsoll_runtime.weights.safetensors_header import stated_size

PARSED = 2**22
"""Bytes up to which JSON is parsed; of a larger file, such as a tokenizer's, the first and last character are looked
at."""
EDGE = 256
PAIRS = {b"{": b"}", b"[": b"]"}


@dataclass(frozen=True, slots=True)
class Fault:
    """A file of a snapshot by its name there, and what is wrong with it. `listed`: it is as long as the hub says.

    One that is as long may well be what the hub has.
    """

    name: str
    why: str
    listed: bool

    def __str__(self) -> str:
        return f"{self.name} ({self.why})"


def faults(snapshot: Path, names: Sequence[str]) -> list[Fault]:
    """Those of some files that are not as long as the hub's list of files says, or not what their names say.

    The library never looks at a file again once it has it. A network that wants a login, or a mirror, may answer any
    request with 200 and something else, and what the library then keeps under a file's name would break every later
    start.
    """
    sizes = _listed_sizes(snapshot)
    found = []
    for name in names:
        path, listed = snapshot / name, sizes.get(name)
        size = path.stat().st_size
        if listed is not None and size != listed:
            found.append(Fault(name, f"it has {size:,} bytes, and the hub says {listed:,}", listed=False))
        elif (why := _why(path, listed=listed is not None)) is not None:
            found.append(Fault(name, why, listed=listed is not None))
    return found


def remove_faults(snapshot: Path, found: list[Fault]) -> None:
    """Remove them from the cache, bytes and names, so that the next download fetches them again."""
    for fault in found:
        name = snapshot / fault.name
        stored = name.parent / name.readlink() if name.is_symlink() else name
        name.unlink(missing_ok=True)
        stored.unlink(missing_ok=True)


def forget_list(snapshot: Path) -> None:
    """Remove the list of files that the library keeps of a revision."""
    _list_file(snapshot).unlink(missing_ok=True)


def _why(path: Path, *, listed: bool) -> str | None:
    """What is wrong with a file, or None.

    Weights that are as long as listed are only checked for being blank, as a crash may leave them. Any other fault of
    theirs is on the hub, too, so that fetching them again would change nothing.
    """
    size = path.stat().st_size
    if path.suffix == ".json":
        return _why_not_json(path, size)
    with path.open("rb") as file:
        begin = file.read(EDGE)
    if listed:
        return "it is blank" if begin and not any(begin) else None
    if path.suffix == ".safetensors":
        return _why_not_safetensors(path, size)
    if path.suffix == ".gguf":
        return None if begin.startswith(b"GGUF") else "it is not GGUF"
    return "it is a web page" if begin.lstrip().lower().startswith((b"<!doctype html", b"<html")) else None


def _why_not_json(path: Path, size: int) -> str | None:
    if size <= PARSED:
        try:
            json.loads(path.read_bytes())
        except (ValueError, RecursionError) as error:
            return f"it is not JSON: {error}"
        return None
    with path.open("rb") as file:
        first = file.read(EDGE).lstrip()[:1]
        file.seek(size - EDGE)
        last = file.read().rstrip()[-1:]
    return None if PAIRS.get(first) == last else "it is not JSON, or not all of it"


def _why_not_safetensors(path: Path, size: int) -> str | None:
    try:
        stated = stated_size(path)
    except PlimsollError as error:
        return str(error)
    return None if stated == size else f"it has {size:,} bytes, and its header says {stated:,}"


def _list_file(snapshot: Path) -> Path:
    return snapshot.parent.parent / "trees" / f"{snapshot.name}.json"


def _listed_sizes(snapshot: Path) -> dict[str, int]:
    """The sizes of files by the hub's list, as the library keeps it; none where it keeps none, or in another form."""
    try:
        listed = json.loads(_list_file(snapshot).read_text())
    except (OSError, ValueError, RecursionError):
        return {}
    files = listed.get("files") if isinstance(listed, Mapping) else None
    return dict(_sizes(files)) if isinstance(files, Mapping) else {}


def _sizes(files: Mapping[str, object]) -> Iterator[tuple[str, int]]:
    for name, entry in files.items():
        size = (entry.get("lfs_size") or entry.get("size")) if isinstance(entry, Mapping) else None
        if type(size) is int:
            yield name, size


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
