"""A runner without a model. Its tokens are a hash of everything that attention would have read.

It has a cache of two layers for each cache group, all groups in the same blocks. A cell of the first layer depends on
the token, its position, its tenant and the group. A cell of the second layer depends on all first-layer cells that the
group's rule shows through the block table. A token is sampled from all second-layer cells that it attends to. So any
block that is missing, stale, aliased, copied wrongly, released too early, or found for the wrong prefix, group or
tenant changes the text, and tests compare the text with one computed directly, without blocks and batches. If it is
`recurrent`, tokens also depend on the slot's state, which depends on all tokens since the first.

As in a real runner, a layer of all sequences is written before any of them reads it, and copies come before all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

from simulated_copies import SimulatedCopies

from plimsoll_runtime.engine.kv.cache_groups import ONE_FULL, Full, Rule
from plimsoll_runtime.engine.protocol.messages import AddRequest, LogprobEntry
from plimsoll_runtime.engine.protocol.plan import (
    LAST_CHOSEN,
    ScheduledSequence,
    SequenceOutput,
    SlotInit,
    StepPlan,
    StepResult,
)
from plimsoll_runtime.engine.protocol.sampling_params import SamplingParams

VOCAB = 50
EOS = 7
POISON = 49
"""A prompt with this token has logits that are not finite."""


def tenant_of(params: SamplingParams) -> str:
    """Return the tenant, which tests hide in the stop strings: the engine never reads those."""
    return params.stop[0] if params.stop else ""


def first_layer(token: int, position: int, tenant: str, group: int) -> bytes:
    """Return the cell of a token in the first layer."""
    return _digest(b"%d/%d/" % (token, position), tenant.encode(), b"" if group == 0 else b"/%d" % group)


def second_layer(context: Sequence[bytes], first: int, start: int, rule: Rule) -> list[bytes]:
    """Return the second-layer cells of the tokens from `start` on.

    `context` has the first-layer cells from position `first`, the first one that any of these tokens attends to.
    """
    if isinstance(rule, Full):
        state, cells = blake2b(digest_size=8), []
        for position, cell in enumerate(context):
            state.update(cell)
            if position >= start:
                cells.append(state.digest())
        return cells
    end = first + len(context)
    return [_digest(*context[rule.oldest(p) - first : p + 1 - first]) for p in range(start, end)]


def remembered(tokens: Sequence[int], tenant: str, state: bytes = b"") -> list[bytes]:
    """Return a recurrent layer's state after each of these tokens, from the state before them."""
    states = []
    for token in tokens:
        state = _digest(state, b"%d/" % token, tenant.encode())
        states.append(state)
    return states


def report(context: Sequence[bytes], target: int) -> LogprobEntry:
    """Return the log probability of the token after a context."""
    number = int.from_bytes(_digest(*context), "little")
    return LogprobEntry(target, -float(number % 1000) / 100, 1 + number % VOCAB)


def follower(token: int | None) -> int | None:
    """Return the only token that may follow another by the grammar, if there is only one."""
    return None if token is None or token % 8 in (0, 4, 5, 7) else token + 1


def choose(
    context: Sequence[bytes], params: SamplingParams, seed: int, index: int, last: int | None = None
) -> int | None:
    """Return output token `index` after a context; `last` is the token before it, if a grammar applies.

    Return None if the logits are not finite.
    """
    if POISON in params.stop_token_ids:
        return None
    if (only := follower(last)) is not None:
        return only
    draw = b"" if params.greedy else b"%d/%d" % (seed, index)
    token = int.from_bytes(_digest(draw, *context), "little") % VOCAB
    forbidden = set(params.stop_token_ids) | (set() if params.ignore_eos else {EOS})
    while index < params.min_tokens and token in forbidden:
        token = (token + 1) % VOCAB
    return token


@dataclass
class Answer:
    """All outputs of a request, joined."""

    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    prompt_logprobs: list[float] | None = None


def oracle(
    request: AddRequest,
    max_len: int,
    rules: Sequence[Rule] = ONE_FULL,
    *,
    recurrent: bool = False,
    forces: bool = False,
) -> Answer:
    """Compute the output of a request directly. It is greedy or seeded; `forces`: with a grammar."""
    params, tokens = request.context.params, list(request.prompt_token_ids)
    tenant, answer = tenant_of(params), Answer()
    limit = max_len - len(tokens)
    limit = limit if params.max_tokens is None else min(limit, params.max_tokens)
    ends = set(params.stop_token_ids) | (set() if params.ignore_eos else {EOS})
    if params.prompt_logprobs is not None:
        contexts = [_context(tokens[:i], tenant, rules, recurrent) for i in range(1, len(tokens))]
        answer.prompt_logprobs = [report(*each).logprob for each in zip(contexts, tokens[1:], strict=True)]
    while answer.finish_reason is None:
        last = answer.token_ids[-1] if forces and answer.token_ids else None
        context = _context(tokens, tenant, rules, recurrent)
        token = choose(context, params, params.seed or 0, len(answer.token_ids), last)
        if token is None:
            return Answer(finish_reason="error")
        tokens.append(token)
        answer.token_ids.append(token)
        if token in ends and len(answer.token_ids) >= params.min_tokens:
            answer.finish_reason = "stop"
        elif len(answer.token_ids) == limit:
            answer.finish_reason = "length"
    return answer


Contents = list[list[bytes | None]]
"""The contents of a block: the cells of each layer."""


@dataclass
class Kept:
    """A block table as the plans have sent it: the blocks from number `first` of the sequence on."""

    first: int = 0
    blocks: list[int] = field(default_factory=list)

    def change(self, first: int, start: int, blocks: Sequence[int]) -> None:
        if start > first:
            assert self.first <= first, "a table has blocks again that it had given back"
            assert start <= self.first + len(self.blocks), "a table continues after blocks that no plan has sent"
        self.blocks = [*self.blocks[first - self.first : start - self.first], *blocks] if start > first else [*blocks]
        self.first = first


@dataclass
class Slot:
    """The runner's data of the sequence in a slot."""

    init: SlotInit
    tables: list[Kept]
    outputs: int
    next_start: int | None = None
    last: int | None = None
    state: bytes | None = None
    states: list[bytes] = field(default_factory=list)


class SimulatedRunner:
    """Checks every plan that it runs. `computed_tokens` counts the rows of all steps.

    If a grammar `forces` tokens, a step returns up to `most_forced` of them after the sampled one.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        max_batch_tokens: int,
        max_sequences: int,
        rules: Sequence[Rule] = ONE_FULL,
        *,
        recurrent: bool = False,
        forces: bool = False,
        most_forced: int = 0,
    ) -> None:
        self.forces = forces
        self.most_forced = most_forced
        self.rules = rules
        self.recurrent = recurrent
        self.most_held = 0
        self.block_size = block_size
        self.max_batch_tokens = max_batch_tokens
        self.max_sequences = max_sequences
        self.layers: list[list[list[bytes | None]]] = [
            [[None] * block_size for _ in range(num_blocks)] for _ in range(2)
        ]
        self.slots: dict[int, Slot] = {}
        self.host: dict[int, Contents] = {}
        self.frame_copies = SimulatedCopies(self.host, lambda: [[b"not copied yet"] * block_size] * 2)
        self._used: set[int] = set()
        self._used_before: deque[set[int]] = deque(maxlen=8)
        self.rows: dict[int, bytes] = {}
        self.computed_tokens = 0
        self.copies = 0
        self.moves = 0
        self.restored_blocks = 0
        self.early_moves = 0
        self.failure: Exception | None = None

    def run(self, plan: StepPlan) -> StepResult:
        if self.failure is not None:
            raise self.failure
        assert plan.num_tokens <= self.max_batch_tokens
        assert not (plan.num_tokens and plan.num_blocks), "a step that resizes the cache computes nothing"
        self._fill_slots(plan)
        self._move_blocks(plan)
        self._resume(plan)
        for sequence in plan.sequences:
            self._check(sequence)
            self._write_first(sequence)
            self._remember(sequence)
        for sequence in plan.sequences:
            self._write_second(sequence)
        self._take_snapshots(plan)
        self.computed_tokens += plan.num_tokens
        return StepResult([self._output(sequence) for sequence in plan.sequences])

    def move(self, plan: StepPlan) -> None:
        """Apply only the moves of a plan."""
        self._fill_slots(plan)
        self._move_blocks(plan)

    def spoil(self, plan: StepPlan) -> None:
        """Run a step that lacks memory after it has overwritten everything that it was to compute."""
        self.move(plan)
        for sequence in plan.sequences:
            for group in range(len(self.rules)):
                for position in range(sequence.start, sequence.start + len(sequence.token_ids)):
                    for layer in range(2):
                        self._write(layer, sequence, group, position, b"spoilt")
            slot = self.slots[sequence.slot]
            slot.state = b"spoilt"
            # Later stages of a pipeline may have the sequence's next chunk already.
            slot.next_start = sequence.start + len(sequence.token_ids)
        for _, row in plan.snapshots:
            self.rows[row] = b"spoilt"

    def _resume(self, plan: StepPlan) -> None:
        slots = [slot for _, slot in plan.resumes]
        assert len(set(slots)) == len(slots)
        for row, slot in plan.resumes:
            assert self.slots[slot].next_start is None, "a sequence moves back to an earlier position"
            self.slots[slot].state = self.rows[row]

    def _remember(self, sequence: ScheduledSequence) -> None:
        if not self.recurrent:
            return
        slot = self.slots[sequence.slot]
        before = b"" if sequence.start == 0 else slot.state
        assert before is not None, "a sequence continues without a state"
        slot.states = remembered(self._tokens(sequence), tenant_of(slot.init.context.params), before)
        slot.state = slot.states[-1]

    def _take_snapshots(self, plan: StepPlan) -> None:
        rows = [row for _, row in plan.snapshots]
        assert len(set(rows)) == len(rows)
        for slot, row in plan.snapshots:
            state = self.slots[slot].state
            assert state is not None
            self.rows[row] = state

    def _fill_slots(self, plan: StepPlan) -> None:
        for slot in plan.freed_slots:
            del self.slots[slot]
        for init in plan.new_slots:
            assert init.slot not in self.slots, "a slot is taken twice"
            assert 0 <= init.slot < self.max_sequences
            tables = [Kept() for _ in self.rules]
            self.slots[init.slot] = Slot(init, tables, len(init.output_ids), last=[None, *init.output_ids][-1])
        names = [s.slot for s in plan.sequences]
        assert len(set(names)) == len(names), "a sequence is in the plan twice"
        for sequence in plan.sequences:
            groups = [change.group for change in sequence.changes]
            assert len(set(groups)) == len(groups), "a table is changed twice"
            for change in sequence.changes:
                self.slots[sequence.slot].tables[change.group].change(change.first, change.start, change.blocks)

    def _move_blocks(self, plan: StepPlan) -> None:
        self._check_idle(plan)
        restored = dict[int, Contents]()
        if plan.spills or plan.restores:
            filled = {frame: [list(layer[block]) for layer in self.layers] for block, frame in plan.spills}
            restored = self.frame_copies.launch(filled, [frame for frame, _ in plan.restores])
        if plan.num_blocks is not None:
            self._resize(plan, plan.num_blocks)
        for frame, block in plan.restores:
            for layer, cells in zip(self.layers, restored[frame], strict=True):
                layer[block] = list(cells)
        self.restored_blocks += len(plan.restores)
        self._copy_blocks(plan)

    def _check_idle(self, plan: StepPlan) -> None:
        """Check that the `idle_steps` before a plan do not use the blocks that it spills and restores."""
        self._used_before.append(self._used)
        self._used = set()
        moved = {block for block, _ in plan.spills} | {block for _, block in plan.restores}
        for used in list(self._used_before)[::-1][: plan.idle_steps]:
            assert moved.isdisjoint(used), "a block is moved while an earlier step uses it"
        self.early_moves += bool(moved and plan.idle_steps)

    def _resize(self, plan: StepPlan, num_blocks: int) -> None:
        assert not plan.restores
        assert not plan.block_copies
        targets = [target for _, target in plan.moves]
        assert len(set(targets)) == len(targets)
        for source, target in plan.moves:
            assert target < num_blocks <= source
            self._used |= {source, target}
            for layer in self.layers:
                layer[target] = list(layer[source])
        self.moves += len(plan.moves)
        if plan.moves:
            for slot in self.slots.values():
                slot.tables = [Kept() for _ in self.rules]
        for layer in self.layers:
            del layer[num_blocks:]
            layer.extend([None] * self.block_size for _ in range(num_blocks - len(layer)))

    def _copy_blocks(self, plan: StepPlan) -> None:
        sources, targets = {s for s, _ in plan.block_copies}, [t for _, t in plan.block_copies]
        assert len(set(targets)) == len(targets)
        assert sources.isdisjoint(targets)
        self._used |= sources.union(targets)
        for source, target in plan.block_copies:
            for layer in self.layers:
                layer[target] = list(layer[source])
        self.copies += len(plan.block_copies)

    def _check(self, sequence: ScheduledSequence) -> None:
        slot, end = self.slots[sequence.slot], sequence.start + len(sequence.token_ids)
        assert sequence.token_ids, "a sequence with nothing to compute"
        last = slot.next_start
        skips = last is not None and last < sequence.start and sequence.start % self.block_size == 0
        assert last in (None, sequence.start) or skips, "a position is left out or computed again"
        for table in slot.tables:
            assert (table.first + len(table.blocks)) * self.block_size >= end, "the block table is too short"
        blocks = [block for table in slot.tables for block in table.blocks]
        assert 0 not in blocks, "the padding block is in a block table"
        assert len(set(blocks)) == len(blocks)
        self.most_held = max(self.most_held, len(blocks))
        slot.next_start = end

    def _write_first(self, sequence: ScheduledSequence) -> None:
        tenant = tenant_of(self.slots[sequence.slot].init.context.params)
        for group in range(len(self.rules)):
            for position, token in enumerate(self._tokens(sequence), sequence.start):
                self._write(0, sequence, group, position, first_layer(token, position, tenant, group))

    def _tokens(self, sequence: ScheduledSequence) -> Sequence[int]:
        if LAST_CHOSEN not in sequence.token_ids:
            return sequence.token_ids
        assert len(sequence.token_ids) == 1, "LAST_CHOSEN is planned with other tokens"
        last = self.slots[sequence.slot].last
        assert last is not None, "no step has chosen a token for this slot"
        return [last]

    def _write_second(self, sequence: ScheduledSequence) -> None:
        end = sequence.start + len(sequence.token_ids)
        for group, rule in enumerate(self.rules):
            first = rule.oldest(sequence.start)
            context = self._read(0, sequence, group, first, end)
            for position, cell in enumerate(second_layer(context, first, sequence.start, rule), sequence.start):
                self._write(1, sequence, group, position, cell)

    def _write(self, layer: int, sequence: ScheduledSequence, group: int, position: int, cell: bytes) -> None:
        block, offset = self._place(sequence, group, position)
        self.layers[layer][block][offset] = cell

    def _place(self, sequence: ScheduledSequence, group: int, position: int) -> tuple[int, int]:
        number, offset = divmod(position, self.block_size)
        table = self.slots[sequence.slot].tables[group]
        assert number >= table.first, "a position is read or written whose block was given back"
        block = table.blocks[number - table.first]
        self._used.add(block)
        return block, offset

    def _read(self, layer: int, sequence: ScheduledSequence, group: int, start: int, end: int) -> list[bytes]:
        cells = []
        for position in range(start, end):
            block, offset = self._place(sequence, group, position)
            cell = self.layers[layer][block][offset]
            assert cell is not None, "a position is read that was never written"
            cells.append(cell)
        return cells

    def _context(self, sequence: ScheduledSequence, position: int) -> list[bytes]:
        """Return the second-layer cells that the token at a position attends to."""
        groups = enumerate(self.rules)
        seen = [c for g, rule in groups for c in self._read(1, sequence, g, rule.oldest(position), position + 1)]
        if self.recurrent:
            seen.append(self.slots[sequence.slot].states[position - sequence.start])
        return seen

    def _output(self, sequence: ScheduledSequence) -> SequenceOutput:
        slot, end = self.slots[sequence.slot], sequence.start + len(sequence.token_ids)
        context = self._context(sequence, end - 1)
        reports = [
            report(self._context(sequence, sequence.start + i), target)
            for i, target in enumerate(sequence.prompt_targets)
        ]
        if not sequence.sample:
            return SequenceOutput(prompt_logprobs=reports)
        last = slot.last if self.forces and slot.outputs else None
        token = choose(context, slot.init.context.params, slot.init.context.seed, slot.outputs, last)
        slot.last = token or 0
        if token is None:
            return SequenceOutput(error="the logits are not finite")
        forced = list[int]()
        while len(forced) < self.most_forced and (only := follower(slot.last)) is not None:
            forced.append(only)
            slot.last = only
        slot.outputs += 1 + len(forced)
        wanted = slot.init.context.params.logprobs is not None
        return SequenceOutput(token, report(context, token) if wanted else None, reports, forced=forced)


def _context(tokens: Sequence[int], tenant: str, rules: Sequence[Rule], recurrent: bool) -> list[bytes]:
    """Return the second-layer cells that the last of these tokens attends to."""
    seen = []
    for group, rule in enumerate(rules):
        first = [first_layer(token, position, tenant, group) for position, token in enumerate(tokens)]
        seen += second_layer(first, 0, 0, rule)[rule.oldest(len(tokens) - 1) :]
    return [*seen, remembered(tokens, tenant)[-1]] if recurrent else seen


def _digest(*parts: bytes) -> bytes:
    return blake2b(b"".join(parts), digest_size=8).digest()
