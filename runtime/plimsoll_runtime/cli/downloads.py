"""`plimsoll fetch`, `plimsoll models list --local` and `plimsoll models rm`: the models on this disk."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plimsoll_runtime.errors import SourceError, UsageError
from plimsoll_runtime.local.text import duration_text, size_text, table

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    from plimsoll_runtime.weights.sources.downloads import Download

HEAD = ("SOURCE", "SIZE", "LAST USED", "WHERE", "")


def add_rm_parser(commands: argparse._SubParsersAction[Any]) -> None:
    """Add `rm` to the commands of `models`."""
    parser = commands.add_parser(
        "rm",
        help="remove a downloaded model from this disk",
        description="Remove the revision that SOURCE names, with all its files. Files that other revisions share "
        "stay. A model that `plimsoll up` serves is not removed.",
        allow_abbrev=False,
    )
    parser.add_argument("source", metavar="SOURCE", help="source as printed by `plimsoll models list --local`")
    parser.add_argument("--yes", action="store_true", help="do not ask for confirmation; required without a terminal")
    parser.set_defaults(func=remove)


def list_downloads() -> int:
    """Print the models on this disk."""
    from plimsoll_runtime.weights.sources.downloads import downloads

    now, found = time.time(), downloads()
    if not found:
        print("no models are downloaded; `plimsoll fetch MODEL` or `plimsoll up` downloads them")
        return 0
    rows = [
        (
            each.source,
            size_text(each.size),
            f"{duration_text(now - each.last_used)} ago",
            _short(each.folder),
            each.note or (f"{len(each.gguf)} GGUF files" if len(each.gguf) > 1 else ""),
        )
        for each in found
    ]
    print(table(HEAD, rows))
    return 0


def remove(args: argparse.Namespace) -> int:
    """Ask for confirmation, remove the model and print the freed space. Return 1 if the user declines."""
    found = _found(args.source)
    _check_unused(found)
    if not args.yes and not _agreed(found):
        print("nothing was removed")
        return 1
    print(f"removed {found.source}: {size_text(found.remove())} freed")
    return 0


def _found(source: str) -> Download:
    """Return the download that `source` names. Raises SourceError, or UsageError if it names only a part of one."""
    from plimsoll_runtime.utils.suggestions import did_you_mean
    from plimsoll_runtime.weights.sources.downloads import READ_ONLY, downloads, exact_source
    from plimsoll_runtime.weights.sources.resolve import parse_hub_id

    known, exact = downloads(), exact_source(source)
    named = sorted((each for each in known if exact in each.names), key=lambda each: each.note == READ_ONLY)
    if not named:
        meant = did_you_mean(source, [each.source for each in known])
        raise SourceError(
            f"{source} is not on this disk.{meant} `plimsoll models list --local` prints the models on this disk"
        )
    [found, *_] = named
    if len(found.gguf) > 1 and parse_hub_id(source.removeprefix("hf://"))[2] is not None:
        raise UsageError(
            f"{source} is one of {len(found.gguf)} GGUF files of a revision, and only whole revisions can be "
            f"removed: name {found.source} to remove all of them"
        )
    return found


def _check_unused(download: Download) -> None:
    """Raise UsageError if a running `plimsoll up` serves the download."""
    from plimsoll_runtime.local.run_folder import all_runs
    from plimsoll_runtime.weights.sources.downloads import exact_source

    for run in all_runs():
        record = run.read()
        for model in () if record is None else record["models"]:
            if model["source"].startswith(("demo://", "hf://")) and (
                exact_source(model["source"], model["revision"]) in download.names
            ):
                raise UsageError(
                    f"`plimsoll up` on port {run.port} serves {download.source} as {model['servedNames'][0]}: stop it "
                    f"first (plimsoll down --port {run.port})"
                )


def _agreed(download: Download) -> bool:
    what = f"{download.source}, {size_text(download.size)} in {_short(download.folder)}"
    if not sys.stdin.isatty():
        raise UsageError(f"cannot ask whether to remove {what} because standard input is not a terminal; give --yes")
    return input(f"Remove {what}? [y/N] ").strip().lower() in ("y", "yes")


def _short(path: Path) -> str:
    home = Path.home()
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)


def add_fetch_parser(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the `fetch` command."""
    parser = subparsers.add_parser(
        "fetch",
        help="download a model without serving it",
        description="Download the missing files of MODEL (the demo model is joined from its parts), convert its "
        "tokenizer, and print its folder.",
        allow_abbrev=False,
    )
    parser.add_argument("model", metavar="MODEL", help="Hugging Face id, hf://ID or demo://NAME")
    parser.add_argument("--revision", help="branch, tag or commit (hf:// only)")
    parser.add_argument(
        "--to",
        type=Path,
        metavar="DIR",
        help="cache folder to fill (default: PLIMSOLL_CACHE or ~/.cache/plimsoll)",
    )
    parser.set_defaults(func=fetch)


def fetch(args: argparse.Namespace) -> int:
    """Fill the cache and print the model's folder. Return 0 once the folder is complete."""
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
