"""Finds a model's files, and refuses what its config shows before a byte of its weights is fetched."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.errors import ModelError, UsageError
from plimsoll_runtime.models.validation.config import check_config
from plimsoll_runtime.utils.progress import OnTransfer, Progress
from plimsoll_runtime.weights.adapters import refuse_adapter
from plimsoll_runtime.weights.files import ModelFiles
from plimsoll_runtime.weights.sources.resolve import cached_config, described, fetched_config, resolve


def find_files(
    config: EngineConfig, progress: Progress | None = None, on_transfer: OnTransfer | None = None
) -> ModelFiles:
    """As `resolve` does, without torch. Of a hub's model the config comes first.

    Raises SourceError, and as loading it would ModelError and UsageError.
    """
    if not _cached_passes(config) and (found := fetched_config(config.model, config.revision)) is not None:
        _check(config, found)
    files = resolve(
        config.model,
        config.revision,
        progress=progress,
        trust_remote_code=config.trust_remote_code,
        on_transfer=on_transfer,
    )
    _check(config, files.config, gguf=files.format == "gguf")
    return files


def check_folder(config: EngineConfig) -> None:
    """The check alone, where the model is a folder: it takes milliseconds, and no process has to start for it."""
    scheme, _, path = config.model.rpartition("://")
    folder = Path(path).expanduser()
    if scheme in ("", "file") and folder.is_dir():
        refuse_adapter(folder, folder.name)
        _check(config, described(folder))


def _cached_passes(config: EngineConfig) -> bool:
    """Whether the cache has a config that passes: then the hub is asked once, for all files. A newer one may pass, too,
    where that of the cache does not.
    """
    try:
        found = cached_config(config.model, config.revision)
        if found is not None:
            _check(config, found)
    except (ModelError, UsageError):
        return False
    return found is not None


def _check(config: EngineConfig, found: Mapping[str, Any], *, gguf: bool = False) -> None:
    check_config(
        found,
        task=config.task,
        impl=config.model_impl,
        max_model_len=config.max_model_len,
        gguf=gguf,
        trusted=config.trust_remote_code,
    )
