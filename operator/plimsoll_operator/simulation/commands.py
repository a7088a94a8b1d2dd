"""The commands `plimsoll simulate` and `plimsoll explain`, which run the planner without an operator."""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from plimsoll_cluster.decode_errors import UNREADABLE
from plimsoll_cluster.keys import ObjectKey
from plimsoll_operator.placement.explain import explain, sentence
from plimsoll_operator.placement.records.plan import Plan
from plimsoll_operator.placement.records.pool import PoolState
from plimsoll_operator.simulation.placement_policy import PlannerPolicy
from plimsoll_operator.simulation.pool import Host, Pool, SimulationResult
from plimsoll_operator.simulation.trace import KINDS, Shape, Trace, TraceError, make, read
from plimsoll_operator.spec.quantity import byte_count


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that `share` per cent of the values do not exceed; 0 for no values."""
    ordered = sorted(values)
    return ordered[max(0, -int(-len(ordered) * share // 100) - 1)] if ordered else 0.0


def table(result: SimulationResult) -> str:
    """Format a result as two columns: name and figure."""
    waits = result.waits
    rows = [
        ("requests served", f"{result.served} of {result.requests}"),
        ("seconds of loading", f"{result.seconds:.1f}"),
        ("loads from files", str(result.loads)),
        ("wakes from images", str(result.wakes)),
        ("moves", str(result.moves)),
        (
            "waits, p50 / p99 / max",
            f"{percentile(waits, 50):.1f} / {percentile(waits, 99):.1f} / {max(waits, default=0):.1f} s",
        ),
    ]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {figure}" for name, figure in rows)


COMMANDS = ("simulate", "explain")


class InputError(Exception):
    """A file or an argument is not valid; the message says what to change."""


def command(arguments: Sequence[str]) -> int:
    """Run the command that the first argument names (one of COMMANDS). Return the exit code, 1 for invalid input."""
    args = _parse(arguments)
    try:
        _print(_explain(args) if args.command == "explain" else _simulate(args))
    except (InputError, TraceError) as error:
        print(f"plimsoll {args.command}: {error}", file=sys.stderr)  # noqa: T201
        return 1
    return 0


def _explain(args: argparse.Namespace) -> str:
    if args.state is None:
        found = re.fullmatch("(?:(?:mdep|modeldeployments?)/)?([a-z0-9.-]+)", args.model)
        if found is None:
            raise InputError(f"{args.model!r} is not mdep/NAME; NAMESPACE/NAME needs a recorded state before it")
        key = ObjectKey(args.namespace, found[1])
        return explain(asyncio.run(_live(key, args.watched)), key)
    namespace, slash, name = args.model.partition("/")
    if not slash or not namespace or not name:
        raise InputError(f"{args.model!r} is not NAMESPACE/NAME, which a recorded state needs")
    try:
        return explain(_state(args.state), ObjectKey(namespace, name))
    except KeyError as error:
        raise InputError(str(error.args[0])) from error


async def _live(model: ObjectKey, namespaces: Sequence[str]) -> PoolState:
    """Return the state from the cluster. Its imports are here because the planner alone needs no Kubernetes client."""
    try:
        from plimsoll_cluster.connection import NoClusterError, connect
        from plimsoll_operator.pools.snapshot import SnapshotError, read_snapshot
    except ModuleNotFoundError as error:
        what = f"reading a cluster needs a package that is not installed ({error.name})"
        raise InputError(f"{what}: pip install 'plimsoll-serving[operator]', or give a recorded state") from error

    try:
        async with await connect() as connection:
            return await read_snapshot(connection, model, list(namespaces) or None)
    except (NoClusterError, SnapshotError) as error:
        raise InputError(str(error)) from error


def _simulate(args: argparse.Namespace) -> str:
    if args.state is not None:
        state = _state(args.state)
        hosts = [Host(host.key.name, host.line - host.reserved, host.sleepers.capacity) for host in state.hosts]
        trace = read(Path(args.trace), state.models)
    else:
        hosts = [Host(f"host-{number}", args.line, args.sleepers) for number in range(args.hosts)]
        trace = _made_up(args)
    if not hosts:
        raise InputError("the state has no hosts: record it from a pool with hosts")
    lines: list[str] = []
    policy = PlannerPolicy(told=lambda at, plan: lines.extend(_told(at, plan)) if args.decisions else None)
    result = Pool(trace, hosts, policy).run()
    return "\n".join([*lines, *([""] if lines else []), table(result)])


def _made_up(args: argparse.Namespace) -> Trace:
    if args.trace not in KINDS:
        kinds = ", ".join(KINDS)
        raise InputError(f"--trace must be one of {kinds} or, with --state, a recorded file, not {args.trace!r}")
    return make(args.trace, Shape(args.models, args.hours, args.rate), args.seed)


def _state(path: Path) -> PoolState:
    try:
        return msgspec.json.decode(path.read_bytes(), type=PoolState)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    except UNREADABLE as error:
        raise InputError(f"{path} is not a PoolState: {error}") from error


def _told(at: float, plan: Plan) -> list[str]:
    return [f"{at:10.1f} s  {sentence(action)}" for action in plan.actions]


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="plimsoll", allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True)
    told = commands.add_parser("explain", help="explain the planner's decision for one model")
    told.add_argument(
        "state", type=Path, nargs="?", help="JSON file with a recorded PoolState (default: read from the cluster)"
    )
    told.add_argument("model", metavar="mdep/NAME", help="the model; NAMESPACE/NAME with a recorded state")
    told.add_argument(
        "-n", "--namespace", default="default", metavar="NS", help="namespace of the model (default: %(default)s)"
    )
    told.add_argument(
        "--watched",
        action="append",
        default=[],
        metavar="NS",
        help="read only this namespace; repeatable, must include the pool's namespace (default: all)",
    )
    run = commands.add_parser("simulate", help="run the planner on a trace and print its loading seconds")
    run.add_argument("--trace", default="zipf", help=f"{', '.join(KINDS)}, or a recorded file with --state")
    run.add_argument("--state", type=Path, help="JSON file with the PoolState (models and hosts) of a recorded trace")
    run.add_argument("--hosts", type=_count, default=4, help="number of hosts (default: 4)")
    run.add_argument(
        "--line", type=_size, default=80 * 2**30, help="device memory for awake models on each host (default: 80Gi)"
    )
    run.add_argument(
        "--sleepers",
        type=_size,
        default=40 * 2**30,
        help="host memory for weight images on each host (default: 40Gi)",
    )
    run.add_argument("--models", type=_count, default=72, help="number of models in a generated trace (default: 72)")
    run.add_argument("--hours", type=_positive, default=1.0, help="hours of a generated trace (default: 1)")
    run.add_argument(
        "--rate", type=_positive, default=0.5, help="requests per second of a generated trace (default: 0.5)"
    )
    run.add_argument("--seed", type=int, default=0, help="seed of a generated trace (default: 0)")
    run.add_argument("--decisions", action="store_true", help="print every action and its reason")
    return parser.parse_args(arguments)


def _count(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) <= 10_000:
        raise argparse.ArgumentTypeError(f"{text[:64]!r} is not a whole number from 1 to 10000")
    return int(text)


def _size(text: str) -> int:
    try:
        return byte_count(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _positive(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text[:64]!r} is not a number above 0")
    return number
