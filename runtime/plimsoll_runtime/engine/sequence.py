"""A sequence, and the parts of it that other modules of the engine write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from plimsoll_runtime.engine.protocol.messages import RequestContext
from plimsoll_runtime.engine.protocol.plan import TableChange
from plimsoll_runtime.engine.protocol.prompt import Prompt


@dataclass(slots=True)
class BlockTable:
    """The blocks from number `first` of the sequence on; those before are given back. More are appended to `blocks`.

    The runner has those before number `same`, as far as they are still here, and a table that begins with number
    `first_sent`, None if it has none.
    """

    first: int = 0
    blocks: list[int] = field(default_factory=list)
    same: int = 0
    first_sent: int | None = None

    @property
    def end(self) -> int:
        """The number of the block behind the last."""
        return self.first + len(self.blocks)

    def replace(self, number: int, block: int) -> int:
        """Have another block in the place of one, which is returned."""
        own, self.blocks[number - self.first] = self.blocks[number - self.first], block
        self.same = min(self.same, number)
        return own

    def give_back(self, count: int) -> list[int]:
        """Have the first blocks no longer; what they were."""
        given = self.blocks[:count]
        del self.blocks[:count]
        self.first += count
        return given

    def renumber(self, moved: Mapping[int, int]) -> None:
        """Blocks have other numbers from now on. The runner is to hear of all that there are."""
        self.blocks = [moved.get(block, block) for block in self.blocks]
        self.same, self.first_sent = 0, None

    def change(self, group: int) -> TableChange | None:
        """What the runner is to be told next, which it has then; None where it has all."""
        start, end = max(self.same, self.first), self.first + len(self.blocks)
        if start == end and self.first_sent == self.first:
            return None
        self.same, self.first_sent = end, self.first
        return TableChange(group, self.first, start, self.blocks[start - self.first :])

    @property
    def is_sent(self) -> bool:
        """Whether the runner has it as it is."""
        return self.same == self.end and self.first_sent == self.first


@dataclass(slots=True)
class SequenceKv:
    """The KV blocks of one sequence. Only `engine/kv` writes it.

    `hashes`: the chain of block hashes, which begins with the tenant's root; `published` blocks are in the prefix
    cache. `tables`: one for each cache group; `tables_sent`: the runner has them as they are. The first `allocated`
    tokens can be computed before the tables must grow; `reserved` blocks are kept for the known tokens behind those.

    A sequence that gives its blocks back gets a new SequenceKv of the same hashes. The old one has no tables then.
    """

    hashes: list[bytes]
    published: int = 0
    tables: list[BlockTable] = field(default_factory=list)
    tables_sent: bool = False
    allocated: int = 0
    reserved: int = 0

    def changes(self) -> list[TableChange]:
        """What the next plan sends of the tables."""
        self.tables_sent = True
        changes = []
        for group, table in enumerate(self.tables):
            if (change := table.change(group)) is not None:
                changes.append(change)
        return changes


@dataclass(slots=True)
class QueueEntry:
    """What orders sequences. `Arrivals` writes it; policies and queues read it.

    The request arrived as number `arrival`, at `arrived_ns`, when the engine had computed `arrived_tokens`. Its first
    token is due at `due_ns`; None: at any time. `cached_tokens` were in the prefix cache at the last lookup. The policy
    computes `order_key` of these.
    """

    arrival: int
    arrived_ns: int = 0
    arrived_tokens: int = 0
    due_ns: int | None = None
    cached_tokens: int = 0
    order_key: tuple[int, ...] = ()


@dataclass(slots=True)
class Report:
    """What the client gets besides tokens. Only `engine/scheduler` writes it.

    `final_only`: one output, at the end. `admitted`: it has run; `answered`: its first token is there; `cached_tokens`
    of the prompt were in the prefix cache by then. `prompt_logprobs` are packed and belong to the first `scored`
    positions; None: they are not wanted.
    """

    prompt_logprobs: list[bytes] | None = None
    final_only: bool = False
    scored: int = 0
    admitted: bool = False
    answered: bool = False
    cached_tokens: int = 0


class Phase(Enum):
    """Where a sequence is in its life. A preemption leads from RUNNING back to WAITING.

    One in PREFETCHING waits too, but not in line: its prefix is being read from the disk.
    """

    WAITING = "waiting"
    PREFETCHING = "prefetching"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class SequenceState:
    """An engine request inside the scheduler: its tokens, its progress, and a part for each of other writers.

    Its tokens are the `prompt`, which others may have too, and the `output_ids`: `known` of them. The keys and values
    of the first `computed` tokens are in the tables of `kv`, or will be after the steps planned so far; `pending`
    tokens are sampled by these steps. It ends with "length" at `max_len` tokens, and with "stop" at one of `stop_ids`
    from `min_len` tokens on.
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
        """Its tokens, with those that are still to come from steps under way."""
        return self.known + self.pending

    @property
    def ends_by_length(self) -> bool:
        """Whether the tokens that are still to come are its last ones, whatever they are."""
        return self.pending > 0 and self.length >= self.max_len

    @property
    def scores_prompt(self) -> bool:
        """Whether log probabilities of prompt tokens are still to come."""
        return self.report.prompt_logprobs is not None and self.report.scored < self.prompt_len - 1

    @property
    def reusable_tokens(self) -> int:
        """How many leading tokens may come from the prefix cache.

        The last known token is always computed, for its logits choose the next one; so is every position whose
        logits are still to be reported.
        """
        return self.report.scored if self.scores_prompt else self.known - 1

    def append(self, token_id: int) -> None:
        """One more token was generated."""
        self.output_ids.append(token_id)
        self.known += 1

    def tokens(self, start: int, stop: int) -> Sequence[int]:
        """Those of its tokens from `start` to before `stop` that are there."""
        outputs = start - self.prompt_len
        if outputs >= 0:
            return self.output_ids[outputs : stop - self.prompt_len]
        if stop <= self.prompt_len:
            return self.prompt[start:stop]
        return self.prompt[start:] + self.output_ids[: stop - self.prompt_len]

    def end_reason(self, token_id: int) -> str | None:
        """Why the sequence ends with this token, which is its last one so far; None when it goes on."""
        length = self.known
        if token_id in self.stop_ids and length >= self.min_len:
            return "stop"
        return "length" if length >= self.max_len else None
