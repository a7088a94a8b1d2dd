"""`plimsoll serve MODEL`: one model behind an OpenAI API, in the foreground."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plimsoll_runtime.cli import values
from plimsoll_runtime.engine.config import ATTENTION_BACKENDS, DTYPES, EngineConfig
from plimsoll_runtime.engine.policy import POLICIES
from plimsoll_runtime.errors import UsageError

if TYPE_CHECKING:
    from plimsoll_runtime.api.config import ServerConfig

DEFAULTS = EngineConfig(model="")


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add `serve` to the command line."""
    parser = subparsers.add_parser(
        "serve",
        help="serve one model with an OpenAI API",
        description="Serve one model with an OpenAI API. Listens at once; /health says when it is ready.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="a folder, a .gguf file, demo://gemma-3-270m or a Hugging Face id (hf://ORG/NAME)",
    )
    _add_server_options(parser)
    add_engine_options(parser)
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Serve until a signal or an error ends it; returns the exit code."""
    config = server_config(args)
    from plimsoll_runtime.api.server import serve

    return serve(config)


def server_config(args: argparse.Namespace) -> ServerConfig:
    """The record of everything that the command line and the environment say. Raises UsageError."""
    from plimsoll_runtime.api.config import ServerConfig, default_name

    names = tuple(args.name or [default_name(args.model)])
    if len(set(names)) < len(names):
        raise UsageError(f"--name is given twice with the same value ({', '.join(names)}); give each name once")
    keys = [*args.api_key, *(k.strip() for k in os.environ.get("PLIMSOLL_API_KEY", "").split(",") if k.strip())]
    if args.api_key_file is not None:
        keys += _keys_of(args.api_key_file)
    return ServerConfig(
        engine=engine_config(args),
        names=names,
        host=args.host,
        port=args.port,
        api_keys=tuple(dict.fromkeys(keys)),
        drain_seconds=args.drain_seconds,
        max_waiting=args.max_waiting,
        termination_log=os.environ.get("PLIMSOLL_TERMINATION_LOG") or None,
    )


def engine_config(args: argparse.Namespace) -> EngineConfig:
    """The engine's part. Raises UsageError where options contradict each other."""
    if args.max_model_len is not None and args.max_model_len < 2:
        raise UsageError("--max-model-len 1 leaves no room for a prompt and an answer; give at least 2")
    return EngineConfig(
        model=args.model,
        revision=args.revision,
        dtype=args.dtype,
        max_model_len=args.max_model_len,
        max_batch_tokens=args.max_batch_tokens,
        max_sequences=args.max_sequences,
        kv_memory=args.kv_memory,
        kv_host_memory=args.kv_host_memory,
        kv_disk=args.kv_disk,
        kv_disk_size=args.kv_disk_size,
        block_size=args.block_size,
        threads=args.threads,
        prefix_caching=args.prefix_caching,
        attention_backend=args.attention_backend,
        policy=args.policy,
        overlap=args.overlap,
        check_integrity_every=args.check_integrity_every,
    )


def _keys_of(path: Path) -> list[str]:
    """The keys of a file. Raises UsageError where it has none, for a server without keys is open to everybody."""
    try:
        keys = [line.strip() for line in path.read_text().splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--api-key-file {path} cannot be read ({error}); give a text file, one key a line") from error
    if not keys:
        raise UsageError(f"--api-key-file {path} holds no key: write one a line, or leave the option out")
    for number, key in enumerate(keys, 1):
        try:
            values.word(key)
        except argparse.ArgumentTypeError:
            raise UsageError(
                f"--api-key-file {path}: key {number} must be 1 to 256 printable characters without spaces"
            ) from None
    return keys


def _add_server_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("server")
    group.add_argument(
        "--name",
        action="append",
        type=values.word,
        metavar="N",
        help="a name that requests may use for the model; repeat for more (default: from MODEL)",
    )
    group.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    group.add_argument("--port", type=values.port, default=8000, help="port, 0 for any (default: %(default)s)")
    group.add_argument(
        "--api-key",
        action="append",
        default=[],
        type=values.word,
        metavar="K",
        help="a key that requests must carry; repeat for more. Everybody on the machine can read it in the list of "
        "processes: better is --api-key-file, or PLIMSOLL_API_KEY in the environment (comma separated)",
    )
    group.add_argument(
        "--api-key-file", type=Path, metavar="FILE", help="a file of such keys, one a line; empty lines do not count"
    )
    group.add_argument(
        "--drain-seconds",
        type=values.seconds,
        default=30.0,
        metavar="S",
        help="how long running requests may go on after SIGTERM (default: %(default)g)",
    )
    group.add_argument(
        "--max-waiting",
        type=values.positive,
        default=4096,
        metavar="N",
        help="most answers that may wait for their first token; more are refused with 503 and Retry-After "
        "(default: %(default)s)",
    )


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    """Add what `engine_config` reads, all but the model."""
    group = parser.add_argument_group("engine")
    group.add_argument("--revision", metavar="R", help="branch, tag or commit of a Hugging Face model")
    group.add_argument(
        "--dtype",
        choices=DTYPES,
        default=DEFAULTS.dtype,
        help="what weights and activations are computed in; auto: the model's own where the device is fast at it "
        "(default: %(default)s)",
    )
    group.add_argument(
        "--max-model-len",
        type=values.positive,
        metavar="TOKENS",
        help="longest prompt and answer together (default: what model and memory allow)",
    )
    group.add_argument(
        "--max-batch-tokens",
        type=values.positive,
        default=DEFAULTS.max_batch_tokens,
        metavar="TOKENS",
        help="most tokens computed in one step (default: %(default)s)",
    )
    group.add_argument(
        "--max-sequences",
        type=values.positive,
        default=DEFAULTS.max_sequences,
        metavar="N",
        help="most sequences in one batch (default: %(default)s)",
    )
    group.add_argument(
        "--kv-memory",
        type=values.memory,
        metavar="SIZE",
        help="memory for the KV cache: 2GiB, or 40%% of what weights and steps leave free",
    )
    group.add_argument(
        "--kv-host-memory",
        type=values.memory,
        metavar="SIZE",
        help="on a GPU: host memory for cached blocks that the KV cache has no room for (default: none)",
    )
    group.add_argument(
        "--kv-disk",
        type=values.path,
        metavar="PATH",
        help="a folder for cached blocks that memory has no room for; what an earlier run left is found again",
    )
    group.add_argument(
        "--kv-disk-size",
        type=values.memory,
        metavar="SIZE",
        help="how much --kv-disk may hold: 20GiB, or 40%% of what is free there",
    )
    group.add_argument(
        "--block-size",
        type=values.block_size,
        default=DEFAULTS.block_size,
        metavar="TOKENS",
        help="tokens of a KV block, a power of two from 8 to 256 (default: %(default)s)",
    )
    group.add_argument("--threads", type=values.positive, metavar="N", help="CPU threads (default: all cores)")
    group.add_argument(
        "--no-prefix-caching",
        dest="prefix_caching",
        action="store_false",
        help="compute every prompt from its first token",
    )
    group.add_argument(
        "--attention-backend",
        choices=ATTENTION_BACKENDS,
        default=DEFAULTS.attention_backend,
        help="what computes attention; auto: the fastest that runs here (default: %(default)s)",
    )
    group.add_argument(
        "--policy",
        choices=tuple(POLICIES),
        default=DEFAULTS.policy,
        help="who is served first: first come, by the requests' priority or deadline, the shortest job, or the "
        "longest cached prefix (default: %(default)s)",
    )
    group.add_argument(
        "--overlap",
        action=argparse.BooleanOptionalAction,
        help="plan a step while the one before it runs, not once it is over (default: on a GPU)",
    )
    group.add_argument(
        "--check-integrity-every",
        type=values.count,
        default=DEFAULTS.check_integrity_every,
        metavar="STEPS",
        help="compare the engine's records of blocks, slots and sequences after so many steps, and end with an error "
        "where they disagree; 0 is never (default: %(default)s)",
    )
