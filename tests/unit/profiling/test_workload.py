"""The requests of workloads, and workloads that are rejected before or after the engine is loaded."""

from __future__ import annotations

import msgspec
import pytest
from builders import make_core

from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.engine.protocol.pooling import PoolingInfo
from plimsoll_runtime.errors import UsageError
from plimsoll_runtime.profiling.workload import WORKLOADS, Workload

CONFIG = EngineConfig(model="m", max_sequences=8)


@pytest.mark.parametrize("name", WORKLOADS)
def test_requests_are_the_same_every_time_and_within_their_lengths(name: str) -> None:
    workload = Workload(name, 6, 40, 30)
    requests = workload.requests(1000)
    assert requests == workload.requests(1000)
    assert len({r.request_id for r in requests}) == 6
    assert all(0 <= token < 1000 for r in requests for token in r.prompt_token_ids)
    for request in requests:
        assert request.context.params.max_tokens is not None
        assert 3 <= len(request.prompt_token_ids) <= 40
        assert 2 <= request.context.params.max_tokens <= 30
        assert (request.context.params.greedy, request.context.params.ignore_eos) == (True, True)


def test_prompts_of_uniform_share_nothing_and_are_as_long_as_said() -> None:
    requests = Workload("uniform", 4, 20, 5).requests(10_000)
    assert {len(r.prompt_token_ids) for r in requests} == {20}
    assert {r.context.params.max_tokens for r in requests} == {5}
    assert len({r.prompt_token_ids[0] for r in requests}) == 4


def test_lengths_of_mixed_differ() -> None:
    requests = Workload("mixed", 8, 200, 100).requests(100)
    assert len({len(r.prompt_token_ids) for r in requests}) > 1
    assert len({r.context.params.max_tokens for r in requests}) > 1


def test_prompts_of_shared_prefix_differ_at_their_ends_only() -> None:
    requests = Workload("shared-prefix", 4, 40, 5).requests(10_000)
    assert len({tuple(r.prompt_token_ids[:24]) for r in requests}) == 1
    assert len({r.prompt_token_ids[24] for r in requests}) == 4
    assert {len(r.prompt_token_ids) for r in requests} == {40}


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_warm_run_has_the_same_prompts_and_shorter_answers(name: str) -> None:
    workload = Workload(name, 5, 64, 50)
    whole, cut = workload.requests(100), workload.requests(100, longest_output=4)
    assert [r.prompt_token_ids for r in whole] == [r.prompt_token_ids for r in cut]
    assert [r.context.params.max_tokens for r in cut] == [min(4, r.context.params.max_tokens or 0) for r in whole]


@pytest.mark.parametrize(
    ("workload", "config", "told"),
    [
        (Workload("uniform", 9, 1, 1), CONFIG, "--batch 9 exceeds --max-sequences 8"),
        (Workload("shared-prefix", 1, 16, 1), CONFIG, "give at least 17"),
        (
            Workload("uniform", 1, 60, 5),
            EngineConfig(model="m", max_model_len=64),
            "make 65 tokens, but the limit of a sequence is 64",
        ),
    ],
)
def test_what_cannot_be_is_refused_before_loading(workload: Workload, config: EngineConfig, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        workload.check(config)


def test_what_just_goes_is_taken() -> None:
    Workload("uniform", 8, 1, 1).check(CONFIG)
    Workload("shared-prefix", 1, 17, 1).check(CONFIG)
    Workload("uniform", 1, 60, 4).check(EngineConfig(model="m", max_model_len=64))


def test_a_loaded_engine_refuses_what_it_cannot_hold_at_once() -> None:
    info = make_core(num_blocks=17, block_size=4, max_model_len=32)[0].info
    Workload("uniform", 4, 10, 6).check_fits(info)
    with pytest.raises(UsageError, match="need 20 KV blocks of 4 tokens, but there are 16; raise --kv-memory"):
        Workload("uniform", 4, 11, 6).check_fits(info)
    with pytest.raises(UsageError, match="33 tokens, but the limit of a sequence is 32"):
        Workload("uniform", 1, 30, 3).check_fits(info)
    pooled = msgspec.structs.replace(info, pooling=PoolingInfo("embed", 4))
    with pytest.raises(
        UsageError, match="only models that generate text can be profiled, but the task of this model is embed"
    ):
        Workload("uniform", 1, 10, 3).check_fits(pooled)
