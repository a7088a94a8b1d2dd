"""What an image says of itself: whose weights it holds, for which kernels, and where each of them lies.

An image begins with a root of 64 bytes: a mark, where the header lies, its length, and its digest. The root is written
last, once all weights are in their places: an image without one was never filled to its end. The header (msgpack)
follows the weights.
"""

from __future__ import annotations

import hashlib
import struct

import msgspec

from plimsoll_runtime.errors import ModelError

VERSION = 1
_ROOT = struct.Struct("<16sQQ32s")
ROOT_BYTES = _ROOT.size
_MARK = b"plimsoll image\0\0"


class FileStamp(msgspec.Struct, frozen=True, array_like=True):
    """A file as it was when it was read."""

    path: str
    size: int
    changed_ns: int


class PlacedTensor(msgspec.Struct, frozen=True, array_like=True):
    """Where a tensor lies in the image, in bytes; its dtype by torch's name for it ("float32")."""

    offset: int
    shape: tuple[int, ...]
    dtype: str


class ImageFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the weights are, and what reads them as they lie.

    `config` is the model's config.json, of which its program is made, `config_digest` its SHA-256. `instructions` and
    `library` are those of the CPU kernels that the weights are packed for, None where they lie as plain tensors.
    `backends` are attention's, the one to use first. `code` is the version of plimsoll that made it.
    """

    model: str
    revision: str | None
    files: list[FileStamp]
    config: bytes
    config_digest: str
    dtype: str
    device: str
    instructions: str | None
    library: str | None
    backends: list[str]
    eos_token_ids: list[int]
    code: str


class ImageHeader(msgspec.Struct, frozen=True, kw_only=True):
    """`nbytes` is the whole image's size; `places` are in the order in which a decoder asks for them."""

    version: int
    facts: ImageFacts
    nbytes: int
    places: list[PlacedTensor]


def encode(header: ImageHeader, offset: int) -> tuple[bytes, bytes]:
    """The root, and the header that it points to."""
    body = msgspec.msgpack.encode(header)
    return _ROOT.pack(_MARK, offset, len(body), hashlib.sha256(body).digest()), body


def locate(root: bytes) -> tuple[int, int, bytes] | None:
    """Where the header lies, its length and digest; None for an image that was not filled. Raises ModelError."""
    if not any(root):
        return None
    mark, offset, length, digest = _ROOT.unpack(root) if len(root) == ROOT_BYTES else (b"", 0, 0, b"")
    if mark != _MARK:
        raise ModelError("this memory is no image of a model's weights")
    return offset, length, digest


def decode(body: bytes, digest: bytes) -> ImageHeader:
    """Raises ModelError for a header that is damaged or of another version."""
    if hashlib.sha256(body).digest() != digest:
        raise ModelError("the image's header is damaged; load the model again")
    try:
        version = msgspec.msgpack.decode(body, type=_Version).version
        if version != VERSION:
            raise ModelError(f"the image is of version {version}, and this is version {VERSION}; load the model again")
        return msgspec.msgpack.decode(body, type=ImageHeader)
    except msgspec.DecodeError as error:
        raise ModelError(f"the image's header cannot be read ({error}); load the model again") from error


class _Version(msgspec.Struct):
    version: int
