"""`plimsoll host`: many models behind one OpenAI API; used models are in memory, the others sleep."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from plimsoll_runtime.api.host.config import HostConfig
from plimsoll_runtime.cli.options import add_options, read_options
from plimsoll_runtime.errors import UsageError
from plimsoll_runtime.residency.settings import Settings
from plimsoll_runtime.residency.spec import ModelName, ModelSpec
from plimsoll_runtime.utils.sizes import is_share, parse_size

WHOLE = 10**9
DESCRIPTION = """\
Serve many models by name with one OpenAI API. Those in use are in the device's memory, each in an engine process of its
own; the others sleep, and a request wakes them. Each engine is granted its memory before it starts, and the sum of
grants never exceeds --line. If a wake needs more, models that are rarely used, quick to load or large are evicted.

Models are placed with --models, or at any time through the host API on --host-port:

  curl http://127.0.0.1:8100/host/v1/report
  curl -X PUT http://127.0.0.1:8100/host/v1/models/default/gemma -H 'Content-Type: application/json' \\
    -d '{"operation": "1", "level": "InHost", "spec": {"revision": "1", "source": "demo://gemma-3-270m"}}'

The host is ready (/health) as soon as models can be placed. On SIGTERM it waits for running requests, then stops the
engines.
"""


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add `host` to the command line."""
    parser = subparsers.add_parser(
        "host",
        help="serve many models with one OpenAI API, loading them on demand",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--models",
        action="append",
        default=[],
        metavar="FILE",
        help="YAML file of ModelDeployments to place at the start, - for stdin; repeatable",
    )
    add_options(parser, "host", HostConfig, Settings)
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Serve until a signal or an error, and return the exit code. Raises UsageError."""
    config, settings = host_config(args), host_settings(args)
    from plimsoll_runtime.api.host.server import serve_host

    return serve_host(config, settings)


def host_config(args: argparse.Namespace) -> HostConfig:
    """Return the server's configuration. Raises UsageError."""
    return read_options(HostConfig, args, models=_models(args.models))


def host_settings(args: argparse.Namespace) -> Settings:
    """Return the settings of the model host. Raises UsageError."""
    line = _share(args.line, args.sleepers) if isinstance(args.line, str) else args.line
    return read_options(Settings, args, line=line)


def _share(line: str, sleepers: int) -> float:
    """Return `--line` as a share of the device's memory. An amount (for a CPU) is divided by the free memory of the
    machine apart from `sleepers` bytes. Raises UsageError if it is larger.
    """
    if is_share(line):
        return parse_size(line, WHOLE) / WHOLE
    from plimsoll_runtime.residency.engines.pressure import host_memory_left

    amount, capacity = parse_size(line, 0), host_memory_left() - sleepers
    if amount > capacity:
        raise UsageError(
            f"--line {line} is more than the {max(0, capacity) / 2**30:.1f} GiB of free memory apart from "
            "--sleepers; give less, or a share such as 90%"
        )
    return amount / capacity


def _models(files: list[str]) -> tuple[tuple[ModelName, ModelSpec], ...]:
    if not files:
        return ()
    from plimsoll_runtime.local.model import load_models
    from plimsoll_runtime.local.pool import placement

    models = load_models(files, sys.stdin)
    return tuple(placement(model) for model in models if model.replicas > 0)
