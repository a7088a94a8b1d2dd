"""Finds a model's files, and rejects a config that cannot be served before weights are downloaded."""

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
    """Find the files of a model, without importing torch. For a hub model the config is fetched and checked first.

    Raises SourceError, and the ModelError and UsageError that loading the model would raise.
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
    """If the model is a local folder, check its config. This takes milliseconds and needs no process.

    Raises ModelError or UsageError.
    """
    scheme, _, path = config.model.rpartition("://")
    folder = Path(path).expanduser()
    if scheme in ("", "file") and folder.is_dir():
        refuse_adapter(folder, folder.name)
        _check(config, described(folder))


def _cached_passes(config: EngineConfig) -> bool:
    """Return whether the cached config passes the checks; then the hub is asked only once, for all files.

    If it does not pass, a newer config on the hub may.
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
