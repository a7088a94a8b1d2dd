"""A sequence: its tokens, its block tables, its snapshots and its progress."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from plimsoll_runtime.engine.kv.offload.index import Prefetch
from plimsoll_runtime.engine.protocol.messages import RequestContext
from plimsoll_runtime.engine.protocol.plan import TableChange
from plimsoll_runtime.engine.protocol.prompt import Prompt


@dataclass(slots=True)
class BlockTable:
    """The blocks from number `first` of the sequence on; those before are given back. More are appended to `blocks`.

    The runner has the blocks before number `same` as they are here, and a table that begins with number `told`, None
    where it has none.
    """

    first: int = 0
    blocks: list[int] = field(default_factory=list)
    same: int = field(init=False)
    told: int | None = None

    def __post_init__(self) -> None:
        self.same = self.first

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
        self.same = max(self.same, self.first)
        return given

    def renumber(self, moved: Mapping[int, int]) -> None:
        """Blocks have other numbers from now on. The runner is to hear of all that there are."""
        self.blocks = [moved.get(block, block) for block in self.blocks]
        self.same, self.told = self.first, None

    def change(self, group: int) -> TableChange | None:
        """What the runner is to be told next, which it has then; None where it has all."""
        start, end = self.same, self.first + len(self.blocks)
        if start == end and self.told == self.first:
            return None
        self.same, self.told = end, self.first
        return TableChange(group, self.first, start, self.blocks[start - self.first :])

    @property
    def is_told(self) -> bool:
        """Whether the runner has it as it is."""
        return self.same == self.end and self.told == self.first


@dataclass(slots=True)
class SnapshotMarks:
    """Positions are in tokens, at borders of blocks.

    `cuts`: where its prompt is cut, for snapshots that others may begin with, in order. `saved`: its last border that
    somebody has a snapshot of. `row`: the one that it holds for itself (0: none), filled at `border`, and `named` once
    all tokens up to there are known.
    """

    saved: int
    cuts: list[int] = field(default_factory=list)
    row: int = 0
    border: int = 0
    named: bool = True


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
    """What the scheduler knows of one request.

    Its tokens are the `prompt`, which others may hold too, and behind it `output_ids`; the KV of the first `computed`
    of them is (or, by the steps handed out, will be) in `tables`, one for each group of the cache, or was given back.
    `max_len` ends it with "length"; `stop_ids` end it with "stop" once `min_len` tokens are there. `known` is how many
    tokens there are.

    `final_only`: see RequestContext. `answered`: its first token is there.

    The first `room` tokens can be computed before the tables have to be looked at again; `promised` blocks are kept for
    those behind, of what is known. `told`: the runner has the tables as they are.

    For the policy: `rank`, and what it is made from: when it arrived, as a number among all requests (`arrival`), as a
    time (`arrived_ns`) and in tokens that the engine had computed (`arrived_tokens`); when it must have its first
    token (`due_ns`, None: whenever); how many of its tokens were in the prefix cache the last time somebody looked
    (`prefix`).

    `pending` counts the tokens that steps under way are choosing for it. `epoch` grows whenever the blocks are given
    back, so that what an earlier step still holds for this sequence can be told from what is true now.

    For the prefix cache: `names` is the chain of block names behind the tenant's root, `published` how many of its
    blocks are already findable, `restored` how many tokens came back from the tiers when it last began to run,
    `prefetch` what has been or is being read for it from the disk while it waits, `sought` whether the disk was looked
    at for it since it began to wait. `marks` are about its snapshots, None where no layer is recurrent.

    For prompt log probabilities: the first `scored` positions have been reported.
    """

    request_id: str
    context: RequestContext
    arrival: int
    prompt: Prompt
    prompt_len: int
    min_len: int
    max_len: int
    stop_ids: frozenset[int]
    output_ids: list[int] = field(default_factory=list)
    known: int = field(init=False)
    arrived_ns: int = 0
    arrived_tokens: int = 0
    due_ns: int | None = None
    prefix: int = 0
    rank: tuple[int, ...] = ()
    phase: Phase = Phase.WAITING
    slot: int = -1
    tables: list[BlockTable] = field(default_factory=list)
    told: bool = False
    room: int = 0
    promised: int = 0
    computed: int = 0
    pending: int = 0
    epoch: int = 0
    names: list[bytes] = field(default_factory=list)
    published: int = 0
    admitted: bool = False
    answered: bool = False
    cached_tokens: int = 0
    prefetch: Prefetch | None = None
    sought: bool = False
    restored: int = 0
    marks: SnapshotMarks | None = None
    scored: int = 0
    prompt_logprobs: list[bytes] | None = None
    final_only: bool = False

    def __post_init__(self) -> None:
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
        return self.prompt_logprobs is not None and self.scored < self.prompt_len - 1

    @property
    def reusable_tokens(self) -> int:
        """How many leading tokens may come from the prefix cache.

        The last known token is always computed, for its logits choose the next one; so is every position whose
        logits are still to be reported.
        """
        return self.scored if self.scores_prompt else self.known - 1

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
