"""Records of the library and of Python are compared before the first is handed over."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import pytest

from plimsoll_kernels.cpu.compile import CompileError, is_whole, library_path
from plimsoll_kernels.cpu.layout import FieldRecord, check_layout, expected
from plimsoll_kernels.cpu.op_records import HeadsRecord, OpRecord


class FakeLibrary:
    """One whose table is what Python expects, changed a little."""

    def __init__(self, change: Callable[[dict[str, tuple[int, int]]], object]) -> None:
        layout = expected()
        change(layout)
        rows = [FieldRecord(None, name.encode(), *where) for name, where in layout.items()]
        self._table = (FieldRecord * (len(rows) + 1))(*rows)

    @property
    def plimsoll_layout(self) -> Any:
        """A function of the library's, to ctypes."""
        table = ctypes.cast(self._table, ctypes.POINTER(FieldRecord))

        def layout() -> Any:
            return table

        return layout


def test_the_library_has_every_record_as_python_has_it() -> None:
    if not is_whole(library_path()):
        pytest.skip("the kernels were not built")
    check_layout(ctypes.CDLL(str(library_path())))


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda t: t.update({"PlimsollStep.slots": (8, 8)}), "PlimsollStep.slots at 8 with 8 bytes"),
        (lambda t: t.update({"PlimsollOp": (0, 8)}), "PlimsollOp at 0 with 8 bytes"),
        (lambda t: t.update({"PLIMSOLL_INTO_SUM": (7, 0)}), "PLIMSOLL_INTO_SUM as 7 and this version expects it as 1"),
        (lambda t: t.pop("PlimsollHeads.rope"), "PlimsollHeads.rope nowhere"),
        (lambda t: t.update({"PlimsollHeads.more": (8, 4)}), "PlimsollHeads.more at 8 .* expects it nowhere"),
    ],
    ids=["moved", "size", "constant", "missing", "unknown"],
)
def test_what_differs_is_named(change: Callable[[dict[str, tuple[int, int]]], object], what: str) -> None:
    library: Any = FakeLibrary(change)
    with pytest.raises(CompileError, match=f"{what}.*delete the library, then python -m plimsoll_kernels.cpu.compile"):
        check_layout(library)


def test_fields_of_a_union_are_those_of_the_record_around_it() -> None:
    layout = expected()
    assert layout["PlimsollOp.heads"] == (8, ctypes.sizeof(HeadsRecord))
    assert layout["PlimsollOp.embed"][0] == layout["PlimsollOp.attend"][0] == 8
    assert layout["PlimsollOp"] == (0, ctypes.sizeof(OpRecord))
