"""Prints a report as tables on a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table

from plimsoll_runtime.profiling.summary import ALL, SERVER_PHASES, OpFigures, PhaseFigures, Report, StepFigures

SERVER_NAMES = {phase.name.lower() for phase in SERVER_PHASES}
NOTHING = "-"


def print_report(report: Report, console: Console) -> None:
    """Print model, workload and machine, and two tables for each kind of step."""
    console.print(Group(*_parts(report)))


def _parts(report: Report) -> Iterator[RenderableType]:
    yield (
        f"{report.model}: {report.architecture}, {report.dtype} on {report.device}, {report.threads} threads, "
        f"attention {report.attention_backend}"
    )
    yield (
        f"{report.workload}: {_count(report.batch, 'request')} of up to {report.prompt_len} tokens in, "
        f"{report.output_len} out; {report.output_tokens} tokens out in {report.seconds:.2f} s "
        f"({report.output_tokens / report.seconds:.0f} per second)"
    )
    yield (
        f"this machine: {report.bandwidth / 1e9:.1f} GB/s from memory, "
        f"{report.rate / 1e9:.0f} GFLOP/s in a {report.dtype} product"
    )
    if report.kernels is not None:
        yield f"CPU kernels: {report.kernels}"
    for figures in report.steps:
        yield (
            f"\n[bold]{figures.kind}[/bold]: {_count(figures.steps, 'step')} of {_ms(figures.seconds)} ms; on average "
            f"{figures.tokens:.0f} rows of {figures.sequences:.0f} sequences"
        )
        yield _phases(figures)
        yield _ops(figures)


def _phases(figures: StepFigures) -> Table:
    table = _table("phase", "ms", "p50", "p99", "share")
    of_server = [p for p in figures.phases if p.phase in SERVER_NAMES]
    for phase in figures.phases:
        if of_server and phase is of_server[0]:
            table.add_section()
        table.add_row(phase.phase, *_phase_cells(phase))
    return table


def _phase_cells(phase: PhaseFigures) -> tuple[str, ...]:
    return _ms(phase.mean), _ms(phase.p50), _ms(phase.p99), f"{phase.share:.1%}"


def _ops(figures: StepFigures) -> Table:
    columns = ("op", "ms", "share", "MB", "MFLOP", "GB/s", "GFLOP/s", "floor ms", "bound", "roofline")
    table = _table(*columns)
    for op in figures.ops:
        if op.op == ALL:
            table.add_section()
        table.add_row(op.op, *_op_cells(op))
    return table


def _op_cells(op: OpFigures) -> tuple[str, ...]:
    rates = (NOTHING, NOTHING)
    if op.seconds and op.bound:
        rates = (f"{op.bytes / op.seconds / 1e9:.1f}", f"{op.flops / op.seconds / 1e9:.1f}")
    return (
        NOTHING if op.seconds is None else _ms(op.seconds),
        NOTHING if op.share is None else f"{op.share:.1%}",
        f"{op.bytes / 1e6:.2f}",
        f"{op.flops / 1e6:.1f}",
        *rates,
        _ms(op.floor),
        op.bound or NOTHING,
        NOTHING if op.roofline is None else f"{op.roofline:.0%}",
    )


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for index, name in enumerate(columns):
        table.add_column(name, justify="right" if index else "left", no_wrap=True)
    return table


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3f}"
