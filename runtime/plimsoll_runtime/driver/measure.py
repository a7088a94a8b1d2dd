"""Says what a model will take: its decoder is made without weights, and asked."""

from __future__ import annotations

from plimsoll_runtime.driver.find import find_files
from plimsoll_runtime.driver.graph_memory import graph_bytes
from plimsoll_runtime.driver.model import Model, from_files
from plimsoll_runtime.driver.needs import Needs
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.errors import UsageError
from plimsoll_runtime.execution.device.select import choose, take_threads
from plimsoll_runtime.execution.memory.kv_budget import granted_kv_cache, least_kv_bytes, most_kv_bytes, no_kv_cache
from plimsoll_runtime.execution.memory.system import private_bytes
from plimsoll_runtime.execution.memory.workspace import by_outline, largest_step, on_a_cpu
from plimsoll_runtime.models.load import image_bytes, imagined_decoder
from plimsoll_runtime.utils.sizes import is_share, parse_size


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
