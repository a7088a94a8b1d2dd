"""`python -m model_support.step_memory FOLDER cpu|torch ROWS SEQUENCES`: predicted / used memory of the largest step,
in float32.

It is a separate process, because freed memory of other work would hide a step's use.
"""

from __future__ import annotations

import ctypes
import sys

import torch
from model_support.forward import BLOCK, backend_of

from offline.memory import forget_peak, peak_bytes
from plimsoll_runtime.execution.attention.base import AttentionBackend, AttentionBatch, BlockTables
from plimsoll_runtime.execution.kv.cache import KvCache
from plimsoll_runtime.execution.memory import workspace
from plimsoll_runtime.execution.memory.workspace import LargestStep, on_a_cpu
from plimsoll_runtime.models.compose.decoder import program_of
from plimsoll_runtime.models.decoder import Decoder
from plimsoll_runtime.models.load import load_decoder
from plimsoll_runtime.models.registry.registry import describe
from plimsoll_runtime.weights.sources.resolve import resolve

CPU = torch.device("cpu")


def predicted_by_taken(folder: str, backend: str, rows: int, sequences: int) -> float:
    """Return predicted divided by used memory of activations and logits in one step, without sampling."""
    files = resolve(folder)
    program, chosen = program_of(describe(files.config)), backend_of(files, torch.float32, backend)
    decoder = load_decoder(files, program, torch.float32, device=CPU, fused=chosen.fused)
    step = LargestStep(rows, sequences, rows)
    predicted = on_a_cpu(decoder, step) - workspace._choosing(program, step)
    cache = KvCache(program.facts.attention, rows // BLOCK + 2, BLOCK, torch.float32, CPU)
    for tensor in (*cache.keys, *cache.values):
        tensor.zero_()
    attention = chosen(cache)
    step_of(
        decoder, attention, 1, 1
    )  # a first step also loads code, starts threads and builds tables, which are not workspace
    ctypes.CDLL(None).malloc_trim(0)  # memory freed after loading would hide the use
    forget_peak()
    before = peak_bytes()
    step_of(decoder, attention, rows, step.logits_rows(program.facts.vocab_size))
    return predicted / (peak_bytes() - before)


@torch.inference_mode()
def step_of(decoder: Decoder, attention: AttentionBackend, rows: int, logits: int) -> None:
    """Run a prompt of `rows` rows in the first blocks, and compute `logits` rows of logits."""
    cells = torch.arange(BLOCK, BLOCK + rows)
    batch = AttentionBatch([rows], [rows], BlockTables.of([list(range(1, -(-rows // BLOCK) + 1))]), cells)
    hidden = decoder(torch.zeros(rows, dtype=torch.int64), torch.arange(rows), attention.begin(batch))
    decoder.logits(hidden[:1].repeat(logits, 1))


if __name__ == "__main__":
    print(predicted_by_taken(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
