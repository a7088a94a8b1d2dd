"""Finds a model's tokenizer.json: in its folder, or in the cache after a conversion."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from plimsoll_runtime.errors import ModelError, SourceError
from plimsoll_runtime.text.gguf_tokenizer import CONVERTER_VERSION, read_vocabulary, write_tokenizer
from plimsoll_runtime.weights.cache import cache_root, read_only_roots
from plimsoll_runtime.weights.gguf.metadata import GgufMetadata, read_metadata

if TYPE_CHECKING:
    from plimsoll_runtime.weights.files import ModelFiles


def cached_folder(key: str, build: Callable[[Path], None]) -> Path:
    """Return the folder of `key`: from a read-only cache (PLIMSOLL_MODEL_PATH), from the own cache (PLIMSOLL_CACHE), or
    built.

    `build` fills an empty folder in the cache; a rename publishes it, so readers never see a partial folder. If two
    processes build the same folder, the first to finish wins. Raises SourceError if the cache cannot be written.
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


VOCABULARY_FILES = (
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tiktoken.model",
    "tekken.json",
    "vocab.json",
    "merges.txt",
    "added_tokens.json",
    "special_tokens_map.json",
    "tokenizer_config.json",
    "config.json",
)
SENTENCEPIECE_NEEDS = ("sentencepiece", "protobuf")


def tokenizer_folder(files: ModelFiles) -> Path:
    """Return a folder with tokenizer.json and the settings next to it. Raises ModelError, SourceError.

    A GGUF file has its vocabulary in its metadata; older folders have a SentencePiece model or vocabulary files. Both
    take seconds to convert, so the result is cached under a digest of its sources.
    """
    if files.format == "gguf":
        metadata = read_metadata(files.weights[0])
        build = partial(_convert_gguf, metadata, files.weights[0])
        return cached_folder(f"gguf-{CONVERTER_VERSION}-{metadata.digest}", build)
    if (files.root / "tokenizer.json").is_file():
        return files.root
    sources = [files.root / name for name in VOCABULARY_FILES if (files.root / name).is_file()]
    if not sources:
        raise ModelError(
            f"{files.root} has no tokenizer.json and no vocabulary files to convert; copy the tokenizer's files next "
            "to the weights"
        )
    return cached_folder(f"slow-{_digest(sources)}", partial(_convert_slow, files))


def _convert_gguf(metadata: GgufMetadata, path: Path, target: Path) -> None:
    write_tokenizer(read_vocabulary(metadata.values, path), target)


def _installed(package: str) -> bool:
    try:
        version(package)
    except PackageNotFoundError:
        return False
    return True


def _digest(paths: list[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        digest.update(f"{path.name}\0{path.stat().st_size}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:32]


def _convert_slow(files: ModelFiles, target: Path) -> None:
    """Read the vocabulary with Transformers and write a tokenizer.json."""
    root = files.root
    if (root / "tokenizer.model").is_file() and (missing := [n for n in SENTENCEPIECE_NEEDS if not _installed(n)]):
        raise ModelError(
            f"{root / 'tokenizer.model'} is a SentencePiece model, which needs missing packages: pip install "
            f"{' '.join(missing)}"
        )
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(
            root, use_fast=True, local_files_only=True, trust_remote_code=files.trusted
        )
        tokenizer.save_pretrained(target)
    except ImportError as error:
        raise ModelError(f"the tokenizer in {root} needs a package that is not installed: {error}") from error
    except Exception as error:
        raise ModelError(f"the tokenizer in {root} cannot be converted: {error}") from error
    if not (target / "tokenizer.json").is_file():
        raise ModelError(f"the tokenizer in {root} cannot be converted for the tokenizers library")
