"""The registry of gateways: the last valid report of each, and why newer ones are missing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

from plimsoll_operator.scaling.demand import Demand, contradiction

KEPT_SECONDS = 60.0
"""How long a gateway's last report counts."""
HEARD_SECONDS = 20.0
"""A gateway without a report for this long counts as missing. It reports at least once within the poller's wait."""
FIRST_SECONDS = 10.0
"""How long a new gateway may take for its first report."""
INSTANCES_KEPT = 8


@dataclass(slots=True)
class Gateway:
    """One gateway. `answer`: its last accepted report, None if there is none. `found` and `heard`: when its address was
    first found and `answer` came, by the operator's clock.

    `trouble`: why no newer report is accepted, "" if there is no problem. `listed`: whether the last DNS lookup of the
    gateways' Service returned its address. `past`: instances of earlier processes at its address.
    """

    address: str
    found: float
    answer: Demand | None = None
    heard: float = 0.0
    trouble: str = ""
    listed: bool = True
    past: list[str] = field(default_factory=list)


Told = Callable[[str, Demand | None, Demand], None]
"""Called for each accepted report: address, previous report of the same process (None for the first), report."""


class GatewayRegistry:
    """All gateways by address."""

    def __init__(self, told: Told = lambda address, before, answer: None) -> None:
        self._told = told
        self._gateways: dict[str, Gateway] = {}
        self._lapsed = 0.0
        self.unresolved = "the gateways' addresses have not been resolved yet"

    def __iter__(self) -> Iterator[Gateway]:
        return iter(self._gateways.values())

    def listen(self, told: Told) -> None:
        """Set the function to call for each accepted report."""
        self._told = told

    def keep(self, addresses: Collection[str], now: float) -> None:
        """Set the present addresses. The last report of a gateway that is gone counts for `KEPT_SECONDS`."""
        self.unresolved = "" if addresses else "the Service of the gateways has no addresses"
        for address in addresses:
            self._gateways.setdefault(address, Gateway(address, now)).listed = True
        for address, gateway in list(self._gateways.items()):
            gateway.listed = address in addresses
        self.forget(now)

    def lose(self, why: str) -> None:
        """Record why the gateways' addresses could not be looked up."""
        self.unresolved = why

    def take(self, address: str, answer: Demand, now: float) -> None:
        """Process a report. One that cannot be true is recorded as trouble and otherwise ignored."""
        gateway = self._gateways.get(address)
        if gateway is None:
            return
        wrong = contradiction(gateway.answer, answer, now)
        if wrong is None and answer.instance in gateway.past:
            wrong = f"it is from process {answer.instance}, which another process has replaced"
        if wrong is not None:
            gateway.trouble = f"its report is rejected: {wrong}"
            return
        before = gateway.answer
        if before is not None and before.instance != answer.instance:
            gateway.past = [*gateway.past, before.instance][-INSTANCES_KEPT:]
            before = None
        gateway.answer, gateway.heard, gateway.trouble = answer, now, ""
        self._told(address, before, answer)

    def fail(self, address: str, why: str) -> None:
        """Record that a gateway could not be polled, or that its report was not valid."""
        gateway = self._gateways.get(address)
        if gateway is not None:
            gateway.trouble = why

    def believed(self, now: float) -> list[Demand]:
        """Return the last report of each gateway, except those older than `KEPT_SECONDS`."""
        return [gateway.answer for gateway in self.counting(now) if gateway.answer is not None]

    def counting(self, now: float) -> list[Gateway]:
        """Return the gateways whose last report is at most `KEPT_SECONDS` old."""
        return [g for g in self._gateways.values() if g.answer is not None and now - g.heard <= KEPT_SECONDS]

    def unheard(self, now: float) -> str:
        """Return why the newest report of a listed gateway is missing, or its address is unknown; "" if none is."""
        if self.unresolved:
            return self.unresolved
        for gateway in self._gateways.values():
            if not gateway.listed:
                continue
            if gateway.trouble:
                return f"gateway {gateway.address}: {gateway.trouble}"
            if gateway.answer is None or now - gateway.heard > HEARD_SECONDS:
                return f"gateway {gateway.address} has not reported yet"
        return ""

    def watched_since(self, now: float) -> float:
        """Return since when the last report of each listed gateway has counted; `now` if one does not count now.

        A new gateway has `FIRST_SECONDS` for its first report. Only calls notice a gap.
        """
        listed = [gateway for gateway in self._gateways.values() if gateway.listed]
        missed = bool(self.unresolved) or not listed
        for gateway in listed:
            known = gateway.heard + KEPT_SECONDS if gateway.answer is not None else gateway.found + FIRST_SECONDS
            missed = missed or now > known or (gateway.answer is None and bool(gateway.trouble))
        if missed or not self._lapsed:
            self._lapsed = now
        return self._lapsed

    def forget(self, now: float) -> None:
        """Remove gateways that are not listed and whose last report is older than `KEPT_SECONDS`."""
        gone = [a for a, g in self._gateways.items() if not g.listed and now - g.heard > KEPT_SECONDS]
        for address in gone:
            del self._gateways[address]

    def check_integrity(self) -> None:
        """Raise AssertionError if the records contradict each other."""
        for address, gateway in self._gateways.items():
            assert address == gateway.address
            assert len(gateway.past) <= INSTANCES_KEPT
            assert gateway.answer is None or gateway.answer.instance not in gateway.past
