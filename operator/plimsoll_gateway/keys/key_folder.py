"""A folder of keys, one JSON file each: Secrets mounted in a pod, or files on a laptop.

A mounted Secret needs no right on the API server, and the kubelet renews it by swapping one link, so that a rotation
restarts nothing and is never seen by halves. What is wrong with a file costs that key alone, and leaves it out: were
its last good version kept, a gateway that starts would let in others than one that has run for a while.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from plimsoll_gateway.keys.api_key import ApiKey, KeyFileError, read_key

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
MOST_BYTES = 64 << 10  # of one file


@dataclass(frozen=True, slots=True)
class Keys:
    """The usable keys by the hash of their text, and what is wrong with files, by their names."""

    by_hash: Mapping[str, ApiKey]
    damaged: Mapping[str, str]

    @property
    def names(self) -> frozenset[str]:
        """Of the usable keys."""
        return frozenset(key.name for key in self.by_hash.values())

    def by_name(self) -> dict[str, ApiKey]:
        """The usable keys by their names."""
        return {key.name: key for key in self.by_hash.values()}

    def check_integrity(self) -> None:
        """Raise AssertionError where a hash leads to a key that does not have it, or two keys have one name."""
        by_name: dict[str, ApiKey] = {}
        for digest, key in self.by_hash.items():
            assert digest in key.limits.hashes, f"{key.name} has no such hash"
            assert by_name.setdefault(key.name, key) is key, f"two keys are called {key.name}"
        for key in by_name.values():
            assert all(self.by_hash.get(digest) is key for digest in key.limits.hashes), f"{key.name} lacks a hash"


NO_KEYS = Keys(MappingProxyType({}), MappingProxyType({}))


def read_keys(folder: Path) -> Keys:
    """All files of a folder and of the folders in it. Of two that claim a name or a hash, the first by path has it."""
    by_hash: dict[str, ApiKey] = {}
    damaged: dict[str, str] = {}
    names: dict[str, str] = {}
    try:
        for path in _files(folder):
            shown = str(path.relative_to(folder))
            try:
                content = _content(path)
                key = read_key(path.name, content)
                _check_alone(key, names, by_hash)
            except KeyFileError as error:
                damaged[shown] = str(error)
                continue
            names[key.name] = shown
            by_hash.update(dict.fromkeys(key.limits.hashes, key))
    except OSError as error:
        damaged["."] = f"the folder cannot be read: {error.strerror}"
    return Keys(MappingProxyType(by_hash), MappingProxyType(damaged))


def _files(folder: Path) -> Iterator[Path]:
    """Those of the folder, and of folders in it (a Secret each). Names with a dot first are the kubelet's."""
    for path in sorted(folder.iterdir()):
        if path.name.startswith("."):
            continue
        if path.is_dir():
            files = [inner for inner in sorted(path.iterdir()) if not inner.name.startswith(".")]
            yield from files or [path]
        else:
            yield path


def _content(path: Path) -> bytes:
    if path.is_dir():
        raise KeyFileError("it holds no keys; is the Secret of this name there?")
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise KeyFileError(f"it cannot be read: {error.strerror}") from None
    if len(content) > MOST_BYTES:
        raise KeyFileError(f"it has more than {MOST_BYTES} bytes")
    return content


def _check_alone(key: ApiKey, names: Mapping[str, str], by_hash: Mapping[str, ApiKey]) -> None:
    if key.name in names:
        raise KeyFileError(f"the key {key.name} is in {names[key.name]} already")
    for digest in key.limits.hashes:
        if digest in by_hash:
            raise KeyFileError(f"the key {by_hash[digest].name} has one of its hashes already")


class KeyFolder:
    """The keys of a folder as they are now. `current` is replaced as a whole."""

    def __init__(self, folder: Path, read: Callable[[Path], Keys] = read_keys) -> None:
        self._folder = folder
        self._read = read
        self.current = NO_KEYS
        self.refresh()

    def refresh(self) -> None:
        """Read the folder, and say what has changed."""
        self.show(self._read(self._folder))

    def show(self, found: Keys) -> None:
        """Take over what was read; log each damage once, and each change of who has a key."""
        before, self.current = self.current, found
        for file, why in found.damaged.items():
            if before.damaged.get(file) != why:
                log.error("the API key in %r is left out: %s", file, why)
        if found.names != before.names or (not found.names and before is NO_KEYS):
            log.log(
                logging.INFO if found.names else logging.ERROR,
                "%d API keys are known%s",
                len(found.names),
                "" if found.names else ": every request is refused until there is one",
            )

    async def follow(self) -> None:
        """Refresh for ever. A thread reads, for a slow disk must not stop the streams."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self.show(await asyncio.to_thread(self._read, self._folder))
