"""`plimsoll models`: supported models, a model's program and memory, and the models on this disk."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plimsoll_runtime.cli import downloads
from plimsoll_runtime.errors import UsageError
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
        help="list supported or downloaded models, show a model's program or memory, remove a model",
        description="List the supported model architectures. `list --local` prints the models on this disk, `rm` "
        "removes one. `show` prints the program of a model and `fit` the memory that it needs; both read no weights: "
        "`show` reads the config, `fit` the headers of the files, and they download nothing else.",
        allow_abbrev=False,
    )
    parser.set_defaults(func=list_models, local=False)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    listed = commands.add_parser(
        "list", help="list supported architectures (the default), or models on disk", allow_abbrev=False
    )
    listed.add_argument(
        "--local",
        action="store_true",
        help="list the models on this disk: source (as `plimsoll up` takes it), size, last use, folder",
    )
    listed.set_defaults(func=list_models)
    downloads.add_rm_parser(commands)
    shown = commands.add_parser(
        "show",
        help="print the program of a model: its ops, layer by layer",
        description="Print MODEL's program, one op per line. Equal layers are printed once, with `{}` for the "
        "layer's number.",
        allow_abbrev=False,
    )
    shown.add_argument("--all", action="store_true", help="print every layer")
    shown.set_defaults(func=show)
    fitted = commands.add_parser(
        "fit",
        help="print the memory that a model needs, and how many tokens fit",
        description="Print the memory of MODEL's weights, largest step and KV cache, computed from the headers of "
        "its files.",
        epilog="example:\n  plimsoll models fit hf://Qwen/Qwen3-8B --memory 24GiB --dtype bfloat16",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    fitted.add_argument(
        "--memory", metavar="SIZE", help="available memory (24GiB); exits with 1 if the model does not fit"
    )
    fitted.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="bfloat16")
    fitted.add_argument(
        "--max-batch-tokens",
        type=values.positive,
        default=2048,
        metavar="N",
        help="maximum number of tokens in a step (default: %(default)s)",
    )
    fitted.add_argument(
        "--max-sequences",
        type=values.positive,
        default=128,
        metavar="N",
        help="maximum number of sequences at once (default: %(default)s)",
    )
    fitted.set_defaults(func=fit)
    shown.add_argument(
        "--rank",
        type=values.count,
        default=0,
        metavar="N",
        help="of several ranks, show this one; those of the last stage, which has the output layer, come first "
        "(default: %(default)s)",
    )
    for each in (shown, fitted):
        each.add_argument(
            "--tensor-parallel",
            type=values.positive,
            default=1,
            metavar="N",
            help="N ranks share each layer (default: %(default)s)",
        )
        each.add_argument(
            "--pipeline-parallel",
            type=values.positive,
            default=1,
            metavar="N",
            help="N stages share the layers, each with the ranks of --tensor-parallel (default: %(default)s)",
        )
        each.add_argument(
            "model", metavar="MODEL", help="the model: a folder, a .gguf file, demo://NAME or a Hugging Face id"
        )
        each.add_argument("--revision", help="branch, tag or commit (hf:// only)")


def list_models(args: argparse.Namespace) -> int:
    """Print the supported architectures, or the models on this disk."""
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
    """Print a model's program, and how a CPU runs it."""
    from plimsoll_runtime.models.cpu_executor.lowering import why_not_fused
    from plimsoll_runtime.models.program import Program, summary
    from plimsoll_runtime.parallel.layout import Layout
    from plimsoll_runtime.parallel.rank import part_of

    program = _outline(args)
    if not isinstance(program, Program):
        print(program)
        return 0
    layout = Layout(args.tensor_parallel, args.pipeline_parallel)
    if args.rank >= layout.size:
        raise UsageError(f"--rank {args.rank} must be below the number of ranks, which is {layout.size}")
    if layout.size > 1:
        program = part_of(program, layout, args.rank, in_kernels=True)
    print(program if args.all else summary(program))
    reason = why_not_fused(program)
    print(
        "\non a CPU: "
        + (
            "each step is one call of Plimsoll's kernels"
            if reason is None
            else f"op by op in torch, because the CPU executor {reason}"
        )
    )
    return 0


def fit(args: argparse.Namespace) -> int:
    """Print the memory that a model needs. Return 1 if it is more than --memory."""
    from tempfile import TemporaryDirectory

    from plimsoll_runtime.driver.estimate import fit as fit_of
    from plimsoll_runtime.driver.estimate import smallest_group
    from plimsoll_runtime.engine.config import EngineConfig
    from plimsoll_runtime.execution.device.select import NAMES
    from plimsoll_runtime.execution.memory.kv_budget import longest_held
    from plimsoll_runtime.utils.sizes import parse_size

    config = EngineConfig(
        model=args.model,
        dtype=args.dtype,
        max_batch_tokens=args.max_batch_tokens,
        max_sequences=args.max_sequences,
        tensor_parallel=args.tensor_parallel,
        pipeline_parallel=args.pipeline_parallel,
    )
    memory = None if args.memory is None else parse_size(args.memory, 0)
    with TemporaryDirectory(prefix="plimsoll-headers-") as folder:
        files = _headers(args, Path(folder))
        found = fit_of(files, config)
        lacking = 0 if memory is None else found.beside_cache + found.least_cache - memory
        ranks = smallest_group(files, config, memory) if memory is not None and lacking > 0 else None
    facts, layout, size = found.facts, found.layout, NAMES[args.dtype].itemsize
    whole = layout.sequence_bytes(facts.max_positions) if facts.attention else 0
    rows = [
        ("files", _size(sum(found.stored.values())), ", ".join(found.stored)),
        (
            "weights",
            _size(found.weights),
            f"in {args.dtype}" + (", packed for the CPU kernels" if found.packed else ""),
        ),
        ("largest step", _size(found.step), f"at most, with {found.tokens} tokens of {args.max_sequences} sequences"),
    ]
    if kept := facts.state_bytes(size):
        rows.append(
            (
                "recurrent states, per sequence",
                f"{kept / 2**20:.1f} MiB",
                "for any length; included in the largest step",
            )
        )
    if found.snapshots:
        rows.append(
            (
                "state snapshots",
                str(found.snapshots),
                "each as large as a sequence's states; included in the largest step",
            )
        )
    if token := facts.token_bytes(size):
        rows += [
            ("KV cache, per token", f"{token / 1024:.1f} KiB", f"in {len(facts.attention)} layers"),
            (
                "KV cache, per sequence",
                _size(whole),
                f"of {facts.max_positions} tokens, the maximum length{_windows(layout)}",
            ),
        ]
    if found.graphs:
        rows.append(("CUDA graphs", _size(found.graphs), "at most (--graph-memory)"))
    left = None if memory is None else memory - found.beside_cache
    if left is not None and lacking <= 0 < found.least_cache:
        held = longest_held(left, layout, facts.max_positions)
        rows.append(("longest sequence", f"{held} tokens", f"in the remaining {_size(left)} of {args.memory}"))
        rows.append(
            ("longest sequences at once", f"{max(0, left - layout.block_bytes) // whole}", "in the remaining memory")
        )
    print(table(("USE", "MEMORY", ""), rows))
    if lacking > 0:
        print(f"\nthe model does not fit: it needs {_size(lacking)} more than {args.memory}")
        if ranks is not None:
            stages = args.pipeline_parallel
            options = f"--tensor-parallel {ranks}" + (f" --pipeline-parallel {stages}" if stages > 1 else "")
            print(f"it fits with {options}: {ranks * stages} devices with {args.memory} each")
        return 1
    return 0


def _headers(args: argparse.Namespace, folder: Path) -> ModelFiles:
    """Return a model's files. For a model of a hub, download only the headers, into `folder`."""
    from plimsoll_runtime.weights.sources.headers import fetch_headers
    from plimsoll_runtime.weights.sources.resolve import resolve

    return resolve(args.model, args.revision, fetch=partial(fetch_headers, folder=folder))


def _windows(layout: KvLayout) -> str:
    """Return a note on how many layers keep only the last tokens of the context, or ""."""
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
