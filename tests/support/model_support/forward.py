"""Log probabilities of every next token at every position of a prompt: Transformers' and ours."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from plimsoll_runtime import LLM, SamplingParams
from plimsoll_runtime.execution.attention.base import AttentionBackend, AttentionBatch, BlockTables
from plimsoll_runtime.execution.attention.capabilities import Target
from plimsoll_runtime.execution.attention.selection import select
from plimsoll_runtime.execution.kv.cache import KvCache
from plimsoll_runtime.execution.kv.states import StateCache
from plimsoll_runtime.models.compose.decoder import program_of
from plimsoll_runtime.models.cpu_executor.lowering import why_not_fused
from plimsoll_runtime.models.decoder import Decoder
from plimsoll_runtime.models.load import load_decoder
from plimsoll_runtime.models.registry.registry import describe
from plimsoll_runtime.weights.files import ModelFiles

CPU = torch.device("cpu")
BLOCK = 16
ROWS = 64
"""Rows of logits computed at a time with a real vocabulary."""


def of_transformers(model: Any, prompts: Sequence[Sequence[int]]) -> list[Tensor]:
    """Return float64 [T, vocab] for each prompt, by one forward pass each."""
    with torch.inference_mode():
        return [_log_probabilities(model(torch.tensor([list(p)])).logits[0]) for p in prompts]


def loaded_by_transformers(folder: Path | str) -> Any:
    """Load a saved model in float32 with Transformers."""
    import transformers

    load: Any = transformers.AutoModelForCausalLM.from_pretrained
    return load(folder, dtype=torch.float32).eval()


def of_engine(model: str, prompts: Sequence[Sequence[int]], **options: Any) -> list[Tensor]:
    """Return float64 [T, vocab] for each prompt, as the engine reports them. The vocabulary must fit a report."""
    llm = LLM(model, **{"dtype": "float32", "threads": 1, "kv_memory": "4MiB", "check_integrity_every": 1, **options})
    wanted = llm.info.vocab_size
    params = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True, logprobs=wanted, prompt_logprobs=wanted)
    results = []
    for result in llm.generate([list(p) for p in prompts], params):
        assert result.prompt_logprobs is not None
        assert result.outputs[0].logprobs is not None
        rows = [dict(r.top) for r in (*result.prompt_logprobs, *result.outputs[0].logprobs)]
        results.append(torch.tensor([[row[i] for i in range(wanted)] for row in rows], dtype=torch.float64))
    return results


def backend_of(
    files: ModelFiles, dtype: torch.dtype, wanted: str = "auto", device: torch.device = CPU
) -> type[AttentionBackend]:
    """Return the attention backend for a model on a device."""
    program = program_of(describe(files.config))
    return select(wanted, Target(device, dtype, program.facts.attention, BLOCK, why_not_fused(program)))


def of_decoder(
    files: ModelFiles,
    prompts: Sequence[Sequence[int]],
    *,
    chunk: int,
    backend: str = "auto",
    device: torch.device = CPU,
) -> list[Tensor]:
    """Return float64 [T, vocab] on the CPU for each prompt, from the float32 decoder, with `chunk` tokens a step."""
    chosen = backend_of(files, torch.float32, backend, device)
    decoder = load_decoder(files, program_of(describe(files.config)), torch.float32, device=device, fused=chosen.fused)
    found = (decoder.logits(hidden_states(decoder, chosen, p, chunk, device)) for p in prompts)
    return [_log_probabilities(logits.cpu()) for logits in found]


def hidden_states(
    decoder: Decoder,
    chosen: type[AttentionBackend],
    prompt: Sequence[int],
    chunk: int,
    device: torch.device = CPU,
) -> Tensor:
    """Return [T, hidden] of one prompt, with `chunk` tokens a step, over a paged cache with shuffled blocks."""
    blocks = -(-len(prompt) // BLOCK)
    table = list(range(blocks, 0, -1))
    shapes = decoder.outline.facts.attention
    backend = chosen(KvCache(shapes, blocks + 1, BLOCK, decoder.dtype, device))
    kept = decoder.outline.facts.states
    cache = StateCache(kept, 1, decoder.dtype, device)
    steps = []
    for start in range(0, len(prompt), chunk):
        ids = torch.tensor(list(prompt[start : start + chunk]), device=device)
        positions = torch.arange(start, start + len(ids), device=device)
        cells = torch.tensor([table[p // BLOCK] * BLOCK + p % BLOCK for p in positions.tolist()], device=device)
        batch = AttentionBatch([len(ids)], [start + len(ids)], BlockTables.of([table]), cells)
        with torch.inference_mode():
            states = cache.begin([0], [len(ids)], positions) if kept else None
            steps.append(decoder(ids, positions, backend.begin(batch), states))
            if states is not None:
                states.commit()
    return torch.cat(steps)


def largest_difference(one: Sequence[Tensor], other: Sequence[Tensor]) -> float:
    """Return the largest difference of two log probabilities, over all prompts, positions and tokens."""
    assert [a.shape for a in one] == [b.shape for b in other]
    differences = torch.stack([(a - b).abs().max() for a, b in zip(one, other, strict=True)])
    assert not differences.isnan().any()
    return float(differences.max())


def largest_difference_of_prompt(
    model: Any, decoder: Decoder, backend: type[AttentionBackend], prompt: Sequence[int], *, chunk: int
) -> float:
    """Return the largest difference for one prompt and a large vocabulary, computed for some rows at a time."""
    with torch.inference_mode():
        theirs: Tensor = model.model(torch.tensor([list(prompt)])).last_hidden_state[0]
        ours = hidden_states(decoder, backend, prompt, chunk)
        assert theirs.shape == ours.shape
        return max(
            largest_difference([decoder.logits(b).log_softmax(-1)], [model.lm_head(a).log_softmax(-1)])
            for a, b in zip(torch.split(theirs, ROWS), torch.split(ours, ROWS), strict=True)
        )


def _log_probabilities(logits: Tensor) -> Tensor:
    return logits.double().log_softmax(-1)
