"""Quota usage of a request: none if it was refused or abandoned, the actual usage if it was answered."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from plimsoll_gateway.admission.quota.reservation import Quotas, Reservation
from plimsoll_gateway.errors.refusals import Refusal
from plimsoll_gateway.keys.api_key import ApiKey, KeyLimits

HASH = "sha256:" + "0" * 64


def key(requests: int | None = None, tokens: int | None = None, streams: int | None = None, name: str = "k") -> ApiKey:
    limits = KeyLimits(hashes=(HASH,), requests_per_minute=requests, tokens_per_minute=tokens, streams=streams)
    return ApiKey(name, limits)


class AdmissionMachine(RuleBasedStateMachine):
    """Requests of one key at all stages, and the expected counts. The clock stays within one minute."""

    def __init__(self) -> None:
        super().__init__()
        self.quotas = Quotas(lambda: 1000.0)
        self.key = key(requests=8, tokens=100, streams=3)
        self.open: list[tuple[ExitStack, Reservation, list[int]]] = []  # [reserved, begun, used]
        self.ended: list[list[int]] = []

    def requests(self) -> int:
        return len(self.open) + sum(begun for _, begun, _ in self.ended)

    def tokens(self) -> int:
        return sum(state[0] for _, _, state in self.open) + sum(used for _, _, used in self.ended)

    @rule()
    def come(self) -> None:
        fits = len(self.open) < 3 and self.requests() < 8
        stack = ExitStack()
        if fits:
            reservation = stack.enter_context(self.quotas.admit(self.key))
            assert isinstance(reservation, Reservation)
            self.open.append((stack, reservation, [0, 0, 0]))
        else:
            with pytest.raises(Refusal) as refused:
                self.quotas.admit(self.key)
            assert refused.value.status == 429

    @precondition(lambda self: self.open)
    @rule(data=st.data(), tokens=st.integers(1, 120))
    def reserve(self, data: st.DataObject, tokens: int) -> None:
        at = data.draw(st.integers(0, len(self.open) - 1))
        stack, reservation, state = self.open[at]
        if state[0]:
            return
        if self.tokens() + tokens <= 100:
            reservation.reserve(tokens)
            state[0] = tokens
            return
        with pytest.raises(Refusal) as refused, stack:
            reservation.reserve(tokens)
        assert refused.value.status == 429
        del self.open[at]

    @precondition(lambda self: self.open)
    @rule(data=st.data(), begun=st.booleans(), used=st.integers(0, 60))
    def end(self, data: st.DataObject, begun: bool, used: int) -> None:
        stack, reservation, _ = self.open.pop(data.draw(st.integers(0, len(self.open) - 1)))
        if begun:
            reservation.begin()
            reservation.used(used)
        stack.close()
        self.ended.append([0, int(begun), used if begun else 0])

    @invariant()
    def agrees(self) -> None:
        self.quotas.check_integrity()
        usage = self.quotas.usage("k")
        assert usage.streams == len(self.open)
        assert usage.requests.total == self.requests()
        assert usage.tokens.total == self.tokens()


TestAdmission = AdmissionMachine.TestCase


def test_requests_are_refused_until_the_minute_is_over() -> None:
    now = 1000.0
    quotas, limited = Quotas(lambda: now), key(requests=2)
    for _ in range(2):
        with quotas.admit(limited) as reservation:
            reservation.begin()
        now += 10
    with pytest.raises(Refusal) as refused:
        quotas.admit(limited)
    headers = dict(refused.value.headers)
    assert (refused.value.status, refused.value.code, refused.value.kind) == (429, "rate_limit_exceeded", "requests")
    assert headers["retry-after"] == "41"
    assert (headers["x-ratelimit-limit-requests"], headers["x-ratelimit-remaining-requests"]) == ("2", "0")
    assert headers["x-ratelimit-reset-requests"] == "51s"
    assert "x-ratelimit-limit-tokens" not in headers
    now += 41
    with quotas.admit(limited):
        pass
    with quotas.admit(key(name="other")):
        pass


def test_tokens_that_an_answer_used_count_and_no_more_than_those() -> None:
    quotas, limited = Quotas(lambda: 1000.0), key(tokens=100)
    with quotas.admit(limited) as reservation:
        reservation.reserve(90)
        reservation.begin()
        reservation.used(30)
    with quotas.admit(limited) as reservation:
        reservation.reserve(70)
        headers = dict(reservation.headers())
        assert headers[b"x-ratelimit-remaining-tokens"] == b"0"
        with pytest.raises(Refusal, match="100 tokens per minute") as refused, quotas.admit(limited) as late:
            late.reserve(1)
        assert refused.value.kind == "tokens"


def test_a_request_beyond_the_whole_limit_says_that_waiting_is_no_use() -> None:
    with (
        pytest.raises(Refusal, match="Shorten it, or lower max_tokens") as refused,
        Quotas().admit(key(tokens=100)) as reservation,
    ):
        reservation.reserve(101)
    assert "retry-after" not in dict(refused.value.headers)


def test_limits_that_change_count_from_the_next_request_on() -> None:
    quotas = Quotas(lambda: 1000.0)
    with quotas.admit(key(requests=1)) as reservation:
        reservation.begin()
    with quotas.admit(key(requests=2)) as reservation:
        reservation.begin()
    with pytest.raises(Refusal):
        quotas.admit(key(requests=2))
