"""Downloads complete hub snapshots: broken files, new ones or from an earlier start, are downloaded again."""

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
"""Largest JSON file that is parsed, in bytes. Of larger ones (tokenizers) only the first and last character are
checked."""
EDGE = 256
PAIRS = {b"{": b"}", b"[": b"]"}


@dataclass(frozen=True, slots=True)
class Fault:
    """A broken file of a snapshot, and the reason. `listed`: its size equals that in the hub's list of files.

    Such a file is probably broken on the hub, too.
    """

    name: str
    why: str
    listed: bool

    def __str__(self) -> str:
        return f"{self.name} ({self.why})"


def faults(snapshot: Path, names: Sequence[str]) -> list[Fault]:
    """Return the files whose size differs from the hub's list of files, or whose content does not fit their name.

    The hub library never checks a file that it has. A captive portal or a mirror may answer a request with status 200
    and other content; the library would keep that under the file's name, and each later start would fail.
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
    """Remove files from the cache, with the blobs that they link to, so that the next download fetches them again."""
    for fault in found:
        name = snapshot / fault.name
        stored = name.parent / name.readlink() if name.is_symlink() else name
        name.unlink(missing_ok=True)
        stored.unlink(missing_ok=True)


def forget_list(snapshot: Path) -> None:
    """Remove the list of files that the library keeps of a revision."""
    _list_file(snapshot).unlink(missing_ok=True)


def _why(path: Path, *, listed: bool) -> str | None:
    """Return the reason why a file is broken, or None.

    `listed`: its size equals that in the hub's list of files. Such a file, except JSON, is only checked for zeros at
    its start, which a crash may leave: any other fault is on the hub, too, so a new download would not help.
    """
    size = path.stat().st_size
    if path.suffix == ".json":
        return _why_not_json(path, size)
    with path.open("rb") as file:
        begin = file.read(EDGE)
    if listed:
        return "it contains only zeros" if begin and not any(begin) else None
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
    return None if PAIRS.get(first) == last else "it is not JSON, or is truncated"


def _why_not_safetensors(path: Path, size: int) -> str | None:
    try:
        stated = stated_size(path)
    except PlimsollError as error:
        return str(error)
    return None if stated == size else f"it has {size:,} bytes, and its header says {stated:,}"


def _list_file(snapshot: Path) -> Path:
    return snapshot.parent.parent / "trees" / f"{snapshot.name}.json"


def _listed_sizes(snapshot: Path) -> dict[str, int]:
    """Return file sizes from the library's copy of the hub's list; empty if there is none or its format is unknown."""
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
"""Number of files that a message names."""

logger = logging.getLogger(__name__)

Ask = Callable[..., object]
"""Type of `huggingface_hub.snapshot_download` with a repository and a revision."""


def fetch_whole(name: str, ask: Ask, **wanted: Any) -> Path:
    """Download a snapshot whose files are all valid. Return its folder.

    `name` is from `hub_name`. `wanted` are the library's arguments that select files. Raises FetchError if the hub
    sends broken files again, SourceError if cached files are broken and downloads are disabled, and the library's
    errors.
    """
    from huggingface_hub import is_offline_mode

    snapshot = Path(str(ask(**wanted)))
    if not (broken := _broken(snapshot, wanted)):
        return snapshot
    if is_offline_mode() or wanted.get("local_files_only"):
        raise SourceError(
            f"{name}: files in the cache are broken: {_text(broken)}; run `plimsoll models rm {name}` and "
            "download the model again while online"
        )
    logger.warning("%s: removing broken files from the cache and downloading them again: %s", name, _text(broken))
    remove_faults(snapshot, broken)
    snapshot = Path(str(ask(**wanted)))
    _check_sent(name, snapshot, _broken(snapshot, wanted))
    return snapshot


def matching(names: Iterable[str], allowed: Sequence[str], ignored: Sequence[str]) -> list[str]:
    """Return the names that the library would download with these patterns."""

    def fits(name: str, patterns: Sequence[str]) -> bool:
        return any(fnmatch(name, pattern) for pattern in patterns)

    return [name for name in names if fits(name, allowed) and not fits(name, ignored)]


def lacks_files(snapshot: Path) -> bool:
    """Return whether a snapshot lacks the config or weights of a complete model folder."""
    if not (snapshot / "config.json").is_file():
        return True
    if not (index := snapshot / INDEX).is_file():
        return not any(snapshot.glob("*.safetensors"))
    try:
        named = json.loads(index.read_bytes())["weight_map"].values()
        return not all((snapshot / str(shard)).is_file() for shard in named)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return False  # the code that reads the index reports the error


def fetch_unlisted(name: str, snapshot: Path, names: Sequence[str], fetch: Callable[[str], object]) -> None:
    """Fetch files that the hub lists, but which the library's cached list lacks. Removes that list."""
    logger.warning(
        "%s: the cached list of files lacks %s: removing the list, downloading the files",
        name,
        ", ".join(names[:NAMED]),
    )
    forget_list(snapshot)
    for each in names:
        fetch(each)
    _check_sent(name, snapshot, faults(snapshot, names))


def _broken(snapshot: Path, wanted: Mapping[str, Any]) -> list[Fault]:
    """Return the broken files among the wanted ones; other files in the folder belong to other programs."""
    names = sorted(str(path.relative_to(snapshot)) for path in snapshot.rglob("*") if path.is_file())
    return faults(snapshot, matching(names, wanted.get("allow_patterns", ["*"]), wanted.get("ignore_patterns", [])))


def _check_sent(name: str, snapshot: Path, broken: list[Fault]) -> None:
    """Remove files that are broken after a download, and raise FetchError.

    Files of the listed size are kept: the code that reads them reports the error.
    """
    if broken := [each for each in broken if not each.listed]:
        remove_faults(snapshot, broken)
        raise FetchError(
            f"{name}: the hub sent broken files: {_text(broken)}; check whether this network requires a login, and "
            "HF_ENDPOINT if it names a mirror. The files were removed"
        )


def _text(broken: Sequence[Fault]) -> str:
    return ", ".join(map(str, broken[:NAMED])) + (" and others" if len(broken) > NAMED else "")
