"""Outputs do not depend on batching, chunking, preemption, prefix hits or processes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from gpu_support.device import DEVICE

from plimsoll_runtime import LLM, SamplingParams
from plimsoll_runtime.driver.build import assembly
from plimsoll_runtime.errors import UsageError
from plimsoll_runtime.execution.graphs.capture import Captured, CudaCapture

VOCAB = 256
GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a small Gemma 3 (two ropes, windows of 16, head norms) with random norms, as Transformers saves it."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    torch.manual_seed(1)
    config = Gemma3TextConfig(
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        sliding_window=16,
        max_position_embeddings=512,
        layer_types=["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
        query_pre_attn_scalar=16,
    )
    reference = Gemma3ForCausalLM(config)
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    folder = tmp_path_factory.mktemp("gemma3")
    reference.save_pretrained(folder)
    tokenizer = Tokenizer(models.WordLevel({f"w{i}": i for i in range(VOCAB)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def load(model: Path, **options: Any) -> LLM:
    defaults: dict[str, Any] = {
        "dtype": "float32",
        "threads": 1,
        "kv_memory": "8MiB",
        "max_model_len": 256,
        "check_integrity_every": 1,
    }
    return LLM(str(model), **(defaults | options))


def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(2)
    shared = torch.randint(3, VOCAB, (40,), generator=generator).tolist()
    lengths = (1, 3, 15, 16, 17, 33, 70, 120)
    own = [torch.randint(3, VOCAB, (n,), generator=generator).tolist() for n in lengths]
    return [*own, *(shared + tail for tail in own[:4]), shared, shared[:32]]


@pytest.fixture(scope="module")
def expected(model: Path) -> list[list[int]]:
    """Return Transformers' greedy tokens, one prompt at a time."""
    from transformers import AutoModelForCausalLM

    reference: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    out = []
    for prompt in prompts():
        ids = torch.tensor([prompt])
        answer = reference.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, min_new_tokens=24, max_new_tokens=24
        )
        out.append(answer[0, len(prompt) :].tolist())
    return out


def tokens(llm: LLM, batch: list[list[int]], params: SamplingParams = GREEDY) -> list[list[int]]:
    return [r.outputs[0].token_ids for r in llm.generate(batch, params)]


@pytest.mark.matrix(2)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"prefix_caching": False},
        {"max_batch_tokens": 16},
        {"max_batch_tokens": 48, "max_sequences": 3},
        {"block_size": 8, "kv_memory": "160KiB", "max_model_len": 160},
        {"block_size": 32},
        {"overlap": False, "max_batch_tokens": 48},
        {"overlap": True, "max_batch_tokens": 48},
    ],
    ids=[
        "default",
        "no-prefix-caching",
        "chunks-of-16",
        "three-at-a-time",
        "preemption",
        "blocks-of-32",
        "one-step-after-another",
        "overlapping",
    ],
)
def test_batches_equal_transformers(model: Path, expected: list[list[int]], options: dict[str, Any]) -> None:
    llm = load(model, **options)
    assert tokens(llm, prompts()) == expected
    assert tokens(llm, prompts()) == expected, "with every prefix in the cache"


@pytest.mark.matrix(3)
@pytest.mark.parametrize("overlap", [False, True], ids=["one-step-after-another", "overlapping"])
@pytest.mark.parametrize("captured", [True, False], ids=["graphs", "no-graphs"])
def test_graphs_change_no_text(
    model: Path, expected: list[list[int]], captured: bool, overlap: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU decodes run as graphs, or as single kernels without graphs."""
    captures = []

    class Watched(CudaCapture):
        def __call__(self, work: Callable[[], torch.Tensor]) -> Captured:
            captures.append(work)
            return super().__call__(work)

    monkeypatch.setattr(assembly, "CudaCapture", Watched)
    options = {} if captured else {"graph_seconds": 0.0}
    assert tokens(load(model, overlap=overlap, **options), prompts()) == expected
    assert bool(captures) == (captured and DEVICE.type == "cuda")


def test_one_at_a_time(model: Path, expected: list[list[int]]) -> None:
    llm = load(model)
    assert [tokens(llm, [prompt])[0] for prompt in prompts()] == expected


def test_prefix_hits_are_reported(model: Path) -> None:
    llm = load(model)
    prompt = prompts()[7]
    first, second = (llm.generate([prompt], GREEDY)[0] for _ in range(2))
    assert first.cached_tokens == 0
    assert second.cached_tokens >= len(prompt) - 16
    llm.reset_prefix_cache()
    assert llm.generate([prompt], GREEDY)[0].cached_tokens == 0


def test_the_small_pool_really_preempts(model: Path) -> None:
    llm = load(model, block_size=8, kv_memory="160KiB", max_model_len=160)
    llm.generate(prompts(), GREEDY)
    assert llm.stats.preemptions > 0


def test_seeds_repeat_in_any_company(model: Path) -> None:
    llm = load(model)
    params = [SamplingParams(temperature=1.0, seed=i, max_tokens=12, ignore_eos=True) for i in range(len(prompts()))]
    together = [r.outputs[0].token_ids for r in llm.generate(prompts(), params)]
    alone = [llm.generate([p], s)[0].outputs[0].token_ids for p, s in zip(prompts(), params, strict=True)]
    assert together == alone


def test_logprobs_equal_transformers(model: Path) -> None:
    """Compares prompt and output log probabilities, in chunks, with one forward pass over the whole text."""
    from transformers import AutoModelForCausalLM

    llm = load(model, max_batch_tokens=32)
    params = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, logprobs=3, prompt_logprobs=2)
    reference: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    for result in llm.generate(prompts()[4:8], params):
        output = result.outputs[0]
        whole = [*result.prompt_token_ids, *output.token_ids]
        with torch.no_grad():
            wanted = torch.log_softmax(reference(torch.tensor([whole])).logits[0].double(), -1)
        assert result.prompt_logprobs is not None
        assert output.logprobs is not None
        reports = [*result.prompt_logprobs, *output.logprobs]
        assert [r.token_id for r in reports] == whole[1:]
        for position, report in enumerate(reports):
            assert report.logprob == pytest.approx(float(wanted[position, report.token_id]), abs=1e-3)
            assert [v for _, v in report.top] == pytest.approx(
                wanted[position].topk(len(report.top)).values.tolist(), abs=1e-3
            )


@pytest.mark.long
def test_in_a_child_process(model: Path, expected: list[list[int]]) -> None:
    with load(model, engine="child") as llm:
        assert tokens(llm, prompts()) == expected


def test_texts_stop_strings_and_results(model: Path) -> None:
    llm = load(model)
    [plain] = llm.generate("w5 w6 w7", GREEDY)
    assert plain.prompt == "w5 w6 w7"
    assert plain.prompt_token_ids == [5, 6, 7]
    assert plain.outputs[0].finish_reason == "length"
    words = plain.outputs[0].text.split()
    stop = words[5]
    [stopped] = llm.generate(["w5 w6 w7"], SamplingParams(temperature=0.0, max_tokens=24, stop=(stop,)))
    assert stop not in stopped.outputs[0].text
    assert stopped.outputs[0].text.split() == words[: words.index(stop)]
    assert (stopped.outputs[0].finish_reason, stopped.outputs[0].stop_reason) == ("stop", stop)


def test_what_cannot_be_served_is_refused_and_the_engine_goes_on(model: Path) -> None:
    llm = load(model)
    with pytest.raises(UsageError, match="256"):
        llm.generate([[5] * 300], GREEDY)
    with pytest.raises(UsageError, match="vocabulary"):
        llm.generate([[VOCAB + 1]], GREEDY)
    with pytest.raises(UsageError, match="empty"):
        llm.generate([[]], GREEDY)
    with pytest.raises(UsageError, match="chat template"):
        llm.chat([{"role": "user", "content": "hi"}])
    with pytest.raises(UsageError, match="no_such_option"):
        LLM(str(model), no_such_option=1)
    with pytest.raises(UsageError, match="2 sampling params for 1"):
        llm.generate([[5]], [GREEDY, GREEDY])
    assert len(tokens(llm, [[5, 6]])[0]) == 24
