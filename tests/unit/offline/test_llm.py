"""The `LLM` class, with a real engine over a tiny model."""

import gc
import weakref
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from model_support.tiny import make_model, save_model

from plimsoll_runtime import LLM, SamplingParams
from plimsoll_runtime.driver.build import model_facts
from plimsoll_runtime.errors import ModelError, UsageError
from plimsoll_runtime.execution.attention.backends.gather.backend import GatheredBackend
from plimsoll_runtime.execution.attention.base import AttentionBackend, AttentionBatch
from plimsoll_runtime.models.layers.attention import Attention


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    folder = tmp_path_factory.mktemp("model")
    save_model(make_model("LlamaConfig", {}), folder)
    return load(str(folder), policy="priority", max_sequences=1, check_integrity_every=1)


def load(model: str, **options: Any) -> LLM:
    return LLM(model, dtype="float32", threads=1, kv_memory="4MiB", **options)


def params(**urgency: Any) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True, **urgency)


def test_a_missed_deadline_leaves_the_other_answers_alone(llm: LLM) -> None:
    results = llm.generate([[1, 2], [3, 4], [5, 6]], [params(), params(deadline=1e-9), params(deadline=3600)])
    ended = [(r.outputs[0].finish_reason, len(r.outputs[0].token_ids)) for r in results]
    assert "the deadline of 1e-09 s passed" in str(results[1].outputs[0].error)
    assert ended == [("length", 4), ("deadline", 0), ("length", 4)]
    assert llm.stats.expired == 1


def test_logits_that_are_not_finite_leave_the_other_answers_alone(tmp_path: Path) -> None:
    model = make_model("LlamaConfig", {})
    with torch.no_grad():
        model.get_input_embeddings().weight[7] = float("nan")
    save_model(model, tmp_path)
    llm = load(str(tmp_path), check_integrity_every=1)
    broken, fine = llm.generate([[1, 7], [3, 4]], params())
    assert (broken.outputs[0].finish_reason, broken.outputs[0].token_ids) == ("error", [])
    assert "logits are not finite" in str(broken.outputs[0].error)
    assert (fine.outputs[0].finish_reason, fine.outputs[0].error) == ("length", None)
    assert fine.outputs[0].token_ids == llm.generate([3, 4], params())[0].outputs[0].token_ids
    assert llm.stats.broken_off == 1


def test_without_parameters_the_models_files_say_how_to_sample(tmp_path: Path) -> None:
    """`top_k` 1 is greedy; without it eight random outputs differ."""
    save_model(make_model("LlamaConfig", {}), tmp_path)
    (tmp_path / "generation_config.json").write_text('{"top_k": 1}')
    prompts = [[1, 2, 3]] * 8
    with load(str(tmp_path)) as llm:
        greedy = {tuple(r.outputs[0].token_ids) for r in llm.generate(prompts, SamplingParams(temperature=0.0))}
        assert {tuple(r.outputs[0].token_ids) for r in llm.generate(prompts)} == greedy
    with load(str(tmp_path), generation_config="none") as llm:
        assert len({tuple(r.outputs[0].token_ids) for r in llm.generate(prompts)}) > 1
    (tmp_path / "generation_config.json").write_text('{"top_k": "one"}')
    with pytest.raises(ModelError, match=r"top_k 'one': it must be a number"):
        load(str(tmp_path))


def test_the_policy_is_an_option_of_the_engine(llm: LLM) -> None:
    assert llm.info.policy == "priority"
    assert len(llm.generate([[1]], params(priority=-1))[0].outputs[0].token_ids) == 4
    with pytest.raises(UsageError, match=r"policy must be one of fcfs, priority, .*, not best"):
        load(llm.info.model, policy="best")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"threads": "2"}, "an option of LLM has the wrong type: .*threads"),
        ({"threads": 0}, "threads must be at least 1, not 0"),
        ({"thread": 2}, "unknown option thread; LLM takes .*threads"),
    ],
)
def test_options_that_cannot_be_are_refused_before_anything_is_loaded(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        LLM("no-such-model", **options)


class FailsOnce(GatheredBackend):
    """Fails in the middle of the step given by `countdown`, with random values in its rows' cells."""

    name: ClassVar[str] = "fails-once"
    countdown: ClassVar[int]

    def begin(self, batch: AttentionBatch) -> Attention:
        inner = super().begin(batch)
        cls = type(self)
        cls.countdown -= 1
        if cls.countdown:
            return inner

        def attention(
            layer: int,
            query: torch.Tensor,
            key: torch.Tensor | None,
            value: torch.Tensor | None,
            sinks: torch.Tensor | None = None,
        ) -> torch.Tensor:
            if layer == 0:
                return inner(layer, query, key, value, sinks)
            assert key is not None
            assert value is not None
            inner(layer, query, key * 1e9, value * 1e9)
            raise RuntimeError("the kernel for this shape cannot be compiled")

        return attention


@pytest.mark.long
@pytest.mark.parametrize("overlap", [False, True])
def test_a_backend_that_fails_in_service_is_replaced_and_no_answer_differs(
    overlap: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a cache so small that blocks are copied, evicted, spilled to disk and restored in the very steps that fail."""
    save_model(make_model("LlamaConfig", {}), tmp_path / "model")
    prompts = [[*range(1, 17), *range(3 + i % 2, 19), i] for i in range(6)] + [[5, 6, 7]]
    chosen = [
        SamplingParams(temperature=i % 2, seed=i, max_tokens=20, ignore_eos=True, frequency_penalty=0.3 * (i % 3))
        for i in range(len(prompts))
    ]

    def answers(backends: list[type[AttentionBackend]], disk: Path) -> list[list[list[int]]]:
        monkeypatch.setattr(model_facts, "candidates", lambda name, target: backends)
        tiers: dict[str, Any] = {
            "kv_disk": str(disk),
            "kv_disk_size": "4MiB",
            "max_model_len": 64,
            "kv_memory": "84KiB",
        }
        options: dict[str, Any] = {"dtype": "float32", "threads": 1, "check_integrity_every": 1, "overlap": overlap}
        with LLM(str(tmp_path / "model"), **options, **tiers) as llm:
            texts = [[r.outputs[0].token_ids for r in llm.generate(prompts, chosen)] for _ in range(2)]
            assert llm.stats.attention_fallbacks == len(backends) - 1
            assert llm.stats.preemptions
            assert llm.stats.tiers
            assert llm.stats.tiers.spilled
        return texts

    expected = answers([GatheredBackend], tmp_path / "undisturbed")
    # The first two steps are the warm-up.
    for number in (1, 3, 4, 9, 20, 40):
        monkeypatch.setattr(FailsOnce, "countdown", number, raising=False)
        assert answers([FailsOnce, GatheredBackend], tmp_path / str(number)) == expected
        assert FailsOnce.countdown == 0


def test_whether_somebody_watches_is_no_option_of_an_llm(llm: LLM) -> None:
    with pytest.raises(UsageError, match="unknown option offline"):
        load(llm.info.model, offline=False)


@pytest.mark.parametrize("overlap", [False, True])
def test_what_was_closed_gives_its_memory_and_its_folder_back(tmp_path: Path, overlap: bool) -> None:
    save_model(make_model("LlamaConfig", {}), tmp_path / "model")
    options = {"kv_disk": str(tmp_path / "disk"), "kv_disk_size": "4MiB", "overlap": overlap}
    with load(str(tmp_path / "model"), **options) as first:
        answer = first.generate([1, 2, 3], params())[0].outputs[0].token_ids
        engine = weakref.ref(first._engine)
    gc.collect()
    assert engine() is None
    for use in (lambda: first.generate([1]), lambda: first.info, first.reset_prefix_cache):
        with pytest.raises(UsageError, match="this LLM is closed; create a new one"):
            use()
    first.close()
    with load(str(tmp_path / "model"), **options) as second:
        assert second.generate([1, 2, 3], params())[0].outputs[0].token_ids == answer
