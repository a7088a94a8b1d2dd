"""`plimsoll host`: many models behind one OpenAI API, those in use in memory and the rest asleep."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plimsoll_runtime.cli import values
from plimsoll_runtime.cli.engine_options import add_device_option
from plimsoll_runtime.cli.server_options import (
    add_batch_options,
    add_response_options,
    add_server_options,
    api_keys,
    batch_options,
    body_limits,
    door,
    gateway_tokens,
    response_bounds,
    termination_log,
)
from plimsoll_runtime.errors import UsageError
from plimsoll_runtime.utils.sizes import is_share, parse_size

if TYPE_CHECKING:
    from plimsoll_runtime.api.host.server import HostConfig
    from plimsoll_runtime.residency.settings import Settings
    from plimsoll_runtime.residency.spec import ModelName, ModelSpec

WHOLE = 10**9
DESCRIPTION = """\
Serve many models by name with one OpenAI API. Those in use are in the device's memory, each in an engine process of its
own; the rest sleep, and a request for one wakes it. Memory is granted before it is taken: grants never sum to more than
--line. What gives way when room is needed is what is worth least: asked for least, quick to load, large.

Models are placed by --models, and at any time through the host API on --host-port:

  curl http://127.0.0.1:8100/host/v1/report
  curl -X PUT http://127.0.0.1:8100/host/v1/models/default/gemma -H 'Content-Type: application/json' \\
    -d '{"operation": "1", "level": "InHost", "spec": {"revision": "1", "source": "demo://gemma-3-270m"}}'

It is ready (/health) as soon as models can be placed. SIGTERM lets running requests end, then ends the engines.
"""


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add `host` to the command line."""
    parser = subparsers.add_parser(
        "host",
        help="serve many models with one OpenAI API, asleep and awake",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--models",
        action="append",
        default=[],
        metavar="FILE",
        help="YAML of ModelDeployments to place at the start, - for stdin; repeat for more",
    )
    add_server_options(parser.add_argument_group("server"))
    add_response_options(parser.add_argument_group("responses"))
    add_batch_options(parser.add_argument_group("files and batches"))
    _add_host_api(parser.add_argument_group("host API"))
    _add_memory(parser.add_argument_group("device and memory"))
    waiting = parser.add_argument_group("requests for models that sleep")
    _add_patience(waiting)
    _add_waiting(waiting)
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Serve until a signal or an error ends it; returns the exit code. Raises UsageError."""
    config, settings = host_config(args), host_settings(args)
    from plimsoll_runtime.api.host.server import serve_host

    return serve_host(config, settings)


def host_config(args: argparse.Namespace) -> HostConfig:
    """What the server is told. Raises UsageError."""
    from plimsoll_runtime.api.host.server import TOKENS_VARIABLE, HostConfig

    return HostConfig(
        host=args.host,
        port=args.port,
        host_address=args.host_address if args.host_address is not None else args.host,
        host_port=args.host_port,
        host_token_file=args.host_token_file,
        host_token_hashes=os.environ.get(TOKENS_VARIABLE, "").strip(),
        models=_models(args.models),
        api_keys=api_keys(args),
        api_key_file=args.api_key_file,
        door=door(args),
        drain_seconds=args.drain_seconds,
        keep_alive=args.keep_alive_seconds,
        share_prefix_cache=args.share_prefix_cache,
        batches=batch_options(args),
        gateway_tokens=gateway_tokens(),
        gateway_token_file=args.gateway_token_file,
        response_store=args.response_store,
        response_bounds=response_bounds(args),
        body_limits=body_limits(args),
        termination_log=termination_log(),
    )


def host_settings(args: argparse.Namespace) -> Settings:
    """What the host is told. Raises UsageError."""
    from plimsoll_runtime.residency.settings import Settings

    return Settings(
        device=args.device,
        line=_share(args.line, args.sleepers),
        sleepers=args.sleepers,
        minimum_residency=args.minimum_residency,
        service_slice=args.service_slice,
        patience=args.patience,
        wait_seconds=args.hold_seconds,
        max_waiting=args.max_held,
        max_waiting_bytes=args.max_held_bytes,
        load_seconds=args.load_seconds,
    )


def _share(line: str, sleepers: int) -> float:
    """The line as a share of the device's memory. An amount is one of what a CPU has free beside the sleepers."""
    if is_share(line):
        return parse_size(line, WHOLE) / WHOLE
    from plimsoll_runtime.residency.engines.pressure import host_memory_left

    amount, capacity = parse_size(line, 0), host_memory_left() - sleepers
    if amount > capacity:
        raise UsageError(
            f"--line {line} is more than the {max(0, capacity) / 2**30:.1f} GiB that are free beside --sleepers; give "
            "less, or a share such as 90%"
        )
    return amount / capacity


def _models(files: list[str]) -> tuple[tuple[ModelName, ModelSpec], ...]:
    if not files:
        return ()
    from plimsoll_runtime.local.model import load_models
    from plimsoll_runtime.local.pool import placement

    models = load_models(files, sys.stdin)
    return tuple(placement(model) for model in models if model.replicas > 0)


def _add_host_api(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--host-address", metavar="ADDRESS", help="address of the host API (default: that of --host)")
    group.add_argument(
        "--host-port", type=values.port, default=8100, metavar="PORT", help="its port, 0 for any (default: %(default)s)"
    )
    group.add_argument(
        "--host-token-file",
        type=Path,
        metavar="FILE",
        help="bearer tokens of those who may ask it, one a line; the file is read again when it changes. Or their "
        "SHA-256 in PLIMSOLL_HOST_TOKENS. Without either the host API is open, and starts on loopback addresses only",
    )


def _add_memory(group: argparse._ArgumentGroup) -> None:
    add_device_option(group)
    group.add_argument(
        "--line",
        type=values.memory,
        default="90%",
        metavar="SIZE",
        help="how much of the device's memory may be granted to models: 90%%, or on a CPU an amount such as 12GiB "
        "(default: %(default)s)",
    )
    group.add_argument(
        "--sleepers",
        type=values.amount,
        default=0,
        metavar="SIZE",
        help="host memory for weights of models that sleep, such as 8GiB: waking one of them reads no file. On a CPU "
        "it is set aside from the same memory as the device's (default: none, models sleep on disk)",
    )
    group.add_argument(
        "--minimum-residency",
        type=values.seconds,
        default=10.0,
        metavar="S",
        help="how long a model that was woken is not evicted (default: %(default)g)",
    )
    group.add_argument(
        "--service-slice",
        type=values.seconds,
        default=30.0,
        metavar="S",
        help="how long a model serves at least where those that requests wait for do not fit together and take turns "
        "(default: %(default)g)",
    )


def _add_patience(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--patience",
        type=values.seconds,
        default=30.0,
        metavar="S",
        help="how long a request waits before its model gets a turn from models that are worth more (default: "
        "%(default)g)",
    )


def _add_waiting(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--hold-seconds",
        type=values.interval,
        default=120.0,
        metavar="S",
        help="how long a request waits for its model to wake; then it is refused with 503 and Retry-After (default: "
        "%(default)g)",
    )
    group.add_argument(
        "--max-held",
        type=values.count,
        default=1024,
        metavar="N",
        help="most requests that wait so, of all models together (default: %(default)s)",
    )
    group.add_argument(
        "--max-held-bytes",
        type=values.amount,
        default=64 * 2**20,
        metavar="SIZE",
        help="most bytes that their bodies may have together (default: 64MiB)",
    )
    group.add_argument(
        "--keep-alive-seconds",
        type=values.interval,
        default=5.0,
        metavar="S",
        help="a stream that waits for longer begins, and gets a comment as often; what fails from then on is an error "
        "event (default: %(default)g)",
    )
    group.add_argument(
        "--load-seconds",
        type=values.interval,
        default=600.0,
        metavar="S",
        help="what takes longer to load counts as failed (default: %(default)g)",
    )
