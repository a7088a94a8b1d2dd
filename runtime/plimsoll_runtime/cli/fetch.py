"""`plimsoll fetch`: put a model where later starts find it, with no network then."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from argparse import _SubParsersAction


def add_fetch_parser(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the `fetch` command."""
    parser = subparsers.add_parser(
        "fetch",
        help="download a model, or join the demo's parts, without serving it",
        description="Find MODEL, download or join what is missing, convert its tokenizer, print where it lies.",
        allow_abbrev=False,
    )
    parser.add_argument("model", metavar="MODEL", help="a Hugging Face id, hf://ID or demo://NAME")
    parser.add_argument("--revision", help="branch, tag or commit (hf:// only)")
    parser.add_argument(
        "--to",
        type=Path,
        metavar="DIR",
        help="cache folder to fill (default: PLIMSOLL_CACHE or ~/.cache/plimsoll)",
    )
    parser.set_defaults(func=fetch)


def fetch(args: argparse.Namespace) -> int:
    """Fill the cache and print the model's folder; 0 when it is complete."""
    if args.to is not None:
        os.environ["PLIMSOLL_CACHE"] = str(args.to.resolve())
    from plimsoll_runtime.cli.progress import console_progress
    from plimsoll_runtime.text.tokenizer import load_tokenizer
    from plimsoll_runtime.utils.progress import DOWNLOAD
    from plimsoll_runtime.weights.sources.resolve import resolve

    with console_progress(sys.stderr) as progress:
        files = resolve(
            args.model,
            args.revision,
            progress=progress,
            on_transfer=lambda transfer: progress(DOWNLOAD, transfer.fraction, transfer),
        )
        load_tokenizer(files)
    print(files.root)
    return 0
