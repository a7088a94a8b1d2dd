"""A folder of API keys, one JSON file each: Secrets mounted in a pod, or files on a laptop.

A mounted Secret needs no permission on the API server. The kubelet replaces it atomically by changing one link, so that
a rotation needs no restart. An invalid file disables its own key only. Its last valid version is not kept: otherwise a
restarted gateway would accept other keys than one that has run for a while.
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
    """The valid keys by the hash of their text, and the errors of invalid files by path."""

    by_hash: Mapping[str, ApiKey]
    damaged: Mapping[str, str]

    @property
    def names(self) -> frozenset[str]:
        """Names of the valid keys."""
        return frozenset(key.name for key in self.by_hash.values())

    def by_name(self) -> dict[str, ApiKey]:
        """Return the valid keys by name."""
        return {key.name: key for key in self.by_hash.values()}

    def check_integrity(self) -> None:
        """Raise AssertionError if a hash maps to a key without it, or if two keys have one name."""
        by_name: dict[str, ApiKey] = {}
        for digest, key in self.by_hash.items():
            assert digest in key.limits.hashes, f"{key.name} has no such hash"
            assert by_name.setdefault(key.name, key) is key, f"two keys are called {key.name}"
        for key in by_name.values():
            assert all(self.by_hash.get(digest) is key for digest in key.limits.hashes), f"{key.name} lacks a hash"


NO_KEYS = Keys(MappingProxyType({}), MappingProxyType({}))


def read_keys(folder: Path) -> Keys:
    """Read the files of a folder and its subfolders. If two have the same name or hash, the first by path is valid."""
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
        damaged["."] = f"cannot read the folder: {error.strerror}"
    return Keys(MappingProxyType(by_hash), MappingProxyType(damaged))


def _files(folder: Path) -> Iterator[Path]:
    """Yield the files of the folder and its subfolders (one for each Secret), and subfolders without files.

    Names that start with a dot are skipped: they are the kubelet's.
    """
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
        raise KeyFileError("it has no keys; check that the Secret of this name exists")
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise KeyFileError(f"cannot read it: {error.strerror}") from None
    if len(content) > MOST_BYTES:
        raise KeyFileError(f"it has more than {MOST_BYTES} bytes")
    return content


def _check_alone(key: ApiKey, names: Mapping[str, str], by_hash: Mapping[str, ApiKey]) -> None:
    if key.name in names:
        raise KeyFileError(f"the key {key.name} is already in {names[key.name]}")
    for digest in key.limits.hashes:
        if digest in by_hash:
            raise KeyFileError(f"the key {by_hash[digest].name} already has one of its hashes")


class KeyFolder:
    """The current keys of a folder. `current` is replaced, never changed."""

    def __init__(self, folder: Path, read: Callable[[Path], Keys] = read_keys) -> None:
        self._folder = folder
        self._read = read
        self.current = NO_KEYS
        self.refresh()

    def refresh(self) -> None:
        """Read the folder and log changes."""
        self.show(self._read(self._folder))

    def show(self, found: Keys) -> None:
        """Replace the current keys; log each error once, and each change of the set of keys."""
        before, self.current = self.current, found
        for file, why in found.damaged.items():
            if before.damaged.get(file) != why:
                log.error("ignoring the API key in %r: %s", file, why)
        if found.names != before.names or (not found.names and before is NO_KEYS):
            log.log(
                logging.INFO if found.names else logging.ERROR,
                "%d API keys loaded%s",
                len(found.names),
                "" if found.names else ": all requests are refused until a key is added",
            )

    async def follow(self) -> None:
        """Refresh until cancelled. A thread reads the files, since a slow disk must not block streams."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self.show(await asyncio.to_thread(self._read, self._folder))
