"""The memory that a model needs, by the headers of its files: weights, workspace, CUDA graphs and KV cache."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import torch

from plimsoll_runtime.driver.build.model_facts import Model, backends_of, check_model, from_files
from plimsoll_runtime.driver.build.model_files import find_files
from plimsoll_runtime.driver.process.handshake import Needs
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.errors import UsageError
from plimsoll_runtime.execution.device.select import NAMES, choose, take_threads
from plimsoll_runtime.execution.kv.layout import KvLayout, kv_layout
from plimsoll_runtime.execution.memory.kv_budget import granted_kv_cache, least_kv_bytes, most_kv_bytes, no_kv_cache
from plimsoll_runtime.execution.memory.system import private_bytes
from plimsoll_runtime.execution.memory.workspace import by_outline, largest_step, on_a_cpu
from plimsoll_runtime.models.compose.pooling import served_as
from plimsoll_runtime.models.load import checked_source, image_bytes, imagined_decoder
from plimsoll_runtime.models.program import Facts, Outline, Program
from plimsoll_runtime.models.registry.tasks import task_of
from plimsoll_runtime.utils.sizes import is_share, parse_size
from plimsoll_runtime.weights.files import ModelFiles
from plimsoll_runtime.weights.gguf.blocks import kind_name, kind_of, stored_bytes
from plimsoll_runtime.weights.gguf.metadata import read_metadata
from plimsoll_runtime.weights.safetensors import FLOATS, OTHERS, QUANTISED, SafetensorsFiles
from plimsoll_runtime.weights.stored_tensor import dtype_name


def has_graphs(config: EngineConfig, outline: Outline, device: torch.device) -> bool:
    """Whether an engine captures CUDA graphs: on a GPU, of a program of ours that generates.

    Transformers code has none: it may look at numbers in the middle of a step, and its hidden states may have another
    dtype than the model.
    """
    captured = device.type == "cuda" and outline.facts.pooling is None and isinstance(outline, Program)
    return captured and config.graph_seconds > 0


def graph_bytes(config: EngineConfig, outline: Outline, device: torch.device, free: int | None = None) -> int:
    """Bytes, 0 where no step is captured: on a CPU above all.

    `free`: of how many bytes a share is taken; None: memory is granted, or nothing is known of it but the model's
    headers, and a share raises UsageError.
    """
    if not has_graphs(config, outline, device):
        return 0
    if free is None and is_share(config.graph_memory):
        raise UsageError(
            f"--graph-memory {config.graph_memory} is a share of what is free, and memory is granted: give bytes"
        )
    return parse_size(config.graph_memory, free or 0)


@dataclass(frozen=True, slots=True)
class Fit:
    """What a model needs, in bytes.

    `stored` in its files, by what tensors are stored as. `weights` as an engine keeps them, `packed` for our CPU
    kernels or plain. `step`: the largest, of so many `tokens`, with all that recurrent layers keep of sequences and so
    many `snapshots` of that. `graphs`: what graphs of steps may take, 0 on a CPU.
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
        """What an engine takes beside its KV cache."""
        return self.weights + self.step + self.graphs


def fit(files: ModelFiles, config: EngineConfig) -> Fit:
    """Of a model as the engine would compute it here, in the dtype that the config names.

    Raises ModelError where the files are not what they say, or not what the model needs; DeviceLostError where the
    config wants a GPU and there is none.
    """
    device = choose(config.device)
    dtype = NAMES[config.dtype]
    settled = check_model(config, files, served_as(files.config, task_of(files.config)))
    files, outline = settled.files, settled.outline
    if isinstance(outline, Program):
        checked_source(files, outline)
    facts = outline.facts
    step = largest_step(config, facts, facts.max_positions)
    packed = backends_of(config, outline, device, dtype)[0].fused
    if packed:
        decoder, _ = imagined_decoder(outline, dtype)
        weights, largest = decoder.weight_bytes, on_a_cpu(decoder, step)
    else:
        weights, largest = outline.weight_bytes(dtype), by_outline(outline, dtype, step)
    layout = kv_layout(facts.attention, facts.max_positions, config.block_size, dtype.itemsize)
    graphs = graph_bytes(config, outline, device)
    return Fit(facts, layout, stored_sizes(files), weights, packed, largest, step.rows, step.snapshots, graphs)


def stored_sizes(files: ModelFiles) -> Mapping[str, int]:
    """Bytes that the tensors of the files take, by what they are stored as, the most first."""
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
    """With `kv` bytes of KV cache for good; None: `--kv-memory`, or the least that an engine can do with.

    Raises SourceError, ModelError, MemoryLimitError, UsageError or DeviceLostError, as building the engine would.
    """
    overhead = private_bytes()
    device = choose(config.device)
    take_threads(config.threads)
    files = find_files(config)
    model = from_files(config, files, device)
    facts = model.outline.facts
    limit = facts.max_positions
    if not facts.token_bytes(model.dtype.itemsize):
        return _without_cache(config, model, overhead)
    layout = model.kv_layout(config)
    least = kv or _asked(config) or least_kv_bytes(config.max_model_len, limit, layout)
    budget = granted_kv_cache(
        kv=least,
        least=least,
        most=least,
        layout=layout,
        max_model_len=config.max_model_len,
        model_limit=limit,
    )
    longest = budget.max_model_len
    return Needs(
        image=image_bytes(model.outline, model.dtype, fused=model.fused) + len(model.described),
        private=model.beside_image,
        workspace=_workspace(config, model, longest),
        block_bytes=layout.block_bytes,
        kv_least=max(least, budget.kv_bytes),
        kv_most=max(least, most_kv_bytes(config.max_sequences, longest, layout)),
        max_model_len=longest,
        overhead=overhead,
    )


def _without_cache(config: EngineConfig, model: Model, overhead: int) -> Needs:
    """Where no layer attends: what recurrent layers keep is in the workspace, and any length has room."""
    longest = no_kv_cache(config, model.outline.facts).max_model_len
    return Needs(
        image=image_bytes(model.outline, model.dtype, fused=model.fused) + len(model.described),
        private=model.beside_image,
        workspace=_workspace(config, model, longest),
        block_bytes=0,
        kv_least=0,
        kv_most=0,
        max_model_len=longest,
        overhead=overhead,
    )


def _asked(config: EngineConfig) -> int | None:
    """The least that the options ask for."""
    if config.kv_memory is None:
        return None
    if is_share(config.kv_memory):
        raise UsageError(
            f"--kv-memory {config.kv_memory} is a share of what is free, and memory is granted: give bytes"
        )
    return parse_size(config.kv_memory, 0)


def _workspace(config: EngineConfig, model: Model, longest: int) -> int:
    """Bytes of the largest step and of graphs. Raises UsageError for what no grant can hold."""
    step = largest_step(config, model.outline.facts, longest)
    if not model.fused:
        return by_outline(model.outline, model.dtype, step) + graph_bytes(config, model.outline, model.device)
    decoder, _ = imagined_decoder(model.outline, model.dtype)
    return on_a_cpu(decoder, step)
