"""Other rules for comparison. All of them use images in host memory too: evicted models sleep there if they fit.

`Lru` is one cache over the pool. `ModelMesh` is the rule of KServe's ModelMesh, from its documentation and sources
(docs/overview.md; ModelMesh.java: PLACEMENT_ORDER, CacheMissForwardingLB, rateTrackingTask): an LRU cache per instance.
A model that is loaded nowhere goes to an instance with free memory, first to the one with the fewest models. If all are
full, it goes to the one whose least recently used model is the oldest, at random among those within 45 seconds or a
tenth of that age; busier instances are left out. Further copies are created at 2,000 requests a minute, and if a tenth
of memory is free after uses 7 to 40 minutes apart. `Static` loads the most requested models, knowing the whole trace,
until memory is full, and refuses all others.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from random import Random

from plimsoll_cluster.keys import ObjectKey
from plimsoll_operator.placement.records.level import State
from plimsoll_operator.placement.records.model import Model
from plimsoll_operator.simulation.pool import Copy, Host, Pool
from plimsoll_operator.simulation.trace import Trace

AGAIN = 1.0
"""Seconds after which a model is retried that found every host in use."""
NEAR_SECONDS, NEAR_SHARE = 45.0, 0.1
RECENT, BUSY = ((5.0, 1.5), (720.0, 3.0), (86400.0, 4.0)), 100.0
"""A model used less than RECENT seconds ago avoids instances with more than a multiple of the least requests per
minute, from 100 on.
"""
SCALE_UP, CHECK, SECOND_AGES = 2000.0, 10.0, (420.0, 2400.0)


class Lru:
    """Least recently used, over all hosts: the victims of each request are the models that were used the
    longest ago.
    """

    name = "lru"

    def begin(self, pool: Pool) -> None:
        """Do nothing: only requests load models."""

    def decide(self, pool: Pool) -> float | None:
        """Wake models with waiting requests, the longest wait first. Return AGAIN if one could not wake, else None."""
        left = False
        for key in sorted(
            (key for key, found in pool.waiting.items() if found), key=lambda key: pool.waiting[key][0].at
        ):
            if any(copy.state is State.WAKING for copy in pool.copies(key)):
                continue
            left |= not self.load(pool, pool.models[key])
        return AGAIN if left else None

    def load(self, pool: Pool, model: Model) -> bool:
        """Wake a model; return False if every possible victim is in use."""
        homes = [copy.host for copy in pool.copies(model.key) if copy.state is State.IN_HOST]
        for hosts in (homes, list(pool.hosts.values())):
            found = [
                (_oldest(victims), host.name, host, victims)
                for host in hosts
                if (victims := victims_on(host, model)) is not None
            ]
            if found:
                _, _, host, victims = min(found, key=lambda entry: entry[:2])
                wake(pool, model, host, victims)
                return True
        return False


class ModelMesh:
    """The rule of KServe's ModelMesh, see the module."""

    name = "modelmesh"

    def __init__(self, seed: int = 0) -> None:
        self._random = Random(seed)
        self._used: dict[ObjectKey, list[float]] = defaultdict(list)
        self._checked = 0.0

    def begin(self, pool: Pool) -> None:
        """Load nothing before a request."""

    def decide(self, pool: Pool) -> float | None:
        """Load models with waiting requests, and additional copies, by the rule. Return AGAIN if one with waiting
        requests could not be loaded, else None.
        """
        left = False
        for key in sorted(
            (key for key, found in pool.waiting.items() if found), key=lambda key: pool.waiting[key][0].at
        ):
            self._used[key].append(pool.now)
            if any(copy.state is State.WAKING for copy in pool.copies(key)):
                continue
            left |= not self._load(pool, pool.models[key], None)
        if pool.now - self._checked >= CHECK:
            self._checked = pool.now
            self._scale(pool)
        return AGAIN if left else None

    def _load(self, pool: Pool, model: Model, besides: Iterable[Host] | None) -> bool:
        shunned = {host.name for host in besides or ()}
        homes = [c.host for c in pool.copies(model.key) if c.state is State.IN_HOST and c.host.name not in shunned]
        for hosts in (homes, [host for host in pool.hosts.values() if host.name not in shunned]):
            able = {host.name: victims for host in hosts if (victims := victims_on(host, model)) is not None}
            if able:
                host = self._choose(pool, [pool.hosts[name] for name in able], model)
                wake(pool, model, host, able[host.name])
                return True
        return False

    def _choose(self, pool: Pool, hosts: list[Host], model: Model) -> Host:
        roomy = [host for host in hosts if host.free >= model.need.device]
        if roomy:
            order = sorted(roomy, key=lambda host: (_awake(host), -host.free, host.name))
            best = order[0]
            near = [
                host for host in order if host.free >= best.free / 4 and _awake(host) <= max(10, 1.25 * _awake(best))
            ]
        else:
            order = sorted(hosts, key=lambda host: (_lru_time(host), host.name))
            oldest = _lru_time(order[0])
            reach = max(NEAR_SECONDS, NEAR_SHARE * (pool.now - oldest))
            near = [host for host in order if _lru_time(host) - oldest <= reach]
        return self._random.choice(self._less_busy(pool, near, model))

    def _less_busy(self, pool: Pool, hosts: list[Host], model: Model) -> list[Host]:
        used = self._used[model.key]
        ago = pool.now - used[-2] if len(used) > 1 else float("inf")
        times = next((times for seconds, times in RECENT if ago < seconds), None)
        if times is None:
            return hosts
        rates = {host.name: 60 * sum(copy.rate for copy in host.copies.values()) for host in hosts}
        least = max(BUSY, min(rates.values()))
        return [host for host in hosts if rates[host.name] < BUSY or rates[host.name] <= times * least] or hosts

    def _scale(self, pool: Pool) -> None:
        free = sum(host.free for host in pool.hosts.values()) / sum(host.line for host in pool.hosts.values())
        for model in pool.models.values():
            awake = [copy for copy in pool.copies(model.key) if copy.state is State.RESIDENT]
            if not awake or pool.now - max(copy.last_used for copy in awake) > CHECK:
                continue
            low, high = SECOND_AGES
            regular = any(low <= pool.now - at <= high for at in self._used[model.key])
            self._used[model.key].append(pool.now)
            busy = 60 * sum(copy.rate for copy in awake) > SCALE_UP * len(awake)
            if busy or (len(awake) == 1 and regular and free >= 0.1):
                self._load(pool, model, [copy.host for copy in awake])


class Static:
    """A fixed selection of models, see the module."""

    name = "static"

    def __init__(self, trace: Trace) -> None:
        self._popular = [key for key, _ in Counter(request.model for request in trace.requests).most_common()]

    def begin(self, pool: Pool) -> None:
        """Load the most popular models first, each on the host with the most free memory."""
        for model in (pool.models[key] for key in self._popular):
            host = max(pool.hosts.values(), key=lambda host: (host.free, host.name))
            if host.free >= model.need.device:
                pool.wake(pool.place(model, host))

    def decide(self, pool: Pool) -> float | None:
        return None


def victims_on(host: Host, model: Model) -> list[Copy] | None:
    """Return the least recently used models of a host whose eviction frees enough memory, or None if models in use
    leave too little.
    """
    room = model.need.device - host.free
    chosen: list[Copy] = []
    for copy in sorted((copy for copy in host.copies.values() if copy.idle), key=lambda copy: copy.last_used):
        if room <= 0:
            break
        chosen.append(copy)
        room -= copy.model.need.device
    return chosen if room <= 0 else None


def wake(pool: Pool, model: Model, host: Host, victims: Iterable[Copy]) -> None:
    """Put victims to sleep as images, moving the least recently used images to disk, then wake the model."""
    for copy in victims:
        room = copy.model.need.host - host.free_images
        images = (other for other in host.copies.values() if other.state is State.IN_HOST and other.model is not model)
        for image in sorted(images, key=lambda image: image.last_used):
            if room <= 0:
                break
            room -= image.model.need.host
            pool.sleep(image, State.ON_DISK)
        pool.sleep(copy, State.IN_HOST if room <= 0 else State.ON_DISK)
    pool.wake(host.copies[model.key] if model.key in host.copies else pool.place(model, host))


def _oldest(victims: list[Copy]) -> float:
    """Return the last use of the most recently used victim; -inf without victims, so that such hosts come first."""
    return max((copy.last_used for copy in victims), default=float("-inf"))


def _awake(host: Host) -> int:
    return sum(copy.state.awake for copy in host.copies.values())


def _lru_time(host: Host) -> float:
    return min((copy.last_used for copy in host.copies.values() if copy.state is State.RESIDENT), default=0.0)


Made = Callable[[Trace], "Lru | ModelMesh | Static"]
