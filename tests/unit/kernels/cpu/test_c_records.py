"""Records are declared in Python alone: C++ gets them as a header, and its compiler checks their offsets."""

# Without future annotations: those of records are read as types.

import ctypes
import shutil
import subprocess
from enum import IntEnum
from pathlib import Path
from typing import Annotated, Any

import pytest

from plimsoll_kernels.cpu import compile as compiling
from plimsoll_kernels.cpu.c_records import (
    CRecord,
    Float,
    Floats,
    Int,
    Long,
    address,
    c_record,
    function,
    header,
    pointer,
    union,
)
from plimsoll_kernels.cpu.op_records import AddRecord, AnyOp, HeadsRecord, PositionsRecord
from plimsoll_kernels.cpu.records import OPS, OpRecord, Timed, interface


class Colour(IntEnum):
    """An enum."""

    RED = 0
    BLUE = 3


@c_record
class PointRecord(CRecord):
    """A record in others."""

    x: Float
    name: Annotated[int | None, address("const char")] = None


@c_record
class DrawingRecord(CRecord):
    """Every kind of field."""

    _anonymous_ = ("shape",)
    first: PointRecord
    colour: Colour
    count: Long
    points: Annotated[Any, pointer(PointRecord)] = None
    shape: Annotated[Any, union({"point": PointRecord, "add": AddRecord})] = None
    weights: Floats = None
    move: Annotated[Any, function(Int, Annotated[Any, pointer(PointRecord)], Float)] = None


def checked(text: str, folder: Path) -> str:
    """Return the compiler's output for a header."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    path = folder / "records.cpp"
    path.write_text(text.replace("#pragma once", ""))
    command = [compiler, "-std=c++20", "-fsyntax-only", str(path)]
    return subprocess.run(command, check=False, capture_output=True, text=True).stderr


def test_the_compiler_has_each_field_where_python_has_it(tmp_path: Path) -> None:
    text = header({"LARGEST": 7}, DrawingRecord)
    use = """
int32_t move(const PlimsollPoint *point, float by) { return point->x + by; }
PlimsollDrawing drawing{{1, "a"}, PLIMSOLL_COLOUR_BLUE, PLIMSOLL_LARGEST, nullptr, {}, nullptr, move};
float at() { return drawing.point.x + drawing.add.scale + drawing.points->x + *drawing.weights; }
"""
    assert checked(text + use, tmp_path) == ""
    offset = DrawingRecord.count.offset  # type: ignore[attr-defined]
    moved = text.replace(f"count) == {offset}", f"count) == {offset + 8}")
    assert moved != text
    assert "static assertion failed" in checked(moved, tmp_path)


def test_a_record_has_the_values_that_it_is_given_and_zeros() -> None:
    drawing = DrawingRecord(first=PointRecord(x=1.5), colour=Colour.BLUE, count=2**40)
    assert (drawing.first.x, drawing.first.name, drawing.colour, drawing.count) == (1.5, None, 3, 2**40)
    assert drawing.weights is None


def test_the_interface_has_all_ops_and_compiles(tmp_path: Path) -> None:
    assert "gated_norm" in OPS
    assert set(OPS.values()) == set(AnyOp.__subclasses__())
    assert checked(interface(), tmp_path) == ""


def test_an_op_is_copied_into_the_union() -> None:
    found = OpRecord.of(AddRecord(source=1, added=2, target=3, width=4, scale=0.5), Timed.DOWN)
    assert ([*OPS][found.kind], found.timed) == ("add", Timed.DOWN)
    assert (found.add.added, found.add.scale) == (2, 0.5)
    assert ctypes.sizeof(OpRecord) == 8 + ctypes.sizeof(HeadsRecord)


def test_a_library_of_other_records_has_another_name(monkeypatch: pytest.MonkeyPatch) -> None:
    path = compiling.library_path()
    monkeypatch.setattr(compiling, "interface", lambda: interface() + "// another")
    assert compiling.library_path() != path


def test_a_field_that_an_op_lacks_or_needs_is_named() -> None:
    with pytest.raises(TypeError, match="PositionsRecord has no frist: it has table, target, width, first"):
        PositionsRecord(table=None, target=0, width=1, frist=0)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="PositionsRecord needs width"):
        PositionsRecord(table=None, target=0, first=0)  # type: ignore[call-arg]


def test_an_op_that_is_declared_elsewhere_is_refused() -> None:
    record = c_record(type("LateRecord", (CRecord,), {"__annotations__": {}}))
    with pytest.raises(TypeError, match=r"LateRecord is not in OPS; records\.py must import its module"):
        OpRecord.of(record(), Timed.NORM)


def test_a_compiler_s_errors_come_first(tmp_path: Path) -> None:
    notes = "".join(f"note: candidate {number}\n" for number in range(1000))
    (tmp_path / "says").write_text(f"{notes}a.h:1:1: error: no matching function\n")
    with pytest.raises(
        compiling.CompileError, match=r"failed with exit code 1:\na\.h:1:1: error: no matching function"
    ):
        compiling._call(["sh", "-c", f"cat {tmp_path / 'says'} >&2; exit 1"])
