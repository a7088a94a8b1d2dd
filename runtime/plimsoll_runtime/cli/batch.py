"""`plimsoll batch INPUT OUTPUT --model M`: answer every row of a file, without a server."""

from __future__ import annotations

import argparse
import contextlib
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from plimsoll_runtime.api.server.config import default_name
from plimsoll_runtime.cli.options import add_options, read_options
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.errors import UNREADABLE, UsageError
from plimsoll_runtime.options import ServingOptions
from plimsoll_runtime.utils import option_values as values

if TYPE_CHECKING:
    from plimsoll_runtime.api.batches.offline import BatchConfig, Outcome
    from plimsoll_runtime.batch.job import Shard
    from plimsoll_runtime.batch.reader import PromptRule

SOME_FAILED = 7
"""The exit code where every row has its answer or its error, and some have errors."""

DESCRIPTION = """\
Answer every row of INPUT and write the answers to OUTPUT. Killed at any moment, the same command goes on
where it was: no row is answered twice, and none is lost.
"""
EPILOG = """\
input and output:
  .jsonl      OpenAI's batch lines, or plain bodies: {"messages": [...]} or {"prompt": "..."}, with custom_id or not
  .csv        a header and rows; --prompt-column or --template says what the prompts are
  .parquet    the same (needs pyarrow)
  .gz .bz2 .xz .zst behind .jsonl and .csv: compressed
  INPUT may be a folder or a pattern in quotes ('parts/*.jsonl.gz'): one file after the other, by name

examples:
  plimsoll batch questions.jsonl answers.jsonl --model demo://gemma-3-270m
  plimsoll batch reviews.csv labels.parquet --model M --template 'Is this friendly? {{ text }}' --set max_tokens=8

exit status: 0 all rows are answered; 7 some failed, see OUTPUT's .errors.jsonl; 2 to 6 and 8 as of `plimsoll serve`,
and 130 or a signal's for a run that was broken off: there the same command goes on.
"""


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add `batch` to the command line."""
    parser = subparsers.add_parser(
        "batch",
        help="answer every row of a file, without a server",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("input", metavar="INPUT", type=values.path, help="a file, a folder or a pattern")
    parser.add_argument("output", metavar="OUTPUT", type=Path, help="a file; its suffix says the format")
    parser.add_argument(
        "--model", required=True, metavar="M", help="a folder, a .gguf file, demo://NAME or a Hugging Face id"
    )
    parser.add_argument(
        "--name",
        action="append",
        type=values.word,
        metavar="N",
        help="what lines may call the model; repeat for more (default: from MODEL)",
    )
    rows = parser.add_argument_group("rows")
    _add_rows(rows)
    add_options(parser, "batch", ServingOptions, group=rows)
    _add_run(parser.add_argument_group("run"))
    add_options(parser, "batch", EngineConfig)
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Answer all rows; 0 where all have an answer, 7 where some failed."""
    config = batch_config(args)
    from plimsoll_runtime.api.batches.offline import run_batch
    from plimsoll_runtime.cli.progress import board, console_progress

    with contextlib.ExitStack() as loading, board(sys.stderr, loading.close) as shown:
        progress = loading.enter_context(console_progress(sys.stderr))
        try:
            outcome = run_batch(config, shown, progress)
        except KeyboardInterrupt:
            print("broken off; the same command goes on from here", file=sys.stderr)
            raise
    _print_summary(config, outcome)
    return SOME_FAILED if outcome.summary.tally.failed else 0


def batch_config(args: argparse.Namespace) -> BatchConfig:
    """The record of the whole command line. Raises UsageError."""
    from plimsoll_runtime.api.batches.lines import ENDPOINTS
    from plimsoll_runtime.api.batches.offline import BatchConfig

    # "chat" for /v1/chat/completions, "embeddings" for /v1/embeddings
    paths = {path.rpartition("/v1/")[2].partition("/")[0]: path for path in ENDPOINTS}
    return BatchConfig(
        engine=read_options(EngineConfig, args, model=args.model),
        names=tuple(dict.fromkeys(args.name or [default_name(args.model)])),
        input=args.input,
        output=args.output,
        endpoint=paths.get(args.endpoint),
        prompting=_prompting(args),
        defaults=dict(args.set),
        seed=args.seed,
        shard=args.shards,
        ordered=not args.unordered,
        restart=args.restart,
        serving=read_options(ServingOptions, args),
    )


def shard(text: str) -> Shard:
    """I/N: every Nth row, beginning with row I, from 0."""
    from plimsoll_runtime.batch.job import Shard

    match = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", text)
    if match is None or not int(match[1]) < int(match[2]):
        raise argparse.ArgumentTypeError(f"{text[:64]!r} is not I/N with I from 0 to N - 1, like 0/4")
    return Shard(int(match[1]), int(match[2]))


def setting(text: str) -> tuple[str, msgspec.Raw]:
    """NAME=VALUE: a field of bodies, its value as JSON; what is no JSON is a text."""
    name, separator, value = text.partition("=")
    if not separator or not re.fullmatch(r"[a-z][a-z0-9_]{0,63}", name):
        raise argparse.ArgumentTypeError(f"{text[:64]!r} is not NAME=VALUE, like max_tokens=64")
    try:
        parsed = msgspec.json.decode(value)
    except UNREADABLE:
        parsed = value
    return name, msgspec.Raw(msgspec.json.encode(parsed))


def _add_rows(group: argparse._ArgumentGroup) -> None:
    """What rows ask."""
    group.add_argument(
        "--endpoint",
        choices=("chat", "completions", "embeddings", "score", "rerank", "classify"),
        help="what rows ask that do not say (default: chat with messages, completions with a prompt, embeddings with "
        "input, score with text_1, rerank with a query)",
    )
    group.add_argument(
        "--prompt-column", metavar="COLUMN", help="where the prompt stands, of a table or of JSON objects"
    )
    group.add_argument(
        "--template",
        metavar="TEXT",
        help="a Jinja template that makes the prompt of a row's columns, or @FILE with one; it runs in a sandbox",
    )
    group.add_argument("--id-column", metavar="COLUMN", help="where a table's custom_id stands (default: row-INDEX)")
    group.add_argument(
        "--set",
        action="append",
        default=[],
        type=setting,
        metavar="NAME=VALUE",
        help="a field of the request for rows that lack it: --set max_tokens=64 --set temperature=0; repeat for more",
    )
    group.add_argument(
        "--seed",
        type=values.count,
        default=0,
        metavar="N",
        help="rows without a seed get one made of this and their index, so that they are answered alike in every run "
        "(default: %(default)s)",
    )


def _add_run(group: argparse._ArgumentGroup) -> None:
    """How they are gone through."""
    group.add_argument(
        "--unordered", action="store_true", help="write answers as they come (default: in the order of the rows)"
    )
    group.add_argument(
        "--shards",
        type=shard,
        default="0/1",
        metavar="I/N",
        help="only every Nth row, beginning with row I, from 0: for N runs with an OUTPUT each",
    )
    group.add_argument(
        "--restart", action="store_true", help="throw away what an earlier run to this OUTPUT left, and begin anew"
    )


def _prompting(args: argparse.Namespace) -> PromptRule | None:
    from plimsoll_runtime.batch.reader import PromptRule

    if args.prompt_column is None and args.template is None:
        if args.id_column is not None:
            raise UsageError("--id-column goes with --prompt-column or --template")
        return None
    template = args.template
    if template is not None and template.startswith("@"):
        try:
            template = Path(template[1:]).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"--template {args.template} cannot be read: {error}") from error
    if args.endpoint in ("score", "rerank"):
        raise UsageError(f"--endpoint {args.endpoint} compares texts: its rows cannot be made of one prompt")
    field = {"chat": "messages", "embeddings": "input", "classify": "input"}.get(args.endpoint, "prompt")
    return PromptRule(args.prompt_column, template, field, args.id_column)


def _print_summary(config: BatchConfig, outcome: Outcome) -> None:
    from plimsoll_runtime.batch.output_paths import OutputPaths

    tally, seconds = outcome.summary.tally, outcome.summary.seconds
    tokens = tally.prompt_tokens + tally.completion_tokens
    pace = f", {tally.rows / seconds:.1f} rows/s, {tokens / seconds:.0f} tokens/s" if seconds else ""
    before = f", {outcome.resumed} by an earlier run" if outcome.resumed else ""
    print(f"{config.output}: {'complete already, ' if outcome.already else ''}{tally.rows} rows{before}")
    print(
        f"  {tally.prompt_tokens} prompt tokens ({tally.cached_tokens} cached), {tally.completion_tokens} generated, "
        f"{seconds:.1f} s{pace}"
    )
    if tally.failed:
        print(f"  {tally.failed} rows failed: {OutputPaths(config.output).errors}")
