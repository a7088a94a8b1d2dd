"""The weight image: a memfd with a model's weights and a header, which outlives the process that filled it."""

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
    """Path, size and modification time of a file when it was read."""

    path: str
    size: int
    changed_ns: int


class PlacedTensor(msgspec.Struct, frozen=True, array_like=True):
    """Position of a tensor in the image: byte offset, shape, and dtype by torch's name ("float32")."""

    offset: int
    shape: tuple[int, ...]
    dtype: str


class ImageFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Describes the weights of an image and the code and kernels that can read them.

    - `config` is the model's config.json, from which its program is made; `config_digest` is its SHA-256.
    - `instructions` and `library` identify the CPU kernels that the weights are packed for. Both are None for plain
      tensors.
    - `backends` are the attention backends in order of preference.
    - `code` is the version of plimsoll that made the image.
    - `rank` and `ranks`: the rank of a parallel group whose part of the weights it has.
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
    rank: int = 0
    ranks: int = 1


class ImageHeader(msgspec.Struct, frozen=True, kw_only=True):
    """Header of an image. `nbytes` is the size of the whole image; `places` are in the order in which a decoder takes
    them.

    An image begins with a root of 64 bytes: a magic string, and the offset, length and digest of the header. The root
    is written last, when all weights are in place, so an image without a root is incomplete. The header (msgpack)
    follows the weights.
    """

    version: int
    facts: ImageFacts
    nbytes: int
    places: list[PlacedTensor]


def encode(header: ImageHeader, offset: int) -> tuple[bytes, bytes]:
    """Return the root and the encoded header, which will be stored at `offset`."""
    body = msgspec.msgpack.encode(header)
    return _ROOT.pack(_MARK, offset, len(body), hashlib.sha256(body).digest()), body


def locate(root: bytes) -> tuple[int, int, bytes] | None:
    """Return the header's offset, length and digest from a root; None if the image is incomplete.

    Raises ModelError if the bytes are not the root of an image.
    """
    if not any(root):
        return None
    mark, offset, length, digest = _ROOT.unpack(root) if len(root) == ROOT_BYTES else (b"", 0, 0, b"")
    if mark != _MARK:
        raise ModelError("this memory is not a weight image")
    return offset, length, digest


def decode(body: bytes, digest: bytes) -> ImageHeader:
    """Decode a header. Raises ModelError if it is damaged or of another version."""
    if hashlib.sha256(body).digest() != digest:
        raise ModelError("the image's header is damaged; load the model again")
    try:
        version = msgspec.msgpack.decode(body, type=_Version).version
        if version != VERSION:
            raise ModelError(
                f"the image has format version {version}, and this plimsoll reads version {VERSION}; load the model "
                "again"
            )
        return msgspec.msgpack.decode(body, type=ImageHeader)
    except msgspec.DecodeError as error:
        raise ModelError(f"the image's header cannot be read ({error}); load the model again") from error


class _Version(msgspec.Struct):
    version: int


F_SEAL_FUTURE_WRITE = 0x10
"""Seal that forbids new writable mappings (Linux 5.1)."""
LONGEST_NAME = 200
SECTOR = 512


class Image:
    """Owner of a memfd with the weights of a model, in the layout that its decoder reads."""

    def __init__(self, descriptor: int) -> None:
        """Take ownership of a descriptor from `create` or from another process."""
        self._descriptor = descriptor
        self._complete = False

    @classmethod
    def create(cls, size: int, name: str) -> Image:
        """Create an empty image of at most `size` bytes. The kernel allocates its pages when they are first written.

        `name` is the label in /proc. Raises MemoryLimitError if the system refuses the memory.
        """
        short = name.encode(errors="replace")[:LONGEST_NAME].replace(b"\0", b"?")
        try:
            image = cls(os.memfd_create(f"plimsoll:{short.decode(errors='replace')}", _FLAGS))
        except OSError as error:
            raise MemoryLimitError(f"cannot allocate memory for the weights of {name}: {error}") from error
        try:
            os.ftruncate(image.descriptor, size)
        except OSError as error:
            image.close()
            raise MemoryLimitError(f"cannot allocate {size} bytes for the weights of {name}: {error}") from error
        return image

    @property
    def descriptor(self) -> int:
        """The file descriptor of the memfd."""
        return self._descriptor

    @property
    def size(self) -> int:
        """Length in bytes, including pages that are not allocated yet."""
        return os.fstat(self._descriptor).st_size

    @property
    def nbytes(self) -> int:
        """Bytes of allocated memory."""
        return os.fstat(self._descriptor).st_blocks * SECTOR

    @property
    def complete(self) -> bool:
        """Whether it has been filled completely. Raises ModelError if it is damaged."""
        self._complete = self._complete or self.header() is not None
        return self._complete

    def header(self) -> ImageHeader | None:
        """Return the header, or None if the image is incomplete. Raises ModelError if the header is damaged."""
        found = locate(os.pread(self._descriptor, ROOT_BYTES, 0))
        if found is None:
            return None
        offset, length, digest = found
        return decode(os.pread(self._descriptor, length, offset), digest)

    def resize(self, size: int) -> None:
        """Empty an image that is not complete, and set the size that it may have at most. Raises MemoryLimitError."""
        try:
            os.ftruncate(self._descriptor, 0)
            os.ftruncate(self._descriptor, size)
        except OSError as error:
            raise MemoryLimitError(f"cannot allocate {size} bytes for weights: {error}") from error

    def seal(self, size: int, *, read_only: bool) -> None:
        """Truncate the image to `size` and forbid resizing; with `read_only` also forbid new writable mappings."""
        os.ftruncate(self._descriptor, size)
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | (F_SEAL_FUTURE_WRITE if read_only else 0)
        fcntl.fcntl(self._descriptor, fcntl.F_ADD_SEALS, seals)

    def close(self) -> None:
        """Close the descriptor; the kernel frees the memory when no other process has it open or mapped. Idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


_FLAGS = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
