"""What the largest step needs beside weights and cache: activations, logits, and what choosing tokens takes.

What recurrent layers keep of sequences counts to it: it is as much in every step, however long the sequences are.

On a GPU such a step is run and its peak read from the allocator: a step of as many rows, and of as many sequences, as
there may be, since some of what it takes is by the row and some by the sequence. On a CPU it would take seconds, and
nothing need be run: what a decoder allocates follows from its shapes (held against measured peaks by a test).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch

from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.engine.limits import step_tokens
from plimsoll_runtime.execution.attention.base import AttentionBackend
from plimsoll_runtime.execution.forward import ForwardPass
from plimsoll_runtime.execution.inputs.batch_state import NO_STATES, SlotStates, padding_inputs
from plimsoll_runtime.execution.kv.cache import KvCache
from plimsoll_runtime.execution.kv.states import snapshot_rows, states_of
from plimsoll_runtime.execution.parts import StepParts
from plimsoll_runtime.execution.sampling.sampler import PROMPT_LOGITS
from plimsoll_runtime.models.decoder import Decoder
from plimsoll_runtime.models.program import Facts, Outline

FLOAT32 = 4
KEPT = 2.5
"""What stays resident of activations that come and go, over the most that lives at once: 1.6 to 2.5 measured."""
TILES = 8 * 2**20
"""Attention's gathered blocks, scores and products (`attention/backends/gather/plan.py` bounds them)."""


@dataclass(frozen=True, slots=True)
class LargestStep:
    """`rows` tokens at once, `sequences` of which choose a token, in sequences of at most `longest` tokens.

    `snapshots`: rows of states that are kept beside those of sequences.
    """

    rows: int
    sequences: int
    longest: int
    snapshots: int = 0

    @property
    def prompts(self) -> list[int]:
        """The tokens of each sequence of such a step: all sequences have some, and the first as many as they may."""
        left = self.rows
        lengths = []
        for others in reversed(range(min(self.sequences, self.rows))):
            lengths.append(min(self.longest, left - others))
            left -= lengths[-1]
        return lengths

    def logits_rows(self, vocab_size: int) -> int:
        """Rows of logits at once: the sequences', or those of a prompt whose log probabilities were asked for."""
        return max(self.sequences, min(self.rows, max(1, PROMPT_LOGITS // vocab_size)))

    def head_rows(self, facts: Facts) -> int:
        """Rows that go through a decoder's head at once: for logits, or the vectors of prompts."""
        return self.logits_rows(facts.vocab_size) if facts.pooling is None else self.sequences


def largest_step(config: EngineConfig, facts: Facts, longest: int) -> LargestStep:
    """The largest that a config allows, of sequences of at most `longest` tokens: no more rows than all of them have.

    Raises UsageError for snapshots that the model cannot have.
    """
    most = config.max_sequences * longest
    rows = min(most, step_tokens(config.max_batch_tokens, longest, whole=bool(facts.whole)))
    return LargestStep(rows, config.max_sequences, longest, snapshot_rows(config, facts))


@runtime_checkable
class KnowsStepBytes(Protocol):
    """A decoder that allocates its memory itself, and can say how much."""

    def step_bytes(self, rows: int, logits_rows: int, longest: int) -> int:
        """Bytes of activations, logits and tables of such a step."""


def on_a_cpu(decoder: Decoder, step: LargestStep) -> int:
    """Bytes, from the decoder itself or from its outline."""
    facts, size = decoder.outline.facts, decoder.dtype.itemsize
    if not isinstance(decoder, KnowsStepBytes):
        return by_outline(decoder.outline, decoder.dtype, step)
    computed = decoder.step_bytes(step.rows, step.head_rows(facts), step.longest)
    return computed + _choosing(facts, step) + _kept_states(facts, size, step)


def by_outline(outline: Outline, dtype: torch.dtype, step: LargestStep) -> int:
    """Bytes for a decoder of torch's ops before there is one. On a GPU what is measured once there is one is less."""
    facts, size = outline.facts, dtype.itemsize
    computed = _torch_bytes(outline, size, step, step.head_rows(facts)) + _made_states(facts, size, step)
    return computed + _choosing(facts, step) + _kept_states(facts, size, step)


def on_an_accelerator(
    decoder: Decoder, backends: Sequence[type[AttentionBackend]], block_size: int, step: LargestStep
) -> tuple[int, Sequence[type[AttentionBackend]]]:
    """Bytes by the allocator of the device of a step over a private cache of one block.

    And the backends without those that failed at it. Raises NoBackendError where all do.
    """
    facts, device = decoder.outline.facts, torch.accelerator.current_accelerator()
    assert device is not None
    cache = KvCache(facts.attention, 2, block_size, decoder.dtype, device, whole=facts.whole)
    states = states_of(decoder.outline, len(step.prompts), decoder.dtype, cache.device)
    able: list[type[AttentionBackend]] = []
    peak = peak_of(lambda: able.extend(_run(decoder, backends, cache, step, states)))
    return peak + _choosing(facts, step) + _kept_states(facts, decoder.dtype.itemsize, step), able


def peak_of(work: Callable[[], None]) -> int:
    """The most that work has allocated at once on the accelerator."""
    torch.accelerator.synchronize()
    torch.accelerator.empty_cache()
    torch.accelerator.reset_peak_memory_stats()
    before = torch.accelerator.memory_allocated()
    work()
    torch.accelerator.synchronize()
    peak = torch.accelerator.max_memory_allocated() - before
    torch.accelerator.empty_cache()
    return int(peak)


@torch.inference_mode()
def _run(
    decoder: Decoder,
    backends: Sequence[type[AttentionBackend]],
    cache: KvCache,
    step: LargestStep,
    states: SlotStates = NO_STATES,
) -> Sequence[type[AttentionBackend]]:
    """Prompts of as many tokens as a step holds, all of them in the padding block, and the logits."""
    forward_pass = ForwardPass(StepParts(decoder, cache, states), backends)
    hidden = forward_pass.run(padding_inputs([(length, length) for length in step.prompts], cache))
    wanted = step.head_rows(decoder.outline.facts)
    decoder.logits(hidden[:1].expand(wanted, -1).contiguous())
    return forward_pass.backends


def _choosing(facts: Facts, step: LargestStep) -> int:
    """Copies of logits that penalties beside log probabilities, and the probabilities themselves, make of them."""
    if facts.pooling is not None:
        return 0
    prompts = step.head_rows(facts)
    return FLOAT32 * facts.vocab_size * max(2 * step.sequences, prompts)


def _kept_states(facts: Facts, size: int, step: LargestStep) -> int:
    """What recurrent layers keep: a row for each sequence, one that belongs to nobody, and snapshots."""
    return (step.sequences + 1 + step.snapshots) * facts.state_bytes(size)


def _made_states(facts: Facts, size: int, step: LargestStep) -> int:
    """What torch's ops make of them: a second row for each sequence of a step, until the pass is over.

    A pass that breaks off is computed again, from the rows that are kept. Our CPU kernels never break off, and write
    these in place; of a step that is run the second rows are in its peak.
    """
    return min(step.sequences, step.rows) * facts.state_bytes(size)


def _torch_bytes(outline: Outline, size: int, step: LargestStep, logits_rows: int) -> int:
    """A decoder of torch's ops: its widest op with what the allocator keeps, attention's tiles, and the logits."""
    rows = int(KEPT * step.rows * outline.row_bytes(size)) + outline.beside_rows(size, step.rows, step.longest)
    return rows + TILES + logits_rows * outline.logits_bytes(size)
