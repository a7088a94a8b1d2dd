"""A runner without a model: the next token is a hash of what it finds in the cache through the block table.

It keeps a simulated cache, (token, position) for each slot of each block, written when a token is scheduled. Any
aliasing, missing block, forgotten copy or wrong start changes what a sequence sees, and so its text.
"""

from hashlib import blake2b

from plimsoll_runtime.engine.plan import ScheduledSequence, SequenceOutput, StepPlan, StepResult, TokenLogprob

VOCAB = 50
Cell = tuple[int, int]


def next_token(context: list[Cell]) -> int:
    digest = blake2b(repr(context).encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little") % VOCAB


def oracle(prompt: list[int], count: int, ends: frozenset[int] = frozenset()) -> list[int]:
    """The tokens that follow a prompt, computed one after the other with nothing in between."""
    context = [(token, position) for position, token in enumerate(prompt)]
    out: list[int] = []
    while len(out) < count and not (out and out[-1] in ends):
        out.append(next_token(context))
        context.append((out[-1], len(context)))
    return out


class SimulatedRunner:
    def __init__(self, num_blocks: int, block_size: int, max_batch_tokens: int) -> None:
        self.block_size = block_size
        self.budget = max_batch_tokens
        self.cells: list[list[Cell | None]] = [[None] * block_size for _ in range(num_blocks)]
        self.slots: set[int] = set()
        self.fail = False

    def run(self, plan: StepPlan) -> StepResult:
        if self.fail:
            raise RuntimeError("the device is gone")
        assert 0 < plan.num_tokens <= self.budget
        for slot in plan.freed_slots:
            self.slots.remove(slot)
        for init in plan.new_slots:
            assert init.slot not in self.slots
            self.slots.add(init.slot)
        old = {source: list(self.cells[source]) for source, _ in plan.block_copies}
        for source, target in plan.block_copies:
            self.cells[target] = list(old[source])
        assert len({s.slot for s in plan.sequences}) == len(plan.sequences)
        for sequence in plan.sequences:
            self._write(sequence)
        return StepResult([self._output(s) for s in plan.sequences])

    def _write(self, sequence: ScheduledSequence) -> None:
        assert sequence.slot in self.slots
        for offset, token in enumerate(sequence.token_ids):
            position = sequence.start + offset
            block = sequence.block_ids[position // self.block_size]
            assert block != 0
            self.cells[block][position % self.block_size] = (token, position)

    def _context(self, sequence: ScheduledSequence, end: int) -> list[Cell]:
        cells = []
        for position in range(end):
            cell = self.cells[sequence.block_ids[position // self.block_size]][position % self.block_size]
            assert cell is not None
            assert cell[1] == position
            cells.append(cell)
        return cells

    def _output(self, sequence: ScheduledSequence) -> SequenceOutput:
        reports = [
            TokenLogprob(token, -float(sequence.start + i), 1) for i, token in enumerate(sequence.prompt_targets)
        ]
        if not sequence.sample:
            return SequenceOutput(prompt_logprobs=reports)
        token = next_token(self._context(sequence, sequence.start + len(sequence.token_ids)))
        return SequenceOutput(token_id=token, prompt_logprobs=reports)
