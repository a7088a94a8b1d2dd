"""`plimsoll serve MODEL`: serves one model with an OpenAI API, in the foreground."""

from __future__ import annotations

import argparse
import contextlib
from typing import Any

from plimsoll_runtime.api.server.config import ServerConfig, default_name
from plimsoll_runtime.cli.options import add_options, read_options
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.errors import UsageError


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add `serve` to the command line."""
    parser = subparsers.add_parser(
        "serve",
        help="serve one model with an OpenAI API",
        description="Serve one model with an OpenAI API. The port opens right away; /health answers 200 once the "
        "model is loaded.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="the model: a folder, a .gguf file, demo://gemma-3-270m or a Hugging Face id "
        "(hf://ORG/NAME[@REVISION][:FILE])",
    )
    add_options(parser, "serve", ServerConfig)
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Serve until a signal or an error, and return the exit code."""
    config = server_config(args)
    from plimsoll_runtime.driver.build.model_files import check_folder
    from plimsoll_runtime.driver.process.handshake import BUILD
    from plimsoll_runtime.driver.process.standby import StandbyProcess

    check_folder(config.engine)
    if not config.engine.group.leads:
        from plimsoll_runtime.api.server.member_server import serve_member

        return serve_member(config)
    # The engine process imports torch while this process imports the server.
    with contextlib.closing(StandbyProcess.spawn(threads=config.engine.threads, factory=BUILD)) as standby:
        from plimsoll_runtime.api.server.server import serve

        return serve(config, standby)


def server_config(args: argparse.Namespace) -> ServerConfig:
    """Return the record of the whole command line and environment. Raises UsageError."""
    names = tuple(args.name or [default_name(args.model)])
    if len(set(names)) < len(names):
        raise UsageError(f"--name is given twice with the same value ({', '.join(names)}); give each name once")
    engine = read_options(EngineConfig, args, model=args.model)
    return read_options(ServerConfig, args, engine=engine, names=names)
