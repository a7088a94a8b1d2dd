"""The stages of a pipeline: ranges of a program's layers, balanced by predicted time, and the program of each stage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

from plimsoll_runtime.errors import ModelError, UsageError
from plimsoll_runtime.models.ops.add import Add
from plimsoll_runtime.models.ops.attention import Attend, AttendShared
from plimsoll_runtime.models.ops.cost import OpCost, StepRows
from plimsoll_runtime.models.ops.embed import AddPositions, Embed
from plimsoll_runtime.models.ops.experts import Experts
from plimsoll_runtime.models.ops.logits import NoLogits
from plimsoll_runtime.models.ops.matmul import Product
from plimsoll_runtime.models.ops.mla import AttendLatent
from plimsoll_runtime.models.ops.multiply import Multiply
from plimsoll_runtime.models.ops.norm import Normalise
from plimsoll_runtime.models.ops.op import Op, Stateful
from plimsoll_runtime.models.ops.reduce import Reduce
from plimsoll_runtime.models.ops.scale import ScaleAll
from plimsoll_runtime.models.ops.split import Columns
from plimsoll_runtime.models.ops.stage import Receive, Send
from plimsoll_runtime.models.ops.streams import AddToOthers, Average, JoinInputs, Spread
from plimsoll_runtime.models.ops.weight import Weight
from plimsoll_runtime.models.program import Program

DECODES, PROMPT, CONTEXT = 32, 32, 256
"""The step by which stages are balanced: decodes with this context, and the first tokens of a prompt."""
FLOPS_PER_BYTE = 10
"""Operations that take as long as a byte of memory traffic: about 430 GFLOP/s and 45 GB/s, as on CPUs with AVX-512. It
is the same on all machines, because all ranks must divide a model alike.
"""
BYTES = 2
"""Bytes of an element, for the same purpose."""


def borders_of(program: Program, stages: int) -> tuple[int, ...]:
    """Return the first layer of each stage, then the number of layers, such that the slowest stage is fastest.

    The output layer belongs to the last stage.

    Raises UsageError if the program cannot be divided into so many stages.
    """
    count = len(program.layers) - 1
    ends = [*_ends(program), count]
    until = [0, *accumulate(_times(program))]
    kept = [[0, *accumulate(counts)] for counts in _kept(program)]

    def is_stage(begin: int, end: int) -> bool:
        return begin < end and all(each[end] > each[begin] or not each[-1] for each in kept)

    # fastest[end]: time of the slowest stage, and the borders, if the layers before `end` are divided among the stages
    # so far.
    fastest: dict[int, tuple[int, tuple[int, ...]]] = {0: (0, ())}
    for done in range(stages):
        fastest = {
            end: min(
                (max(time, until[end] - until[begin]), (*borders, begin))
                for begin, (time, borders) in fastest.items()
                if is_stage(begin, end)
            )
            for end in ends
            if any(is_stage(begin, end) for begin in fastest)
        }
        if count not in fastest:
            raise UsageError(
                f"--pipeline-parallel {stages}: {program.facts.architecture} has {count} layers, of which "
                f"{_needed(program)}; use at most {done}"
            )
    _, borders = fastest[count]
    return (*borders, count)


def _needed(program: Program) -> str:
    """Return the layers that each stage needs, and those that must stay together."""
    kinds = [name for name, counts in zip(("attention", "recurrent"), _kept(program), strict=True) if any(counts)]
    layers = " and ".join(f"one {name} layer" for name in kinds) if len(kinds) > 1 else "one"
    shares = any(isinstance(op, AttendShared) for op in program.ops)
    together = ", and those that share a cache must be in the same stage" if shares else ""
    return f"each stage needs {layers}{together}"


def _kept(program: Program) -> tuple[list[int], list[int]]:
    """Return for each layer how many KV caches it fills, and how many recurrent states it has.

    Each stage needs one of each kind that the model has: then all stages have KV blocks and snapshots of states alike.
    """
    layers = [program.ops[first:end] for first, end in pairwise(program.layers)]
    return [len(_caches(ops)) for ops in layers], [len(_states(ops)) for ops in layers]


def stage_of(program: Program, borders: Sequence[int], stage: int) -> Program:
    """Return the program of one stage; `program` may be that of a tensor-parallel rank.

    `borders`: see `borders_of`. Raises ModelError if values pass a border whose columns are not known.
    """
    ranges = [(program.layers[begin], program.layers[end]) for begin, end in pairwise(borders)]
    ranges[0] = (0, ranges[0][1])
    ranges[-1] = (ranges[-1][0], len(program.ops))
    caches = [_caches(program.ops[first:end]) for first, end in ranges]
    first, end = ranges[stage]
    is_last = stage == len(ranges) - 1
    states = _states(program.ops[first:end])
    ops: list[Op] = [_renumbered(op, caches[stage], states) for op in program.ops[first:end]]
    if stage:
        names, widths = _passed(program, first)
        ops.insert(0, Receive(widths, names))
    before = len(ops) - (end - first)
    if not is_last:
        names, widths = _passed(program, end)
        ops.append(Send(widths, names, names[:1]))
    others = (op for number, op in enumerate(program.ops) if not first <= number < end)
    elsewhere = [weight for op in others for weight in op.weights()]
    shapes = tuple(tuple(program.facts.attention[cache] for cache in each) for each in caches)
    layers = program.layers[borders[stage] : borders[stage + 1] + 1]
    return replace(
        program,
        facts=replace(
            program.facts,
            attention=shapes[stage],
            states=tuple(program.facts.states[state] for state in states),
            stages=shapes,
            stage=stage,
        ),
        ops=tuple(ops),
        head=program.head if is_last else NoLogits(program.facts.hidden_size),
        first_layer=borders[stage],
        layers=tuple(at - first + before for at in layers),
        elsewhere=_unread(ops, (*program.elsewhere, *elsewhere, *(() if is_last else program.head.weights()))),
    )


def _unread(ops: Sequence[Op], weights: Sequence[Weight]) -> tuple[Weight, ...]:
    read = {str(weight) for op in ops for weight in op.weights()}
    return tuple({str(weight): weight for weight in weights if str(weight) not in read}.values())


def _ends(program: Program) -> Iterator[int]:
    """Yield the layers before which a stage may begin: no later op reads the cache of an earlier layer."""
    for number in range(1, len(program.layers) - 1):
        at = program.layers[number]
        filled = set(_caches(program.ops[:at]))
        if not any(isinstance(op, AttendShared) and op.layer in filled for op in program.ops[at:]):
            yield number


def _times(program: Program) -> list[int]:
    """Return the predicted time of each layer, without a unit. The first one has the ops before it, the last one those
    after it and the output layer.
    """
    spans = [(CONTEXT - 1, CONTEXT)] * DECODES
    rows = StepRows(DECODES + PROMPT, DECODES, [*spans, (0, PROMPT)])
    of_ops = [_time(op.cost(rows, BYTES)) for op in program.ops]
    starts = [0, *program.layers[1:-1], len(program.ops)]
    times = [sum(of_ops[first:end]) for first, end in pairwise(starts)]
    times[-1] += _time(program.head.cost(rows, BYTES))
    return times


def _time(cost: OpCost) -> int:
    return max(cost.bytes * FLOPS_PER_BYTE, cost.flops)


Cached = Attend | AttendLatent


def _caches(ops: Sequence[Op]) -> list[int]:
    """Return the numbers of the caches that ops fill, in order."""
    return sorted({op.layer for op in ops if isinstance(op, Cached)})


def _states(ops: Sequence[Op]) -> list[int]:
    """Return the numbers of the recurrent states of ops, in order."""
    return sorted({op.state for op in ops if isinstance(op, Stateful)})


def _renumbered(op: Op, caches: Sequence[int], states: Sequence[int]) -> Op:
    """Return an op with the number of its cache, and of its state, among those of a stage."""
    if isinstance(op, Cached | AttendShared):
        return replace(op, layer=caches.index(op.layer))
    if isinstance(op, Stateful):
        return replace(op, state=states.index(op.state))  # type: ignore[type-var]
    return op


def _passed(program: Program, at: int) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Return the values that pass a border, in the order in which they are written first, and their columns."""
    wanted: set[str] = set()
    for op in reversed(program.ops[at:]):
        wanted = (wanted - set(op.writes)) | set(op.reads)
    written = dict.fromkeys(name for op in program.ops[:at] for name in op.writes)
    names = tuple(name for name in written if name in wanted)
    return names, tuple(_columns(program, at, name) for name in names)


def _columns(program: Program, at: int, name: str) -> int:
    """Return the columns that a value has before the op at an index."""
    op = next(op for op in reversed(program.ops[:at]) if name in op.writes)
    match op:
        case Add() | Normalise() | Multiply() | Columns() | Reduce() | Average():
            return op.width
        case Embed() | AddPositions():
            return op.table.shape[1]
        case Product():
            return op.outputs
        case Experts():
            return op.hidden
        case ScaleAll():
            return program.facts.hidden_size
        case Spread() | AddToOthers():
            return op.width * op.streams
        case JoinInputs():
            return op.width * op.layers
    raise ModelError(
        f"{program.facts.architecture} has {type(op).__name__} at the end of a layer, so it cannot be divided into "
        "stages; serve it with one stage (--pipeline-parallel 1)"
    )
