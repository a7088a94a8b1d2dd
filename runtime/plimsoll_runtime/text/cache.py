"""Converted tokenizers on disk: written once, whole or not at all, safe with several processes at once."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from plimsoll_runtime.errors import SourceError
from plimsoll_runtime.weights.cache import cache_root, read_only_roots


def cached_folder(key: str, build: Callable[[Path], None]) -> Path:
    """The folder of `key`: of a read-only cache (PLIMSOLL_MODEL_PATH), of ours (PLIMSOLL_CACHE), else built now.

    `build` fills an empty folder beside the final place; a rename publishes it, so that readers never see half of
    it. When two processes build the same one, the first to finish wins. Raises SourceError when the cache cannot
    be written to.
    """
    own = cache_root() / "tokenizers"
    for root in [*(root / "tokenizers" for root in read_only_roots()), own]:
        if (root / key).is_dir():
            return root / key
    try:
        own.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=f".{key[:16]}-", dir=own))
    except OSError as error:
        raise SourceError(f"the cache {own} cannot be written to ({error}); set PLIMSOLL_CACHE") from error
    try:
        build(work)
        work.chmod(0o755)
        return _publish(work, own / key)
    except OSError as error:
        raise SourceError(
            f"the tokenizer cannot be written to the cache {own} ({error}); free some space or set PLIMSOLL_CACHE"
        ) from error
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _publish(work: Path, final: Path) -> Path:
    try:
        work.rename(final)
    except OSError:
        if not final.is_dir():
            raise
    return final
