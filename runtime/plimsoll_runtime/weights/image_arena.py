"""Allocators that place weights in an image: `FillingArena` loads, `FilledArena` wakes, `CountingArena` computes the
size.
"""

from __future__ import annotations

import ctypes
import logging
import mmap
import os
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from plimsoll_kernels.cpu.huge_pages import ALIGNMENT, HUGE_PAGE
from plimsoll_kernels.cpu.places import Fill
from plimsoll_runtime.errors import MemoryLimitError, ModelError
from plimsoll_runtime.weights.image import ROOT_BYTES, VERSION, Image, ImageFacts, ImageHeader, PlacedTensor, encode
from plimsoll_runtime.weights.stored_tensor import Parts, StoredTensor, dtype_name

logger = logging.getLogger(__name__)

MADV_COLLAPSE = 25
_MAP_FIXED = 0x10
_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_int64]
for _name in ("munmap", "mprotect", "madvise"):
    getattr(_libc, _name).argtypes = [ctypes.c_void_p, ctypes.c_size_t, *([] if _name == "munmap" else [ctypes.c_int])]


class MappedImage:
    """A mapping of the first `size` bytes of a descriptor at `address`, unmapped when this object is collected.

    Shared memory has huge pages only with a special mount option. Pages at an address that is a multiple of 2 MiB can
    be collapsed into huge pages afterwards (MADV_COLLAPSE, Linux 6.1), and are then as fast to read as private memory.
    """

    def __init__(self, descriptor: int, size: int, *, writable: bool) -> None:
        """Map the descriptor. Raises OSError if the kernel refuses."""
        # Reserve HUGE_PAGE more bytes, so that the range contains an aligned address; the rest of it stays reserved.
        reserved = size + HUGE_PAGE
        start = _map(None, reserved, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1)
        weakref.finalize(self, _libc.munmap, start, reserved).atexit = False
        self.size = size
        self.address = -(-start // HUGE_PAGE) * HUGE_PAGE
        rights = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        _map(self.address, size, rights, mmap.MAP_SHARED | _MAP_FIXED, descriptor)

    def buffer(self) -> ctypes.Array[ctypes.c_char]:
        """Return the bytes as a ctypes array, which keeps the mapping alive."""
        found = (ctypes.c_char * self.size).from_address(self.address)
        weakref.finalize(found, _let_go, self).atexit = False
        return found

    def collapse(self, size: int) -> bool:
        """Collapse the complete huge pages among the first `size` bytes. Return False if the kernel refuses."""
        whole = size // HUGE_PAGE * HUGE_PAGE
        if whole and _libc.madvise(self.address, whole, MADV_COLLAPSE):
            reason = os.strerror(ctypes.get_errno())
            logger.debug("%d bytes of weights stay on 4 KiB pages instead of 2 MiB pages: %s", whole, reason)
            return False
        return True

    def protect(self) -> None:
        """Make the mapping read-only. Raises OSError."""
        if _libc.mprotect(self.address, self.size, mmap.PROT_READ):
            raise _error("cannot make the weights read-only")


def _map(address: int | None, size: int, rights: int, flags: int, descriptor: int) -> int:
    found = _libc.mmap(address, size, rights, flags, descriptor, 0)
    if found == _FAILED or found is None:
        raise _error(f"cannot map {size} bytes")
    return int(found)


def _let_go(mapping: MappedImage) -> None:
    """Do nothing. The finalizer exists to keep a reference to `mapping`."""


def _error(what: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{what}: {os.strerror(number)}")


@dataclass(frozen=True, slots=True)
class Hollow:
    """Scheme of a tensor that has a shape but no numbers (see `weights.stored_tensor`)."""

    def converted(self, parts: Parts, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return a tensor of this shape made by `hollow`."""
        return hollow(shape, dtype)

    def rows(self, parts: Parts, first: int, last: int) -> Parts:
        return parts

    def columns(self, parts: Parts, first: int, last: int) -> Parts:
        return parts


class ShapesOnly:
    """A TensorSource of hollow tensors, for a decoder that wakes from a filled image and needs only shapes."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self.shapes = shapes

    def stored(self, name: str) -> StoredTensor:
        return StoredTensor(Hollow(), self.shapes[name], {})


def hollow(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Return a tensor of this shape that occupies the memory of one element.

    (Torch's "meta" tensors would fit, but the first computation with one imports modules for two seconds.)
    """
    return torch.zeros((), dtype=dtype).expand(tuple(shape))


class FillingArena:
    """Weight allocator (see kernels' Places) for an empty image that a load fills.

    Loading and waking build the same decoder, so both take the same tensors in the same order. `FilledArena` checks
    that.
    """

    copies = True

    def __init__(self, image: Image) -> None:
        self._image = image
        self.mapping = MappedImage(image.descriptor, image.size, writable=True)
        self._bytes = torch.frombuffer(self.mapping.buffer(), dtype=torch.uint8)
        self._end = ROOT_BYTES
        self._placed: list[PlacedTensor] = []

    def place(self, shape: Sequence[int], dtype: torch.dtype, fill: Fill) -> Tensor:
        """Allocate the next tensor and fill it. Raises MemoryLimitError if the image is too small."""
        found = PlacedTensor(self._end, tuple(shape), dtype_name(dtype))
        end = found.offset + prod(shape) * dtype.itemsize
        self._check_room(end)
        self._placed.append(found)
        self._end = aligned(end)
        placed = view(self._bytes, found, dtype)
        fill(placed)
        return placed

    def keep(self, tensor: Tensor) -> Tensor:
        return self.place(tensor.shape, tensor.dtype, lambda to: to.copy_(tensor))

    def finish(self, facts: ImageFacts) -> ImageHeader:
        """Write the header and seal the image. For a GPU, pages stay writable, because pinning them needs that."""
        self.mapping.collapse(self._end)
        header, root, body = self._described(facts)
        self._check_room(header.nbytes)
        self._bytes[self._end : header.nbytes] = torch.frombuffer(bytearray(body), dtype=torch.uint8)
        self._bytes[:ROOT_BYTES] = torch.frombuffer(bytearray(root), dtype=torch.uint8)
        if facts.device == "cpu":
            self.mapping.protect()
        self._image.seal(header.nbytes, read_only=facts.device == "cpu")
        return header

    def _described(self, facts: ImageFacts) -> tuple[ImageHeader, bytes, bytes]:
        """Return the header, the root and the encoded header, repeating until `nbytes` includes the header's own
        length.
        """
        nbytes = self._end
        while True:
            header = ImageHeader(version=VERSION, facts=facts, nbytes=nbytes, places=self._placed)
            root, body = encode(header, self._end)
            if nbytes == self._end + len(body):
                return header, root, body
            nbytes = self._end + len(body)

    def _check_room(self, end: int) -> None:
        if end > self._image.size:
            raise MemoryLimitError(f"the weights need {end} bytes, but their image has only {self._image.size}")


class FilledArena:
    """Weight allocator (see kernels' Places) for a filled image that a model wakes from. It writes nothing."""

    copies = True

    def __init__(self, image: Image, header: ImageHeader) -> None:
        """Map the image. Raises ModelError if its size differs from the header."""
        if header.nbytes != image.size:
            raise ModelError(
                f"the image has {image.size} bytes, but its header says {header.nbytes}; load the model again"
            )
        writable = header.facts.device != "cpu"
        self.mapping = MappedImage(image.descriptor, image.size, writable=writable)
        self.memory = torch.frombuffer(self.mapping.buffer(), dtype=torch.uint8)
        self._header = header
        self._taken = 0

    def place(self, shape: Sequence[int], dtype: torch.dtype, fill: Fill) -> Tensor:
        """Return the next tensor of the image. Raises ModelError if its shape or dtype differ from the request."""
        places = self._header.places
        if self._taken == len(places):
            raise ModelError(f"the image has {len(places)} tensors, but the decoder needs more; load the model again")
        found = places[self._taken]
        wanted = (tuple(shape), dtype_name(dtype))
        if (found.shape, found.dtype) != wanted:
            raise ModelError(
                f"tensor {self._taken} of the image is {found.dtype} {list(found.shape)}, but the decoder needs "
                f"{wanted[1]} {list(shape)}; load the model again"
            )
        self._taken += 1
        return view(self.memory, found, dtype)

    def keep(self, tensor: Tensor) -> Tensor:
        return self.place(tensor.shape, tensor.dtype, _nothing)

    def finish(self) -> None:
        """Raise ModelError if the decoder has not taken all tensors of the image."""
        left = len(self._header.places) - self._taken
        if left:
            raise ModelError(f"the image has {left} tensors that the decoder does not need; load the model again")


class CountingArena:
    """Weight allocator (see kernels' Places) that computes the size of an image and returns hollow tensors."""

    copies = True

    def __init__(self) -> None:
        self.end = ROOT_BYTES
        self.count = 0

    def place(self, shape: Sequence[int], dtype: torch.dtype, fill: Fill) -> Tensor:
        """Count the tensor and return a hollow one; `fill` is not called."""
        self.end = aligned(self.end + prod(shape) * dtype.itemsize)
        self.count += 1
        return hollow(shape, dtype)

    def keep(self, tensor: Tensor) -> Tensor:
        return self.place(tensor.shape, tensor.dtype, _nothing)


def view(memory: Tensor, place: PlacedTensor, dtype: torch.dtype) -> Tensor:
    """Return the tensor at a position of an image's bytes."""
    size = prod(place.shape) * dtype.itemsize
    return memory[place.offset : place.offset + size].view(dtype).view(place.shape)


def aligned(offset: int) -> int:
    """Round an offset up to the alignment of tensors."""
    return -(-offset // ALIGNMENT) * ALIGNMENT


def _nothing(to: Tensor) -> None: ...
