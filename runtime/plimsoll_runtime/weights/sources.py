"""From what a person writes as MODEL to files on disk. No tensor is read here: the server does this too."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from plimsoll_runtime.errors import ModelError, SourceError
from plimsoll_runtime.weights.demo import fetch_demo, find_demo
from plimsoll_runtime.weights.files import ModelFiles, check_size
from plimsoll_runtime.weights.gguf.config import translate
from plimsoll_runtime.weights.gguf.metadata import ROPE_FACTORS, read_floats, read_metadata
from plimsoll_runtime.weights.hub import Access, fetch_snapshot

Progress = Callable[[str, float], None]
Fetch = Callable[[str, str | None, Access | None], Path]
"""Like `fetch_snapshot`."""
INDEX = "model.safetensors.index.json"


def resolve(
    model: str,
    revision: str | None = None,
    progress: Progress | None = None,
    access: Access | None = None,
    fetch: Fetch | None = None,
) -> ModelFiles:
    """Find, and if need be fetch: a folder, a .gguf file, demo://NAME, hf://ID[@REVISION] or a bare hub id.

    `access` is for the hub's private models; None is the environment's token, and the files that belong to nobody.
    `fetch` is for what a hub has, in place of `fetch_snapshot`.
    Raises SourceError when it is not there, ModelError when what is there is no model.
    """
    fetch = fetch or fetch_snapshot
    scheme, _, rest = model.rpartition("://")
    if scheme not in ("", "demo", "hf", "file"):
        raise SourceError(f"{model!r}: unknown kind of source; use a folder, a .gguf file, demo://, hf:// or file://")
    if revision is not None and (scheme in ("demo", "file") or (not scheme and Path(model).exists())):
        raise SourceError(f"--revision {revision} goes with a Hugging Face id, not with {model}")
    if scheme == "demo":
        demo = find_demo(rest)
        files = open_gguf(fetch_demo(demo, progress or _silent))
        return replace(files, name=demo.name, chat_template=demo.chat_template, chat_stop=demo.chat_stop)
    if scheme == "hf":
        model_id, _, at = rest.partition("@")
        return open_folder(fetch(model_id, revision or at or None, access), model_id)
    path = Path(rest).expanduser()
    if path.is_dir():
        return open_folder(path, path.resolve().name)
    if path.is_file():
        return open_gguf(path)
    if scheme == "file" or path.is_absolute() or model.startswith((".", "~")) or model.endswith(".gguf"):
        raise SourceError(f"{rest} does not exist: check the path (in a pod, the volume that should be mounted there)")
    return open_folder(fetch(model, revision, access), model)


def resolve_config(model: str, revision: str | None = None, progress: Progress | None = None) -> dict[str, Any]:
    """The config of what `resolve` finds; of a hub's model nothing else is fetched. Raises as `resolve` does."""
    scheme, _, rest = model.rpartition("://")
    hub = scheme == "hf" or (not scheme and not Path(model).exists() and not model.startswith((".", "~", "/")))
    if not hub:
        return dict(resolve(model, revision, progress).config)
    model_id, _, at = rest.partition("@")
    root = fetch_snapshot(model_id, revision or at or None, patterns=["config.json"])
    return _read_json(root / "config.json", needed=True)


def open_folder(root: Path, name: str) -> ModelFiles:
    """A folder as Transformers saves it: config.json beside safetensors, single or with an index."""
    config = _read_json(root / "config.json", needed=True)
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
        generation_config=_read_json(root / "generation_config.json"),
    )


def _shards(index: Path) -> tuple[Path, ...]:
    """The files that an index names; all lie beside it."""
    weight_map = _read_json(index, needed=True).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelError(f"{index} has no weight_map")
    for shard in weight_map.values():
        if not isinstance(shard, str) or Path(shard).name != shard:
            raise ModelError(f"{index} names {shard!r}, which is no file beside it")
    return tuple(index.parent / shard for shard in sorted(set(weight_map.values())))


def open_gguf(path: Path) -> ModelFiles:
    """A GGUF file; its metadata is translated to the vocabulary of config.json."""
    metadata = read_metadata(path)
    factors = metadata.tensors.get(ROPE_FACTORS)
    config = translate(
        metadata.values, frozenset(metadata.tensors), None if factors is None else read_floats(path, factors)
    )
    return ModelFiles(name=path.stem, root=path.parent, format="gguf", config=config, weights=(path,))


def _read_json(path: Path, *, needed: bool = False) -> dict[str, Any]:
    if not path.is_file():
        if needed:
            raise ModelError(f"{path.parent} has no {path.name}, so it is no model folder")
        return {}
    check_size(path)
    try:
        values = json.loads(path.read_text())
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error}") from error
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path} is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise ModelError(f"{path} holds no JSON object")
    return values


def _silent(stage: str, fraction: float) -> None:
    """Nobody asked to see progress."""
