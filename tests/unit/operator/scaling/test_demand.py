"""Accepted and rejected reports of gateways."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from operator_support.stub_gateway import StubGateway

from plimsoll_operator.scaling.demand import BadDemandError, Demand, contradiction, decode_demand
from plimsoll_operator.spec.identity import ObjectKey

KEY = ObjectKey("team", "m")
NOW = 1767225600.0


def answer(change: Any = None) -> Demand:
    gateway = StubGateway(sequence=3)
    model = gateway.of(KEY)
    model.held, model.in_flight, model.asked, model.last_asked, model.replicas = 1, 4, 9, NOW - 1, 2
    for seconds in (0.2, 0.7):
        model.first_byte.measure(seconds)
    model.gap.measure(0.01, 5)
    body = gateway.body()
    if change is not None:
        change(body)
    return decode_demand(json.dumps(body).encode())


def test_an_answer_is_read_and_believed() -> None:
    found = answer()
    (model,) = found.models
    (part,) = model.revisions
    assert (model.key, model.held, model.in_flight, model.asked, model.last_asked) == (KEY, 1, 4, 9, NOW - 1)
    assert (part.replicas, part.slots, part.first_byte.count, part.event_gap.count) == (2, 16, 2, 5)
    assert contradiction(None, found, NOW) is None
    assert contradiction(found, found, NOW) is None


@pytest.mark.parametrize(
    "change",
    [
        lambda body: body.pop("instance"),
        lambda body: body.update(sequence=-1),
        lambda body: body.update(sequence="many"),
        lambda body: body.update(time=float("1e300")),
        lambda body: body["models"][0].update(held=-1),
        lambda body: body["models"][0].update(inFlight=1.5),
        lambda body: body["models"][0].pop("name"),
        lambda body: body["models"][0]["revisions"][0].update(kv=-0.1),
        lambda body: body["models"][0]["revisions"][0]["firstByte"].update(buckets=[[1, -1]]),
        lambda body: body["models"][0]["revisions"][0]["firstByte"].update(buckets=[[1]]),
    ],
)
def test_what_is_no_answer_is_refused(change: Any) -> None:
    with pytest.raises(BadDemandError, match="the response to GET /demand is not valid"):
        answer(change)


def test_what_comes_with_a_later_gateway_is_skipped() -> None:
    assert answer(lambda body: body.update(weather="fair")) == answer()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda body: body.update(sequence=2), "sequence is below"),
        (lambda body: body.update(time=NOW - 2), "its time is before"),
        (lambda body: body.update(time=NOW + 301), "future"),
        (lambda body: body["models"].append(body["models"][0]), "names a model twice"),
        (lambda body: body["models"][0].update(held=5), "held is 5, more than inFlight 4"),
        (lambda body: body["models"][0].update(lastAsked=NOW + 2), "lastAsked is after the report's time"),
        (lambda body: body["models"][0].update(asked=8), "asked fell from 9 to 8"),
        (lambda body: body["models"][0]["revisions"].append(body["models"][0]["revisions"][0]), "revision twice"),
        (lambda body: body["models"][0]["revisions"][0]["firstByte"].update(count=1), "buckets do not increase"),
        (
            lambda body: body["models"][0]["revisions"][0]["eventGap"].update(buckets=[[1, 1], [1, 2]]),
            "buckets do not increase",
        ),
    ],
)
def test_what_cannot_be_true_is_told(change: Any, words: str) -> None:
    told = contradiction(answer(), answer(change), NOW)
    assert told is not None
    assert words in told


def test_another_process_may_begin_anew() -> None:
    after = msgspec.structs.replace(answer(), instance="g2", sequence=0, time=NOW - 50, models=())
    assert contradiction(answer(), after, NOW) is None
