"""Lists and removes the models on this disk: downloads from a hub and joined demo models."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from plimsoll_runtime.errors import SourceError, UsageError
from plimsoll_runtime.weights.cache import cache_root, locked, read_only_roots
from plimsoll_runtime.weights.files import models_of
from plimsoll_runtime.weights.sources.demo import MODELS
from plimsoll_runtime.weights.sources.hub import hub_name
from plimsoll_runtime.weights.sources.resolve import parse_hub_id

if TYPE_CHECKING:
    from huggingface_hub import CachedRepoInfo, CachedRevisionInfo, HFCacheInfo

MAIN = "main"
REPOSITORY = "models--"
"""Prefix of the hub library's folder of a model; `--` stands for the slash of its id."""
UNFINISHED, READ_ONLY = "unfinished", "read-only"


@dataclass(frozen=True, slots=True)
class Download:
    """A revision of a hub model, or a demo model's file.

    `source` is an argument of `plimsoll up`; `names` are the results of `exact_source` that mean this download. `size`
    is in bytes, `last_used` in seconds since the epoch. `commit` is set only for a complete revision. `gguf` names its
    GGUF models, if it has no safetensors. `note` is UNFINISHED, READ_ONLY or empty.
    """

    source: str
    names: frozenset[str]
    size: int
    last_used: float
    folder: Path
    commit: str | None = None
    gguf: tuple[str, ...] = ()
    note: str = ""

    def remove(self) -> int:
        """Remove the download. Return the number of freed bytes. Raises SourceError or UsageError."""
        if self.note == READ_ONLY:
            raise UsageError(f"{self.source} is in {self.folder}, a read-only folder of PLIMSOLL_MODEL_PATH")
        try:
            if self.source.startswith("demo://"):
                return _remove_file(self)
            return _remove_repository(self) if self.commit is None else _remove_revision(self, self.commit)
        except OSError as error:
            raise SourceError(f"{self.source} cannot be removed: {error}") from error


def downloads() -> list[Download]:
    """List all downloads, most recently used first. Raises SourceError if the hub's cache cannot be read."""
    return sorted((*_of_demos(), *_of_hub()), key=lambda each: (-each.last_used, each.source))


def exact_source(source: str, revision: str | None = None) -> str:
    """Return a source without its file and with its revision (`main` if none is given), to compare with
    `Download.names`. Raises UsageError for a local path.
    """
    scheme, _, rest = source.rpartition("://")
    if scheme == "demo":
        return source
    if scheme not in ("", "hf") or source.startswith((".", "~", "/")) or (not scheme and Path(source).exists()):
        raise UsageError(f"{source} is your own folder or file; only downloads can be listed and removed")
    model_id, revision, _ = parse_hub_id(rest, revision)
    return hub_name(model_id, revision or MAIN, None)


def _of_demos() -> Iterator[Download]:
    for name, model in MODELS.items():
        for root, note in (*((root, READ_ONLY) for root in read_only_roots()), (cache_root(), "")):
            path = root / "demo" / model.file
            if path.is_file():
                stat, source = path.stat(), f"demo://{name}"
                yield Download(source, frozenset({source}), stat.st_size, stat.st_atime, path, note=note)


def _scanned() -> HFCacheInfo | None:
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        return scan_cache_dir()
    except CacheNotFound:
        return None
    except (OSError, ValueError) as error:
        raise SourceError(f"the hub's cache cannot be read ({error}); see HF_HOME") from error


def _of_hub() -> Iterator[Download]:
    from huggingface_hub.constants import HF_HUB_CACHE

    if (info := _scanned()) is None:
        return
    for repository in info.repos:
        if repository.repo_type == "model":
            yield from (_revision(repository, revision) for revision in repository.revisions if revision.files)
    known = {repository.repo_path.name for repository in info.repos if any(r.files for r in repository.revisions)}
    for folder in sorted(Path(HF_HUB_CACHE).glob(f"{REPOSITORY}*")):
        if folder.is_dir() and folder.name not in known:
            yield _unfinished(folder)


def _revision(repository: CachedRepoInfo, revision: CachedRevisionInfo) -> Download:
    """Describe a complete revision, named by its branch or tag if it has one."""
    model_id, refs = repository.repo_id, sorted(revision.refs)
    short = None if MAIN in refs else refs[0] if refs else revision.commit_hash
    names = [str(each.file_path.relative_to(revision.snapshot_path)) for each in revision.files]
    others = any(name.endswith(".safetensors") for name in names)
    gguf = () if others else tuple(sorted(models_of([name for name in names if name.endswith(".gguf")])))
    return Download(
        source=hub_name(model_id, short, gguf[0] if len(gguf) == 1 else None),
        names=frozenset(hub_name(model_id, name, None) for name in (*refs, revision.commit_hash)),
        size=revision.size_on_disk,
        last_used=max(each.blob_last_accessed for each in revision.files),
        folder=repository.repo_path,
        commit=revision.commit_hash,
        gguf=gguf,
    )


def _unfinished(folder: Path) -> Download:
    """Describe a repository without any complete file, or one that the library cannot read."""
    model_id = folder.name.removeprefix(REPOSITORY).replace("--", "/")
    refs = {str(path.relative_to(folder / "refs")) for path in (folder / "refs").rglob("*") if path.is_file()}
    names = frozenset(hub_name(model_id, name, None) for name in (MAIN, *refs))
    return Download(
        hub_name(model_id, None, None), names, _size(folder), folder.stat().st_mtime, folder, note=UNFINISHED
    )


def _size(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def _remove_file(download: Download) -> int:
    with locked(download.folder):
        download.folder.unlink()
    return download.size


def _remove_revision(download: Download, commit: str) -> int:
    """Remove a revision with the hub's library, which deletes file names first, then contents; contents that other
    revisions have too stay.
    """
    info = _scanned()
    strategy = None if info is None else info.delete_revisions(commit)
    if strategy is None or not (strategy.repos or strategy.snapshots):
        raise SourceError(f"{download.source} is no longer in {download.folder}")
    freed = strategy.expected_freed_size
    strategy.execute()
    _check_gone((*strategy.repos, *strategy.snapshots))
    (download.folder / "trees" / f"{commit}.json").unlink(missing_ok=True)  # the library's list of the files on the hub
    if strategy.repos:
        shutil.rmtree(download.folder.parent / ".locks" / download.folder.name, ignore_errors=True)
    return int(freed)


def _remove_repository(download: Download) -> int:
    shutil.rmtree(download.folder)
    shutil.rmtree(download.folder.parent / ".locks" / download.folder.name, ignore_errors=True)
    return download.size


def _check_gone(paths: Iterable[Path]) -> None:
    """Raise SourceError if a path still exists: the library only logs what it cannot remove."""
    if left := [path for path in paths if path.exists()]:
        raise SourceError(f"{left[0]} cannot be removed; check its owner and permissions")
