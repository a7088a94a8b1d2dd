"""From what a person writes as MODEL to files on disk. No tensor is read here: the server does this too."""

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
"""Like `fetch_snapshot`."""
MODELOPT = "hf_quant_config.json"
CONFIG = "config.json"
SAID = (CONFIG, ADAPTER_CONFIG, MODELOPT, MODULES, *SETTINGS)
"""Files that say what a model is, and nothing of where its weights are."""


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
    """Find, and if need be fetch: a folder, a .gguf file, demo://NAME, or hf://ID[@REVISION][:FILE] (or without hf://).

    `access` is for the hub's private models; None is the environment's token, and the files that belong to nobody.
    `fetch` is for what a hub has, in place of `fetch_snapshot`. `trust_remote_code`: the model's own code may run.
    `on_transfer` is called while that downloads; without it, `progress` is.
    Raises SourceError when it is not there, ModelError when what is there is no model.
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
        raise SourceError(f"{model!r}: unknown kind of source; use a folder, a .gguf file, demo://, hf:// or file://")
    if revision is not None and (scheme in ("demo", "file") or (not scheme and Path(model).exists())):
        raise SourceError(f"--revision {revision} goes with a Hugging Face id, not with {model}")
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
        raise SourceError(f"{rest} does not exist: check the path (in a pod, the volume that should be mounted there)")
    return _of_hub(model, revision, access, fetch)


def _is_file_name(model: str) -> bool:
    return model.endswith(".gguf") and ":" not in model


def _of_hub(name: str, revision: str | None, access: Access | None, fetch: Fetch) -> ModelFiles:
    model_id, revision, file = parse_hub_id(name, revision)
    found = fetch(model_id, revision, access, file)
    return open_gguf(found) if found.is_file() else open_folder(found, model_id)


def parse_hub_id(name: str, revision: str | None = None) -> tuple[str, str | None, str | None]:
    """ORG/NAME[@REVISION][:FILE] -> id, revision, file. Raises SourceError where the revision is said twice."""
    rest, _, file = name.partition(":")
    model_id, _, at = rest.partition("@")
    if at and revision is not None:
        raise SourceError(
            f"hf://{name} names the revision {at}, and --revision says {revision}: leave one of them away"
        )
    return model_id, revision or at or None, file or None


def resolve_config(model: str, revision: str | None = None, progress: Progress | None = None) -> dict[str, Any]:
    """The config of what `resolve` finds; of a hub's model nothing else is fetched. Raises as `resolve` does."""
    found = fetched_config(model, revision)
    return dict(resolve(model, revision, progress).config) if found is None else found


def fetched_config(model: str, revision: str | None = None) -> dict[str, Any] | None:
    """The config of a hub's model, of which nothing else is fetched; None for GGUF files and for all other sources.

    Raises as `resolve` does.
    """
    repository = _repository(model, revision)
    if repository is None:
        return None
    root = fetch_snapshot(*repository, patterns=SAID)
    refuse_adapter(root, repository[0], listing=False)
    return described(root) if (root / CONFIG).is_file() else None


def cached_config(model: str, revision: str | None = None) -> dict[str, Any] | None:
    """Like `fetched_config` without asking the hub, where its branch may have moved since; None for what is not there.

    Raises ModelError for what is no config.
    """
    repository = _repository(model, revision)
    path = None if repository is None else cached_file(*repository, CONFIG)
    return None if path is None else described(path.parent)


def _repository(model: str, revision: str | None) -> tuple[str, str | None] | None:
    """The id and revision of a hub's model in a folder's form; None for GGUF files and for all other sources."""
    scheme, _, rest = model.rpartition("://")
    if scheme != "hf" and (scheme or Path(model).exists() or model.startswith((".", "~", "/")) or _is_file_name(model)):
        return None
    model_id, revision, file = parse_hub_id(rest, revision)
    return None if file is not None else (model_id, revision)


def described(root: Path) -> dict[str, Any]:
    """What the files of a folder say of its model: config.json, and in it what other files say of modules and numbers.

    Raises ModelError where there is no config.json.
    """
    config = read_json(root / CONFIG, needed=True)
    modules = described_modules(root, _read_any)
    return _with_quantisation(root, config if modules is None else {**config, PARTS: modules})


def open_folder(root: Path, name: str) -> ModelFiles:
    """A folder as Transformers saves it: config.json beside safetensors, single or with an index.

    Raises ModelError for a folder that is no model, or that holds an adapter.
    """
    refuse_adapter(root, name)
    config = described(root)
    index = root / INDEX
    weights = _shards(index) if index.is_file() else (root / "model.safetensors",)
    if missing := [w.name for w in weights if not w.is_file()]:
        raise ModelError(f"{root} has no {missing[0]}; only safetensors and GGUF weights are read")
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
    """The files of modules that have some of their own, by the folders that these lie in."""
    paths = [str(module["path"]) for module in modules.get("modules", ()) if module["path"]]
    files = {path: root / path / DENSE_WEIGHTS for path in paths}
    return {path: file for path, file in files.items() if file.is_file()}


def _with_quantisation(root: Path, config: dict[str, Any]) -> dict[str, Any]:
    """The config; what ModelOpt says of the weights it may say in a file of its own."""
    said = {} if "quantization_config" in config else read_json(root / MODELOPT).get("quantization")
    return (
        {**config, "quantization_config": {"quant_method": "modelopt", **said}}
        if isinstance(said, dict) and said
        else config
    )


def _shards(index: Path) -> tuple[Path, ...]:
    """The files that an index names; all lie beside it."""
    weight_map = read_json(index, needed=True).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelError(f"{index} has no weight_map")
    for shard in weight_map.values():
        if not isinstance(shard, str) or Path(shard).name != shard:
            raise ModelError(f"{index} names {shard!r}, which is no file beside it")
    return tuple(index.parent / shard for shard in sorted(set(weight_map.values())))


def open_gguf(path: Path) -> ModelFiles:
    """A GGUF file, or all of them by the first; their metadata are translated to the vocabulary of config.json."""
    paths = [path.with_name(name) for name in shards_of(path.name)]
    if missing := [each.name for each in paths if not each.is_file()]:
        raise ModelError(f"{path.parent} has no {missing[0]}, which is a part of the model")
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
    """The object in a file, an empty one if the file is missing and not `needed`. Raises ModelError, SourceError."""
    if needed and not path.is_file():
        raise ModelError(f"{path.parent} has no {path.name}, so it is no model folder")
    values = _read_any(path)
    if not isinstance(values, dict):
        raise ModelError(f"{path} holds no JSON object")
    return values


def _read_any(path: Path) -> Any:
    """What a file says; an empty object where it is not there."""
    if not path.is_file():
        return {}
    check_size(path)
    try:
        return json.loads(path.read_text())
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error}") from error
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path} is not JSON: {error}") from error
