"""Whether the library's records lie in memory as Python believes: one wrong offset, and the kernels read anywhere."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from ctypes import POINTER, Structure, c_char_p, c_int64
from enum import IntEnum
from itertools import count

from plimsoll_kernels.cpu import columns_records, latent_records, op_records, records
from plimsoll_kernels.cpu.columns_records import MAX_KEY_DIM, MAX_STATES, MAX_TAPS
from plimsoll_kernels.cpu.compile import CompileError
from plimsoll_kernels.cpu.op_kinds import Kind
from plimsoll_kernels.cpu.op_records import (
    MAX_PLACES,
    RESULT,
    SCORE_ROWS,
    WIDEST,
    Activation,
    Into,
    Normed,
    Rule,
    Timed,
)

ENUMS: tuple[type[IntEnum], ...] = (Kind, Into, Activation, Normed, Rule, Timed)


class FieldRecord(Structure):
    """A line of the library's table (source/layout.cpp)."""

    _fields_ = (("record", c_char_p), ("name", c_char_p), ("offset", c_int64), ("size", c_int64))


Layout = dict[str, tuple[int, int]]
"""By what is described: (offset, size) of a field, (0, size) of a record, (value, 0) of a constant."""


def check_layout(library: ctypes.CDLL) -> None:
    """Raises CompileError, naming what differs."""
    library.plimsoll_layout.restype = POINTER(FieldRecord)
    theirs, ours = dict(_of_library(library.plimsoll_layout())), expected()
    for name in sorted({*theirs, *ours}):
        if theirs.get(name) != ours.get(name):
            raise CompileError(
                f"the library of CPU kernels has {name} {_where(theirs.get(name))} and this version expects it "
                f"{_where(ours.get(name))}; delete the library, then python -m plimsoll_kernels.cpu.compile"
            )


def expected() -> Layout:
    """What Python's records say."""
    numbers = {
        "RESULT": RESULT,
        "PLACES": MAX_PLACES,
        "SCORE_ROWS": SCORE_ROWS,
        "WIDEST": WIDEST,
        "TAPS": MAX_TAPS,
        "KEY_DIM": MAX_KEY_DIM,
        "STATES": MAX_STATES,
    }
    found = {f"PLIMSOLL_{name}": (number, 0) for name, number in numbers.items()}
    for enum in ENUMS:
        prefix = f"PLIMSOLL_{enum.__name__.upper()}"
        found.update({f"{prefix}_{member.name}": (member.value, 0) for member in enum})
    found["PLIMSOLL_TIMED_COUNT"] = (len(Timed), 0)
    for record in _records():
        name = f"Plimsoll{record.__name__.removesuffix('Record')}"
        found[name] = (0, ctypes.sizeof(record))
        for field in _names(record):
            descriptor = getattr(record, field)
            found[f"{name}.{field}"] = (descriptor.offset, descriptor.size)
    return found


def _records() -> Iterator[type[Structure]]:
    named = {**vars(records), **vars(op_records), **vars(columns_records), **vars(latent_records)}
    for name, value in named.items():
        if name.endswith("Record") and isinstance(value, type) and issubclass(value, Structure):
            yield value


def _names(record: type[ctypes.Structure | ctypes.Union]) -> Iterator[str]:
    """Of all fields, those of anonymous unions included."""
    anonymous = getattr(record, "_anonymous_", ())
    for name, kind, *_ in record._fields_:
        if name in anonymous:
            yield from _names(kind)  # type: ignore[arg-type]
        else:
            yield name


def _of_library(lines: ctypes._Pointer[FieldRecord]) -> Iterator[tuple[str, tuple[int, int]]]:
    for index in count():
        record, name = (line := lines[index]).record, line.name
        if record is None and name is None:
            return
        yield ".".join(part.decode() for part in (record, name) if part is not None), (line.offset, line.size)


def _where(place: tuple[int, int] | None) -> str:
    return "nowhere" if place is None else f"at {place[0]} with {place[1]} bytes" if place[1] else f"as {place[0]}"
