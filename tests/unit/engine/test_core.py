"""The engine core, driven like by its process: ends of requests, refusals, failures."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from builders import drain, make_core, request, tokens_of, with_context
from simulated import EOS, POISON, VOCAB, oracle

from plimsoll_runtime.driver.clients.requests import joined
from plimsoll_runtime.engine.protocol.messages import AddRequest, RequestOutput, unpack
from plimsoll_runtime.errors import EngineDeadError, UsageError

EVERY_TOKEN = tuple(range(POISON))


@pytest.mark.parametrize(
    ("options", "reason", "count"),
    [
        ({"max_tokens": 5}, "length", 5),
        ({"max_tokens": None}, "length", 64 * 4 - 3),
        ({"max_tokens": 1000}, "length", 64 * 4 - 3),
        ({"max_tokens": 50, "stop_token_ids": EVERY_TOKEN}, "stop", 1),
        ({"max_tokens": 50, "stop_token_ids": tuple(range(0, POISON, 2)), "min_tokens": 4}, "stop", None),
    ],
)
def test_how_it_ends(options: dict[str, Any], reason: str, count: int | None) -> None:
    core, _ = make_core()
    wanted = request("r", [1, 2, 3], **options)
    core.add(wanted)
    outputs = drain(core)["r"]
    assert tokens_of(outputs) == oracle(wanted, 256).token_ids
    assert [o.finish_reason for o in outputs] == [None] * (len(outputs) - 1) + [reason]
    assert count is None or len(outputs) == count
    assert len(outputs) >= options.get("min_tokens", 1)
    assert (outputs[-1].stop_token_id == outputs[-1].token_ids[-1]) == (reason == "stop")


@pytest.mark.parametrize("ignore_eos", [True, False])
def test_eos_ends_it_unless_it_is_ignored(ignore_eos: bool) -> None:
    core, _ = make_core()
    prompts = [[i, i + 1] for i in range(40)]
    for i, prompt in enumerate(prompts):
        core.add(request(f"r{i}", prompt, max_tokens=20, ignore_eos=ignore_eos))
    ended = [o[-1] for o in drain(core).values()]
    stopped = [o for o in ended if o.finish_reason == "stop"]
    assert bool(stopped) is not ignore_eos
    assert all(o.stop_token_id == EOS for o in stopped)


def test_the_model_limit_counts_prompt_and_answer() -> None:
    core, _ = make_core(max_model_len=10)
    core.add(request("r", [1] * 9, max_tokens=50))
    assert len(tokens_of(drain(core)["r"])) == 1
    expected = r"10 tokens, but .* at most 10 \(the KV cache holds 256\); shorten the prompt or raise --max-model-len$"
    with pytest.raises(UsageError, match=expected):
        core.add(request("s", [1] * 10))


def test_a_cache_that_holds_no_longer_prompt_is_named() -> None:
    core, _ = make_core(num_blocks=4)
    with pytest.raises(UsageError, match=r"at most 12 \(the KV cache holds 12\); .*--max-model-len and --kv-memory$"):
        core.add(request("s", [1] * 12))


def test_logprobs_go_with_their_tokens() -> None:
    core, _ = make_core()
    wanted = request("r", [1, 2, 3], logprobs=0, prompt_logprobs=0)
    core.add(wanted)
    core.add(request("plain", [1, 2, 3]))
    outputs = drain(core)
    assert [entry.token_id for o in outputs["r"] for entry in o.logprobs] == tokens_of(outputs["r"])
    prompt_logprobs = outputs["r"][0].prompt_logprobs
    assert prompt_logprobs is not None
    assert [p.token_id for p in unpack(prompt_logprobs)] == [2, 3]
    assert [p.logprob for p in unpack(prompt_logprobs)] == oracle(wanted, 256).prompt_logprobs
    assert all(o.prompt_logprobs is None for o in (*outputs["r"][1:], *outputs["plain"]))
    assert not any(o.logprobs for o in outputs["plain"])


def timeless(output: RequestOutput) -> RequestOutput:
    marks = [msgspec.structs.replace(mark, at_ns=0) for mark in output.marks]
    return msgspec.structs.replace(output, marks=marks)


@pytest.mark.parametrize("num_blocks", [65, 14])
def test_a_final_output_is_what_the_steps_would_have_told(num_blocks: int) -> None:
    asked = [
        request(f"r{i}", [i, *range(1, 11)], max_tokens=30, ignore_eos=i > 1, prompt_logprobs=0 if i == 2 else None)
        for i in range(4)
    ]
    told = []
    for whole in (False, True):
        core, _ = make_core(num_blocks=num_blocks)
        for each in asked:
            core.add(with_context(each, final_only=whole))
        told.append(drain(core))
        assert bool(core.stats.preemptions) is (num_blocks == 14)
    joint = {name: [timeless(joined(outputs))] for name, outputs in told[0].items()}
    assert joint == {name: [timeless(output) for output in outputs] for name, outputs in told[1].items()}


def test_log_probabilities_come_with_their_tokens_though_one_output_was_asked_for() -> None:
    core, _ = make_core()
    core.add(with_context(request("r", [1, 2, 3], max_tokens=3, logprobs=0), final_only=True))
    assert [len(output.logprobs) for output in drain(core)["r"]] == [1, 1, 1]


def test_a_prompt_of_one_token_has_no_prompt_logprobs() -> None:
    core, _ = make_core()
    core.add(request("r", [1], prompt_logprobs=0))
    assert drain(core)["r"][0].prompt_logprobs == []


@pytest.mark.parametrize(
    ("prompt", "message"),
    [([], "empty"), ([1] * 256, "256 tokens"), ([1, VOCAB], f"token id {VOCAB}"), ([-1, 2], "token id -1")],
)
def test_refusals_leave_the_engine_as_it_was(prompt: list[int], message: str) -> None:
    core, _ = make_core()
    with pytest.raises(UsageError, match=message):
        core.add(request("r", prompt))
    assert not core.has_work
    core.add(request("r", [1]))
    with pytest.raises(UsageError, match="in use"):
        core.add(request("r", [1]))
    assert core.stats.waiting == 1


def test_an_id_may_be_used_again_once_it_is_free() -> None:
    core, _ = make_core()
    for _ in range(2):
        core.add(request("r", [1, 2]))
        assert len(tokens_of(drain(core)["r"])) == 8
    core.add(request("r", [1, 2]))
    core.abort(["r"])
    core.add(request("r", [1, 2]))
    assert len(tokens_of(drain(core)["r"])) == 8


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_an_aborted_request_is_gone_at_once(steps: int) -> None:
    core, _ = make_core()
    core.add(request("gone", list(range(20)), max_tokens=50))
    core.add(request("stays", [5]))
    for _ in range(steps):
        core.step()
    core.abort(["gone", "unknown"])
    core.abort(["gone"])
    assert core.stats.running + core.stats.waiting == 1
    outputs = drain(core)
    assert "gone" not in outputs
    assert core.stats.blocks_used == 0


def test_one_broken_sequence_does_not_break_the_batch() -> None:
    core, _ = make_core()
    core.add(request("broken", list(range(8)), stop_token_ids=(POISON,)))
    core.add(request("fine", [1, 2]))
    outputs = drain(core)
    assert [(o.finish_reason, o.token_ids) for o in outputs["broken"]] == [("error", [])]
    assert "not finite" in str(outputs["broken"][0].error)
    assert core.stats.broken_off == 1
    assert tokens_of(outputs["fine"]) == oracle(request("fine", [1, 2]), 256).token_ids


def test_nobody_reads_what_a_broken_sequence_computed() -> None:
    core, _ = make_core()
    prompt = list(range(12))
    core.add(request("broken", prompt, stop_token_ids=(POISON,)))
    drain(core)
    core.add(request("next", prompt))
    assert drain(core)["next"][0].cached_tokens == 0


def test_a_runner_that_raises_ends_the_engine() -> None:
    core, runner = make_core()
    core.add(request("r", [1, 2]))
    core.step()
    runner.failure = RuntimeError("the device is gone")
    with pytest.raises(EngineDeadError, match="RuntimeError: the device is gone") as caught:
        core.step()
    assert caught.value.__cause__ is runner.failure
    runner.failure = None
    for call in (core.step, lambda: core.add(request("s", [1]))):
        with pytest.raises(EngineDeadError, match="the device is gone"):
            call()
    core.abort(["r"])
    assert not core.has_work


def test_a_step_without_work_computes_nothing() -> None:
    core, runner = make_core()
    assert core.step().outputs == []
    assert runner.computed_tokens == 0
    assert core.stats.steps == 0


@pytest.mark.parametrize(("every", "checks"), [(0, 0), (1, 9), (3, 3), (100, 0)])
def test_the_records_are_compared_after_so_many_steps(every: int, checks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    core, _ = make_core(check_integrity_every=every)
    seen: list[int] = []
    monkeypatch.setattr(core, "check_integrity", lambda: seen.append(core.stats.steps))
    core.add(request("r", [1, 2], max_tokens=9))
    drain(core)
    assert seen == [every * (i + 1) for i in range(checks)]


def test_seeds_repeat_and_their_absence_does_not() -> None:
    core, _ = make_core()
    for i in range(4):
        core.add(request(f"seeded{i}", [1, 2], temperature=1.0, seed=5, max_tokens=12))
        core.add(request(f"free{i}", [1, 2], temperature=1.0, max_tokens=12))
    outputs = drain(core)
    texts = {name: tuple(tokens_of(o)) for name, o in outputs.items()}
    assert len({texts[f"seeded{i}"] for i in range(4)}) == 1
    assert len({texts[f"free{i}"] for i in range(4)}) == 4


def test_the_counters_add_up() -> None:
    core, _ = make_core()
    prompt = list(range(10))
    for name in ("a", "b"):
        core.add(request(name, prompt))
        drain(core)
    stats = core.stats
    assert (stats.prompt_tokens, stats.generated_tokens) == (20 - 8, 16)
    assert (stats.cache_query_tokens, stats.cache_hit_tokens) == (20, 8)
    assert (stats.running, stats.waiting, stats.blocks_used, stats.preemptions) == (0, 0, 0, 0)
    assert stats.blocks_total == 64
    assert stats.blocks_cached == 4
    assert stats.steps == 16


def test_impossible_options_are_refused() -> None:
    with pytest.raises(UsageError, match="max_batch_tokens must be at least 1"):
        make_core(max_batch_tokens=0)
    with pytest.raises(UsageError, match="max_sequences must be at least 1"):
        make_core(max_sequences=0)


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(UsageError, match="policy must be one of fcfs, priority, sjf, prefix, deadline, not best"):
        make_core(policy="best")


def test_the_order_of_adds_does_not_change_an_answer() -> None:
    wanted: list[AddRequest] = [
        request(f"r{i}", list(range(i, i + 5 + i)), temperature=float(i % 2), seed=i, max_tokens=9) for i in range(6)
    ]
    texts = []
    for order in (wanted, wanted[::-1]):
        core, _ = make_core(num_blocks=20)
        for add in order:
            core.add(add)
        texts.append({name: tokens_of(o) for name, o in sorted(drain(core).items())})
    assert texts[0] == texts[1] == {r.request_id: oracle(r, 76).token_ids for r in wanted}


@pytest.mark.parametrize(("offline", "tokens"), [(False, 5 + 64), (True, 5 + 95)])
def test_prompts_are_cut_small_beside_decodes_unless_nobody_watches(offline: bool, tokens: int) -> None:
    core, runner = make_core(offline=offline, max_batch_tokens=200, max_sequences=8)
    for i in range(5):
        core.add(request(f"talker-{i}", [i]))
    core.step()
    core.add(request("reader", [7 + i % 40 for i in range(95)]))
    before = runner.computed_tokens
    core.step()
    assert runner.computed_tokens - before == tokens
