"""The `LLM` class: what each request's urgency does to it, with a real engine over a tiny model."""

from typing import Any

import pytest
from model_support.tiny import make_model, save_model

from plimsoll_runtime import LLM, SamplingParams
from plimsoll_runtime.errors import UsageError


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
    assert ended == [("length", 4), ("deadline", 0), ("length", 4)]
    assert llm.stats.expired == 1


def test_the_policy_is_an_option_of_the_engine(llm: LLM) -> None:
    assert llm.info.policy == "priority"
    assert len(llm.generate([[1]], params(priority=-1))[0].outputs[0].token_ids) == 4
    with pytest.raises(UsageError, match=r"'best'.*there are deadline, fcfs"):
        load(llm.info.model, policy="best")
