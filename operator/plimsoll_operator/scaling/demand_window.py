"""The last minutes of one model's demand: bins of a few seconds, and a forecast of its rate."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from plimsoll_operator.scaling.demand import Demand, Latency, ModelDemand
from plimsoll_operator.scaling.facts import Facts
from plimsoll_operator.scaling.latency import Spread

LEVEL, TREND, FADE = 0.3, 0.1, 0.9
"""Weights of a new value in the level and in the trend, and the damping of the trend at each step."""
MOST = 3.0
"""The highest forecast, as a multiple of the level; it bounds a rise that has just begun."""


@dataclass(slots=True)
class Forecast:
    """Damped-trend exponential smoothing of a value that is added once a step."""

    level: float | None = None
    trend: float = 0.0

    def see(self, value: float) -> None:
        """Add one step's value."""
        if self.level is None:
            self.level = value
            return
        expected = self.level + FADE * self.trend
        before = self.level
        self.level = LEVEL * value + (1 - LEVEL) * expected
        self.trend = TREND * (self.level - before) + (1 - TREND) * FADE * self.trend

    def ahead(self, steps: float) -> float:
        """Return the forecast after this many steps; 0 before any value."""
        if self.level is None:
            return 0.0
        faded: float = FADE * (1 - FADE**steps) / (1 - FADE)
        return min(MOST * max(self.level, 0.0), max(0.0, self.level + faded * self.trend))


BIN_SECONDS = 5.0
BINS = 36
"""Three minutes, over which the duration of requests is measured."""
MINUTE, MOMENT = 12, 3
"""Bins of a minute, and of the present. Gateways are polled every five seconds."""
LEAST_COUNT = 10
"""The fewest requests whose mean is used."""
TAIL_COUNT = 30
"""The fewest outputs whose 95th percentile is used. If a minute has fewer, earlier minutes are added."""
UNTOUCHED = 2
"""Bins to skip after requests were held: their latency shows the start of a replica, and not its load."""


@dataclass(slots=True)
class Bin:
    """Sums over the time from `begin` to the next bin: of the gateways' counts, and of `reads` samples of the present
    demand. `kv` is the maximum of the samples.
    """

    begin: float
    asked: int = 0
    ended: int = 0
    reads: int = 0
    in_flight: int = 0
    backlog: int = 0
    held: int = 0
    ready: int = 0
    waiting: int = 0
    slots: int = 0
    kv: float = 0.0
    first_byte: Spread = field(default_factory=Spread)
    event_gap: Spread = field(default_factory=Spread)


@dataclass(slots=True)
class Reading:
    """The present demand of one model over all gateways.

    `held` and `in_flight` are sums of the gateways' own requests. Each other field is about all replicas, so it is the
    maximum over the gateways: number of ready replicas, sums of the waiting requests and slots that the replicas
    report, and the used share of the fullest replica's KV cache.
    """

    held: int = 0
    in_flight: int = 0
    replicas: int = 0
    waiting: int = 0
    slots: int = 0
    kv: float = 0.0


def read_off(entries: Iterable[ModelDemand]) -> Reading:
    """Combine the entries of one model in the gateways' last reports into its present demand."""
    found = Reading()
    for entry in entries:
        found.held += entry.held
        found.in_flight += entry.in_flight
        found.replicas = max(found.replicas, sum(part.replicas for part in entry.revisions))
        found.waiting = max(found.waiting, sum(part.waiting for part in entry.revisions))
        found.slots = max(found.slots, sum(part.slots for part in entry.revisions))
        found.kv = min(1.0, max([found.kv, *(part.kv for part in entry.revisions)]))
    return found


class DemandWindow:
    """The demand of one model. Times are seconds since the epoch."""

    def __init__(self) -> None:
        self._bins: deque[Bin] = deque(maxlen=BINS)
        self._forecast = Forecast()
        self._asked = 0.0

    def count(self, before: ModelDemand | None, after: ModelDemand, answered: Demand, now: float) -> None:
        """Add what one gateway counted between two reports of one process. Without `before`, only the time of the last
        request is used.
        """
        if after.last_asked:
            self._asked = max(self._asked, now - max(0.0, answered.time - after.last_asked))
        if before is None:
            return
        here = self._bin(now)
        here.asked += after.asked - before.asked
        known = {part.revision: part for part in before.revisions}
        for part in after.revisions:
            then = known.get(part.revision)
            here.ended += max(0, part.requests - (then.requests if then is not None else 0))
            here.first_byte.add(then.first_byte if then is not None else _nothing(part.first_byte), part.first_byte)
            here.event_gap.add(then.event_gap if then is not None else _nothing(part.event_gap), part.event_gap)
        if after.asked > before.asked:
            self._asked = now

    def read(self, entries: Sequence[ModelDemand], now: float) -> Reading:
        """Add a sample of the present demand, and return it."""
        found, here = read_off(entries), self._bin(now)
        here.reads += 1
        here.in_flight += found.in_flight
        here.held += found.held
        here.backlog += min(found.in_flight, found.held + found.waiting)
        here.ready += found.replicas
        here.waiting += found.waiting
        here.slots += found.slots
        here.kv = max(here.kv, found.kv)
        if found.in_flight:
            self._asked = now
        return found

    @property
    def rate(self) -> float:
        """Requests a second, over the last minute."""
        done = list(self._bins)[-MINUTE - 1 : -1]
        return sum(b.asked for b in done) / (BIN_SECONDS * len(done)) if done else 0.0

    def facts(self, reading: Reading, ready: int, ahead: float, now: float, since: float, unheard: str) -> Facts:
        """Return the rule's input. `ahead`: seconds that a replica takes to start. The others are as in `Facts`."""
        self._bin(now)
        done = list(self._bins)[:-1]
        rate = self.rate
        moment, minute = list(self._bins)[-MOMENT:], list(self._bins)[-MINUTE:]
        replicas = sum(b.ready for b in minute)
        batch = sum(max(0, b.in_flight - b.backlog) for b in minute)
        told = sum(b.ready for b in minute if b.slots)
        return Facts(
            now=now,
            ready=ready,
            held=reading.held,
            in_flight=_mean((b.in_flight for b in moment), moment),
            backlog=_mean((b.backlog for b in moment), moment),
            rate=rate,
            expected=max(rate, self._forecast.ahead(ahead / BIN_SECONDS)),
            seconds=self._seconds(done),
            carried=batch / replicas if replicas else None,
            waiting=sum(b.waiting for b in minute) / replicas if replicas else 0.0,
            slots=sum(b.slots for b in minute) / told if told else None,
            kv=_mean((b.kv for b in moment if b.reads), moment, weighted=False) if reading.replicas else None,
            steady=len({b.ready / b.reads for b in minute if b.reads}) <= 1,
            ttft=_kept(b.first_byte for b in self._clear()),
            itl=_kept(b.event_gap for b in self._clear()),
            asked=self._asked,
            since=since,
            unheard=unheard,
        )

    def check_integrity(self) -> None:
        """Raise AssertionError if bins are out of order or have impossible counts."""
        begins = [b.begin for b in self._bins]
        assert begins == sorted(set(begins))
        assert len(self._bins) <= BINS
        assert all(min(b.asked, b.ended, b.in_flight, b.held) >= 0 and b.backlog <= b.in_flight for b in self._bins)

    def _bin(self, now: float) -> Bin:
        """Return the present bin. Add finished bins to the forecast, also empty ones. Times must not decrease."""
        if not self._bins:
            self._bins.append(Bin(now))
        while now >= self._bins[-1].begin + BIN_SECONDS:
            self._forecast.see(self._bins[-1].asked / BIN_SECONDS)
            begin = self._bins[-1].begin + BIN_SECONDS
            if now - begin > BINS * BIN_SECONDS:  # After a long gap the old bins say nothing about the present.
                self._bins.clear()
                self._forecast = Forecast()
                begin = now
            self._bins.append(Bin(begin))
        return self._bins[-1]

    def _clear(self) -> list[Bin]:
        """Return the bins after requests were last held, without the first `UNTOUCHED` ones; newest first."""
        bins = list(self._bins)
        held = [index for index, b in enumerate(bins) if b.held]
        first = held[-1] + 1 + UNTOUCHED if held else 0
        return bins[first:][::-1]

    def _seconds(self, done: Sequence[Bin]) -> float | None:
        """Return the seconds that a replica takes for a request, not counting the wait, by Little's law: mean number of
        requests being served, divided by requests ended a second. None if fewer than `LEAST_COUNT` have ended.
        """
        ended = sum(b.ended for b in done)
        busy = sum((b.in_flight - b.backlog) / b.reads * BIN_SECONDS for b in done if b.reads)
        return busy / ended if ended >= LEAST_COUNT and busy > 0 else None


def _mean(values: Iterable[float], bins: Sequence[Bin], *, weighted: bool = True) -> float:
    reads = sum(b.reads for b in bins) if weighted else sum(b.reads > 0 for b in bins)
    return sum(values) / reads if reads else 0.0


def _kept(spreads: Iterable[Spread]) -> float | None:
    """Return the 95th percentile of a latency in seconds, from histograms of bins, newest first: those of a minute, and
    earlier ones until `TAIL_COUNT` outputs are counted. None if all bins have fewer.
    """
    whole = Spread()
    for number, spread in enumerate(spreads):
        if number >= MINUTE and whole.count >= TAIL_COUNT:
            break
        if spread.counts:
            whole.merge(spread.bounds, spread.counts)
    return whole.percentile() if whole.count >= TAIL_COUNT else None


def _nothing(like: Latency) -> Latency:
    """Return a histogram with the same bounds and counts of 0, for a revision that the earlier report lacks."""
    return Latency(buckets=tuple((bound, 0) for bound, _ in like.buckets))
