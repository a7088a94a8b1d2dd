"""Safetensors files are read exactly, and rejected by name if header and bytes disagree."""

from __future__ import annotations

import contextlib
import json
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from plimsoll_runtime.errors import ModelError, PlimsollError, SourceError
from plimsoll_runtime.weights.safetensors import FLOATS, OTHERS, SafetensorsFiles

Header = dict[str, Any]
TWO_BY_THREE = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}


def write(path: Path, header: Any, data: bytes = bytes(24), *, length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return path


@pytest.mark.parametrize("stored", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_every_float_type_is_read(tmp_path: Path, stored: torch.dtype) -> None:
    wanted = torch.arange(-4, 4).view(2, 4).to(stored)
    path = tmp_path / "model.safetensors"
    save_file({"a": wanted, "scalar": torch.tensor(2.5).to(stored)}, path, metadata={"format": "pt"})
    files = SafetensorsFiles([path])
    assert files.shapes == {"a": (2, 4), "scalar": ()}
    read = files.stored("a").converted(torch.float32)
    assert read.dtype is torch.float32
    assert torch.equal(read, wanted.float())
    assert float(files.stored("scalar").converted(torch.bfloat16)) == 2.5


def test_what_is_kept_is_no_view_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"a": torch.ones(4096)}, path)
    kept = SafetensorsFiles([path]).stored("a").converted(torch.float32, keep=True)
    with path.open("r+b") as file:
        file.seek(-4 * 4096, 2)
        file.write(bytes(4 * 4096))
    assert torch.equal(kept, torch.ones(4096))


def test_shards_are_one_source(tmp_path: Path) -> None:
    for name in ("a", "b"):
        save_file({name: torch.full((2,), float(ord(name)))}, tmp_path / f"{name}.safetensors")
    files = SafetensorsFiles([tmp_path / "a.safetensors", tmp_path / "b.safetensors"])
    assert set(files.shapes) == {"a", "b"}
    assert files.stored("b").converted(torch.float32).tolist() == [98.0, 98.0]


def test_a_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    for name in ("one", "two"):
        save_file({"a": torch.zeros(2)}, tmp_path / f"{name}.safetensors")
    with pytest.raises(ModelError, match=r"a is in both one\.safetensors and two\.safetensors"):
        SafetensorsFiles([tmp_path / "one.safetensors", tmp_path / "two.safetensors"])


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="gone"):
        SafetensorsFiles([tmp_path / "gone.safetensors"])


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({**TWO_BY_THREE, "data_offsets": [0, 20]}, "w has 20 bytes, but F32"),
        ({**TWO_BY_THREE, "shape": [2, 4]}, r"w has 24 bytes, but F32 \[2, 4\] needs 32"),
        ({**TWO_BY_THREE, "shape": [-2, -3]}, "entry for w is malformed"),
        ({**TWO_BY_THREE, "shape": [2.0, 3]}, "entry for w is malformed"),
        ({**TWO_BY_THREE, "shape": [True, 6]}, "entry for w is malformed"),
        ({**TWO_BY_THREE, "shape": "23"}, "entry for w is malformed"),
        ({**TWO_BY_THREE, "data_offsets": "ab"}, "entry for w is malformed"),
        ({**TWO_BY_THREE, "data_offsets": [24]}, "entry for w is malformed"),
        ({**TWO_BY_THREE, "data_offsets": [-24, 0]}, "entry for w is malformed"),
        ({**TWO_BY_THREE, "data_offsets": [8, 32]}, "truncated: w ends at byte 32 of 24"),
        ({"dtype": "F32"}, "entry for w is malformed"),
        ([], "entry for w is malformed"),
        ({**TWO_BY_THREE, "dtype": "I64", "data_offsets": [0, 48]}, "w is stored as I64; only F64, F32"),
        ({**TWO_BY_THREE, "dtype": "F8_E4M3", "data_offsets": [0, 6]}, "w is stored as F8_E4M3"),
    ],
)
def test_a_header_that_lies(tmp_path: Path, entry: Any, message: str) -> None:
    path = write(tmp_path / "model.safetensors", {"w": entry})
    with pytest.raises(ModelError, match=message):
        SafetensorsFiles([path])


def test_integers_are_for_who_reads_them_by_himself(tmp_path: Path) -> None:
    entry = {**TWO_BY_THREE, "dtype": "I64", "data_offsets": [0, 48]}
    path = write(tmp_path / "model.safetensors", {"w": entry}, bytes(48))
    assert SafetensorsFiles([path], FLOATS | OTHERS).shapes == {"w": (2, 3)}
    write(path, {"w": {**entry, "shape": [2, 4]}}, bytes(48))
    with pytest.raises(ModelError, match=r"w has 48 bytes, but I64 \[2, 4\] needs 64"):
        SafetensorsFiles([path], FLOATS | OTHERS)


@pytest.mark.parametrize(
    ("header", "length", "message"),
    [
        (b"{", None, "header is not valid JSON"),
        (b"[]", None, "header is not a JSON object"),
        (b"\xff\xfe", None, "header is not valid JSON"),
        (b"[" * 100_000, None, "header is not valid JSON"),
        (b'{"w": {}, "w": {}}', None, "header is not valid JSON: a name occurs twice"),
        (b"{}", 0, "not a safetensors file, or is truncated"),
        (b"{}", 27, "not a safetensors file, or is truncated"),
        (b"{}", 2**63, "not a safetensors file, or is truncated"),
    ],
)
def test_a_damaged_header(tmp_path: Path, header: bytes, length: int | None, message: str) -> None:
    path = write(tmp_path / "model.safetensors", header, length=length)
    with pytest.raises(ModelError, match=message):
        SafetensorsFiles([path])


def test_every_truncation_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"a": torch.ones(3, 4), "b": torch.ones(2)}, path)
    whole = path.read_bytes()
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        with pytest.raises(ModelError, match="truncated"):
            SafetensorsFiles([path])


@pytest.mark.parametrize(
    ("others", "length", "message"),
    [
        ({"b": TWO_BY_THREE}, 24, r"b begins at byte \d+, but the data before it end at byte"),
        ({"b": {"dtype": "F32", "shape": [1], "data_offsets": [28, 32]}}, 32, "b begins at byte"),
        ({}, 32, r"has \d+ bytes, but its tensors end at"),
    ],
    ids=["overlap", "hole", "rest"],
)
def test_holes_and_overlaps_are_refused(tmp_path: Path, others: Header, length: int, message: str) -> None:
    path = write(tmp_path / "model.safetensors", {"a": TWO_BY_THREE, **others}, bytes(length))
    with pytest.raises(ModelError, match=message):
        SafetensorsFiles([path])


def test_a_tensor_is_read_without_another_look_at_the_header(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"a": torch.ones(3, 4), "b": torch.arange(5.0)}, path)
    files = SafetensorsFiles([path])
    with path.open("r+b") as file:
        file.write(bytes(40))
    assert files.stored("b").converted(torch.float32).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("shift", range(4))
def test_data_may_begin_anywhere(tmp_path: Path, shift: int) -> None:
    """Most writers pad headers to eight bytes, but the format does not require it."""
    text = json.dumps({"a": TWO_BY_THREE}).encode() + b" " * shift
    path = write(tmp_path / "model.safetensors", text, torch.arange(6.0).numpy().tobytes())
    assert SafetensorsFiles([path]).stored("a").converted(torch.float32).tolist() == [[0, 1, 2], [3, 4, 5]]


def test_a_file_that_was_cut_since_is_no_crash(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"a": torch.ones(300, 40)}, path)
    files = SafetensorsFiles([path])
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(ModelError, match=r"model\.safetensors: a cannot be read"):
        files.stored("a")


def test_an_empty_tensor_has_a_shape(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"a": torch.ones(2), "b": torch.empty(0, 3)}, path)
    assert SafetensorsFiles([path]).stored("b").converted(torch.float32).shape == (0, 3)


def read_all(path: Path) -> None:
    """Check that every tensor has its shape or that a PlimsollError is raised."""
    with contextlib.suppress(PlimsollError):
        files = SafetensorsFiles([path])
        for name, shape in files.shapes.items():
            assert files.stored(name).converted(torch.float32).shape == shape


numbers = st.integers(-(2**65), 2**65) | st.integers(-2, 30)
scalars = numbers | st.none() | st.booleans() | st.floats() | st.text(max_size=4)
values = st.recursive(scalars, lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(max_size=3), v, max_size=3))
entries = values | st.fixed_dictionaries(
    {},
    optional={
        "dtype": st.sampled_from(["F32", "F16", "BF16", "F64", "I32", "X"]) | values,
        "shape": st.lists(numbers, max_size=4) | values,
        "data_offsets": st.lists(numbers, min_size=2, max_size=2) | values,
        "more": values,
    },
)
headers = st.dictionaries(st.text(max_size=4) | st.just("__metadata__"), entries, max_size=4)
one_case_a_folder = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


@given(header=headers, data=st.binary(max_size=40))
@one_case_a_folder
def test_any_header(tmp_path: Path, header: Header, data: bytes) -> None:
    read_all(write(tmp_path / "model.safetensors", header, data))


@given(at=st.integers(0, 200), new=st.binary(min_size=1, max_size=4))
@one_case_a_folder
def test_any_damage(tmp_path: Path, at: int, new: bytes) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"a": torch.ones(3, 4), "b": torch.ones(2)}, path)
    whole = bytearray(path.read_bytes())
    whole[at : at + len(new)] = new
    path.write_bytes(whole)
    read_all(path)
