"""`python -m groups.choice`: what ranks exchange and compute to choose the tokens of a step together.

The logits are those of the demo model over a text, cut in two. Three measures:

- bytes that all ranks together send for 64 greedy rows
- the share of rows, sampled with temperature 0.8 and top-p 0.95, that need all logits
- the seconds of a rank for its part of 64 rows without waiting for the other (two ranks in threads would share one
  crew), next to those of one rank that samples from whole rows
"""

from __future__ import annotations

import contextlib
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

import question
from options import Options
from plimsoll_kernels.cpu.threads import share, thread_count
from plimsoll_kernels.sampling.op import sample
from plimsoll_runtime import LLM, SamplingParams
from plimsoll_runtime.engine.protocol.plan import SlotDraw
from plimsoll_runtime.models.cpu_executor.decoder import CpuExecutor
from plimsoll_runtime.parallel.choice import Choice
from plimsoll_runtime.parallel.choice_rows import ChoiceRows, DrawnSlots
from plimsoll_runtime.parallel.layout import vocabulary_parts
from tables import Sheet

RANKS, ROWS = 2, 64
GOAL_BYTES, GOAL_WHOLE = 2048, 0.05
TEXT = """The port of a large city is never quiet. Before dawn the first pilots go out to meet ships that have waited
off the coast, and the cranes begin to move as soon as there is light. In 1876 Samuel Plimsoll had a mark painted on the
side of every British ship, which shows how deep it may lie in the water when it is loaded. Sailors had called the
overloaded ships of that time coffin ships, because their owners earned more from the insurance than from the cargo.
def area(width, height): return width * height
Ingredients: 2 eggs, 250 g flour, half a litre of milk and a pinch of salt. Mix the flour with the milk, then add the
eggs one after the other. Let the batter rest for half an hour, and bake thin pancakes in a hot pan with some butter.
"Where have you been?" she asked. "We waited for you until ten, and then your brother said that the train was late."
The committee decided on Tuesday to raise interest rates by a quarter of a percentage point, the third time this year.
"""
"""Of several kinds, as prompts are."""


class Recording:
    """The sums of ranks in threads, which are kept for `Replayed`."""

    device = torch.device("cpu")

    def __init__(self, barrier: threading.Barrier, parts: list[Tensor], rank: int) -> None:
        self._barrier = barrier
        self._parts = parts
        self._rank = rank
        self.sums: list[Tensor] = []
        self.nbytes = 0

    def add_up(self, part: Tensor) -> None:
        self._parts[self._rank] = part
        self.nbytes += part.nbytes
        self._barrier.wait()
        total = torch.stack(self._parts).sum(dim=0)
        self._barrier.wait()
        part.copy_(total)
        self.sums.append(total)


class Replayed:
    """Returns the sums that were recorded, at once."""

    device = torch.device("cpu")

    def __init__(self, sums: Sequence[Tensor]) -> None:
        self.sums = sums
        self._at = 0

    def add_up(self, part: Tensor) -> None:
        part.copy_(self.sums[self._at % len(self.sums)])
        self._at += 1


def rows_of(draw: SlotDraw, count: int, vocab: int) -> ChoiceRows:
    """Return `count` rows that are drawn alike."""
    slots = DrawnSlots(_parts(vocab))
    for slot in range(count):
        slots.fill(SlotDraw(slot, draw.temperature, draw.top_k, draw.top_p, draw.min_p, slot, 0, False))
    return slots.rows(tuple(range(count))).rows


def chosen(rows: ChoiceRows, logits: Tensor, uniforms: Tensor) -> list[tuple[list[int], int, Recording]]:
    """Return the tokens of each rank, the number of rows that need all logits, and its sums."""
    parts, barrier = _parts(logits.shape[1]), threading.Barrier(RANKS)
    meeting = [torch.empty(0)] * RANKS

    def of_rank(rank: int) -> tuple[list[int], int, Recording]:
        group = Recording(barrier, meeting, rank)
        tokens, left = _choice(Choice(group, parts, rank), rows, logits[:, slice(*parts[rank])].contiguous(), uniforms)
        return tokens, left, group

    with ThreadPoolExecutor(RANKS) as pool:
        return list(pool.map(of_rank, range(RANKS)))


def measure(chosen_options: Options) -> dict[str, Any]:
    """Return the bytes, the share of rows, and seconds in microseconds (medians of rounds)."""
    logits = demo_logits()
    vocab, count = logits.shape[1], len(logits)
    uniforms = torch.rand(count, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    few, shares = logits[:ROWS].contiguous(), uniforms[:ROWS]
    whole = 0
    usual = SlotDraw(0, 0.8, 0, 0.95, 0.0, 0, 0, False)
    for first in range(0, count, ROWS):
        part = logits[first : first + ROWS]
        whole += chosen(rows_of(usual, len(part), vocab), part, uniforms[first : first + ROWS])[0][1]
    kinds = {
        "greedy": SlotDraw(0, 0.0, 0, 1.0, 0.0, 0, 0, False),
        "temperature 0.8": SlotDraw(0, 0.8, 0, 1.0, 0.0, 0, 0, False),
        "temperature 0.8, top-k 50": SlotDraw(0, 0.8, 50, 1.0, 0.0, 0, 0, False),
        "temperature 0.8, top-p 0.95": usual,
    }
    found = {}
    for name, draw in kinds.items():
        rows = rows_of(draw, ROWS, vocab)
        ranks = chosen(rows, few, shares)
        params = rows.params(torch.arange(ROWS).numpy(), torch.device("cpu"))
        scale = max(3, round(20 * chosen_options.scale)) * chosen_options.rounds
        with threads(chosen_options.threads):
            one = _median(lambda: sample(few, params, shares), scale)  # noqa: B023
        with threads(max(1, chosen_options.threads // RANKS)):
            of_ranks = [_median(_replay(ranks, rank, rows, few, shares), scale) for rank in range(RANKS)]
        expected = sample(few, params, shares)[1].tolist()
        different = sum(ours != theirs for ours, theirs in zip(ranks[0][0], expected, strict=True))
        found[name] = {
            "bytes": sum(group.nbytes for _, _, group in ranks),
            "whole_rows": ranks[0][1],
            "different_tokens": different,
            "one_rank_us": one,
            "slowest_of_ranks_us": max(of_ranks),
        }
    return {"ranks": RANKS, "rows": ROWS, "text_rows": count, "text_rows_whole": whole, "kinds": found}


def table(result: dict[str, Any]) -> Sheet:
    """Return a row for each kind of sampling."""
    rows = [
        [
            name,
            f"{each['bytes']:,}",
            str(each["whole_rows"]),
            str(each["different_tokens"]),
            f"{each['one_rank_us']:.0f}",
            f"{each['slowest_of_ranks_us']:.0f}",
        ]
        for name, each in result["kinds"].items()
    ]
    of_text = result["text_rows_whole"] / result["text_rows"]
    note = (
        f"Of {result['text_rows']} rows of text with temperature 0.8 and top-p 0.95, {of_text:.1%} need all logits "
        f"(goal: below {GOAL_WHOLE:.0%}). Bytes are those of both ranks (goal for greedy rows: {GOAL_BYTES:,}). Times "
        "of ranks are without the exchange."
    )
    headings = ["64 rows", "bytes", "rows that need all logits", "other tokens", "one rank, us", "one of two, us"]
    return Sheet("The choice of tokens by two ranks", headings, rows, note)


def demo_logits() -> Tensor:
    """Return the demo model's logits [T, vocab] over the text."""
    found: list[Tensor] = []
    plain = CpuExecutor.logits

    def recorded(self: CpuExecutor, hidden: Tensor) -> Tensor:
        logits = plain(self, hidden)
        found.append(logits.clone())
        return logits

    with LLM("demo://gemma-3-270m", max_model_len=1024, prefix_caching=False, kv_memory="64MiB") as llm:
        CpuExecutor.logits = recorded  # type: ignore[method-assign]
        try:
            llm.generate([TEXT], SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0))
        finally:
            CpuExecutor.logits = plain  # type: ignore[method-assign]
    return torch.cat(found)


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    """Compute with this number of threads within the `with` block."""
    before = thread_count()
    share(count)
    try:
        yield
    finally:
        share(before)


def _replay(
    ranks: Sequence[tuple[list[int], int, Recording]], rank: int, rows: ChoiceRows, logits: Tensor, uniforms: Tensor
) -> Callable[[], object]:
    """Return a function that computes a rank's part of a choice, with the sums of an earlier one."""
    parts = _parts(logits.shape[1])
    own = logits[:, slice(*parts[rank])].contiguous()
    choice = Choice(Replayed(ranks[rank][2].sums), parts, rank)
    return lambda: _choice(choice, rows, own, uniforms)


def _choice(choice: Choice, rows: ChoiceRows, own: Tensor, uniforms: Tensor) -> tuple[list[int], int]:
    choice.begin(rows, 0, 0)
    tokens, left = choice.choose(own, uniforms.numpy())
    if left.size:
        whole = choice.gather(own, left.tolist())
        if whole is not None:
            tokens[left] = choice.sampled(whole, left, uniforms.numpy())
    return tokens.tolist(), int(left.size)


def _parts(vocab: int) -> Sequence[tuple[int, int]]:
    parts = vocabulary_parts(vocab, RANKS)
    assert parts is not None
    return parts


def _median(work: Callable[[], object], times: int) -> float:
    """Return the median of a call in microseconds."""
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        taken.append(1e6 * (time.perf_counter() - start))
    return round(statistics.median(taken), 1)


if __name__ == "__main__":
    sys.exit(question.main(__doc__, measure, table))
