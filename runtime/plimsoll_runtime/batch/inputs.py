"""Which files are read: names, patterns and folders become files, in the order of their names."""

from __future__ import annotations

import glob
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from plimsoll_runtime.batch.compressed import check_compression
from plimsoll_runtime.batch.places import PARQUET, FileKind, kind_of
from plimsoll_runtime.batch.tables import check_parquet
from plimsoll_runtime.errors import UsageError


@dataclass(frozen=True, slots=True)
class InputFile:
    """A file to be read, as it is when the run begins."""

    path: Path
    kind: FileKind
    size: int
    modified_ns: int


def find_inputs(given: str, made: Collection[Path]) -> list[InputFile]:
    """The files of INPUT: a file, a pattern, or a folder, of which those are read whose suffix says what they are.

    What the run itself makes is none of them. Raises UsageError where there is nothing to read.
    """
    own = {path.absolute() for path in made}
    path = Path(given)
    if path.is_dir():
        found = [each for each in sorted(path.iterdir()) if each.is_file() and _is_known(each)]
    elif path.is_file():
        found = [path]
        if path.absolute() in own:
            raise UsageError(f"{path} is the input and would be replaced; give another OUTPUT")
    else:
        found = [each for each in map(Path, sorted(glob.glob(given, recursive=True))) if each.is_file()]  # noqa: PTH207
    inputs = [_input(each) for each in found if each.absolute() not in own]
    if not inputs:
        raise UsageError(f"{given} is no file, no folder with files to read, and no pattern that files have")
    return inputs


def _is_known(path: Path) -> bool:
    if path.name.startswith("."):
        return False
    try:
        kind_of(path)
    except UsageError:
        return False
    return True


def checked_kind(path: Path) -> FileKind:
    """What a file's name says of it. Raises UsageError where a library is missing to read or write it."""
    kind = kind_of(path)
    check_compression(path, kind.compression)
    if kind.format == PARQUET:
        check_parquet(path)
    return kind


def _input(path: Path) -> InputFile:
    kind = checked_kind(path)
    status = path.stat()
    return InputFile(path, kind, status.st_size, status.st_mtime_ns)
