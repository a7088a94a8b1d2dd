"""Estimates the memory that a model needs from the headers of its files: weights, workspace, CUDA graphs and KV
cache.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

import torch

from plimsoll_runtime.driver.build.model_facts import Model, backends_of, check_model, from_files
from plimsoll_runtime.driver.build.model_files import find_files
from plimsoll_runtime.driver.process.handshake import Needs
from plimsoll_runtime.engine.config import MOST_RANKS, EngineConfig
from plimsoll_runtime.errors import ModelError, UsageError
from plimsoll_runtime.execution.device.select import NAMES, choose, take_threads
from plimsoll_runtime.execution.kv.layout import KvLayout, kv_layout
from plimsoll_runtime.execution.memory.kv_budget import granted_kv_cache, least_kv_bytes, most_kv_bytes, no_kv_cache
from plimsoll_runtime.execution.memory.system import private_bytes
from plimsoll_runtime.execution.memory.workspace import by_outline, largest_step, on_a_cpu
from plimsoll_runtime.models.compose.pooling import served_as
from plimsoll_runtime.models.load import checked_source, image_bytes, imagined_decoder
from plimsoll_runtime.models.program import Facts, Outline, Program
from plimsoll_runtime.models.registry.tasks import task_of
from plimsoll_runtime.parallel.layout import layout_of
from plimsoll_runtime.parallel.rank import part_of
from plimsoll_runtime.utils.sizes import is_share, parse_size
from plimsoll_runtime.weights.files import ModelFiles
from plimsoll_runtime.weights.gguf.blocks import kind_name, kind_of, stored_bytes
from plimsoll_runtime.weights.gguf.metadata import read_metadata
from plimsoll_runtime.weights.safetensors import FLOATS, OTHERS, QUANTISED, SafetensorsFiles
from plimsoll_runtime.weights.stored_tensor import dtype_name


def has_graphs(config: EngineConfig, outline: Outline, device: torch.device) -> bool:
    """Whether an engine captures CUDA graphs: on a GPU, for a program that generates, unless `graph_seconds` is 0.

    The ranks of a group have graphs if NCCL joins them and there is one stage. gloo adds on the host, and comparing
    what ranks exchange (`check_collectives`) reads numbers on it.

    Transformers code is not captured: it may read numbers in the middle of a step, and its hidden states may have
    another dtype than the model.
    """
    captured = device.type == "cuda" and outline.facts.pooling is None and isinstance(outline, Program)
    joined = config.group_backend in ("auto", "nccl") and not config.check_collectives
    return captured and config.graph_seconds > 0 and (config.ranks == 1 or (joined and config.pipeline_parallel == 1))


def graph_bytes(config: EngineConfig, outline: Outline, device: torch.device, free: int | None = None) -> int:
    """Return the bytes for CUDA graphs; 0 if no step is captured, as on a CPU.

    `free`: the bytes of which --graph-memory may be a share. None: memory is granted or unknown, and a share raises
    UsageError.
    """
    if not has_graphs(config, outline, device):
        return 0
    if free is None:
        return _granted_bytes("--graph-memory", config.graph_memory)
    return parse_size(config.graph_memory, free)


def granted_kv_memory(config: EngineConfig) -> int | None:
    """Return the bytes of `--kv-memory`; None if it is not set. Raises UsageError for a share."""
    return None if config.kv_memory is None else _granted_bytes("--kv-memory", config.kv_memory)


def _granted_bytes(flag: str, size: str) -> int:
    if is_share(size):
        raise UsageError(f"{flag} {size} is a share of free memory, but this engine gets granted memory; give bytes")
    return parse_size(size, 0)


@dataclass(frozen=True, slots=True)
class Fit:
    """The memory that a model needs, in bytes.

    - `stored`: size of the tensors in its files, by storage type.
    - `weights`: as an engine keeps them, `packed` for the CPU kernels or plain.
    - `step`: workspace of the largest step, of `tokens` tokens, with the recurrent states of all sequences and of
      `snapshots` state snapshots.
    - `graphs`: CUDA graphs; 0 on a CPU.
    """

    facts: Facts
    layout: KvLayout
    stored: Mapping[str, int]
    weights: int
    packed: bool
    step: int
    tokens: int
    snapshots: int
    graphs: int = 0

    @property
    def beside_cache(self) -> int:
        """Memory of an engine besides its KV cache."""
        return self.weights + self.step + self.graphs

    @property
    def least_cache(self) -> int:
        """Bytes of one block for each cache group, and of the padding block."""
        return (len(self.layout.groups) + 1) * self.layout.block_bytes


def fit(files: ModelFiles, config: EngineConfig) -> Fit:
    """Return the memory of a model as an engine would compute it here, in the dtype that the config names. With
    several ranks, return that of the rank that needs the most.

    Raises ModelError if the files are damaged or incomplete, or the model cannot be divided; UsageError for more ranks
    than it has parts; DeviceLostError if the config requires a GPU and there is none.
    """
    device = choose(config.device)
    dtype = NAMES[config.dtype]
    settled = check_model(config, files, served_as(files.config, task_of(files.config)))
    files, outline = settled.files, settled.outline
    if isinstance(outline, Program):
        checked_source(files, outline)
    if (layout := layout_of(config)).size == 1:
        return _fit(files, config, outline, device, dtype)
    # Of each stage: its first rank, which gathers logits, and the one with most weights.
    parts = {rank: part_of(outline, layout, rank, in_kernels=True) for rank in range(layout.size)}
    stages = [layout.together(rank) for rank in range(0, layout.size, layout.tensor)]
    largest = {max(stage, key=lambda rank: parts[rank].weight_bytes(dtype)) for stage in stages}
    ranks = largest.union(stage[0] for stage in stages)
    return max((_fit(files, config, parts[rank], device, dtype) for rank in sorted(ranks)), key=_least_memory)


def _least_memory(found: Fit) -> int:
    return found.beside_cache + found.least_cache


def _fit(files: ModelFiles, config: EngineConfig, outline: Outline, device: torch.device, dtype: torch.dtype) -> Fit:
    facts = outline.facts
    step = largest_step(config, facts, facts.max_positions)
    packed = backends_of(config, outline, device, dtype)[0].fused
    if packed:
        decoder, _ = imagined_decoder(outline, dtype)
        weights, largest = decoder.weight_bytes, on_a_cpu(decoder, step)
    else:
        weights, largest = outline.weight_bytes(dtype), by_outline(outline, dtype, step)
    kv = kv_layout(facts.attention, facts.max_positions, config.block_size, dtype.itemsize, facts.stages, facts.stage)
    graphs = graph_bytes(config, outline, device)
    return Fit(facts, kv, stored_sizes(files), weights, packed, largest, step.rows, step.snapshots, graphs)


def smallest_group(files: ModelFiles, config: EngineConfig, memory: int) -> int | None:
    """Return the smallest number of ranks of which each fits into `memory` bytes, with a KV cache of one block for each
    cache group; None if no number does or the model cannot be divided.
    """
    for ranks in range(2, MOST_RANKS + 1):
        try:
            found = fit(files, replace(config, tensor_parallel=ranks))
        except (ModelError, UsageError):
            return None
        if _least_memory(found) <= memory:
            return ranks
    return None


def stored_sizes(files: ModelFiles) -> Mapping[str, int]:
    """Return the bytes of the files' tensors by storage type, largest first; 0 for GGUF types without a decoder."""
    sizes: Counter[str] = Counter()
    if files.format == "gguf":
        for path in files.weights:
            for tensor in read_metadata(path).tensors.values():
                kind = kind_of(tensor.kind)
                sizes[kind_name(tensor.kind)] += 0 if kind is None else stored_bytes(kind, tensor.shape)
    else:
        source = SafetensorsFiles(files.weights, FLOATS | OTHERS | QUANTISED)
        for name, dtype in source.dtypes.items():
            sizes[dtype_name(dtype)] += prod(source.shapes[name]) * dtype.itemsize
    return dict(sizes.most_common())


def measure(config: EngineConfig, kv: int | None = None) -> Needs:
    """Return the memory needs of a model, with a fixed KV cache of `kv` bytes (None: `--kv-memory`, or the minimum).

    Raises SourceError, ModelError, MemoryLimitError, UsageError or DeviceLostError, as building the engine would.
    """
    overhead = private_bytes()
    device = choose(config.device)
    take_threads(config.threads)
    files = find_files(config)
    model = from_files(config, files, device)
    facts = model.outline.facts
    limit = facts.max_positions
    if facts.token_bytes(model.dtype.itemsize):
        layout = model.kv_layout(config)
        least = kv or granted_kv_memory(config) or least_kv_bytes(config.max_model_len, limit, layout)
        budget = granted_kv_cache(
            kv=least,
            least=least,
            most=least,
            layout=layout,
            max_model_len=config.max_model_len,
            model_limit=limit,
        )
        longest, block_bytes = budget.max_model_len, layout.block_bytes
        most = max(least, most_kv_bytes(config.max_sequences, longest, layout))
        least = max(least, budget.kv_bytes)
    else:
        # Recurrent states are in the workspace, and any length fits.
        longest = no_kv_cache(config, facts).max_model_len
        block_bytes = least = most = 0
    return Needs(
        image=image_bytes(model.outline, model.dtype, fused=model.fused) + len(model.described),
        private=model.beside_image,
        workspace=_workspace(config, model, longest),
        block_bytes=block_bytes,
        kv_least=least,
        kv_most=most,
        max_model_len=longest,
        overhead=overhead,
    )


def _workspace(config: EngineConfig, model: Model, longest: int) -> int:
    """Return the bytes of the largest step and of CUDA graphs. Raises UsageError for options that no grant can
    satisfy.
    """
    step = largest_step(config, model.outline.facts, longest)
    if not model.fused:
        return by_outline(model.outline, model.dtype, step) + graph_bytes(config, model.outline, model.device)
    decoder, _ = imagined_decoder(model.outline, model.dtype)
    return on_a_cpu(decoder, step)
