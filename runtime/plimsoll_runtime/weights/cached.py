"""What is broken in a snapshot of the hub library's cache: the library never looks at a file again once it has it.

A network that wants a login, or a mirror, may answer any request with 200 and something else. What the library then
keeps under a file's name would break every later start.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from plimsoll_runtime.errors import PlimsollError
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
    """Those of some files that are not as long as the hub's list of files says, or not what their names say."""
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
