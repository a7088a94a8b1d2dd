"""The interface of scheduler and runner: the plan of one step, and its result.

The scheduler fills a `StepPlan` with integers. The runner returns a `StepResult`, whose `outputs` have the order of
`StepPlan.sequences`. Neither side keeps a reference to the other's objects.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from plimsoll_runtime.engine.protocol.messages import LogprobEntry, RequestContext

LAST_CHOSEN = -1
"""Placeholder for the token that the previous step samples for the slot and that the scheduler does not know yet."""


@dataclass(frozen=True, slots=True)
class SlotInit:
    """Assigns a slot of the runner's batch state to a sequence.

    Penalties use `prompt_ids` and `output_ids`. `output_ids` has tokens only if the sequence resumes after a
    preemption.
    """

    slot: int
    context: RequestContext
    prompt_ids: Sequence[int]
    output_ids: Sequence[int] = ()


class SlotDraw(msgspec.Struct, frozen=True, array_like=True):
    """How the tokens of a sequence that takes a slot are drawn, for ranks of a group that sample no tokens themselves.

    - `seed`, `num_outputs`: token i of the output is drawn as a function of (seed, i); it has `num_outputs` so far.
    - `whole`: sampling needs all logits of a row, because the request has penalties, a bias, a constraint or log
      probabilities.
    """

    slot: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int
    num_outputs: int
    whole: bool


class TableChange(msgspec.Struct, frozen=True):
    """The changes of a sequence's block table in a cache group since its last plan.

    The table has the sequence's blocks from number `first` on; the layers do not read earlier ones. From number `start`
    to the end they are `blocks`; those before `start` are unchanged. For a sequence that has just got its slot, and for
    all sequences after `moves`, `start` equals `first`.
    """

    group: int
    first: int
    start: int
    blocks: Sequence[int]


class ScheduledSequence(msgspec.Struct, frozen=True):
    """The tokens of one sequence to compute in this step. (A Struct, because each step creates one for every sequence.)

    `token_ids` are at positions start .. start + len(token_ids) - 1, or [LAST_CHOSEN]. The runner keeps block tables
    between steps; `changes` update them, at most one for each cache group, and then they cover all tokens. With
    `sample`, the logits of the last position sample the next token. `prompt_targets`: if prompt log probabilities are
    requested, the token after each of the first len(prompt_targets) positions of this chunk; else empty.
    """

    slot: int
    start: int
    token_ids: Sequence[int]
    changes: Sequence[TableChange]
    sample: bool
    prompt_targets: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step: free slots, fill slots, move blocks and states, then compute `sequences`.

    Blocks are moved in this order: `spills` (block, host frame) are read before anything overwrites them, `restores`
    (host frame, block) are filled, `block_copies` (source, target) are copied.

    If `num_blocks` is given, the cache has this size from this step on. Before the change, and after the spills,
    `moves` (source, target) are copied out of the removed part; the next plan sends all block tables again. Such a step
    computes and restores nothing.

    The last `idle_steps` steps before this one do not use the blocks of `spills` and `restores`, so a device that
    copies while it computes can start those copies during them.

    Of recurrent states, `resumes` (row, slot) are copied before the step computes, for sequences that resume from a
    snapshot, and `snapshots` (slot, row) after. No row or slot is a target twice.

    A rank of a group that samples no tokens gets `draws` in place of `new_slots`.

    Steps run in the order of planning. No block is both a source and a target of `block_copies`. A sequence may read
    blocks that another one fills in the same step, because all keys and values of a layer are written before any row
    attends.
    """

    sequences: Sequence[ScheduledSequence]
    freed_slots: Sequence[int] = ()
    new_slots: Sequence[SlotInit] = ()
    block_copies: Sequence[tuple[int, int]] = ()
    spills: Sequence[tuple[int, int]] = ()
    restores: Sequence[tuple[int, int]] = ()
    moves: Sequence[tuple[int, int]] = ()
    num_blocks: int | None = None
    idle_steps: int = 0
    resumes: Sequence[tuple[int, int]] = ()
    snapshots: Sequence[tuple[int, int]] = ()
    draws: Sequence[SlotDraw] = ()

    @property
    def num_tokens(self) -> int:
        """Number of tokens computed in this step."""
        return sum(len(s.token_ids) for s in self.sequences)


MOST_FORCED = 32
"""Most forced tokens of a sequence in a step, after the sampled one."""


class SequenceOutput(msgspec.Struct, frozen=True):
    """The result of one scheduled sequence. `error`: why it cannot continue, such as NaN in its logits.

    `forced`: tokens after the sampled one that the grammar leaves no alternative to; no step samples them. `vector`:
    the result of a pooling model, float32 in native byte order.
    """

    token_id: int | None = None
    logprob: LogprobEntry | None = None
    prompt_logprobs: Sequence[LogprobEntry] = ()
    error: str | None = None
    forced: Sequence[int] = ()
    vector: bytes | None = None


@dataclass(frozen=True, slots=True)
class StepResult:
    """One output for each of the plan's sequences, in the plan's order.

    `attention_fallbacks`: attention backends that have failed and were replaced since the start.
    """

    outputs: Sequence[SequenceOutput]
    attention_fallbacks: int = 0

    @property
    def ready(self) -> bool:
        return True

    def result(self) -> StepResult:
        return self


class Launched(Protocol):
    """A step that a runner has started and its device may still compute. A StepResult is one that has ended."""

    @property
    def ready(self) -> bool:
        """Whether the result is available."""

    def result(self) -> StepResult:
        """Wait for the result and return it. Call it in the order in which the steps were started."""
