"""Models of the Hugging Face hub or a mirror (HF_ENDPOINT), in the hub library's cache, and sentence-transformers
files.
"""

from __future__ import annotations

import errno
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from tqdm.std import tqdm  # type: ignore[import-untyped]

from plimsoll_runtime.errors import FetchError, ModelError, PlimsollError, SourceError
from plimsoll_runtime.utils.progress import OnTransfer, Transfer
from plimsoll_runtime.weights.files import check_size, choose_gguf
from plimsoll_runtime.weights.sources.snapshot import fetch_unlisted, fetch_whole, lacks_files, matching

if TYPE_CHECKING:
    from huggingface_hub import DryRunFileInfo

MODULES = "modules.json"
DENSE_WEIGHTS = "model.safetensors"
MOST_MODULES = 32
SETTINGS = ("config_sentence_transformers.json", "sentence_bert_config.json")
_TAKEN = ("prompts", "default_prompt_name", "activation_fn", "max_seq_length", "do_lower_case")
"""Keys of the SETTINGS files that Plimsoll uses."""

ReadJson = Callable[[Path], Any]
"""Reads a JSON file; returns an empty object if the file does not exist."""


def described_modules(root: Path, read: ReadJson) -> dict[str, Any] | None:
    """Return the sentence-transformers settings of a folder with its `modules`, each with kind, path and config; None
    if it has neither.

    Raises ModelError if the files do not have the format of sentence-transformers.

    https://sbert.net/docs/package_reference/base/modules.html describes the files.
    """
    listed = read(root / MODULES)
    settings: dict[str, Any] = {}
    for name in SETTINGS:
        said = read(root / name)
        if isinstance(said, Mapping):
            settings |= {key: said[key] for key in _TAKEN if said.get(key) is not None}
    if not listed and not settings:
        return None
    if not isinstance(listed, list | dict) or len(listed) > MOST_MODULES:
        raise ModelError(f"{root / MODULES} is not a list of at most {MOST_MODULES} modules")
    modules = [_module(root, entry, read) for entry in listed]
    return {**settings, "modules": modules}


def module_paths(listed: Any) -> list[str]:
    """Return the valid folder names of a modules.json."""
    entries = listed if isinstance(listed, list) else []
    found = (entry.get("path") for entry in entries if isinstance(entry, Mapping))
    return [path for path in found if isinstance(path, str) and _is_folder(path)]


def _module(root: Path, entry: Any, read: ReadJson) -> dict[str, Any]:
    if not isinstance(entry, Mapping) or not isinstance(kind := entry.get("type"), str):
        raise ModelError(f"{root / MODULES} has an entry without a type")
    path = entry.get("path") or ""
    if not isinstance(path, str) or (path and not _is_folder(path)):
        raise ModelError(f"{root / MODULES} names {path!r}, which is not a folder below it")
    config = read(root / path / "config.json") if path else {}
    return {"kind": kind.rpartition(".")[2], "path": path, "config": config}


def _is_folder(path: str) -> bool:
    """Return whether a path is relative and stays below its folder."""
    parts = PurePosixPath(path).parts
    return bool(parts) and not path.startswith("/") and ".." not in parts


PATTERNS = ["*.safetensors", "*.json", "*.jinja", "tokenizer.model", "*.txt"]
CODE = "*.py"
"""Pattern of code files, wanted in addition if the model's own code may run."""
IGNORED = ["*/*", "consolidated*.safetensors"]
"""Files to skip: folders (other formats of the same weights), and the second copy of the weights in Mistral's
models."""

OF_MODULES = ("config.json", DENSE_WEIGHTS)
"""Wanted files in the folders of sentence-transformers modules."""

TRANSIENT = (408, 429)
"""HTTP status codes of temporary refusals: a timeout, and too many requests."""
UNSENDABLE = ("LocalProtocolError", "UnsupportedProtocol", "InvalidURL")
"""Errors of httpx (or httpx2 in newer versions of the library) for a token or an HF_ENDPOINT that cannot be sent."""
NO_PLACE = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS)


@dataclass(frozen=True, slots=True)
class Access:
    """Hub access of one namespace: its token ("" for none) and its own cache.

    The hub library returns cached files without checking access rights, so namespaces in one process must not share a
    cache.
    """

    namespace: str
    token: str = field(repr=False)

    def cache(self, shared: str) -> Path:
        """Return the namespace's cache folder. `shared` is the folder of snapshots without a namespace."""
        return Path(shared).parent / "private" / self.namespace

    def hide(self, text: str) -> str:
        """Return the text with each word of the token replaced: messages may quote an invalid token in parts."""
        for word in self.token.split():
            text = text.replace(word, "***")
        return text


def fetch_snapshot(
    model_id: str,
    revision: str | None,
    access: Access | None = None,
    file: str | None = None,
    patterns: Sequence[str] = PATTERNS,
    on_transfer: OnTransfer | None = None,
) -> Path:
    """Download a snapshot if needed and return its folder. Without `access`, the environment's token is used.

    Return the path of a GGUF file instead if the repository has only GGUF files, or if `file` names one (or its type,
    such as Q4_K_M). `patterns` are the wanted files of a folder. `on_transfer` is called during downloads. Raises
    SourceError with advice. Messages never contain the token.
    """
    from huggingface_hub import hf_hub_download, snapshot_download
    from huggingface_hub.constants import HF_HUB_CACHE

    name = hub_name(model_id, revision, file)
    token = None if access is None else access.token or False
    cache = None if access is None else access.cache(HF_HUB_CACHE)
    ask = partial(snapshot_download, model_id, revision=revision, token=token, cache_dir=cache)
    download = partial(fetch_whole, name, ask if on_transfer is None else partial(_counted, ask, on_transfer))
    with errors_of(name, model_id, revision, access):
        if file is None:
            found = download(allow_patterns=list(patterns), ignore_patterns=IGNORED)
            if of_modules := _of_modules(found, patterns):
                download(allow_patterns=of_modules)
            if "*.safetensors" not in patterns or not lacks_files(found):
                return found
        listed = _files(model_id, revision, token, download)
        if file is None and (late := _late(found, listed, patterns)):
            get = partial(hf_hub_download, model_id, revision=found.name, token=token, cache_dir=cache)
            fetch_unlisted(name, found, late, get)
            if of_modules := sorted({*listed}.intersection(_of_modules(found, patterns))):
                fetch_unlisted(name, found, of_modules, get)
            return found
        gguf = [each for each in listed if each.endswith(".gguf")]
        if file is None and not gguf:
            return found
        chosen = choose_gguf(name, gguf, file)
        return download(allow_patterns=list(chosen)) / chosen[0]


def _counted(ask: Callable[..., Any], on_transfer: OnTransfer, **wanted: Any) -> object:
    """Download and report the transferred bytes. Raises the library's errors."""
    began = time.time()

    def missing() -> int:
        """Return the size of the files that were missing when the download began; 0 if the hub does not answer."""
        try:
            files = ask(**wanted, dry_run=True)
        except OSError:
            return 0  # the download itself will report the error
        return sum(file.file_size or 0 for file in files if not _was_there(file, began))

    return ask(**wanted, tqdm_class=Tally(on_transfer, missing).bars())


def _was_there(file: DryRunFileInfo, began: float) -> bool:
    """Return whether a file was complete in the cache before `began`."""
    return file.is_cached and Path(file.local_path).stat().st_mtime < began


def cached_file(model_id: str, revision: str | None, file: str) -> Path | None:
    """Return a cached file of a revision, or of the last known commit of its branch; None if it is not cached."""
    from huggingface_hub import try_to_load_from_cache

    with errors_of(hub_name(model_id, revision, None), model_id, revision, None):
        found = try_to_load_from_cache(model_id, file, revision=revision)
        return Path(found) if isinstance(found, str) else None


def hub_name(model_id: str, revision: str | None, file: str | None) -> str:
    """Return the hf:// form of a model, as `resolve` takes it."""
    return f"hf://{model_id}" + (f"@{revision}" if revision else "") + (f":{file}" if file else "")


def modules_in(snapshot: Path) -> list[str]:
    """Return the folders that the snapshot's modules.json names; empty if it is missing or unreadable."""
    path = snapshot / MODULES
    if not path.is_file():
        return []
    check_size(path)
    try:
        return module_paths(json.loads(path.read_text()))
    except (OSError, ValueError, RecursionError):
        return []  # the code that reads the folder reports the error


def _of_modules(snapshot: Path, patterns: Sequence[str]) -> list[str]:
    """Return patterns of files in module folders, with weights only if the model's weights are wanted."""
    wanted = OF_MODULES if "*.safetensors" in patterns else OF_MODULES[:1]
    return [f"{folder}/{name}" for folder in modules_in(snapshot) for name in wanted]


def _late(snapshot: Path, listed: Sequence[str], patterns: Sequence[str]) -> list[str]:
    """Return wanted files that the hub lists and the snapshot lacks."""
    return matching((each for each in listed if not (snapshot / each).is_file()), patterns, IGNORED)


def _files(model_id: str, revision: str | None, token: str | bool | None, download: Callable[..., Path]) -> list[str]:
    """Return the repository's file names from the hub, or from the cache if the hub does not answer."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import OfflineModeIsEnabled

    try:
        listed = HfApi(token=token).list_repo_files(model_id, revision=revision)
    except (OSError, OfflineModeIsEnabled):
        folder = download(local_files_only=True, allow_patterns=[])
        listed = [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]
    return sorted(listed)


@contextmanager
def errors_of(name: str, model_id: str, revision: str | None, access: Access | None) -> Iterator[None]:
    """Turn the library's errors into SourceError, or FetchError if a later attempt may succeed."""
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        yield
    except HFValidationError as error:
        raise SourceError(f"{model_id!r} is not a folder, a .gguf file or a Hugging Face id: {error}") from error
    except GatedRepoError as error:
        raise SourceError(f"{name} is gated: accept its terms on the hub and {_with_token(access)}") from error
    except RepositoryNotFoundError as error:
        raise SourceError(f"{name} does not exist (or is private: {_with_token(access)})") from error
    except RevisionNotFoundError as error:
        raise SourceError(f"{name}: the hub has no revision {revision!r} of this model") from error
    except LocalEntryNotFoundError as error:
        raise _kind(error.__cause__)(
            f"{name} is not in the cache and the hub cannot be reached ({_first_line(error)}): "
            "check the network, HF_ENDPOINT, HF_HUB_OFFLINE and HF_HOME; if you meant a folder, it does not exist"
        ) from error
    except PlimsollError:
        raise
    except Exception as error:
        # The library passes on errors of its HTTP client and of unexpected answers of mirrors.
        words = f"{name} cannot be fetched: {type(error).__name__}: {_first_line(error)}"
        if access is None:
            raise _kind(error)(words) from error
        raise _kind(error)(access.hide(words)) from None  # the cause may contain the token


def _kind(error: BaseException | None) -> type[SourceError]:
    """Return SourceError if the hub refuses, is disabled, or the disk rejects the files; otherwise FetchError."""
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    if isinstance(error, HfHubHTTPError):
        refused = 400 <= error.response.status_code < 500 and error.response.status_code not in TRANSIENT
    elif isinstance(error, OfflineModeIsEnabled) or type(error).__name__ in UNSENDABLE:
        refused = True
    else:
        refused = isinstance(error, OSError) and error.errno in NO_PLACE
    return SourceError if refused else FetchError


def _with_token(access: Access | None) -> str:
    if access is None:
        return "set HF_TOKEN"
    return "check the token of spec.model.tokenSecret" if access.token else "set spec.model.tokenSecret"


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


EVERY_SECONDS = 0.2
"""Seconds between two progress reports."""


class Tally:
    """Counts downloaded bytes and reports them.

    `on_transfer` is called in the library's threads. `total` returns the bytes to download; it is called when the first
    ones arrive, and may be slow. (The library's own total grows with each file that it starts.)
    """

    def __init__(self, on_transfer: OnTransfer, total: Callable[[], int]) -> None:
        self._on_transfer = on_transfer
        self._ask_total = total
        self._total: int | None = None
        self._done = 0
        self._reported = -EVERY_SECONDS
        self._lock = threading.Lock()

    def bars(self) -> type[Any]:
        """Return a `tqdm_class` for the library, whose bars display nothing.

        The library has one bar for network bytes and one for file bytes; older versions have one for both, or none.
        """
        tally = self

        class Bar(tqdm):  # type: ignore[misc]
            def __init__(self, *arguments: Any, **options: Any) -> None:
                super().__init__(*arguments, **{**options, "disable": True})
                self.counts_bytes = options.get("unit") == "B"

            def update(self, n: float | None = 1) -> bool | None:
                if self.counts_bytes and n:
                    with tally._lock:
                        self.n += n
                        tally._count(int(self.n))
                return None

        return Bar

    def _count(self, done: int) -> None:
        """Record a bar's progress and report it. The caller must hold the lock."""
        self._done = max(self._done, done)
        if self._total is None:
            self._total = self._ask_total()
        now = time.monotonic()
        if now - self._reported >= EVERY_SECONDS or 0 < self._total <= self._done:
            self._reported = now
            self._on_transfer(Transfer(min(self._done, self._total or self._done), self._total))
