"""The image of a model's weights: a memfd that outlives the process that filled it, and its header."""

from __future__ import annotations

import fcntl
import hashlib
import os
import struct

import msgspec

from plimsoll_runtime.errors import MemoryLimitError, ModelError

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
    """`nbytes` is the whole image's size; `places` are in the order in which a decoder asks for them.

    An image begins with a root of 64 bytes: a mark, the place of the header, its length and its digest. The root is
    written last, once all weights are in their places: an image without one was never filled completely. The header
    (msgpack) follows the weights.
    """

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


F_SEAL_FUTURE_WRITE = 0x10
"""No new mapping may be written to (Linux 5.1)."""
LONGEST_NAME = 200
SECTOR = 512


class Image:
    """A model's weights as its decoder reads them. Processes that fill it or wake from it come and go."""

    def __init__(self, descriptor: int) -> None:
        """Own a descriptor, of `create` or from another process."""
        self._descriptor = descriptor
        self._complete = False

    @classmethod
    def create(cls, size: int, name: str) -> Image:
        """An empty one of at most `size` bytes, whose pages are taken as they are filled; `name` is for people.

        Raises MemoryLimitError where the system gives none.
        """
        short = name.encode(errors="replace")[:LONGEST_NAME].replace(b"\0", b"?")
        try:
            image = cls(os.memfd_create(f"plimsoll:{short.decode(errors='replace')}", _FLAGS))
        except OSError as error:
            raise MemoryLimitError(f"no memory for the weights of {name} can be had: {error}") from error
        try:
            os.ftruncate(image.descriptor, size)
        except OSError as error:
            image.close()
            raise MemoryLimitError(f"{size} bytes for the weights of {name} cannot be had: {error}") from error
        return image

    @property
    def descriptor(self) -> int:
        """The memfd."""
        return self._descriptor

    @property
    def size(self) -> int:
        """Bytes from its first to its last, taken or not."""
        return os.fstat(self._descriptor).st_size

    @property
    def nbytes(self) -> int:
        """Bytes of memory that it takes now."""
        return os.fstat(self._descriptor).st_blocks * SECTOR

    @property
    def complete(self) -> bool:
        """Whether it has been filled completely. Raises ModelError if it is damaged."""
        self._complete = self._complete or self.header() is not None
        return self._complete

    def header(self) -> ImageHeader | None:
        """What it holds; None for one that nobody has filled to its end. Raises ModelError for one that is damaged."""
        found = locate(os.pread(self._descriptor, ROOT_BYTES, 0))
        if found is None:
            return None
        offset, length, digest = found
        return decode(os.pread(self._descriptor, length, offset), digest)

    def seal(self, size: int, *, read_only: bool) -> None:
        """Cut what is behind `size`, and let nobody change its size again; with `read_only` nor what is in it."""
        os.ftruncate(self._descriptor, size)
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | (F_SEAL_FUTURE_WRITE if read_only else 0)
        fcntl.fcntl(self._descriptor, fcntl.F_ADD_SEALS, seals)

    def close(self) -> None:
        """Give the descriptor back: the memory is free once nobody else has it or maps it. May be called again."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


_FLAGS = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
