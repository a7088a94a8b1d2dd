"""Fetches a hub model without its weights: of each weight file only the header is downloaded.

The rest of the file is a hole of the right size, so code that reads headers works as with the complete files.
"""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from plimsoll_runtime.errors import FetchError, ModelError
from plimsoll_runtime.weights.files import INDEX, choose_gguf
from plimsoll_runtime.weights.gguf.metadata import MAX_BYTES, read_metadata
from plimsoll_runtime.weights.sources.hub import DENSE_WEIGHTS, Access, errors_of, fetch_snapshot, hub_name, modules_in
from plimsoll_runtime.weights.sources.resolve import SAID, open_folder

if TYPE_CHECKING:
    from huggingface_hub import HfApi

FIRST = 2**17
"""Bytes to fetch of a file first: 97 % of safetensors headers on the hub are shorter than 100,000 bytes."""
MOST = 2 * MAX_BYTES
"""Most bytes of a header to fetch."""
DESCRIBED = (*SAID, "generation_config.json", INDEX)
"""Files that describe a model, which are fetched completely."""


def fetch_headers(
    model_id: str, revision: str | None, access: Access | None, file: str | None, *, folder: Path
) -> Path:
    """Fetch a model into `folder` like `fetch_snapshot`, but only the headers of weights. Raises SourceError or
    ModelError.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import OfflineModeIsEnabled

    name = hub_name(model_id, revision, file)
    api = HfApi(token=None if access is None else access.token or False)
    with errors_of(name, model_id, revision, access):
        try:
            listed = api.list_repo_files(model_id, revision=revision)
        except (OSError, OfflineModeIsEnabled):
            return fetch_snapshot(model_id, revision, access, file)  # from the cache, or with its error
        if file is None and any("/" not in each and each.endswith(".safetensors") for each in listed):
            described = fetch_snapshot(model_id, revision, access, patterns=DESCRIBED)
            return _of_folder(api, model_id, revision, listed, described, folder)
        chosen = choose_gguf(name, sorted(each for each in listed if each.endswith(".gguf")), file)
        for each in chosen:
            _gguf_header(api, model_id, revision, each, folder)
        return folder / chosen[0]


def _of_folder(
    api: HfApi, model_id: str, revision: str | None, listed: Sequence[str], described: Path, folder: Path
) -> Path:
    """Fill `folder` from the snapshot `described`, which has the complete small files, and from headers of weights."""
    for each in DESCRIBED:
        if (described / each).is_file():
            shutil.copyfile(described / each, folder / each)
    for each in listed:  # so that files named by an index exist
        if "/" not in each and each.endswith(".safetensors"):
            (folder / each).touch()
    for module in modules_in(folder):
        (folder / module).mkdir(parents=True, exist_ok=True)
        if (said := described / module / "config.json").is_file():
            shutil.copyfile(said, folder / module / "config.json")
        if (weights := f"{module}/{DENSE_WEIGHTS}") in listed:
            _safetensors_header(api, model_id, revision, weights, folder)
    for path in open_folder(folder, model_id).weights:
        _safetensors_header(api, model_id, revision, path.name, folder)
    return folder


def _safetensors_header(api: HfApi, model_id: str, revision: str | None, name: str, folder: Path) -> None:
    path = folder / name
    data, size = _beginning(api, model_id, revision, name, FIRST)
    wanted = 8 + (struct.unpack("<Q", data[:8])[0] if len(data) >= 8 else 0)
    if len(data) < wanted <= min(size, MOST):
        data, size = _beginning(api, model_id, revision, name, wanted)
    path.write_bytes(data)
    os.truncate(path, size)


def _gguf_header(api: HfApi, model_id: str, revision: str | None, name: str, folder: Path) -> None:
    """Fetch a GGUF header. Its length is not stored, so fetch twice as much until the metadata can be parsed."""
    path, count = folder / name, 8 * FIRST
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        data, size = _beginning(api, model_id, revision, name, count)
        path.write_bytes(data)
        try:
            read_metadata(path)
        except ModelError:
            if len(data) >= size or count >= MOST:
                raise
        else:
            os.truncate(path, size)
            return
        count *= 2


def _beginning(api: HfApi, model_id: str, revision: str | None, name: str, count: int) -> tuple[bytes, int]:
    """Return at most `count` bytes from the start of a file, and the size of the whole file."""
    from huggingface_hub import get_session, get_token, hf_hub_url, hf_raise_for_status

    url = hf_hub_url(model_id, name, revision=revision, endpoint=api.endpoint)
    headers = {"Range": f"bytes=0-{count - 1}"}
    if token := get_token() if api.token is None else api.token:
        headers["Authorization"] = f"Bearer {token}"
    found = bytearray()
    with get_session().stream("GET", url, headers=headers) as answer:
        if answer.is_error:
            answer.read()
        hf_raise_for_status(answer)
        for piece in answer.iter_bytes():
            found += piece
            if len(found) >= count:
                break
        whole = answer.headers.get("Content-Range", "").rpartition("/")[2] or answer.headers.get("Content-Length", "")
    if not whole.isdecimal() or len(found) < min(count, int(whole)):
        raise FetchError(f"hf://{model_id}: the hub sent {len(found)} bytes of {name} (size: {whole or 'unknown'})")
    return bytes(found[:count]), int(whole)
