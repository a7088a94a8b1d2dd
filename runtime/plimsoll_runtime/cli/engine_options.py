"""Command-line options that several commands share: engine, requests, tool-call and reasoning formats."""

from __future__ import annotations

import argparse
from argparse import ArgumentTypeError
from collections.abc import Callable

from plimsoll_runtime.cli import values
from plimsoll_runtime.engine.config import ATTENTION_BACKENDS, DEVICES, DTYPES, MODEL_IMPLS, EngineConfig
from plimsoll_runtime.engine.protocol.pooling import TASKS
from plimsoll_runtime.engine.scheduler.policies import POLICIES
from plimsoll_runtime.errors import UsageError

DEFAULTS = EngineConfig(model="")


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    """Add what `engine_config` reads, all but the model."""
    group = parser.add_argument_group("engine")
    for add in (_add_model, _add_step, _add_cache, _add_computing):
        add(group)


def engine_config(args: argparse.Namespace) -> EngineConfig:
    """The engine's part. Raises UsageError where options contradict each other."""
    if args.max_model_len is not None and args.max_model_len < 2:
        raise UsageError("--max-model-len 1 leaves no room for a prompt and an answer; give at least 2")
    return EngineConfig(
        model=args.model,
        revision=args.revision,
        model_impl=args.model_impl,
        trust_remote_code=args.trust_remote_code,
        task=args.task,
        device=args.device,
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
        state_snapshots=args.state_snapshots,
        attention_backend=args.attention_backend,
        policy=args.policy,
        overlap=args.overlap,
        step_timeout=args.step_timeout,
        graph_seconds=args.graph_seconds,
        graph_memory=args.graph_memory,
        check_integrity_every=args.check_integrity_every,
    )


def add_device_option(group: argparse._ArgumentGroup) -> None:
    """Add what `EngineConfig.device` says, which a host tells each of its engines."""
    group.add_argument(
        "--device",
        choices=DEVICES,
        default=DEFAULTS.device,
        help="what models run on. cuda: a GPU, with CUDA or with ROCm, or a refusal with exit code 8 where torch finds "
        "none; cpu: no GPU is touched; auto: a GPU wherever torch finds one, else the CPU (default: %(default)s)",
    )


def _add_model(group: argparse._ArgumentGroup) -> None:
    """What of the model is served, and in which precision."""
    group.add_argument("--revision", metavar="R", help="branch, tag or commit of a Hugging Face model")
    group.add_argument(
        "--model-impl",
        choices=MODEL_IMPLS,
        default=DEFAULTS.model_impl,
        help="whose code computes the model: ours, or Transformers' own with our attention; auto: ours where we have "
        "it (default: %(default)s)",
    )
    group.add_argument(
        "--trust-remote-code",
        action="store_true",
        help="run the code that comes with the model (auto_map in its config.json), where neither we nor Transformers "
        "have its class; it can do whatever this process can, so give it only where you trust whoever wrote it",
    )
    group.add_argument(
        "--task",
        choices=TASKS,
        default=DEFAULTS.task,
        help="what the model is served for: generate (chat and completions), embed (vectors), classify (labels) or "
        "score (how well two texts go together); auto: what its files say (default: %(default)s)",
    )
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


def _add_step(group: argparse._ArgumentGroup) -> None:
    """How much a step holds, and whose turn it is."""
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
        "--step-timeout",
        type=values.seconds,
        default=DEFAULTS.step_timeout,
        metavar="S",
        help="how long every step may take. One that takes longer, and ten times as long as steps of its size have "
        "taken, means that the engine hangs: its requests fail and the process ends, so that whatever supervises it "
        "starts it again; 0 is never (default: %(default)g)",
    )


def _add_cache(group: argparse._ArgumentGroup) -> None:
    """The KV cache and the tiers below it."""
    group.add_argument(
        "--kv-memory",
        type=values.memory,
        metavar="SIZE",
        help="memory for the KV cache: 2GiB (or 2Gi, 2e9), or 40%% of what weights and steps leave free",
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
    group.add_argument(
        "--no-prefix-caching",
        dest="prefix_caching",
        action="store_false",
        help="compute every prompt from its first token",
    )
    group.add_argument(
        "--state-snapshots",
        type=values.count,
        metavar="N",
        help="of models with recurrent layers: how many prefixes have their states kept, each with as much memory as a "
        "sequence's; 0: no prefix is found (default: a quarter of --max-sequences, at least 8)",
    )


def _add_computing(group: argparse._ArgumentGroup) -> None:
    """What computes, and what checks on it."""
    add_device_option(group)
    group.add_argument("--threads", type=values.positive, metavar="N", help="CPU threads (default: all cores)")
    group.add_argument(
        "--attention-backend",
        type=values.attention_backend,
        default=DEFAULTS.attention_backend,
        metavar="NAME",
        help=f"what computes attention ({', '.join(ATTENTION_BACKENDS[1:])}; on a GPU two joined by +, for prompts and "
        "for decodes); auto: the fastest that runs here, and the next one where it fails (default: %(default)s)",
    )
    group.add_argument(
        "--graph-seconds",
        type=values.seconds,
        default=DEFAULTS.graph_seconds,
        metavar="S",
        help="on a GPU: how long steps are captured as graphs before the first request; sizes that then have none are "
        "launched kernel by kernel; 0: no graphs (default: %(default)g)",
    )
    group.add_argument(
        "--graph-memory",
        type=values.memory,
        default=DEFAULTS.graph_memory,
        metavar="SIZE",
        help="on a GPU: memory that these graphs may take (default: %(default)s)",
    )
    group.add_argument(
        "--check-integrity-every",
        type=values.count,
        default=DEFAULTS.check_integrity_every,
        metavar="STEPS",
        help="compare the engine's records of blocks, slots and sequences after so many steps, and end with an error "
        "where they disagree; 0 is never (default: %(default)s)",
    )


def add_generation_config(group: argparse._ArgumentGroup) -> None:
    """Add `--generation-config`."""
    group.add_argument(
        "--generation-config",
        choices=("model", "none"),
        default="model",
        help="defaults for requests that leave out temperature, top_p, top_k, min_p or repetition_penalty: those of "
        "the model's generation_config.json (model), or temperature 1 and no filter (none) (default: %(default)s)",
    )


def add_image_parts(group: argparse._ArgumentGroup) -> None:
    """Add `--image-parts`."""
    group.add_argument(
        "--image-parts",
        choices=("refuse", "describe"),
        default="refuse",
        help="images in conversations: refuse the request, or replace each image by a text that says it was left out "
        "(default: %(default)s)",
    )


def add_format_options(group: argparse._ArgumentGroup) -> None:
    """How the model writes calls and thoughts, where its chat template does not say so.

    If none is given, no module of formats is imported.
    """
    group.add_argument(
        "--tool-format",
        type=tool_format,
        metavar="NAME",
        help="how the model writes calls of tools: hermes, llama3, mistral, ... (default: as its chat template does)",
    )
    group.add_argument(
        "--reasoning-format",
        type=reasoning_format,
        metavar="NAME",
        help="how the model writes thoughts: think, mistral, harmony, ..., or none to leave them in answers "
        "(default: as its chat template does)",
    )


def tool_format(text: str) -> str:
    """The name of a format of calls."""
    from plimsoll_runtime.tools.registry import named

    return _known(text, named)


def reasoning_format(text: str) -> str:
    """The name of a format of thoughts, or `none`."""
    from plimsoll_runtime.reasoning.registry import named

    return _known(text, named)


def _known(text: str, named: Callable[[str], object]) -> str:
    from plimsoll_runtime.tools.base import UnknownFormat

    try:
        named(text)
    except UnknownFormat as error:
        raise ArgumentTypeError(str(error)) from error
    return text
