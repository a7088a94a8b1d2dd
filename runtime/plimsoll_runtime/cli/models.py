"""`plimsoll models`: which models are served, what a model computes, whether it fits, and those on this disk."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plimsoll_runtime.cli import downloads
from plimsoll_runtime.local.text import table
from plimsoll_runtime.utils import option_values as values

if TYPE_CHECKING:
    from plimsoll_runtime.execution.kv.layout import KvLayout
    from plimsoll_runtime.models.program import Outline
    from plimsoll_runtime.weights.files import ModelFiles

GIB = 2**30


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add `models` to the command line."""
    parser = subparsers.add_parser(
        "models",
        help="list the families of models and those on this disk, show what one computes and needs, remove one",
        description="List the families of models that are served. `list --local` prints the models on this disk and "
        "`rm` removes one. `show` prints a model's program and `fit` the memory "
        "that it needs. No weight is read: `show` has enough of the config, `fit` reads the headers of the files, and "
        "of a hub's model nothing else is fetched.",
        allow_abbrev=False,
    )
    parser.set_defaults(func=list_models, local=False)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    listed = commands.add_parser("list", help="list the families (the default), or models on disk", allow_abbrev=False)
    listed.add_argument(
        "--local",
        action="store_true",
        help="the models that were downloaded to this disk: source as `plimsoll up` takes it, size, last use, place",
    )
    listed.set_defaults(func=list_models)
    downloads.add_rm_parser(commands)
    shown = commands.add_parser(
        "show",
        help="print what a model computes, op by op",
        description="Print MODEL's program: a line an op, layers that are alike once, `{}` for their number.",
        allow_abbrev=False,
    )
    shown.add_argument("--all", action="store_true", help="every layer by itself")
    shown.set_defaults(func=show)
    fitted = commands.add_parser(
        "fit",
        help="print the memory that a model needs, and how many tokens fit beside it",
        description="Print what MODEL's weights, its largest step and its KV cache take, by the headers of its files.",
        epilog="example:\n  plimsoll models fit hf://Qwen/Qwen3-8B --memory 24GiB --dtype bfloat16",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    fitted.add_argument("--memory", metavar="SIZE", help="what there is (24GiB): exits with 1 where it does not fit")
    fitted.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="bfloat16")
    fitted.add_argument("--max-batch-tokens", type=values.positive, default=2048, metavar="N", help="tokens of a step")
    fitted.add_argument("--max-sequences", type=values.positive, default=128, metavar="N", help="sequences at once")
    fitted.set_defaults(func=fit)
    for each in (shown, fitted):
        each.add_argument("model", metavar="MODEL", help="a folder, a .gguf file, demo://NAME or a Hugging Face id")
        each.add_argument("--revision", help="branch, tag or commit (hf:// only)")


def list_models(args: argparse.Namespace) -> int:
    """Print the families, or what is on this disk."""
    if args.local:
        return downloads.list_downloads()
    from plimsoll_runtime.models.registry.registry import ENCODERS, FAMILIES, MODEL_TYPES, plugins
    from plimsoll_runtime.weights.gguf.families import FAMILIES as GGUF
    from plimsoll_runtime.weights.gguf.families import MIXTURES

    types = {architecture: kind for kind, architecture in MODEL_TYPES.items()}
    known = (*GGUF.items(), *MIXTURES.items())
    gguf = {each: name for name, family in known for each in (family.architecture, *family.others)}
    rows = [(name, types[name], gguf.get(name, "-")) for name in sorted(FAMILIES)]
    rows += [(encoder.architecture, kind, "-") for kind, encoder in ENCODERS.items()]
    rows += [(name, "-", f"by {origin}") for name, origin in sorted(plugins().items())]
    print(table(("ARCHITECTURE", "MODEL TYPE", "GGUF"), rows))
    return 0


def show(args: argparse.Namespace) -> int:
    """Print a model's program, and what computes it on a CPU."""
    from plimsoll_runtime.models.cpu_executor.lowering import why_not_fused
    from plimsoll_runtime.models.program import Program, summary

    program = _outline(args)
    if not isinstance(program, Program):
        print(program)
        return 0
    print(program if args.all else summary(program))
    reason = why_not_fused(program)
    print(
        "\non a CPU: "
        + ("whole steps in our own kernels" if reason is None else f"op by op in torch: the backend cpu {reason}")
    )
    return 0


def fit(args: argparse.Namespace) -> int:
    """Print the memory that a model needs; 1 where it is more than there is."""
    from tempfile import TemporaryDirectory

    from plimsoll_runtime.driver.estimate import fit as fit_of
    from plimsoll_runtime.engine.config import EngineConfig
    from plimsoll_runtime.execution.device.select import NAMES
    from plimsoll_runtime.execution.memory.kv_budget import longest_held
    from plimsoll_runtime.utils.sizes import parse_size

    config = EngineConfig(
        model=args.model, dtype=args.dtype, max_batch_tokens=args.max_batch_tokens, max_sequences=args.max_sequences
    )
    with TemporaryDirectory(prefix="plimsoll-headers-") as folder:
        found = fit_of(_headers(args, Path(folder)), config)
    facts, layout, size = found.facts, found.layout, NAMES[args.dtype].itemsize
    whole = layout.sequence_bytes(facts.max_positions) if facts.attention else 0
    rows = [
        ("files", _size(sum(found.stored.values())), ", ".join(found.stored)),
        (
            "weights",
            _size(found.weights),
            f"in {args.dtype}" + (", packed for our CPU kernels" if found.packed else ""),
        ),
        ("largest step", _size(found.step), f"{found.tokens} tokens, {args.max_sequences} sequences: at most"),
    ]
    if kept := facts.state_bytes(size):
        rows.append(("states, a sequence", f"{kept / 2**20:.1f} MiB", "however long it is; counted in the step"))
    if found.snapshots:
        rows.append(("snapshots of states", str(found.snapshots), "each as large as a sequence's; counted in the step"))
    if token := facts.token_bytes(size):
        rows += [
            ("KV cache, a token", f"{token / 1024:.1f} KiB", f"in {len(facts.attention)} layers"),
            ("KV cache, a sequence", _size(whole), f"of {facts.max_positions} tokens, the longest{_windows(layout)}"),
        ]
    if found.graphs:
        rows.append(("graphs of steps", _size(found.graphs), "at most (--graph-memory)"))
    left = None if args.memory is None else parse_size(args.memory, 0) - found.beside_cache
    least = (len(layout.groups) + 1) * layout.block_bytes
    if left is not None and left >= least > 0:
        held = longest_held(left, layout, facts.max_positions)
        rows.append(("longest beside it", f"{held} tokens", f"of one sequence, in {_size(left)} of {args.memory}"))
        rows.append(("sequences beside it", f"{max(0, left - layout.block_bytes) // whole}", "of the longest"))
    print(table(("WHAT", "TAKES", ""), rows))
    if left is not None and left < least:
        print(f"\nit does not fit: {_size(least - left)} more than {args.memory} are needed")
        return 1
    return 0


def _headers(args: argparse.Namespace, folder: Path) -> ModelFiles:
    """A model's files; of a hub's their headers alone, in the folder."""
    from plimsoll_runtime.weights.sources.headers import fetch_headers
    from plimsoll_runtime.weights.sources.resolve import resolve

    return resolve(args.model, args.revision, fetch=partial(fetch_headers, folder=folder))


def _windows(layout: KvLayout) -> str:
    """How many layers keep less than the whole context."""
    from plimsoll_runtime.engine.kv.cache_groups import Full

    kept = sum(len(layers) for layers, rule in zip(layout.groups, layout.rules, strict=True) if isinstance(rule, Full))
    whole = sum(map(len, layout.groups))
    return f"; {whole - kept} of {whole} layers keep its last tokens" if kept < whole else ""


def _outline(args: argparse.Namespace) -> Outline:
    from plimsoll_runtime.driver.build.model_facts import outline_of
    from plimsoll_runtime.models.compose.pooling import served_as
    from plimsoll_runtime.models.registry.tasks import task_of
    from plimsoll_runtime.weights.sources.resolve import resolve_config

    config = resolve_config(args.model, args.revision)
    return outline_of(served_as(config, task_of(config)))


def _size(count: int) -> str:
    return f"{count / GIB:.2f} GiB"
