"""Simulated scaling policies: the operator's scaler, a fixed number, and a rule like that of an HPA."""

from __future__ import annotations

import math
from collections import deque
from datetime import UTC, datetime, timedelta
from typing import Any

from plimsoll_operator.planning.pods import Pod
from plimsoll_operator.planning.units import units_of
from plimsoll_operator.scaling.demand import Demand, Latency, ModelDemand, RevisionDemand
from plimsoll_operator.scaling.scaler import Scaler
from plimsoll_operator.scaling.status import scaling_fields
from plimsoll_operator.spec.identity import ObjectKey
from plimsoll_operator.spec.scaling import Scaling
from plimsoll_operator.spec.template import STARTUP_SECONDS
from scaling.replica import Replica
from scaling.service import Counted, Service

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
KEY = ObjectKey("made-up", "model")
GATEWAY = "gateway"
ASK_SECONDS = 5
REVISION = "h"
"""The revision of all replicas; the spec never changes."""


class Fixed:
    """A fixed number of replicas."""

    def __init__(self, replicas: int) -> None:
        self.name = f"{replicas} always"
        self._replicas = replicas

    def wanted(self, service: Service) -> int:
        """Return the fixed number."""
        return self._replicas


class Hpa:
    """A rule like that of a Kubernetes HPA: every 15 s, requests in flight divided by the target for each replica. It
    scales down if fewer replicas have sufficed for five minutes.
    """

    name = "HPA"
    INTERVAL, WINDOW, TOLERANCE = 15, 300.0, 0.1

    def __init__(self, target: float, most: int) -> None:
        self._target, self._most = target, most
        self._desired = 1
        self._said: deque[tuple[float, int]] = deque()

    def wanted(self, service: Service) -> int:
        """Return the number that `autoscaling/v2` computes for an AverageValue with its defaults, at least one."""
        if int(service.now) % self.INTERVAL:
            return self._desired
        ratio = service.in_flight / (self._target * self._desired)
        found = self._desired if abs(ratio - 1) <= self.TOLERANCE else math.ceil(service.in_flight / self._target)
        found = max(1, min(self._most, found, max(2 * self._desired, self._desired + 4)))
        self._said.append((service.now, found))
        while self._said[0][0] < service.now - self.WINDOW:
            self._said.popleft()
        self._desired = max(said for _, said in self._said)
        return self._desired


class ScalerPolicy:
    """The operator's scaler. Reports of a simulated gateway go into its registry, and each decision gets the status of
    the previous one.
    """

    name = "plimsoll"

    def __init__(self, scaling: Scaling) -> None:
        self._scaling = scaling
        self._now = 0.0
        self._woken = True
        self._sequence = 0
        self._holding = False
        self._status: dict[str, Any] = {}
        self._scaler = Scaler(wake=self._wake, clock=lambda: EPOCH + timedelta(seconds=self._now))

    def wanted(self, service: Service) -> int:
        """Return the number of the last reconcile. A reconcile runs if the scaler asks for it, and once a minute."""
        self._now = service.now
        holding = bool(service.held)
        news = holding != self._holding
        self._holding = holding
        self._sequence += news
        if news or int(service.now) % ASK_SECONDS == 0:
            time = EPOCH.timestamp() + service.now
            self._scaler.registry.keep([GATEWAY], time)
            self._scaler.registry.take(GATEWAY, self._answer(service, time), time)
            self._scaler.look()
        if self._woken or int(service.now) % 60 == 0:
            self._woken = False
            pods = [_pod(replica, service.now) for replica in service.staying]
            decision = self._scaler.decide(
                KEY, self._scaling, self._status, units_of(pods), revision=REVISION, startup=STARTUP_SECONDS
            )
            self._status = {"desiredReplicas": decision.replicas, **scaling_fields(decision)}
        found: int = self._status["desiredReplicas"]
        return found

    def _wake(self, key: ObjectKey) -> None:
        self._woken = True

    def _answer(self, service: Service, time: float) -> Demand:
        serving = service.serving
        part = RevisionDemand(
            replicas=len(serving),
            running=sum(r.running for r in serving),
            waiting=sum(r.waiting for r in serving),
            slots=service.device.slots * len(serving),
            kv=max((r.kv for r in serving), default=0.0),
            requests=service.ended,
            first_byte=_latency(service.first_byte),
            event_gap=_latency(service.event_gap),
        )
        asked = EPOCH.timestamp() + service.last_asked if service.asked else None
        model = ModelDemand(
            KEY.namespace, KEY.name, len(service.held), service.in_flight, service.asked, asked, (part,)
        )
        return Demand(GATEWAY, self._sequence, time, (model,))


def _latency(counted: Counted) -> Latency:
    return Latency(counted.count, counted.seconds, counted.cumulative())


def _pod(replica: Replica, now: float) -> Pod:
    created = EPOCH + timedelta(seconds=replica.made)
    ready = replica.ready <= now
    moved = EPOCH + timedelta(seconds=replica.ready) if ready else created
    return Pod(replica.name, replica.name, "model", REVISION, created, True, ready, None, False, created, moved=moved)
