"""Decodes and checks what a gateway returns from `GET /demand`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import pairwise
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from plimsoll_cluster.decode_errors import UNREADABLE
from plimsoll_operator.kube.clock import AHEAD_SECONDS, FROM_THE_FUTURE
from plimsoll_operator.spec.identity import ObjectKey
from plimsoll_operator.spec.name_patterns import Instance, NamespaceName, ObjectName

LIMIT = 32 * 2**20
"""The most bytes of a report, enough for ten thousand models."""
MODELS, REVISIONS, BUCKETS = 20_000, 64, 64

Count = Annotated[int, Meta(ge=0, le=2**53)]
Seconds = Annotated[float, Meta(ge=0, le=1e15)]
Time = Annotated[float, Meta(ge=0, le=1e11)]
Share = Annotated[float, Meta(ge=0, le=2)]
Bucket = tuple[Seconds, Count]


class BadDemandError(Exception):
    """The gateway's report is not valid; the message says why."""


class Latency(Struct, frozen=True, rename="camel"):
    """A latency in seconds since the gateway started: number and sum of its measurements, and pairs of an upper bound
    and the number of measurements up to it.
    """

    count: Count = 0
    seconds: Seconds = 0.0
    buckets: Annotated[tuple[Bucket, ...], Meta(max_length=BUCKETS)] = ()


class RevisionDemand(Struct, frozen=True, rename="camel"):
    """Demand of a revision's replicas at one gateway.

    `replicas` is the number of ready replicas. `running`, `waiting` and `slots` are sums over their last reports, and
    `kv` is their maximum of the used share of the KV cache. `kv` may exceed 1, so that one wrong replica does not make
    the report invalid. The other fields count since the gateway started.
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
    """Requests for a model at one gateway. `held` of the `in_flight` requests wait for a ready replica. `asked` counts
    all requests since the gateway started; the last one came at `last_asked`, None if there was none.
    """

    namespace: NamespaceName
    name: ObjectName
    held: Count = 0
    in_flight: Count = 0
    asked: Count = 0
    last_asked: Time | None = None
    revisions: Annotated[tuple[RevisionDemand, ...], Meta(max_length=REVISIONS)] = ()

    @property
    def key(self) -> ObjectKey:
        """The ModelDeployment's key."""
        return ObjectKey(self.namespace, self.name)


class Demand(Struct, frozen=True, rename="camel", dict=True):
    """One report. `sequence` grows within an `instance` (a process)."""

    instance: Instance
    sequence: Count
    time: Time
    models: Annotated[tuple[ModelDemand, ...], Meta(max_length=MODELS)] = ()

    @cached_property
    def by_key(self) -> Mapping[ObjectKey, ModelDemand]:
        """The models' demand by the key of their ModelDeployment."""
        return {model.key: model for model in self.models}


def decode_demand(data: bytes) -> Demand:
    """Decode a gateway's report. Raise BadDemandError if it is not valid."""
    try:
        return msgspec.json.decode(data, type=Demand)
    except UNREADABLE as error:
        raise BadDemandError(f"the response to GET /demand is not valid: {error}") from error


def contradiction(before: Demand | None, answer: Demand, now: float) -> str | None:
    """Return why a report cannot be true, or None. `before` is the last accepted report."""
    return next(_complaints(before, answer, now), None)


def _complaints(before: Demand | None, answer: Demand, now: float) -> Iterator[str]:
    if answer.time > now + AHEAD_SECONDS:
        yield FROM_THE_FUTURE
    if len(answer.by_key) < len(answer.models):
        yield "it names a model twice"
    same = before is not None and before.instance == answer.instance
    if before is not None and same:
        if answer.sequence < before.sequence:
            yield "its sequence is below that of an earlier report"
        if answer.time < before.time - 1:
            yield "its time is before that of an earlier report of the same process"
    known = before.by_key if before is not None and same else {}
    for model in answer.models:
        yield from _about(known.get(model.key), model, answer)


def _about(before: ModelDemand | None, model: ModelDemand, answer: Demand) -> Iterator[str]:
    if model.held > model.in_flight:
        yield f"{model.key}: held is {model.held}, more than inFlight {model.in_flight}"
    if model.last_asked is not None and model.last_asked > answer.time + 1:
        yield f"{model.key}: lastAsked is after the report's time"
    if before is not None and model.asked < before.asked:
        yield f"{model.key}: asked fell from {before.asked} to {model.asked}"
    if len({entry.revision for entry in model.revisions}) < len(model.revisions):
        yield f"{model.key}: it names a revision twice"
    for entry in model.revisions:
        for latency in (entry.first_byte, entry.event_gap):
            bounds = [bound for bound, _ in latency.buckets]
            counts = [*(count for _, count in latency.buckets), latency.count]
            if any(a >= b for a, b in pairwise(bounds)) or any(a > b for a, b in pairwise(counts)):
                yield f"{model.key}: the bounds or counts of its buckets do not increase"
