"""Gateways on a simulated network: messages are late, lost or cut off, clocks differ, and the test moves time."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field

from plimsoll_gateway.admission.quota.reservation import Quotas
from plimsoll_gateway.admission.quota.share import QuotaShare
from plimsoll_gateway.admission.quota.usage import Kind, Usage
from plimsoll_gateway.admission.quota_sync.exchange import GIVE_UP_SECONDS, HURRY_SECONDS
from plimsoll_gateway.admission.quota_sync.messages import Reply, Report
from plimsoll_gateway.admission.quota_sync.node import TURN_SECONDS, Node
from plimsoll_gateway.admission.quota_sync.owner import StaleReport
from plimsoll_gateway.errors.refusals import Refusal
from plimsoll_gateway.keys.api_key import ApiKey, KeyLimits

LISTED_SECONDS = 2.0


def api_key(name: str = "k", **limits: int) -> ApiKey:
    return ApiKey(name, KeyLimits(hashes=("sha256:" + "0" * 64,), **limits))  # type: ignore[arg-type]


@dataclass(eq=False)
class Pod:
    """One gateway process with its own clock and memory."""

    address: str
    clock: Callable[[], float]
    keys: Mapping[str, ApiKey]
    instance: str
    asked: dict[str, float] = field(default_factory=dict)  # peers with an open report, and since when
    streams: list[ExitStack] = field(default_factory=list)
    alive: bool = True

    def __post_init__(self) -> None:
        self.quotas = Quotas(self.clock, self)
        self.node = Node(self.address, self.instance, self.quotas, lambda: self.keys, self.clock())

    def quota_share(self, key: ApiKey, usage: Usage, now: float) -> QuotaShare | None:
        return self.node.quota_share(key, usage, now)

    def share(self, name: str, kind: Kind = Kind.REQUESTS) -> int:
        """Return the share of this pod as it sees it."""
        quota_share = self.node.quota_share(self.keys[name], self.quotas.usage(name), self.clock())
        limit = {
            Kind.REQUESTS: self.keys[name].limits.requests_per_minute,
            Kind.STREAMS: self.keys[name].limits.streams,
        }
        return (limit.get(kind) or 0) if quota_share is None else (quota_share.share(kind, self.clock()) or 0)


class Network:
    """All pods. `admitted`: time, address and key of each admitted request."""

    def __init__(self, *keys: ApiKey, seed: int = 0, loss: float = 0.0, most_delay: float = 0.05) -> None:
        self.keys = {key.name: key for key in keys}
        self.now = 1000.0
        self.pods: dict[str, Pod] = {}
        self.listed: set[str] = set()
        self.cut: set[frozenset[str]] = set()
        self.admitted: list[tuple[float, str, str]] = []
        self.refused = 0
        self.messages = 0
        self._rng = random.Random(seed)
        self._loss = loss
        self._most_delay = most_delay
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def start(self, address: str, *, listed: bool = True) -> Pod:
        """Start a new process at an address; one that runs there dies."""
        if address in self.pods:
            self.pods[address].alive = False
        offset = self._rng.uniform(-500, 500)
        instance = f"{self._rng.getrandbits(128):032x}"
        pod = self.pods[address] = Pod(address, lambda: self.now + offset, self.keys, instance)
        if listed:
            self.listed.add(address)
        pod.node.hurry = lambda peer: self._at(HURRY_SECONDS, lambda: self._ask(pod, peer))
        pod.node.list(self.listed, pod.clock())
        self._turn(pod, LISTED_SECONDS)
        return pod

    def kill(self, address: str) -> None:
        """Kill a pod with its memory and streams; DNS lists it until `unlist`."""
        self.pods.pop(address).alive = False

    def heal(self) -> None:
        """Restore all connections."""
        self.cut.clear()

    def ask(self, address: str, name: str = "k", *, hold: bool = False) -> bool:
        """Send a request and return whether it is admitted. `hold`: it keeps running."""
        pod = self.pods[address]
        stack = ExitStack()
        try:
            reservation = pod.quotas.admit(self.keys[name])
            stack.enter_context(reservation)
            reservation.begin()
        except Refusal:
            self.refused += 1
            return False
        self.admitted.append((self.now, address, name))
        if hold:
            pod.streams.append(stack)
        else:
            stack.close()
        return True

    def pass_time(self, seconds: float) -> None:
        """Run all events that are due."""
        ends = self.now + seconds
        while self._due and self._due[0][0] <= ends:
            at, _, happens = heapq.heappop(self._due)
            self.now = max(self.now, at)
            happens()
        self.now = ends

    def streams(self) -> int:
        """Return the number of running requests of all pods."""
        return sum(len(pod.streams) for pod in self.pods.values())

    def most_in_a_minute(self, name: str = "k") -> int:
        """Return the largest number of a key's requests admitted within any 60 seconds."""
        times = [at for at, _, key in self.admitted if key == name]
        most = first = 0
        for last, at in enumerate(times):
            while times[first] <= at - 60:
                first += 1
            most = max(most, last - first + 1)
        return most

    def check_integrity(self) -> None:
        for pod in self.pods.values():
            pod.quotas.check_integrity()
            pod.node.check_integrity(pod.clock())

    def _at(self, delay: float, happens: Callable[[], None]) -> None:
        heapq.heappush(self._due, (self.now + delay, next(self._order), happens))

    def _turn(self, pod: Pod, look: float) -> None:
        if not pod.alive:
            return
        if look >= LISTED_SECONDS:
            pod.node.list(self.listed, pod.clock())
            look = 0.0
        pod.node.turn(pod.clock())
        members = pod.node.membership.members
        for peer, since in list(pod.asked.items()):
            if peer not in members or self.now - since >= GIVE_UP_SECONDS:
                del pod.asked[peer]
                pod.node.failed(peer)
        for peer in members:
            self._ask(pod, peer)
        self._at(TURN_SECONDS * self._rng.uniform(0.9, 1.1), lambda: self._turn(pod, look + TURN_SECONDS))

    def _ask(self, pod: Pod, peer: str) -> None:
        if pod.alive and peer != pod.address and peer not in pod.asked:
            pod.asked[peer] = self.now
            self._send(pod.address, peer, pod.node.report(peer, pod.clock()), pod)

    def _send(self, source: str, target: str, message: Report | Reply, pod: Pod) -> None:
        self.messages += 1
        if self._rng.random() < self._loss:
            return
        delay = self._rng.uniform(0.001, self._most_delay)
        self._at(delay, lambda: self._arrive(source, target, message, pod))

    def _arrive(self, source: str, target: str, message: Report | Reply, pod: Pod) -> None:
        receiver = self.pods.get(target)
        if receiver is None or frozenset([source, target]) in self.cut:
            return
        if isinstance(message, Report):
            try:
                reply = receiver.node.answer(message, receiver.clock())
            except StaleReport:
                return
            self._send(target, source, reply, receiver)
        elif receiver.node.accepts(source, message):
            receiver.asked.pop(source, None)
            receiver.node.accept(source, message, receiver.clock())
