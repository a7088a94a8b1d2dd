"""`plimsoll serve MODEL`: one model behind an OpenAI API, in the foreground."""

from __future__ import annotations

import argparse
import contextlib
from typing import TYPE_CHECKING, Any

from plimsoll_runtime.cli import values
from plimsoll_runtime.cli.engine_options import (
    add_engine_options,
    add_format_options,
    add_generation_config,
    add_image_parts,
    engine_config,
)
from plimsoll_runtime.cli.server_options import (
    add_batch_options,
    add_response_options,
    add_server_options,
    api_keys,
    batch_options,
    body_limits,
    door,
    findings_file,
    gateway_tokens,
    response_bounds,
    termination_log,
)
from plimsoll_runtime.errors import UsageError

if TYPE_CHECKING:
    from plimsoll_runtime.api.server.config import ServerConfig


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
        help="a folder, a .gguf file, demo://gemma-3-270m or a Hugging Face id (hf://ORG/NAME[@REVISION][:FILE])",
    )
    _add_server_options(parser.add_argument_group("server"))
    add_batch_options(parser.add_argument_group("files and batches"))
    add_response_options(parser.add_argument_group("responses"))
    add_engine_options(parser)
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Serve until a signal or an error ends it; returns the exit code."""
    config = server_config(args)
    from plimsoll_runtime.driver.build.model_files import check_folder
    from plimsoll_runtime.driver.process.handshake import BUILD
    from plimsoll_runtime.driver.process.standby import StandbyProcess

    check_folder(config.engine)
    # The engine's process imports torch while this one imports the server.
    with contextlib.closing(StandbyProcess.spawn(threads=config.engine.threads, factory=BUILD)) as standby:
        from plimsoll_runtime.api.server.server import serve

        return serve(config, standby)


def server_config(args: argparse.Namespace) -> ServerConfig:
    """The record of everything that the command line and the environment say. Raises UsageError."""
    from plimsoll_runtime.api.server.config import ServerConfig, default_name

    names = tuple(args.name or [default_name(args.model)])
    if len(set(names)) < len(names):
        raise UsageError(f"--name is given twice with the same value ({', '.join(names)}); give each name once")
    return ServerConfig(
        engine=engine_config(args),
        names=names,
        host=args.host,
        port=args.port,
        api_keys=api_keys(args),
        api_key_file=args.api_key_file,
        door=door(args),
        drain_seconds=args.drain_seconds,
        max_waiting=args.max_waiting,
        max_waiting_tokens=args.max_waiting_tokens,
        max_logit_bias=args.max_logit_bias,
        tool_format=args.tool_format,
        strict_parameters=args.strict_parameters,
        reasoning_format=args.reasoning_format,
        thinking_budget=args.thinking_budget,
        image_parts=args.image_parts,
        generation_config=args.generation_config,
        share_prefix_cache=args.share_prefix_cache,
        batches=batch_options(args),
        gateway_tokens=gateway_tokens(),
        gateway_token_file=args.gateway_token_file,
        response_store=args.response_store,
        response_bounds=response_bounds(args),
        body_limits=body_limits(args),
        termination_log=termination_log(),
        findings_file=findings_file(),
    )


def _add_server_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--name",
        action="append",
        type=values.word,
        metavar="N",
        help="a name that requests may use for the model; repeat for more (default: from MODEL)",
    )
    add_server_options(group)
    group.add_argument(
        "--max-waiting",
        type=values.positive,
        default=4096,
        metavar="N",
        help="most answers that may wait for their first token; more are refused with 503 and Retry-After "
        "(default: %(default)s)",
    )
    group.add_argument(
        "--max-waiting-tokens",
        type=values.positive,
        default=4 * 2**20,
        metavar="TOKENS",
        help="most tokens that the prompts of such answers may have, each prompt counted once; more are refused in the "
        "same way, and a request that never fits with 400 (default: %(default)s)",
    )
    group.add_argument(
        "--max-logit-bias",
        type=values.positive,
        default=300,
        metavar="N",
        help="most token ids that a request's logit_bias may have; everybody's steps wait for them (default: "
        "%(default)s)",
    )
    add_format_options(group)
    add_generation_config(group)
    group.add_argument(
        "--thinking-budget",
        type=values.count,
        metavar="TOKENS",
        help="most tokens that the thoughts of an answer may have where its request does not say (default: no bound)",
    )
    add_image_parts(group)
    group.add_argument(
        "--strict-parameters",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="refuse requests with fields that nothing here knows, instead of naming them in X-Plimsoll-Ignored",
    )
