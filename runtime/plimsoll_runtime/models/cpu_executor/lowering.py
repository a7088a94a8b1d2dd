"""Lowers a program to the ops of the CPU kernels. One of these may cover several ops of the program."""

from __future__ import annotations

from typing import NamedTuple

from plimsoll_kernels.cpu.op_records import RESULT
from plimsoll_kernels.cpu.records import Timed
from plimsoll_runtime.models.ops.cpu_values import CpuOp, CpuPlace, CpuValues, UnsupportedOpError, check_known, copied
from plimsoll_runtime.models.ops.embed import Embed
from plimsoll_runtime.models.ops.norm import Normalise
from plimsoll_runtime.models.ops.op import Op
from plimsoll_runtime.models.ops.stage import Receive, Send
from plimsoll_runtime.models.program import Program


class CpuProgram(NamedTuple):
    """Ops of the CPU kernels, and the buffers of their values."""

    ops: tuple[CpuOp, ...]
    places: tuple[CpuPlace, ...]


def lowered_program(program: Program) -> CpuProgram:
    """Lower a program. Raises UnsupportedOpError naming an unsupported op or field."""
    for op in program.ops:
        _check(op)
    if not isinstance(program.ops[0], Embed | Receive):
        raise UnsupportedOpError("needs an embedding as the first op")
    values = CpuValues(program.ops, program.ropes, program.facts.max_positions)
    ops: list[CpuOp] = []
    while values.at < len(program.ops):
        before = values.at
        ops += program.ops[before].lower(values)
        assert values.at > before, f"lower() of {type(program.ops[before]).__name__} does not move values.at"
    if not isinstance(program.ops[-1], Normalise | Send):
        width = program.facts.hidden_size
        ops.append(copied(width, values.floats(program.result, width), RESULT))
    return CpuProgram(tuple(ops), values.places())


def why_not_fused(program: Program) -> str | None:
    """Return the reason why the kernels cannot compute a program, or None if they can."""
    try:
        lowered_program(program)
    except UnsupportedOpError as error:
        return str(error)
    return None


def _check(op: Op) -> None:
    """Raise UnsupportedOpError if the kernels do not fully support an op."""
    if op.cpu_fields is None:
        raise UnsupportedOpError(f"does not support {type(op).__name__}")
    check_known(op, *op.cpu_fields)
    op.check_cpu()
    if op.kind.name not in Timed.__members__:
        raise UnsupportedOpError(f"does not support ops of the kind {op.kind}")
