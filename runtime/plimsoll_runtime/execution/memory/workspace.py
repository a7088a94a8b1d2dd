"""The memory of the largest step apart from weights and KV cache: activations, logits, and sampling.

Recurrent states are included, because they take the same memory in every step, however long the sequences are.

On a GPU such a step is run and its peak read from the allocator: with the most rows and the most sequences, since both
determine memory. On a CPU it would take seconds and is not run: a decoder's allocations follow from its shapes (a test
compares them with measured peaks).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch

from plimsoll_kernels.cpu.huge_pages import Buffer
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.engine.limits import step_tokens
from plimsoll_runtime.execution.attention.base import AttentionBackend
from plimsoll_runtime.execution.forward import ForwardPass
from plimsoll_runtime.execution.inputs.batch_state import NO_STATES, SlotStates, padding_inputs
from plimsoll_runtime.execution.kv.cache import KvCache
from plimsoll_runtime.execution.kv.states import snapshot_rows, states_of
from plimsoll_runtime.execution.parts import StepParts
from plimsoll_runtime.execution.sampling.sampler import GATHERED_BYTES, PROMPT_LOGITS
from plimsoll_runtime.models.decoder import Decoder
from plimsoll_runtime.models.ops.logits import Logits, NoLogits
from plimsoll_runtime.models.program import Facts, Outline, Program

FLOAT32 = 4
KEPT = 2.5
"""Resident memory of short-lived activations, relative to the most that live at once: 1.6 to 2.5 measured."""
TILES = 8 * 2**20
"""Bytes of attention's gathered blocks, scores and products (`attention/backends/gather/plan.py` limits them)."""


@dataclass(frozen=True, slots=True)
class LargestStep:
    """A step that computes `rows` tokens of `sequences` sequences of at most `longest` tokens, and samples a token for
    each.

    `snapshots`: rows of state snapshots.
    """

    rows: int
    sequences: int
    longest: int
    snapshots: int = 0

    @property
    def prompts(self) -> list[int]:
        """The tokens of each sequence of such a step: each has at least one, and the first ones as many as possible."""
        left = self.rows
        lengths = []
        for others in reversed(range(min(self.sequences, self.rows))):
            lengths.append(min(self.longest, left - others))
            left -= lengths[-1]
        return lengths

    def logits_rows(self, vocab_size: int) -> int:
        """Return the most rows of logits computed at once: one a sequence, or as many of a prompt with log
        probabilities as PROMPT_LOGITS allows.
        """
        return max(self.sequences, min(self.rows, max(1, PROMPT_LOGITS // vocab_size)))

    def head_rows(self, facts: Facts) -> int:
        """Return the rows of a decoder's head computed at once: for logits, or for the vectors of prompts."""
        return self.logits_rows(facts.vocab_size) if facts.pooling is None else self.sequences


def largest_step(config: EngineConfig, facts: Facts, longest: int) -> LargestStep:
    """Return the largest step that a config allows, with sequences of at most `longest` tokens.

    Raises UsageError for snapshots that the model does not support.
    """
    most = config.max_sequences * longest
    rows = min(most, step_tokens(config, longest, whole=bool(facts.whole)))
    return LargestStep(rows, config.max_sequences, longest, snapshot_rows(config, facts))


@runtime_checkable
class KnowsStepBytes(Protocol):
    """A decoder that allocates its memory itself and can predict how much."""

    def step_bytes(self, rows: int, logits_rows: int, longest: int) -> int:
        """Return the bytes of activations, logits and tables of a step of `rows` tokens, in sequences of at most
        `longest`.
        """


def on_a_cpu(decoder: Decoder, step: LargestStep) -> int:
    """Return the workspace of a step on a CPU in bytes, as the decoder predicts it (`KnowsStepBytes`), or by its
    outline.
    """
    facts, size = decoder.outline.facts, decoder.dtype.itemsize
    if not isinstance(decoder, KnowsStepBytes):
        return by_outline(decoder.outline, decoder.dtype, step)
    computed = decoder.step_bytes(step.rows, step.head_rows(facts), step.longest)
    return computed + _choosing(decoder.outline, step) + _kept_states(facts, size, step)


def by_outline(outline: Outline, dtype: torch.dtype, step: LargestStep) -> int:
    """Return the workspace in bytes of a step in the torch executor, before the decoder is built. On a GPU the measured
    value is smaller.
    """
    facts, size = outline.facts, dtype.itemsize
    computed = _torch_bytes(outline, size, step, step.head_rows(facts)) + _made_states(facts, size, step)
    return computed + _choosing(outline, step) + _kept_states(facts, size, step)


def on_an_accelerator(
    decoder: Decoder, backends: Sequence[type[AttentionBackend]], block_size: int, step: LargestStep
) -> tuple[int, Sequence[type[AttentionBackend]]]:
    """Measure the workspace of a step in bytes, with the device's allocator, over a private cache of two blocks.

    Also returns the backends without those that failed. Raises NoBackendError if all fail.
    """
    facts, device = decoder.outline.facts, torch.accelerator.current_accelerator()
    assert device is not None
    cache = KvCache(facts.attention, 2, block_size, decoder.dtype, device, whole=facts.whole)
    states = states_of(decoder.outline, len(step.prompts), decoder.dtype, cache.device)
    able: list[type[AttentionBackend]] = []
    peak = peak_of(lambda: able.extend(_run(decoder, backends, cache, step, states)))
    return peak + _choosing(decoder.outline, step) + _kept_states(facts, decoder.dtype.itemsize, step), able


def peak_of(work: Callable[[], None]) -> int:
    """Return the most bytes that `work` allocates at once on the accelerator."""
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
    """Compute prompts as long as a step allows, all in the padding block, and logits. Returns the remaining
    backends.
    """
    forward_pass = ForwardPass(StepParts(decoder, cache, states), backends)
    hidden = forward_pass.run(padding_inputs([(length, length) for length in step.prompts], cache))
    wanted = step.head_rows(decoder.outline.facts)
    if isinstance(decoder.outline, Program) and isinstance(decoder.outline.head, NoLogits):
        return forward_pass.backends
    decoder.logits(hidden[:1].expand(wanted, -1).contiguous())
    return forward_pass.backends


def _choosing(outline: Outline, step: LargestStep) -> int:
    """Return the bytes of sampling: copies of logits for penalties together with log probabilities, and the
    probabilities. If ranks have parts of the logits, also those of the whole rows that the first one gathers.
    """
    facts, head = outline.facts, outline.head if isinstance(outline, Program) else None
    if facts.pooling is not None or isinstance(head, NoLogits):
        return 0
    rows, row = step.head_rows(facts), FLOAT32 * facts.vocab_size
    sampling = row * max(2 * step.sequences, rows)
    if not isinstance(head, Logits) or head.part is None:
        return sampling
    own = FLOAT32 * head.width * step.sequences
    if head.part[0] > 0:
        return own + Buffer.nbytes(max(row, min(row * rows, GATHERED_BYTES)))
    return own + sampling + Buffer.nbytes(row * rows)


def _kept_states(facts: Facts, size: int, step: LargestStep) -> int:
    """Return the bytes of recurrent states: a row for each sequence, one for padding, and snapshots."""
    return (step.sequences + 1 + step.snapshots) * facts.state_bytes(size)


def _made_states(facts: Facts, size: int, step: LargestStep) -> int:
    """Return the bytes of the new states of torch's ops: a second row for each sequence, until the pass is complete.

    A pass that fails is computed again from the first rows. Not called for the C++ CPU kernels, which write states in
    place, or for a measured step, whose peak includes the second rows.
    """
    return min(step.sequences, step.rows) * facts.state_bytes(size)


def _torch_bytes(outline: Outline, size: int, step: LargestStep, logits_rows: int) -> int:
    """Return the bytes of a decoder of torch's ops: its widest op with the allocator's overhead, attention's tiles,
    logits.
    """
    rows = int(KEPT * step.rows * outline.row_bytes(size)) + outline.beside_rows(size, step.rows, step.longest)
    return rows + TILES + logits_rows * outline.logits_bytes(size)
