"""Parts of engines on all devices. The parameters of each function are the names of the parts that it needs."""

from __future__ import annotations

import logging

from plimsoll_runtime.driver.build.memory_plan import Budget
from plimsoll_runtime.driver.build.model_facts import Model
from plimsoll_runtime.engine.config import EngineConfig, overlaps
from plimsoll_runtime.engine.protocol.plan import MOST_FORCED
from plimsoll_runtime.errors import UsageError
from plimsoll_runtime.execution.inputs.batch_state import SlotStates
from plimsoll_runtime.execution.kv.cache import KvCache
from plimsoll_runtime.execution.kv.offload.open import Tiers, open_tiers
from plimsoll_runtime.execution.kv.states import states_of
from plimsoll_runtime.execution.sampling.constraints import ConstrainedRows
from plimsoll_runtime.execution.sampling.sampler import Sampler
from plimsoll_runtime.models.program import Facts
from plimsoll_runtime.structured.matcher import Grammars
from plimsoll_runtime.weights.sources.resolve import resolve

logger = logging.getLogger(__name__)


def kv_cache(model: Model, budget: Budget) -> KvCache:
    """Allocates the KV cache."""
    facts, kv = model.outline.facts, budget.kv
    return KvCache(
        facts.attention,
        kv.most_blocks,
        kv.block_size,
        model.dtype,
        model.device,
        taken=kv.num_blocks,
        groups=budget.groups,
        whole=facts.whole,
    )


def tiers_below(config: EngineConfig, model: Model, cache: KvCache, budget: Budget) -> Tiers | None:
    """Opens the tiers that were asked for, if any. Raises UsageError, SourceError, MemoryLimitError."""
    if config.kv_disk is None and config.kv_host_memory is None:
        return None
    facts = model.outline.facts
    if not facts.keeps_only_blocks or facts.whole:
        raise UsageError(
            f"--kv-disk and --kv-host-memory keep blocks of cached prefixes, which are not enough for a model that "
            f"{_kept(facts)} ({facts.architecture}): leave them away"
        )
    files = model.files or resolve(config.model, config.revision, trust_remote_code=config.trust_remote_code)
    return open_tiers(config, files, cache, budget.backends[0])


def slot_states(config: EngineConfig, model: Model) -> SlotStates:
    """What each sequence that may run keeps beside its blocks."""
    facts = model.outline.facts
    if not facts.keeps_only_blocks and config.prefix_caching and not model.snapshots:
        logger.info("%s %s: every prompt is computed from its first token", facts.architecture, _kept(facts))
    return states_of(model.outline, config.max_sequences, model.dtype, model.device, snapshots=model.snapshots)


def token_sampler(config: EngineConfig, model: Model, grammars: Grammars) -> Sampler:
    """Samples tokens. If steps overlap, a step is planned before it is known which tokens the one before it forces."""
    most_forced = 0 if overlaps(config, model.device.type) else MOST_FORCED
    vocab_size = model.outline.facts.vocab_size
    return Sampler(vocab_size, tuple(model.eos_token_ids), ConstrainedRows(vocab_size, grammars, most_forced))


def _kept(facts: Facts) -> str:
    if facts.whole:
        return "sees prompts from both ends"
    return "has recurrent layers" if facts.states else "keeps a cache of its own for each sequence"
