"""Weight images fit their headers or are rejected; they outlive their maker and stay unchanged."""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Iterator

import msgspec
import pytest
from model_support.images import FACTS

from plimsoll_runtime.errors import MemoryLimitError, ModelError
from plimsoll_runtime.weights.image import ROOT_BYTES, VERSION, Image, ImageHeader, PlacedTensor, encode

HEADER = ImageHeader(version=VERSION, facts=FACTS, nbytes=8192, places=[PlacedTensor(64, (3, 5), "float32")])


@pytest.fixture
def image() -> Iterator[Image]:
    made = Image.create(8192, "team/model")
    yield made
    made.close()


def write(image: Image, root: bytes, body: bytes) -> None:
    os.pwrite(image.descriptor, body, 4096)
    os.pwrite(image.descriptor, root, 0)


def test_what_was_written_is_read(image: Image) -> None:
    write(image, *encode(HEADER, 4096))
    assert image.header() == HEADER


def test_one_that_was_not_filled_to_its_end_has_no_header(image: Image) -> None:
    assert image.header() is None
    _, body = encode(HEADER, 4096)
    os.pwrite(image.descriptor, body, 4096)
    assert image.header() is None, "the root comes last"


def test_memory_is_taken_when_it_is_filled_and_given_back_at_the_end() -> None:
    image = Image.create(100 * 2**20, "m")
    assert (image.size, image.nbytes) == (100 * 2**20, 0)
    os.pwrite(image.descriptor, bytes(8192), 2**20)
    assert image.nbytes == 8192
    descriptor = image.descriptor
    image.close()
    image.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


@pytest.mark.parametrize("at", [0, 20, 40, 4096, 4200])
def test_a_damaged_one_is_refused(image: Image, at: int) -> None:
    root, body = encode(HEADER, 4096)
    write(image, root, body)
    [byte] = os.pread(image.descriptor, 1, at)
    os.pwrite(image.descriptor, bytes([byte ^ 1]), at)
    with pytest.raises(ModelError, match=r"damaged; load the model again|is not a weight image"):
        image.header()


def test_one_of_another_version_is_refused_by_name(image: Image) -> None:
    write(image, *encode(msgspec.structs.replace(HEADER, version=VERSION + 1), 4096))
    with pytest.raises(
        ModelError, match=f"version {VERSION + 1}, and this plimsoll reads version {VERSION}; load the model again"
    ):
        image.header()


def test_memory_that_is_something_else_is_refused(image: Image) -> None:
    os.pwrite(image.descriptor, b"x" * ROOT_BYTES, 0)
    with pytest.raises(ModelError, match="is not a weight image"):
        image.header()


@pytest.mark.parametrize("read_only", [True, False])
def test_a_sealed_one_keeps_its_size_and_if_so_its_contents(image: Image, read_only: bool) -> None:
    write(image, *encode(HEADER, 4096))
    image.seal(6000, read_only=read_only)
    assert image.size == 6000
    for size in (5000, 7000):
        with pytest.raises(PermissionError):
            os.ftruncate(image.descriptor, size)
    mmap.mmap(image.descriptor, 6000, prot=mmap.PROT_READ).close()
    if read_only:
        with pytest.raises(PermissionError):
            mmap.mmap(image.descriptor, 6000)
        with pytest.raises(PermissionError):
            os.pwrite(image.descriptor, b"x", 100)
    else:
        mmap.mmap(image.descriptor, 6000).close()
    assert image.header() == HEADER


def test_a_name_of_any_kind_will_do() -> None:
    for name in ("", "ü" * 300, "a\0b", "\ud800"):
        Image.create(10, name).close()


def test_what_the_system_does_not_give_is_refused_with_the_number(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(descriptor: int, size: int) -> None:
        opened.append(descriptor)
        raise OSError(errno.ENOSPC, "No space left on device")

    opened: list[int] = []
    monkeypatch.setattr(os, "ftruncate", fail)
    with pytest.raises(MemoryLimitError, match=r"cannot allocate 99 bytes for the weights of m: .*No space left"):
        Image.create(99, "m")
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(opened[0])
