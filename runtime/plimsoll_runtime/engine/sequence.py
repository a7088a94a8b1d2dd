"""A sequence, and its records that other modules of the engine write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from plimsoll_runtime.engine.protocol.messages import MOST_MARKS, Mark, MarkKind, RequestContext, WaitReason
from plimsoll_runtime.engine.protocol.plan import TableChange
from plimsoll_runtime.engine.protocol.prompt import Prompt


@dataclass(slots=True)
class BlockTable:
    """The blocks of a sequence from number `first` on; earlier ones are released. New blocks are appended to `blocks`.

    The runner has the blocks before number `same`, in a table that begins with number `first_sent` (None: it has no
    table).
    """

    first: int = 0
    blocks: list[int] = field(default_factory=list)
    same: int = 0
    first_sent: int | None = None

    @property
    def end(self) -> int:
        """The number of the block after the last."""
        return self.first + len(self.blocks)

    def replace(self, number: int, block: int) -> int:
        """Replace the block with this number, and return the old one."""
        own, self.blocks[number - self.first] = self.blocks[number - self.first], block
        self.same = min(self.same, number)
        return own

    def give_back(self, count: int) -> list[int]:
        """Remove and return the first `count` blocks."""
        given = self.blocks[:count]
        del self.blocks[:count]
        self.first += count
        return given

    def renumber(self, moved: Mapping[int, int]) -> None:
        """Apply new block numbers. The next plan sends the whole table to the runner."""
        self.blocks = [moved.get(block, block) for block in self.blocks]
        self.same, self.first_sent = 0, None

    def change(self, group: int) -> TableChange | None:
        """Return the change to send to the runner, and mark it as sent; None if the runner has everything."""
        start, end = max(self.same, self.first), self.first + len(self.blocks)
        if start == end and self.first_sent == self.first:
            return None
        self.same, self.first_sent = end, self.first
        return TableChange(group, self.first, start, self.blocks[start - self.first :])

    @property
    def is_sent(self) -> bool:
        """Whether the runner has the whole table."""
        return self.same == self.end and self.first_sent == self.first


@dataclass(slots=True)
class SequenceKv:
    """The KV blocks of one sequence. Only `engine/kv` writes it.

    `hashes`: the chain of block hashes, which begins with the tenant's root; `published` blocks are in the prefix
    cache. `tables`: one for each cache group; `tables_sent`: the runner has them completely. The first `allocated`
    tokens can be computed before the tables must grow; `reserved` blocks are kept for the known tokens after those.

    A sequence that releases its blocks gets a new SequenceKv with the same hashes. The old one then has no tables.
    """

    hashes: list[bytes]
    published: int = 0
    tables: list[BlockTable] = field(default_factory=list)
    tables_sent: bool = False
    allocated: int = 0
    reserved: int = 0

    def changes(self) -> list[TableChange]:
        """Return the table changes for the next plan, and mark them as sent."""
        self.tables_sent = True
        changes = []
        for group, table in enumerate(self.tables):
            if (change := table.change(group)) is not None:
                changes.append(change)
        return changes


@dataclass(slots=True)
class QueueEntry:
    """The inputs of a sequence's order. `Arrivals` writes it; policies and queues read it.

    The request arrived as number `arrival`, at `arrived_ns`, when the engine had computed `arrived_tokens`. Its first
    token is due at `due_ns`; None: no deadline. `cached_tokens` were in the prefix cache at the last lookup. The policy
    computes `order_key` from these.
    """

    arrival: int
    arrived_ns: int = 0
    arrived_tokens: int = 0
    due_ns: int | None = None
    cached_tokens: int = 0
    order_key: tuple[int, ...] = ()


ANSWERS = (MarkKind.FIRST_TOKEN, MarkKind.FINISHED)
"""Marks that are recorded in any case; a request has each of them once."""


@dataclass(slots=True)
class Report:
    """Data for the client besides tokens. Only `engine/scheduler` writes it.

    - `final_only`: one output, at the end.
    - `admitted`: the sequence has run. `answered`: its first token has been sampled. `cached_tokens` of the prompt were
      found before that, in the prefix cache or its tiers.
    - `marks`: those that the client does not have yet. `waits_since_ns`: when it joined the waiting queue.
    - `prompt_logprobs`: packed, of the first `scored` positions; None: not requested.
    """

    prompt_logprobs: list[bytes] | None = None
    final_only: bool = False
    scored: int = 0
    admitted: bool = False
    answered: bool = False
    cached_tokens: int = 0
    marks: list[Mark] = field(default_factory=list)
    waits_since_ns: int = 0

    def mark(self, kind: MarkKind, at_ns: int, value: int = 0, why: WaitReason = WaitReason.NOTHING) -> None:
        """Record what happens to the sequence. Beyond MOST_MARKS, further chunks are added to the last one, and
        further preemptions are left out.
        """
        if len(self.marks) >= MOST_MARKS and kind not in ANSWERS:
            if kind is MarkKind.CHUNK and (at := self._last_chunk()) is not None:
                chunk = self.marks[at]
                self.marks[at] = Mark(MarkKind.CHUNK, chunk.at_ns, chunk.value + value)
            if kind is not MarkKind.SCHEDULED or self.marks[-1].kind is not MarkKind.PREEMPTED:
                return
        self.marks.append(Mark(kind, at_ns, value, why))

    def _last_chunk(self) -> int | None:
        marks = self.marks
        return next((at for at in range(len(marks) - 1, -1, -1) if marks[at].kind is MarkKind.CHUNK), None)

    def take_marks(self) -> list[Mark]:
        """Return the marks to send, and forget them."""
        marks, self.marks = self.marks, []
        return marks


class Phase(Enum):
    """The phase of a sequence. A preemption leads from RUNNING back to WAITING.

    A PREFETCHING sequence is out of the waiting queue while its prefix is read from disk.
    """

    WAITING = "waiting"
    PREFETCHING = "prefetching"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class SequenceState:
    """An engine request inside the scheduler: its tokens, its progress, and one record for each module that writes it.

    Its tokens are the `prompt`, which other sequences may share, and `output_ids`: `known` tokens together. The keys
    and values of the first `computed` tokens are in the tables of `kv`, or will be after the steps planned so far;
    these steps sample `pending` more tokens. The sequence ends with "length" at `max_len` tokens, and with "stop" at
    one of `stop_ids` from `min_len` tokens on.
    """

    request_id: str
    context: RequestContext
    prompt: Prompt
    min_len: int
    max_len: int
    stop_ids: frozenset[int]
    queue: QueueEntry
    kv: SequenceKv
    report: Report
    prompt_len: int = field(init=False)
    output_ids: list[int] = field(default_factory=list)
    known: int = field(init=False)
    phase: Phase = Phase.WAITING
    slot: int = -1
    computed: int = 0
    pending: int = 0

    def __post_init__(self) -> None:
        self.prompt_len = len(self.prompt)
        self.known = self.prompt_len + len(self.output_ids)

    @property
    def length(self) -> int:
        """Number of tokens, including those that steps in progress will sample."""
        return self.known + self.pending

    @property
    def ends_by_length(self) -> bool:
        """Whether the pending tokens are the last ones, whatever they are."""
        return self.pending > 0 and self.length >= self.max_len

    @property
    def scores_prompt(self) -> bool:
        """Whether log probabilities of prompt tokens are still missing."""
        return self.report.prompt_logprobs is not None and self.report.scored < self.prompt_len - 1

    @property
    def reusable_tokens(self) -> int:
        """How many leading tokens may come from the prefix cache.

        The last known token is always computed, because its logits sample the next one; so is every position whose
        logits are still to be reported.
        """
        return self.report.scored if self.scores_prompt else self.known - 1

    def append(self, token_id: int) -> None:
        """Append a generated token."""
        self.output_ids.append(token_id)
        self.known += 1

    def tokens(self, start: int, stop: int) -> Sequence[int]:
        """Return the known tokens from `start` to before `stop`."""
        outputs = start - self.prompt_len
        if outputs >= 0:
            return self.output_ids[outputs : stop - self.prompt_len]
        if stop <= self.prompt_len:
            return self.prompt[start:stop]
        return self.prompt[start:] + self.output_ids[: stop - self.prompt_len]

    def end_reason(self, token_id: int) -> str | None:
        """Return why the sequence ends with its last token `token_id`; None if it continues."""
        length = self.known
        if token_id in self.stop_ids and length >= self.min_len:
            return "stop"
        return "length" if length >= self.max_len else None
