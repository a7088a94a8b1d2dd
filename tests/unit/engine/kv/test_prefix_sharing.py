"""A prefix is computed once for all requests of a tenant, and never shared with another tenant, by counts of tokens."""

from __future__ import annotations

from array import array
from hashlib import sha256
from typing import Any

import pytest
from builders import drain, make_core, request, tokens_of
from simulated import oracle

from plimsoll_runtime.engine.kv import prefix_cache
from plimsoll_runtime.engine.protocol.prompt import Prompt

COMMON = [(3 * i) % 47 for i in range(64)]
OWN = 3
"""Tokens that each prompt has after the common ones."""


def prompt(number: int) -> list[int]:
    return [*COMMON, number, number + 1, number + 2]


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("chunks", [1, 2, 3])
def test_who_comes_amid_the_prefix_computes_what_is_left_of_it_with_the_first(chunks: int, overlap: bool) -> None:
    core, runner = make_core(overlap=overlap)
    wanted = [request(f"r{i}", prompt(i), max_tokens=1) for i in range(4)]
    core.add(wanted[0])
    for _ in range(chunks):
        assert core.step().outputs == []
    for later in wanted[1:]:
        core.add(later)
    outputs = drain(core)
    assert runner.computed_tokens == len(COMMON) + 4 * OWN
    assert {name: tokens_of(o) for name, o in outputs.items()} == {
        r.request_id: oracle(r, 256).token_ids for r in wanted
    }
    assert sum(o[0].cached_tokens for o in outputs.values()) == 3 * len(COMMON)


@pytest.mark.parametrize("chunks", [1, 2, 3])
@pytest.mark.parametrize("budget", [8, 13, 16])
def test_who_goes_ahead_amid_the_prefix_computes_the_rest_of_it_for_both(chunks: int, budget: int) -> None:
    core, runner = make_core(policy="priority", max_batch_tokens=budget)
    last, first = request("last", prompt(1), max_tokens=1), request("first", prompt(5), max_tokens=1, priority=-5)
    core.add(last)
    for _ in range(chunks):
        assert core.step().outputs == []
    core.add(first)
    outputs = drain(core)
    for wanted in (last, first):
        assert tokens_of(outputs[wanted.request_id]) == oracle(wanted, 256).token_ids
    assert list(outputs) == ["first", "last"]
    twice = runner.computed_tokens - len(COMMON) - 2 * OWN
    assert 0 <= twice < core.info.block_size, "at most the part of a block that the first of them was amid"
    stats = core.stats
    assert stats.cache_hit_tokens == 2 * len(prompt(0)) - runner.computed_tokens
    assert stats.cache_hit_tokens <= stats.cache_query_tokens
    assert sum(o[0].cached_tokens for o in outputs.values()) == stats.cache_hit_tokens


def test_tenants_compute_for_themselves_even_when_they_come_together() -> None:
    core, runner = make_core(num_blocks=200, max_sequences=8, max_batch_tokens=64)
    salts = ("a", "b", "", "a", "b", "")
    for i, salt in enumerate(salts):
        core.add(request(f"r{i}", prompt(2 * i), salt=salt, max_tokens=1))
    outputs = drain(core)
    assert runner.computed_tokens == 3 * len(COMMON) + 6 * OWN
    for i, salt in enumerate(salts):
        assert (
            tokens_of(outputs[f"r{i}"]) == oracle(request("r", prompt(2 * i), salt=salt, max_tokens=1), 256).token_ids
        )


def test_a_tenant_learns_nothing_by_asking_what_another_asked() -> None:
    """A tenant's requests compute as many tokens as if it were alone, whatever was requested before."""
    guesses = [COMMON[:n] for n in (4, 5, 16, 40, 64)]
    alone, alone_runner = make_core(num_blocks=200)
    beside, beside_runner = make_core(num_blocks=200)
    beside.add(request("victim", prompt(1), salt="victim", max_tokens=20))
    drain(beside)
    for number, guess in enumerate(guesses):
        computed = []
        for core, runner in ((alone, alone_runner), (beside, beside_runner)):
            before = runner.computed_tokens
            core.add(request(f"guess-{number}", guess, salt="attacker", max_tokens=2))
            (outputs,) = drain(core).values()
            computed.append((runner.computed_tokens - before, outputs[0].cached_tokens))
        assert computed[0] == computed[1]


def test_blocks_of_a_prompt_are_named_once_however_many_answers_it_gets(monkeypatch: pytest.MonkeyPatch) -> None:
    named: list[bytes] = []

    def counted(data: bytes) -> Any:
        named.append(data)
        return sha256(data)

    monkeypatch.setattr(prefix_cache, "sha256", counted)
    shared = Prompt(prompt(1))
    core, runner = make_core(num_blocks=200, max_sequences=8, max_batch_tokens=64)
    asked = [request(f"r{i}", shared, salt=salt, max_tokens=9) for i, salt in enumerate(("", "", "", "b", "b"))]
    for wanted in asked:
        core.add(wanted)
    outputs = drain(core)
    for wanted in asked:
        assert tokens_of(outputs[wanted.request_id]) == oracle(wanted, 256).token_ids
    assert runner.computed_tokens == 2 * len(COMMON) + 5 * (OWN + 8)
    roots = [data for data in named if data.startswith(b"plimsoll/")]
    of_prompt = [data for data in named if data not in roots and in_prompt(data)]
    assert len(of_prompt) == len(set(of_prompt)) == 2 * (len(shared) // core.info.block_size)


def in_prompt(named: bytes) -> bool:
    """Return whether the hashed bytes are a block name followed by the tokens of a block of the prompt."""
    tokens = array("I", named[32:])
    return any(tokens.tolist() == prompt(1)[i : i + len(tokens)] for i in range(0, len(prompt(1)), len(tokens)))
