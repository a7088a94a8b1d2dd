"""The second stage of building an engine: divides the device memory that the weights leave."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace

from plimsoll_runtime.driver.build.loader import LoadedModel
from plimsoll_runtime.driver.build.model_facts import Backends, Model
from plimsoll_runtime.driver.estimate import granted_kv_memory, graph_bytes
from plimsoll_runtime.driver.process.handshake import Grant
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.errors import MemoryLimitError, UsageError
from plimsoll_runtime.execution.kv.layout import KvLayout
from plimsoll_runtime.execution.kv.offload.open import staging_beside
from plimsoll_runtime.execution.memory.kv_budget import (
    DEFAULT_SHARE_CPU,
    DEFAULT_SHARE_GPU,
    FreeMemory,
    KvBudget,
    check_step_fits,
    free_memory,
    granted_kv_cache,
    longest_held,
    no_kv_cache,
    plan_kv_cache,
)
from plimsoll_runtime.execution.memory.workspace import largest_step, on_a_cpu, on_an_accelerator
from plimsoll_runtime.models.decoder import Decoder
from plimsoll_runtime.parallel.rank import Cache, Rank
from plimsoll_runtime.utils.sizes import is_share, parse_size


@dataclass(frozen=True, slots=True)
class Budget:
    """The memory plan: size of the KV cache, bytes of the workspace, and the attention backends that passed the largest
    step.

    `groups`: the layers that share block tables. `graphs`: bytes of the workspace for CUDA graphs.
    """

    kv: KvBudget
    groups: Sequence[Sequence[int]]
    workspace: int
    backends: Backends
    graphs: int


def check_grant(config: EngineConfig, grant: Grant | None) -> None:
    """Raise UsageError or MemoryLimitError for memory options that contradict a grant."""
    if grant is None:
        return
    if config.kv_disk is not None or config.kv_host_memory is not None:
        raise UsageError("--kv-disk and --kv-host-memory take memory outside of the grant; omit them")
    wanted = granted_kv_memory(config)
    if wanted is not None and wanted > grant.least:
        raise MemoryLimitError(
            f"--kv-memory {config.kv_memory} is {wanted} bytes, but the grant guarantees only {grant.least}; lower it"
        )


def plan_memory(config: EngineConfig, loaded: LoadedModel, grant: Grant | None, rank: Rank | None = None) -> Budget:
    """Divide the free or granted memory, or a rank's share of it. Raises MemoryLimitError, UsageError."""
    model, decoder = loaded.model, loaded.decoder
    facts = model.outline.facts
    if not facts.token_bytes(model.dtype.itemsize):
        return _without_cache(config, loaded, grant, rank)
    layout = model.kv_layout(config)
    if grant is None:
        free = free_memory(model.device) // (1 if rank is None else rank.neighbours)
        # The longest sequence that memory could hold.
        held = config.max_model_len or longest_held(free, layout, facts.max_positions)
        # Ranks may run different steps, because they have different free memory.
        with nullcontext() if rank is None else rank.collectives.muted():
            workspace, backends = _workspace(config, model, decoder, held)
        graphs = graph_bytes(config, model.outline, model.device, free)
        blocks = None if rank is None else _blocks_of(config, layout, rank)
        kv = _of_free(config, model, layout, FreeMemory(loaded.weight_bytes, free, workspace + graphs), blocks)
        kv = kv if rank is None else _on_all_ranks(kv, layout, rank)
        return Budget(kv, layout.groups, workspace + graphs, backends, graphs)
    kv = granted_kv_cache(
        kv=grant.kv,
        least=grant.least,
        most=grant.most,
        layout=layout,
        max_model_len=config.max_model_len,
        model_limit=facts.max_positions,
    )
    workspace, backends = _workspace(config, model, decoder, kv.max_model_len)
    graphs = _granted_graphs(config, model, grant, workspace)
    return Budget(kv, layout.groups, workspace + graphs, backends, graphs)


def _blocks_of(config: EngineConfig, layout: KvLayout, rank: Rank) -> int | None:
    """Return the blocks of a rank's cache, if ranks are replaced or --kv-memory is an amount for all ranks together."""
    if config.kv_memory is None or is_share(config.kv_memory):
        return rank.num_blocks
    of_all = rank.total(layout.block_bytes)
    return rank.num_blocks or max(1, parse_size(config.kv_memory, 0) // of_all)


def _on_all_ranks(kv: KvBudget, layout: KvLayout, rank: Rank) -> KvBudget:
    """Return the largest cache that every rank can have. It cannot be resized."""
    layers = tuple(tuple(group) for group in layout.groups)
    stage = rank.layout.stage(rank.number)
    found = rank.cache(Cache(kv.num_blocks, kv.max_model_len, str(layout.rules), layers, stage))
    blocks = found.num_blocks
    return replace(
        kv,
        num_blocks=blocks,
        max_model_len=found.max_model_len,
        kv_bytes=blocks * layout.block_bytes,
        least_blocks=blocks,
        most_blocks=blocks,
    )


def _without_cache(config: EngineConfig, loaded: LoadedModel, grant: Grant | None, rank: Rank | None) -> Budget:
    """Return the plan of a model without KV cache. States of recurrent layers are part of the workspace."""
    model = loaded.model
    kv = no_kv_cache(config, model.outline.facts)
    with nullcontext() if rank is None else rank.collectives.muted():
        workspace, backends = _workspace(config, model, loaded.decoder, kv.max_model_len)
    if grant is not None:
        graphs = _granted_graphs(config, model, grant, workspace)
    else:
        free = free_memory(model.device) // (1 if rank is None else rank.neighbours)
        graphs = graph_bytes(config, model.outline, model.device, free)
        check_step_fits(FreeMemory(loaded.weight_bytes, free, workspace + graphs))
    return Budget(kv, [()], workspace + graphs, backends, graphs)


def _granted_graphs(config: EngineConfig, model: Model, grant: Grant, workspace: int) -> int:
    """Return the bytes for CUDA graphs that the grant leaves beyond the largest step.

    Raises MemoryLimitError if the grant is smaller than the largest step.
    """
    grant.check_workspace(workspace)
    return min(graph_bytes(config, model.outline, model.device), grant.workspace - workspace)


def _workspace(config: EngineConfig, model: Model, decoder: Decoder, longest: int) -> tuple[int, Backends]:
    """Return the bytes of the largest step that the config allows, and the backends that passed it."""
    step = largest_step(config, model.outline.facts, longest)
    if model.device.type == "cpu":
        return on_a_cpu(decoder, step), model.backends
    return on_an_accelerator(decoder, model.backends, config.block_size, step)


def _of_free(
    config: EngineConfig, model: Model, layout: KvLayout, room: FreeMemory, num_blocks: int | None
) -> KvBudget:
    return plan_kv_cache(
        room=room,
        kv_memory=config.kv_memory,
        num_blocks=num_blocks,
        layout=layout,
        max_model_len=config.max_model_len,
        model_limit=model.outline.facts.max_positions,
        max_sequences=config.max_sequences,
        default_share=DEFAULT_SHARE_CPU if model.device.type == "cpu" else DEFAULT_SHARE_GPU,
        staging=staging_beside(config, model.device, layout.block_bytes),
    )
