"""What the CPU kernels make of a program: each op, perhaps with those that follow it, becomes ops of theirs."""

from __future__ import annotations

from typing import NamedTuple

from plimsoll_kernels.cpu.op_records import RESULT
from plimsoll_kernels.cpu.records import Timed
from plimsoll_runtime.models.ops.cpu_values import CpuOp, CpuPlace, CpuValues, UnsupportedOpError, check_known, copied
from plimsoll_runtime.models.ops.embed import Embed
from plimsoll_runtime.models.ops.norm import Normalise
from plimsoll_runtime.models.ops.op import Op
from plimsoll_runtime.models.program import Program


class CpuProgram(NamedTuple):
    """What the kernels walk, and the places of its values."""

    ops: tuple[CpuOp, ...]
    places: tuple[CpuPlace, ...]


def lowered_program(program: Program) -> CpuProgram:
    """Raises UnsupportedOpError, saying what the kernels do not have."""
    for op in program.ops:
        _check(op)
    if not isinstance(program.ops[0], Embed):
        raise UnsupportedOpError("begins with an embedding, and the model does not")
    values = CpuValues(program.ops, program.ropes, program.facts.max_positions)
    ops: list[CpuOp] = []
    while values.at < len(program.ops):
        before = values.at
        ops += program.ops[before].lower(values)
        assert values.at > before, f"lower() of {type(program.ops[before]).__name__} does not move values.at"
    if not isinstance(program.ops[-1], Normalise):
        width = program.facts.hidden_size
        ops.append(copied(width, values.floats(program.result, width), RESULT))
    return CpuProgram(tuple(ops), values.places())


def why_not_fused(program: Program) -> str | None:
    """Why the kernels do not compute a program; None: they do."""
    try:
        lowered_program(program)
    except UnsupportedOpError as error:
        return str(error)
    return None


def _check(op: Op) -> None:
    """Raises UnsupportedOpError for an op of which the kernels do not have all."""
    if op.cpu_fields is None:
        raise UnsupportedOpError(f"has no {type(op).__name__}")
    check_known(op, *op.cpu_fields)
    op.check_cpu()
    if op.kind.name not in Timed.__members__:
        raise UnsupportedOpError(f"times nothing as {op.kind}")
