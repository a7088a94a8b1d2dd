"""What a gateway answers to `GET /demand`, read strictly: what is no number is no answer."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from plimsoll_cluster.decode_errors import UNREADABLE
from plimsoll_operator.kube.clock import AHEAD_SECONDS, FROM_THE_FUTURE
from plimsoll_operator.spec.identity import ObjectKey
from plimsoll_operator.spec.name_patterns import Instance, NamespaceName, ObjectName

LIMIT = 32 * 2**20
"""Bytes of an answer: ten thousand models have room."""
MODELS, REVISIONS, BUCKETS = 20_000, 64, 64

Count = Annotated[int, Meta(ge=0, le=2**53)]
Seconds = Annotated[float, Meta(ge=0, le=1e15)]
Time = Annotated[float, Meta(ge=0, le=1e11)]
Share = Annotated[float, Meta(ge=0, le=2)]
Bucket = tuple[Seconds, Count]


class BadDemandError(Exception):
    """What a gateway sent is no answer; the message says what is wrong with it."""


class Latency(Struct, frozen=True, rename="camel"):
    """Seconds that were measured: how many, their sum, and cumulative counts by upper bound."""

    count: Count = 0
    seconds: Seconds = 0.0
    buckets: Annotated[tuple[Bucket, ...], Meta(max_length=BUCKETS)] = ()


class RevisionDemand(Struct, frozen=True, rename="camel"):
    """What the replicas of a revision do.

    `running`, `waiting` and `slots` are sums over its ready replicas and `kv` the highest, of what those said last
    (a replica that says more than all of its cache voids no answer); the rest was counted since the gateway began.
    """

    revision: Annotated[str, Meta(max_length=253)] = ""
    replicas: Count = 0
    running: Count = 0
    waiting: Count = 0
    slots: Count = 0
    kv: Share = 0.0
    requests: Count = 0
    errors: Count = 0
    broken: Count = 0
    first_byte: Latency = Latency()
    event_gap: Latency = Latency()


class ModelDemand(Struct, frozen=True, rename="camel"):
    """Requests for a model at one gateway. `held` of those `in_flight` wait for a replica to be there."""

    namespace: NamespaceName
    name: ObjectName
    held: Count = 0
    in_flight: Count = 0
    asked: Count = 0
    last_asked: Time | None = None
    revisions: Annotated[tuple[RevisionDemand, ...], Meta(max_length=REVISIONS)] = ()

    @property
    def key(self) -> ObjectKey:
        """The ModelDeployment."""
        return ObjectKey(self.namespace, self.name)


class Demand(Struct, frozen=True, rename="camel"):
    """One answer. `sequence` grows within an `instance`, a process."""

    instance: Instance
    sequence: Count
    time: Time
    models: Annotated[tuple[ModelDemand, ...], Meta(max_length=MODELS)] = ()


def decode_demand(data: bytes) -> Demand:
    """Read what a gateway sent. Raises BadDemandError."""
    try:
        return msgspec.json.decode(data, type=Demand)
    except UNREADABLE as error:
        raise BadDemandError(f"it is no answer to GET /demand: {error}") from error


def contradiction(before: Demand | None, answer: Demand, now: float) -> str | None:
    """Why an answer cannot be true, None where nothing speaks against it. `before`: the last one that was believed."""
    return next(_complaints(before, answer, now), None)


def _complaints(before: Demand | None, answer: Demand, now: float) -> Iterator[str]:
    if answer.time > now + AHEAD_SECONDS:
        yield FROM_THE_FUTURE
    if len({model.key for model in answer.models}) < len(answer.models):
        yield "it names a model twice"
    same = before is not None and before.instance == answer.instance
    if before is not None and same:
        if answer.sequence < before.sequence:
            yield "it goes back: its sequence is below that of an earlier answer"
        if answer.time < before.time - 1:
            yield "it goes back in time: it is older than an earlier answer of the same process"
    known = {model.key: model for model in before.models} if before is not None and same else {}
    for model in answer.models:
        yield from _about(known.get(model.key), model, answer)


def _about(before: ModelDemand | None, model: ModelDemand, answer: Demand) -> Iterator[str]:
    if model.held > model.in_flight:
        yield f"{model.key}: it holds {model.held} requests of {model.in_flight}"
    if model.last_asked is not None and model.last_asked > answer.time + 1:
        yield f"{model.key}: it was asked for after the answer"
    if before is not None and model.asked < before.asked:
        yield f"{model.key}: it goes back: requests were {before.asked}, and are {model.asked}"
    if len({entry.revision for entry in model.revisions}) < len(model.revisions):
        yield f"{model.key}: it names a revision twice"
    for entry in model.revisions:
        for latency in (entry.first_byte, entry.event_gap):
            bounds = [bound for bound, _ in latency.buckets]
            counts = [*(count for _, count in latency.buckets), latency.count]
            if any(a >= b for a, b in pairwise(bounds)) or any(a > b for a, b in pairwise(counts)):
                yield f"{model.key}: its buckets do not rise"
