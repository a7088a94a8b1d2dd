"""Places of weights in an image: an empty one that a load fills, a filled one to wake from, and one to compute the
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
    """`size` bytes of a descriptor from its first on, at `address`, until this object is gone.

    Shared memory has no huge pages unless it is mounted so. What is at a multiple of 2 MiB can be put together
    afterwards (MADV_COLLAPSE, Linux 6.1); mapped at such an address, it is read as fast as private memory.
    """

    def __init__(self, descriptor: int, size: int, *, writable: bool) -> None:
        """Raises OSError where the kernel maps nothing."""
        # A reservation large enough to hold an aligned address; what is around the pages stays reserved with them.
        reserved = size + HUGE_PAGE
        start = _map(None, reserved, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1)
        weakref.finalize(self, _libc.munmap, start, reserved).atexit = False
        self.size = size
        self.address = -(-start // HUGE_PAGE) * HUGE_PAGE
        rights = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        _map(self.address, size, rights, mmap.MAP_SHARED | _MAP_FIXED, descriptor)

    def buffer(self) -> ctypes.Array[ctypes.c_char]:
        """Its bytes; whoever holds them holds the mapping."""
        found = (ctypes.c_char * self.size).from_address(self.address)
        weakref.finalize(found, _let_go, self).atexit = False
        return found

    def collapse(self, size: int) -> bool:
        """Put the first `size` bytes, as far as they are whole huge pages, on huge pages; whether that could be."""
        whole = size // HUGE_PAGE * HUGE_PAGE
        if whole and _libc.madvise(self.address, whole, MADV_COLLAPSE):
            reason = os.strerror(ctypes.get_errno())
            logger.debug("%d bytes of weights lie on pages of 4 KiB, not of 2 MiB: %s", whole, reason)
            return False
        return True

    def protect(self) -> None:
        """Let nothing be written from now on. Raises OSError."""
        if _libc.mprotect(self.address, self.size, mmap.PROT_READ):
            raise _error("the weights cannot be made read-only")


def _map(address: int | None, size: int, rights: int, flags: int, descriptor: int) -> int:
    found = _libc.mmap(address, size, rights, flags, descriptor, 0)
    if found == _FAILED or found is None:
        raise _error(f"{size} bytes cannot be mapped")
    return int(found)


def _let_go(mapping: MappedImage) -> None:
    """Nothing is to be done: that the finalizer held the mapping until now was its purpose."""


def _error(what: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{what}: {os.strerror(number)}")


@dataclass(frozen=True, slots=True)
class Hollow:
    """The scheme of a tensor without numbers (see weights.stored_tensor)."""

    def converted(self, parts: Parts, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """See `hollow`."""
        return hollow(shape, dtype)

    def rows(self, parts: Parts, first: int, last: int) -> Parts:
        """See Scheme."""
        return parts

    def columns(self, parts: Parts, first: int, last: int) -> Parts:
        """See Scheme."""
        return parts


class ShapesOnly:
    """See TensorSource: hollow tensors, of which a decoder whose places are filled looks at shapes only."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self.shapes = shapes

    def stored(self, name: str) -> StoredTensor:
        """See TensorSource."""
        return StoredTensor(Hollow(), self.shapes[name], {})


def hollow(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """A tensor of this shape in the memory of one element.

    (Torch's "meta" tensors would be the thing, but to compute with the first of them it imports for two seconds.)
    """
    return torch.zeros((), dtype=dtype).expand(tuple(shape))


class FillingArena:
    """An empty image's places, which a load fills: see kernels' Places.

    Loading and waking make the same decoder, so they take the same places; that is checked for each of them.
    """

    copies = True

    def __init__(self, image: Image) -> None:
        self._image = image
        self.mapping = MappedImage(image.descriptor, image.size, writable=True)
        self._bytes = torch.frombuffer(self.mapping.buffer(), dtype=torch.uint8)
        self._end = ROOT_BYTES
        self._placed: list[PlacedTensor] = []

    def place(self, shape: Sequence[int], dtype: torch.dtype, fill: Fill) -> Tensor:
        """See Places. Raises MemoryLimitError where the image is too small."""
        found = PlacedTensor(self._end, tuple(shape), dtype_name(dtype))
        end = found.offset + prod(shape) * dtype.itemsize
        self._check_room(end)
        self._placed.append(found)
        self._end = aligned(end)
        placed = view(self._bytes, found, dtype)
        fill(placed)
        return placed

    def keep(self, tensor: Tensor) -> Tensor:
        """See Places."""
        return self.place(tensor.shape, tensor.dtype, lambda to: to.copy_(tensor))

    def finish(self, facts: ImageFacts) -> ImageHeader:
        """Say what the image holds, and let nobody change it. With plain tensors a GPU may still pin its pages."""
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
        """A header says how long the image is with the header: the length of that number is not known before."""
        nbytes = self._end
        while True:
            header = ImageHeader(version=VERSION, facts=facts, nbytes=nbytes, places=self._placed)
            root, body = encode(header, self._end)
            if nbytes == self._end + len(body):
                return header, root, body
            nbytes = self._end + len(body)

    def _check_room(self, end: int) -> None:
        if end > self._image.size:
            raise MemoryLimitError(f"the weights need {end} bytes, and their image has {self._image.size}")


class FilledArena:
    """The places of an image from which a model wakes: nothing is written. See kernels' Places."""

    copies = True

    def __init__(self, image: Image, header: ImageHeader) -> None:
        """Raises ModelError for an image that is not as long as it says."""
        if header.nbytes != image.size:
            raise ModelError(f"the image should have {header.nbytes} bytes and has {image.size}; load the model again")
        writable = header.facts.device != "cpu"
        self.mapping = MappedImage(image.descriptor, image.size, writable=writable)
        self.memory = torch.frombuffer(self.mapping.buffer(), dtype=torch.uint8)
        self._header = header
        self._taken = 0

    def place(self, shape: Sequence[int], dtype: torch.dtype, fill: Fill) -> Tensor:
        """See Places. Raises ModelError where the image has something else in its next place."""
        places = self._header.places
        if self._taken == len(places):
            raise ModelError(f"the image has {len(places)} tensors, and the decoder wants more; load the model again")
        found = places[self._taken]
        wanted = (tuple(shape), dtype_name(dtype))
        if (found.shape, found.dtype) != wanted:
            raise ModelError(
                f"tensor {self._taken} of the image is {found.dtype} {list(found.shape)}, and the decoder wants "
                f"{wanted[1]} {list(shape)}; load the model again"
            )
        self._taken += 1
        return view(self.memory, found, dtype)

    def keep(self, tensor: Tensor) -> Tensor:
        """See Places."""
        return self.place(tensor.shape, tensor.dtype, _nothing)

    def finish(self) -> None:
        """Raises ModelError where the decoder has left places untaken."""
        left = len(self._header.places) - self._taken
        if left:
            raise ModelError(f"the image has {left} tensors that the decoder does not want; load the model again")


class CountingArena:
    """Places of an image that is only imagined, to know its size: hollow tensors."""

    copies = True

    def __init__(self) -> None:
        self.end = ROOT_BYTES
        self.count = 0

    def place(self, shape: Sequence[int], dtype: torch.dtype, fill: Fill) -> Tensor:
        """See Places; nothing is filled."""
        self.end = aligned(self.end + prod(shape) * dtype.itemsize)
        self.count += 1
        return hollow(shape, dtype)

    def keep(self, tensor: Tensor) -> Tensor:
        """See Places."""
        return self.place(tensor.shape, tensor.dtype, _nothing)


def view(memory: Tensor, place: PlacedTensor, dtype: torch.dtype) -> Tensor:
    """The tensor at a place of an image's bytes."""
    size = prod(place.shape) * dtype.itemsize
    return memory[place.offset : place.offset + size].view(dtype).view(place.shape)


def aligned(offset: int) -> int:
    """Where the next place may begin."""
    return -(-offset // ALIGNMENT) * ALIGNMENT


def _nothing(to: Tensor) -> None:
    """It is filled already."""
