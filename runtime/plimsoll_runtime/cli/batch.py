"""`plimsoll batch INPUT OUTPUT --model M`: process every row of a file, without a server."""

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
"""Exit code of a complete run in which some rows failed."""

DESCRIPTION = """\
Send every row of INPUT to the model and write the results to OUTPUT. If the run is interrupted, start the
same command again: it resumes, without repeating or losing a row.
"""
EPILOG = """\
input and output:
  .jsonl      OpenAI's batch lines, or plain bodies: {"messages": [...]} or {"prompt": "..."}; custom_id is optional
  .csv        a header and rows; needs --prompt-column or --template
  .parquet    a table with named columns, used like .csv (needs pyarrow)
  Add .gz, .bz2, .xz or .zst to .jsonl or .csv for compressed files.
  INPUT may be a folder or a quoted pattern ('parts/*.jsonl.gz'); its files are read in order of their names.

examples:
  plimsoll batch questions.jsonl answers.jsonl --model demo://gemma-3-270m
  plimsoll batch reviews.csv labels.parquet --model M --template 'Is this friendly? {{ text }}' --set max_tokens=8

exit status:
  0           every row succeeded
  7           some rows failed, see OUTPUT's .errors.jsonl
  2-6, 8      errors as of `plimsoll serve`
  130, other  interrupted by Ctrl-C or another signal; the same command resumes
"""


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add `batch` to the command line."""
    parser = subparsers.add_parser(
        "batch",
        help="process every row of a file, without a server",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("input", metavar="INPUT", type=values.path, help="input file, folder, or quoted pattern")
    parser.add_argument("output", metavar="OUTPUT", type=Path, help="output file; its suffix selects the format")
    parser.add_argument(
        "--model",
        required=True,
        metavar="M",
        help="the model: a folder, a .gguf file, demo://NAME or a Hugging Face id",
    )
    parser.add_argument(
        "--name",
        action="append",
        type=values.word,
        metavar="N",
        help="name of the model in batch lines; repeatable (default: from MODEL)",
    )
    rows = parser.add_argument_group("rows")
    _add_rows(rows)
    add_options(parser, "batch", ServingOptions, group=rows)
    _add_run(parser.add_argument_group("run"))
    add_options(parser, "batch", EngineConfig)
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Process all rows. Return 0 if all succeeded, 7 (`SOME_FAILED`) if some failed."""
    config = batch_config(args)
    from plimsoll_runtime.api.batches.offline import run_batch
    from plimsoll_runtime.cli.progress import board, console_progress

    with contextlib.ExitStack() as loading, board(sys.stderr, loading.close) as shown:
        progress = loading.enter_context(console_progress(sys.stderr))
        try:
            outcome = run_batch(config, shown, progress)
        except KeyboardInterrupt:
            print("interrupted; run the same command to resume", file=sys.stderr)
            raise
    _print_summary(config, outcome)
    return SOME_FAILED if outcome.summary.tally.failed else 0


def batch_config(args: argparse.Namespace) -> BatchConfig:
    """Return the record of the whole command line. Raises UsageError."""
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
    """Parse I/N: every Nth row, starting with row I, counted from 0."""
    from plimsoll_runtime.batch.job import Shard

    match = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", text)
    if match is None or not int(match[1]) < int(match[2]):
        raise argparse.ArgumentTypeError(f"{text[:64]!r} is not I/N with I from 0 to N - 1, like 0/4")
    return Shard(int(match[1]), int(match[2]))


def setting(text: str) -> tuple[str, msgspec.Raw]:
    """Parse NAME=VALUE: a field of request bodies and its value as JSON. A value that is not JSON is a string."""
    name, separator, value = text.partition("=")
    if not separator or not re.fullmatch(r"[a-z][a-z0-9_]{0,63}", name):
        raise argparse.ArgumentTypeError(f"{text[:64]!r} is not NAME=VALUE, like max_tokens=64")
    try:
        parsed = msgspec.json.decode(value)
    except UNREADABLE:
        parsed = value
    return name, msgspec.Raw(msgspec.json.encode(parsed))


def _add_rows(group: argparse._ArgumentGroup) -> None:
    """Add options about the content of rows."""
    group.add_argument(
        "--endpoint",
        choices=("chat", "completions", "embeddings", "score", "rerank", "classify"),
        help="endpoint of rows that name none (default, by the row's fields: chat with messages, completions with "
        "prompt, embeddings with input, score with text_1, rerank with query)",
    )
    group.add_argument(
        "--prompt-column", metavar="COLUMN", help="column (of a table) or field (of JSON objects) that has the prompt"
    )
    group.add_argument(
        "--template",
        metavar="TEXT",
        help="Jinja template that builds the prompt from a row's columns, or @FILE to read one; it runs in a sandbox",
    )
    group.add_argument(
        "--id-column", metavar="COLUMN", help="column of a table that has the custom_id (default: row-INDEX)"
    )
    group.add_argument(
        "--set",
        action="append",
        default=[],
        type=setting,
        metavar="NAME=VALUE",
        help="set a request field in rows that lack it: --set max_tokens=64 --set temperature=0; repeatable",
    )
    group.add_argument(
        "--seed",
        type=values.count,
        default=0,
        metavar="N",
        help="rows without a seed get one derived from N and their index, so that repeated runs give the same output "
        "(default: %(default)s)",
    )


def _add_run(group: argparse._ArgumentGroup) -> None:
    """Add options about the run itself."""
    group.add_argument(
        "--unordered", action="store_true", help="write results as they finish (default: in the order of the rows)"
    )
    group.add_argument(
        "--shards",
        type=shard,
        default="0/1",
        metavar="I/N",
        help="process only every Nth row, starting with row I (from 0), to split a job into N runs with one OUTPUT "
        "each",
    )
    group.add_argument(
        "--restart", action="store_true", help="discard the results of earlier runs with this OUTPUT and start over"
    )


def _prompting(args: argparse.Namespace) -> PromptRule | None:
    from plimsoll_runtime.batch.reader import PromptRule

    if args.prompt_column is None and args.template is None:
        if args.id_column is not None:
            raise UsageError("--id-column needs --prompt-column or --template; add one of them")
        return None
    template = args.template
    if template is not None and template.startswith("@"):
        try:
            template = Path(template[1:]).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"--template {args.template} cannot be read: {error}") from error
    if args.endpoint in ("score", "rerank"):
        raise UsageError(
            f"--endpoint {args.endpoint} compares several texts, but --prompt-column and --template make one prompt; "
            "leave them out and write request bodies as .jsonl"
        )
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
