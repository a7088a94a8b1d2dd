"""The border between scheduler and runner: what to compute in one step, and what came of it.

The scheduler fills a `StepPlan` with integers; the runner answers with a `StepResult` whose `outputs` stand in
the same order as `StepPlan.sequences`. Neither side keeps a reference to the other's objects.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from plimsoll_runtime.engine.protocol.messages import RequestContext

LAST_CHOSEN = -1
"""Stands in a plan for the token that the step before chose for the slot, where nobody has seen it yet."""


@dataclass(frozen=True, slots=True)
class SlotInit:
    """A sequence takes a slot of the runner's persistent batch state.

    `prompt_ids` and `output_ids` (non-empty when it resumes after a preemption) feed the penalties.
    """

    slot: int
    context: RequestContext
    prompt_ids: Sequence[int]
    output_ids: Sequence[int] = ()


class TableChange(msgspec.Struct, frozen=True):
    """What is new in a sequence's block table of a group of the cache since the last plan that the sequence was in.

    Of the sequence's blocks, the group now has those from number `first` on: what came before, none of its layers sees
    any longer. From number `start` on they are `blocks`, to the table's end; those before are as they were. For a
    sequence that has just taken its slot, and for all after `moves`, `start` is `first`.
    """

    group: int
    first: int
    start: int
    blocks: Sequence[int]


class ScheduledSequence(msgspec.Struct, frozen=True):
    """The tokens of one sequence to compute in this step (a Struct: made for every sequence in every step).

    `token_ids` stand at positions start .. start + len(token_ids) - 1, or it is LAST_CHOSEN alone. The runner keeps the
    sequence's block tables from step to step: `changes` are what is new in them, at most one a group. They are long
    enough for all tokens then. With `sample`, the last position's logits choose the next token.
    `prompt_targets`: when prompt log probabilities are wanted, the token that follows each of the first
    len(prompt_targets) positions of this chunk; else empty.
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

    Where `num_blocks` is given, the cache has so many from this step on: before that, and after the spills, `moves`
    (source, target) are copied from what is given up: the tables of all sequences come anew behind them. Such a step
    computes and restores nothing.

    No step of the last `idle_steps` before this one uses the blocks of `spills` and `restores`: a device that copies
    beside what it computes may begin while it computes those.

    Of recurrent layers' states, `resumes` (row, slot) are copied before the step computes, for sequences that go on
    from a snapshot, and `snapshots` (slot, row) once it has computed. No row or slot is a target twice.

    Steps run in the order in which they were planned. No block is both a source and a target of `block_copies`. A
    sequence may read blocks that another one fills in the same step, for all keys and values of a layer are written
    before any row attends.
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

    @property
    def num_tokens(self) -> int:
        """Tokens computed in this step."""
        return sum(len(s.token_ids) for s in self.sequences)


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log probability (natural) of a token, its rank (1 is the most likely), and the most likely alternatives."""

    token_id: int
    logprob: float
    rank: int
    top: Sequence[tuple[int, float]] = ()


MOST_FORCED = 32
"""How many tokens a sequence may get in a step behind the one that was chosen."""


class SequenceOutput(msgspec.Struct, frozen=True):
    """What came of one scheduled sequence. `error` says why it cannot go on (NaN in its logits, say).

    `forced`: the tokens behind the chosen one for which its grammar leaves no choice: no step has to choose them.
    `vector`: of a prompt from which nothing is generated, float32 in the machine's order.
    """

    token_id: int | None = None
    logprob: TokenLogprob | None = None
    prompt_logprobs: Sequence[TokenLogprob] = ()
    error: str | None = None
    forced: Sequence[int] = ()
    vector: bytes | None = None


@dataclass(frozen=True, slots=True)
class StepResult:
    """One output for each of the plan's sequences, in the plan's order.

    `attention_fallbacks`: how many attention backends have failed and were replaced since the start.
    """

    outputs: Sequence[SequenceOutput]
    attention_fallbacks: int = 0

    @property
    def ready(self) -> bool:
        """See Launched."""
        return True

    def result(self) -> StepResult:
        """See Launched."""
        return self


class Launched(Protocol):
    """A step that a runner has begun: its device may still compute it. A StepResult is one that is over."""

    @property
    def ready(self) -> bool:
        """Whether the result is there."""

    def result(self) -> StepResult:
        """Wait for it. Of two steps that are not ready, the one that was begun first is asked first."""
