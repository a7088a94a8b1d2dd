"""Resolves a MODEL argument to files on disk. It reads no tensors, so the server process can call it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from plimsoll_runtime.errors import ModelError, SourceError
from plimsoll_runtime.utils.progress import DOWNLOAD, OnTransfer, Progress, silent
from plimsoll_runtime.weights.adapters import ADAPTER_CONFIG, refuse_adapter, refuse_gguf_adapter
from plimsoll_runtime.weights.files import INDEX, PARTS, ModelFiles, check_size, shards_of
from plimsoll_runtime.weights.gguf.config import sampling, translate
from plimsoll_runtime.weights.gguf.metadata import ROPE_FACTORS, read_floats, read_metadata
from plimsoll_runtime.weights.sources.demo import fetch_demo, find_demo
from plimsoll_runtime.weights.sources.hub import (
    CODE,
    DENSE_WEIGHTS,
    MODULES,
    PATTERNS,
    SETTINGS,
    Access,
    cached_file,
    described_modules,
    fetch_snapshot,
)

Fetch = Callable[[str, str | None, Access | None, str | None], Path]
"""Signature of `fetch_snapshot`."""
MODELOPT = "hf_quant_config.json"
CONFIG = "config.json"
SAID = (CONFIG, ADAPTER_CONFIG, MODELOPT, MODULES, *SETTINGS)
"""Files that describe a model, without the index of its weights."""


def resolve(
    model: str,
    revision: str | None = None,
    progress: Progress | None = None,
    access: Access | None = None,
    fetch: Fetch | None = None,
    *,
    trust_remote_code: bool = False,
    on_transfer: OnTransfer | None = None,
) -> ModelFiles:
    """Find a model and download it if needed: a folder, a .gguf file, demo://NAME, or hf://ID[@REVISION][:FILE] (or
    without hf://).

    - `access` is for private models of the hub; None uses the environment's token and the shared cache.
    - `fetch` replaces `fetch_snapshot` for hub models.
    - `trust_remote_code`: the model's own code may run.
    - `on_transfer` is called during downloads; without it, `progress` is.

    Raises SourceError if the model does not exist, ModelError if the files are not a model.
    """
    if fetch is None:
        fetch = fetch_snapshot
        if trust_remote_code:
            fetch = partial(fetch, patterns=(*PATTERNS, CODE))
        if (report := on_transfer or _as_stage(progress)) is not None:
            fetch = partial(fetch, on_transfer=report)
    return replace(_found(model, revision, progress, access, fetch), trusted=trust_remote_code)


def _as_stage(progress: Progress | None) -> OnTransfer | None:
    return None if progress is None else lambda transfer: progress(DOWNLOAD, transfer.fraction)


def _found(
    model: str, revision: str | None, progress: Progress | None, access: Access | None, fetch: Fetch
) -> ModelFiles:
    scheme, _, rest = model.rpartition("://")
    if scheme not in ("", "demo", "hf", "file"):
        raise SourceError(f"{model!r} has an unknown scheme; use a folder, a .gguf file, demo://, hf:// or file://")
    if revision is not None and (scheme in ("demo", "file") or (not scheme and Path(model).exists())):
        raise SourceError(f"--revision {revision} needs a Hugging Face id, but the model is {model}")
    if scheme == "demo":
        demo = find_demo(rest)
        files = open_gguf(fetch_demo(demo, progress or silent))
        return replace(
            files,
            name=demo.name,
            chat_template=demo.chat_template,
            chat_stop=demo.chat_stop,
            generation_config=demo.generation_config,
            about=demo.about,
        )
    if scheme == "hf":
        return _of_hub(rest, revision, access, fetch)
    path = Path(rest).expanduser()
    if path.is_dir():
        return open_folder(path, path.resolve().name)
    if path.is_file():
        return open_gguf(path)
    if scheme == "file" or path.is_absolute() or model.startswith((".", "~")) or _is_file_name(model):
        raise SourceError(f"{rest} does not exist: check the path (in a pod, check that its volume is mounted)")
    return _of_hub(model, revision, access, fetch)


def _is_file_name(model: str) -> bool:
    return model.endswith(".gguf") and ":" not in model


def _of_hub(name: str, revision: str | None, access: Access | None, fetch: Fetch) -> ModelFiles:
    model_id, revision, file = parse_hub_id(name, revision)
    found = fetch(model_id, revision, access, file)
    return open_gguf(found) if found.is_file() else open_folder(found, model_id)


def parse_hub_id(name: str, revision: str | None = None) -> tuple[str, str | None, str | None]:
    """Split ORG/NAME[@REVISION][:FILE] into id, revision and file. Raises SourceError if the revision is given
    twice.
    """
    rest, _, file = name.partition(":")
    model_id, _, at = rest.partition("@")
    if at and revision is not None:
        raise SourceError(f"hf://{name} names the revision {at}, but --revision is {revision}; remove one of them")
    return model_id, revision or at or None, file or None


def resolve_config(model: str, revision: str | None = None, progress: Progress | None = None) -> dict[str, Any]:
    """Return the config of a model. Of a hub model, downloads only the files that describe it; GGUF files completely.

    Raises as `resolve` does.
    """
    found = fetched_config(model, revision)
    return dict(resolve(model, revision, progress).config) if found is None else found


def fetched_config(model: str, revision: str | None = None) -> dict[str, Any] | None:
    """Return the config of a hub model, downloading only files that describe it; None for GGUF and other sources.

    Raises as `resolve` does.
    """
    repository = _repository(model, revision)
    if repository is None:
        return None
    root = fetch_snapshot(*repository, patterns=SAID)
    refuse_adapter(root, repository[0], listing=False)
    return described(root) if (root / CONFIG).is_file() else None


def cached_config(model: str, revision: str | None = None) -> dict[str, Any] | None:
    """Return the config of a cached hub model, whose branch may have moved since; None if it is not cached.

    Raises ModelError if the config is invalid.
    """
    repository = _repository(model, revision)
    path = None if repository is None else cached_file(*repository, CONFIG)
    return None if path is None else described(path.parent)


def _repository(model: str, revision: str | None) -> tuple[str, str | None] | None:
    """Return id and revision of a hub model; None if `model` names a GGUF file of it, and for all other sources."""
    scheme, _, rest = model.rpartition("://")
    if scheme != "hf" and (scheme or Path(model).exists() or model.startswith((".", "~", "/")) or _is_file_name(model)):
        return None
    model_id, revision, file = parse_hub_id(rest, revision)
    return None if file is not None else (model_id, revision)


def described(root: Path) -> dict[str, Any]:
    """Return a folder's config.json, extended with sentence-transformers modules and quantisation from other files.

    Raises ModelError if there is no config.json.
    """
    config = read_json(root / CONFIG, needed=True)
    modules = described_modules(root, _read_any)
    return _with_quantisation(root, config if modules is None else {**config, PARTS: modules})


def open_folder(root: Path, name: str) -> ModelFiles:
    """Open a folder in Transformers' format: config.json next to safetensors, single or with an index.

    Raises ModelError if the folder is not a model or contains an adapter.
    """
    refuse_adapter(root, name)
    config = described(root)
    index = root / INDEX
    weights = _shards(index) if index.is_file() else (root / "model.safetensors",)
    if missing := [w.name for w in weights if not w.is_file()]:
        raise ModelError(f"{root} has no {missing[0]}; only safetensors and GGUF weights are supported")
    return ModelFiles(
        name=name,
        root=root,
        format="safetensors",
        config=config,
        weights=weights,
        generation_config=read_json(root / "generation_config.json"),
        modules=_module_weights(root, config.get(PARTS, {})),
    )


def _module_weights(root: Path, modules: Mapping[str, Any]) -> dict[str, Path]:
    """Return the weight files of modules by folder."""
    paths = [str(module["path"]) for module in modules.get("modules", ()) if module["path"]]
    files = {path: root / path / DENSE_WEIGHTS for path in paths}
    return {path: file for path, file in files.items() if file.is_file()}


def _with_quantisation(root: Path, config: dict[str, Any]) -> dict[str, Any]:
    """Return the config with ModelOpt's quantisation, which may be in a separate file."""
    said = {} if "quantization_config" in config else read_json(root / MODELOPT).get("quantization")
    return (
        {**config, "quantization_config": {"quant_method": "modelopt", **said}}
        if isinstance(said, dict) and said
        else config
    )


def _shards(index: Path) -> tuple[Path, ...]:
    """Return the files that an index names. Raises ModelError if one is in another folder."""
    weight_map = read_json(index, needed=True).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelError(f"{index} has no weight_map")
    for shard in weight_map.values():
        if not isinstance(shard, str) or Path(shard).name != shard:
            raise ModelError(f"{index} names {shard!r}, which is not a file next to it")
    return tuple(index.parent / shard for shard in sorted(set(weight_map.values())))


def open_gguf(path: Path) -> ModelFiles:
    """Open a GGUF file (or all its shards) and translate its metadata to a config."""
    paths = [path.with_name(name) for name in shards_of(path.name)]
    if missing := [each.name for each in paths if not each.is_file()]:
        raise ModelError(f"{path.parent} has no {missing[0]}, which is a shard of the model")
    metadata = [read_metadata(each) for each in paths]
    refuse_gguf_adapter(path, metadata[0].values)
    places = {name: (each, t) for each, m in zip(paths, metadata, strict=True) for name, t in m.tensors.items()}
    factors = None if ROPE_FACTORS not in places else read_floats(*places[ROPE_FACTORS])
    config = translate(metadata[0].values, frozenset(places), factors)
    return ModelFiles(
        name=path.stem,
        root=path.parent,
        format="gguf",
        config=config,
        weights=tuple(paths),
        generation_config=sampling(metadata[0].values),
    )


def read_json(path: Path, *, needed: bool = False) -> dict[str, Any]:
    """Return the JSON object of a file; empty if it is missing and not `needed`. Raises ModelError or SourceError."""
    if needed and not path.is_file():
        raise ModelError(f"{path.parent} has no {path.name}, so it is not a model folder")
    values = _read_any(path)
    if not isinstance(values, dict):
        raise ModelError(f"{path} is not a JSON object")
    return values


def _read_any(path: Path) -> Any:
    """Return a file's JSON; an empty object if the file does not exist."""
    if not path.is_file():
        return {}
    check_size(path)
    try:
        return json.loads(path.read_text())
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error}") from error
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path} is not JSON: {error}") from error
