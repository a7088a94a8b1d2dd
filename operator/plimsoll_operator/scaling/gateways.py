"""What is known of each gateway: its last answer that could be believed, and why newer ones are missing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

from plimsoll_operator.scaling.demand import Demand, contradiction

KEPT_SECONDS = 60.0
"""How long what a gateway said last counts."""
HEARD_SECONDS = 20.0
"""A gateway answers within the poller's wait: one that has said nothing for this long is unheard."""
FIRST_SECONDS = 10.0
"""How long one that was just found may take for its first answer."""
INSTANCES_KEPT = 8


@dataclass(slots=True)
class Gateway:
    """`found` and `heard`: when it was first seen, and last answered, by our clock.

    `trouble`: why no newer answer is believed, "" while all is well. `listed`: whether the Service still names it.
    """

    address: str
    found: float
    answer: Demand | None = None
    heard: float = 0.0
    trouble: str = ""
    listed: bool = True
    past: list[str] = field(default_factory=list)


Told = Callable[[str, Demand | None, Demand], None]
"""Told of a believed answer: by whose address, what the same process had said before (None: nothing), and what now."""


class GatewayRegistry:
    """Every gateway, by its address."""

    def __init__(self, told: Told = lambda address, before, answer: None) -> None:
        self._told = told
        self._gateways: dict[str, Gateway] = {}
        self._lapsed = 0.0
        self.unresolved = "no gateway has been looked for yet"

    def __iter__(self) -> Iterator[Gateway]:
        return iter(self._gateways.values())

    def listen(self, told: Told) -> None:
        """Tell this one from now on."""
        self._told = told

    def keep(self, addresses: Collection[str], now: float) -> None:
        """These are the gateways' addresses now. What a gateway that is gone said last counts a while."""
        self.unresolved = "" if addresses else "the Service of the gateways names none"
        for address in addresses:
            self._gateways.setdefault(address, Gateway(address, now)).listed = True
        for address, gateway in list(self._gateways.items()):
            gateway.listed = address in addresses
        self.forget(now)

    def lose(self, why: str) -> None:
        """It is not known which gateways there are."""
        self.unresolved = why

    def take(self, address: str, answer: Demand, now: float) -> None:
        """An answer has come. One that cannot be true changes nothing but what is told about the gateway."""
        gateway = self._gateways.get(address)
        if gateway is None:
            return
        wrong = contradiction(gateway.answer, answer, now)
        if wrong is None and answer.instance in gateway.past:
            wrong = f"it comes from the process {answer.instance}, which another one has replaced"
        if wrong is not None:
            gateway.trouble = f"an answer is refused: {wrong}"
            return
        before = gateway.answer
        if before is not None and before.instance != answer.instance:
            gateway.past = [*gateway.past, before.instance][-INSTANCES_KEPT:]
            before = None
        gateway.answer, gateway.heard, gateway.trouble = answer, now, ""
        self._told(address, before, answer)

    def fail(self, address: str, why: str) -> None:
        """A gateway could not be asked, or what it said was no answer."""
        gateway = self._gateways.get(address)
        if gateway is not None:
            gateway.trouble = why

    def believed(self, now: float) -> list[Demand]:
        """The last answers that still count."""
        return [g.answer for g in self._gateways.values() if g.answer is not None and now - g.heard <= KEPT_SECONDS]

    def unheard(self, now: float) -> str:
        """Why not all gateways are heard now, "" where they are."""
        if self.unresolved:
            return self.unresolved
        for gateway in self._gateways.values():
            if not gateway.listed:
                continue
            if gateway.trouble:
                return f"gateway {gateway.address}: {gateway.trouble}"
            if gateway.answer is None or now - gateway.heard > HEARD_SECONDS:
                return f"gateway {gateway.address} has not answered yet"
        return ""

    def watched_since(self, now: float) -> float:
        """Since when nothing was missed that all gateways were asked for: now, where something is missed now."""
        listed = [gateway for gateway in self._gateways.values() if gateway.listed]
        missed = bool(self.unresolved) or not listed
        for gateway in listed:
            known = gateway.heard + KEPT_SECONDS if gateway.answer is not None else gateway.found + FIRST_SECONDS
            missed = missed or now > known or (gateway.answer is None and bool(gateway.trouble))
        if missed or not self._lapsed:
            self._lapsed = now
        return self._lapsed

    def forget(self, now: float) -> None:
        """Gateways that the Service no longer names, once what they said no longer counts."""
        gone = [a for a, g in self._gateways.items() if not g.listed and now - g.heard > KEPT_SECONDS]
        for address in gone:
            del self._gateways[address]

    def check_integrity(self) -> None:
        """Raise AssertionError where what is known contradicts itself."""
        for address, gateway in self._gateways.items():
            assert address == gateway.address
            assert len(gateway.past) <= INSTANCES_KEPT
            assert gateway.answer is None or gateway.answer.instance not in gateway.past
