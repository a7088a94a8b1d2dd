"""Whole steps of a decoder: decodes of one sequence, replayed from a graph, and a long prompt."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gpu.clock import Limits, seconds
from plimsoll_runtime.engine.plan import ScheduledSequence, StepPlan
from plimsoll_runtime.execution.attention.base import AttentionBatch
from plimsoll_runtime.execution.attention.block_tables import BlockTables
from plimsoll_runtime.execution.attention.triton import TritonBackend
from plimsoll_runtime.execution.capture import Capture
from plimsoll_runtime.execution.graphs import GraphedDecoder
from plimsoll_runtime.execution.kv_cache import KvCache
from plimsoll_runtime.models.decoder import TorchDecoder
from plimsoll_runtime.models.ops.cost import OpCost, total

BLOCK_SIZE = 16
STEPS = 64
"""Decodes in a round: each reads a token more than the one before."""


@torch.inference_mode()
def decode(
    decoder: TorchDecoder, capture: Capture, known: Limits, context: int, rounds: int, device: torch.device
) -> Any:
    """One sequence: the share of the copy's bandwidth at which its steps read weights and cache."""
    cache, table = _cache(decoder, context + STEPS, device)
    tables = BlockTables.of([table])
    longest = cache.num_blocks * BLOCK_SIZE
    graphs = GraphedDecoder(decoder, TritonBackend(cache), cache, capture, max_sequences=1, max_model_len=longest)

    def steps() -> None:
        token = torch.zeros(1, dtype=torch.int64, device=device)
        for position in range(context, context + STEPS):
            cell = torch.tensor([table[position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE])
            batch = AttentionBatch([1], [position + 1], tables, cell)
            hidden = graphs.run(token, torch.tensor([position]), batch)
            if hidden is None:
                raise RuntimeError("the decode could not be captured; the warning above says why")
            token = decoder.logits(hidden).argmax(-1)

    taken = seconds(steps, device, rounds)
    read = sum(_cost(decoder, position, 1).bytes for position in range(context, context + STEPS))
    return {
        "context": context,
        "milliseconds": round(1e3 * taken / STEPS, 4),
        "tokens_per_second": round(STEPS / taken, 1),
        "of_bandwidth": round(read / taken / known.bandwidth, 4),
    }


@torch.inference_mode()
def prefill(decoder: TorchDecoder, known: Limits, tokens: int, rounds: int, device: torch.device) -> dict[str, Any]:
    """One prompt in one step: the share of a large product's rate at which it multiplies."""
    cache, table = _cache(decoder, tokens, device)
    backend = TritonBackend(cache)
    positions = torch.arange(tokens, device=device)
    blocks = torch.tensor(table, device=device)
    cells = blocks[positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE
    batch = AttentionBatch([tokens], [tokens], BlockTables.of([table]), cells)

    def prompt() -> Tensor:
        return decoder.logits(decoder(positions % 100, positions, backend.begin(batch))[-1:])

    taken = seconds(prompt, device, rounds)
    return {
        "tokens": tokens,
        "milliseconds": round(1e3 * taken, 2),
        "of_rate": round(_cost(decoder, 0, tokens).flops / taken / known.rate, 4),
    }


def _cache(decoder: TorchDecoder, tokens: int, device: torch.device) -> tuple[KvCache, list[int]]:
    """Room for one sequence, and its block table."""
    blocks = -(-tokens // BLOCK_SIZE)
    return KvCache(decoder.program.facts.attention, blocks + 1, BLOCK_SIZE, decoder.dtype, device), list(
        range(blocks, 0, -1)
    )


def _cost(decoder: TorchDecoder, start: int, rows: int) -> OpCost:
    """What a step of one sequence must move and multiply at least."""
    sequence = ScheduledSequence(slot=0, start=start, token_ids=range(rows), changes=(), sample=True)
    return total(decoder.program.step_cost(StepPlan([sequence]), decoder.dtype.itemsize).values())
