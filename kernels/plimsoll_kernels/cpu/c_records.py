"""Records that Python and C++ share: annotated classes, from which ctypes' layout and a C header are generated."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from ctypes import CFUNCTYPE, POINTER, Structure, c_double, c_float, c_int32, c_int64, c_void_p
from enum import IntEnum
from inspect import get_annotations
from typing import Annotated, Any, ClassVar, NamedTuple, TypeVar, dataclass_transform


class CType(NamedTuple):
    """The type of a field. `declared`: its declaration in C, with `{}` for the name. `own`: the type of ctypes.

    `uses`: the records and enums that must be declared before.
    """

    declared: str
    own: Any
    uses: tuple[type, ...] = ()


class CRecord(Structure):
    """A record of C; see `c_record`."""

    c_fields: ClassVar[Sequence[tuple[str, CType]]]
    c_required: ClassVar[Sequence[str]]  # fields without a default


def address(kind: str) -> CType:
    """Return the type of a pointer to a C type, which is an integer in Python."""
    return CType(f"{kind} *{{}}", c_void_p)


def pointer(record: type[CRecord]) -> CType:
    """Return the type of a pointer to a record, or to the first record of a ctypes array."""
    return CType(f"const struct {c_name(record)} *{{}}", POINTER(record), (record,))


def function(result: Any, *arguments: Any) -> CType:
    """Return the type of a function pointer. `result` (None: void) and `arguments` are annotations as of fields."""
    given = CType("void {}", None) if result is None else c_type(result)
    taken = [c_type(each) for each in arguments]
    parameters = ", ".join(each.declared.format("").rstrip() for each in taken)
    declared = f"{given.declared.format('(*{})')}({parameters})"
    return CType(declared, CFUNCTYPE(given.own, *(each.own for each in taken)), sum((each.uses for each in taken), ()))


def union(members: Mapping[str, type[CRecord]]) -> CType:
    """Return the type of an anonymous union of records, by the names of its fields."""
    own = type("Members", (ctypes.Union,), {"_fields_": tuple(members.items())})
    fields = " ".join(f"struct {c_name(record)} {name};" for name, record in members.items())
    return CType(f"union {{{{ {fields} }}}}", own, tuple(members.values()))


Int = Annotated[int, CType("int32_t {}", c_int32)]
Long = Annotated[int, CType("int64_t {}", c_int64)]
Float = Annotated[float, CType("float {}", c_float)]
Double = Annotated[float, CType("double {}", c_double)]
Memory = Annotated[int | None, address("const void")]
Floats = Annotated[int | None, address("const float")]
Integers = Annotated[int | None, address("const int32_t")]
Longs = Annotated[int | None, address("const int64_t")]
OutMemory = Annotated[int | None, address("void")]
OutFloats = Annotated[int | None, address("float")]
OutLongs = Annotated[int | None, address("int64_t")]

Record = TypeVar("Record", bound=type[CRecord])


@dataclass_transform(kw_only_default=True)
def c_record(cls: Record) -> Record:
    """Give a record the fields of its annotations. Fields with the default 0 or None may be omitted."""
    cls.c_fields = [(name, c_type(each)) for name, each in get_annotations(cls).items()]
    cls.c_required = [name for name, _ in cls.c_fields if name not in vars(cls)]
    cls._fields_ = [(name, field.own) for name, field in cls.c_fields]
    return cls


def c_type(annotation: Any) -> CType:
    """Return the type of an annotation: a record, an enum, or a type that is annotated with a CType."""
    if not isinstance(annotation, type):
        [found] = annotation.__metadata__
        assert isinstance(found, CType)
        return found
    if issubclass(annotation, IntEnum):
        return CType("int32_t {}", c_int32, (annotation,))
    return CType(f"struct {c_name(annotation)} {{}}", annotation, (annotation,))


def c_name(kind: type) -> str:
    """Return the name of a record or an enum in C."""
    return f"Plimsoll{kind.__name__.removesuffix('Record')}"


def header(constants: Mapping[str, int], *records: type[CRecord]) -> str:
    """Return a C++ header with constants, records and all that they use. Compiling it checks Python's field offsets."""
    declared: dict[type, str] = {}
    for record in records:
        _declare(record, declared)
    numbers = [f"enum {{ PLIMSOLL_{name} = {value} }};" for name, value in constants.items()]
    return "\n".join(["#pragma once", "#include <cstddef>", "#include <cstdint>", *numbers, *declared.values(), ""])


def _declare(kind: type, declared: dict[type, str]) -> None:
    """Add the declaration of a record or an enum, after those that it uses."""
    if kind in declared:
        return
    name = c_name(kind)
    if issubclass(kind, IntEnum):
        members = ", ".join(f"PLIMSOLL_{kind.__name__.upper()}_{each.name} = {each.value}" for each in kind)
        declared[kind] = f"enum {name} {{ {members} }};\n"
        return
    assert issubclass(kind, CRecord)
    for used in (used for _, field in kind.c_fields for used in field.uses):
        _declare(used, declared)
    lines = [f"struct {name} {{", *(f"  {field.declared.format(each)};" for each, field in kind.c_fields), "};"]
    lines += [f"static_assert(sizeof({name}) == {ctypes.sizeof(kind)});"]
    for each, field in kind.c_fields:
        if "{}" in field.declared:
            lines.append(f"static_assert(offsetof({name}, {each}) == {getattr(kind, each).offset});")
    declared[kind] = "\n".join([*lines, ""])
