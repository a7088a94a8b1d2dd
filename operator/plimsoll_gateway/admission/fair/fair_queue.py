"""Start-time fair queueing (Goyal, Vin and Cheng, 1996): flows that wait get service in proportion to their weights.

A flow's head has a start tag, the flow's finish tag; the smallest start tag is served next, and the flow's finish tag
rises by cost over weight. It needs no knowledge of how fast the server is, which batching changes all the time. A cost
is an estimate: what it turns out to be is corrected in the flow's tag, and so moves the flow's next requests.

Requests stand in lanes, for a server may be able to take those of one lane and not those of another. A flow has one tag
for all of its lanes; one that could not be served, because all of its requests stood in lanes that were closed, has
saved nothing up.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection
from typing import Generic, TypeVar

import msgspec

ItemT = TypeVar("ItemT")


class Share(msgspec.Struct, frozen=True):
    """Whose request it is: a higher `priority` goes first, equals share by `weight`."""

    flow: str
    priority: int = 0
    weight: int = 1


class Entry(Generic[ItemT]):
    """A request that waits, or has been served."""

    def __init__(self, flow: Flow[ItemT], lane: str, number: int, cost: int, item: ItemT) -> None:
        self.flow = flow
        self.lane = lane
        self.number = number
        self.cost = cost
        self.item = item
        self.waiting = True


class Flow(Generic[ItemT]):
    """The requests of one key that wait, by lane in their order."""

    def __init__(self, share: Share) -> None:
        self.share = share
        self.finish = 0.0
        self.lanes: dict[str, deque[Entry[ItemT]]] = {}
        self.costs: dict[str, int] = {}  # of the entries, by lane
        self.served = 0  # entries that have left for service, and may still be corrected

    def entries(self, lanes: Collection[str]) -> list[deque[Entry[ItemT]]]:
        """Those that wait in some lanes, of which none is empty."""
        return [entries for lane, entries in self.lanes.items() if lane in lanes]

    def head(self, lanes: Collection[str]) -> Entry[ItemT] | None:
        """The one that came first of those in some lanes."""
        heads = (entries[0] for entries in self.entries(lanes))
        return min(heads, key=lambda entry: entry.number, default=None)

    def last(self, lanes: Collection[str]) -> Entry[ItemT]:
        """The one that came last of those in some lanes, of which one has some."""
        return max((entries[-1] for entries in self.entries(lanes)), key=lambda entry: entry.number)

    def cost(self, lanes: Collection[str]) -> int:
        """Of all that wait in some lanes."""
        return sum(self.costs.get(lane, 0) for lane in lanes)

    def add(self, entry: Entry[ItemT]) -> None:
        """One waits from now on, behind all others."""
        self.lanes.setdefault(entry.lane, deque()).append(entry)
        self.costs[entry.lane] = self.costs.get(entry.lane, 0) + entry.cost

    def take(self, entry: Entry[ItemT]) -> None:
        """One no longer waits."""
        entries = self.lanes[entry.lane]
        entries.remove(entry)  # from the left: at once for a head
        self.costs[entry.lane] -= entry.cost
        if not entries:
            del self.lanes[entry.lane], self.costs[entry.lane]
        entry.waiting = False


class FairQueue(Generic[ItemT]):
    """Pushed, popped and corrected in time that grows with the flows that wait, not with their requests."""

    def __init__(self) -> None:
        self._flows: dict[str, Flow[ItemT]] = {}
        self._virtual: dict[int, float] = {}  # by priority, the start tag that was served last
        self._waiting: dict[str, int] = {}  # by lane
        self._came = 0

    def __len__(self) -> int:
        return sum(self._waiting.values())

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def waiting(self, lanes: Collection[str]) -> int:
        """Requests that wait in some lanes."""
        return sum(self._waiting.get(lane, 0) for lane in lanes)

    def push(self, share: Share, cost: int, item: ItemT, lane: str = "") -> Entry[ItemT]:
        """Add a request at the end of its flow and lane."""
        entry = self._entry(share, cost, item, lane)
        entry.flow.add(entry)
        self._waiting[lane] = self._waiting.get(lane, 0) + 1
        return entry

    def serve(self, share: Share, cost: int, item: ItemT, lane: str = "") -> Entry[ItemT]:
        """The same as `push` and `pop` of the lane, where nobody waits in any."""
        assert not self._waiting, "whoever waits goes first"
        entry = self._entry(share, cost, item, lane)
        entry.waiting = False
        self._charge(entry)
        return entry

    def pop(self, lanes: Collection[str] = ("",)) -> Entry[ItemT] | None:
        """The request in some lanes whose turn it is, charged to its flow until `settle`; None where nobody waits."""
        if not self.waiting(lanes):
            return None
        able = [flow for flow in self._flows.values() if not flow.lanes.keys().isdisjoint(lanes)]
        flow = min(able, key=lambda flow: (-flow.share.priority, flow.finish))
        entry = flow.head(lanes)
        assert entry is not None
        self._take(entry)
        self._charge(entry)
        for other in self._flows.values():
            if other.lanes and other.lanes.keys().isdisjoint(lanes):
                self._catch_up(other)
        return entry

    def remove(self, entry: Entry[ItemT]) -> None:
        """A request no longer waits. It has cost its flow nothing."""
        self._take(entry)
        self._forget(entry.flow)

    def settle(self, entry: Entry[ItemT], cost: int) -> None:
        """A popped request has ended, and this is what it cost; 0 for one that was not served after all."""
        flow = entry.flow
        flow.finish += (cost - entry.cost) / flow.share.weight
        flow.served -= 1
        self._forget(flow)

    def crowd(self, share: Share, cost: int, lanes: Collection[str] = ("",)) -> Entry[ItemT] | None:
        """Who must give way where a request of that share and cost comes and there is no room in some lanes: the last
        of those there that wait longest for their weight, in the lowest priority. None: that would be the newcomer.
        """
        loads = {flow: flow.cost(lanes) for flow in self._flows.values() if flow.entries(lanes)}
        lowest = min([share.priority, *(flow.share.priority for flow in loads)])

        def load(flow: Flow[ItemT]) -> float:
            own = cost if flow.share.flow == share.flow else 0
            return (loads[flow] + own) / flow.share.weight

        heaviest = max((flow for flow in loads if flow.share.priority == lowest), key=load, default=None)
        if heaviest is None or heaviest.share.flow == share.flow:
            return None
        if share.priority == lowest and load(heaviest) <= cost / share.weight:
            return None
        return heaviest.last(lanes)

    def _entry(self, share: Share, cost: int, item: ItemT, lane: str) -> Entry[ItemT]:
        """A request of a flow that is there from now on."""
        flow = self._flows.get(share.flow)
        if flow is None:
            flow = self._flows[share.flow] = Flow(share)
        elif flow.share.priority != share.priority:
            flow.finish = 0.0  # tags of different priorities cannot be compared
        flow.share = share
        if not flow.lanes:  # whoever asked for nothing has saved nothing up
            self._catch_up(flow)
        self._came += 1
        return Entry(flow, lane, self._came, cost, item)

    def _charge(self, entry: Entry[ItemT]) -> None:
        """It is served now."""
        flow = entry.flow
        flow.served += 1
        self._virtual[flow.share.priority] = max(flow.finish, self._virtual.get(flow.share.priority, 0.0))
        flow.finish += entry.cost / flow.share.weight

    def _take(self, entry: Entry[ItemT]) -> None:
        entry.flow.take(entry)
        self._waiting[entry.lane] -= 1
        if not self._waiting[entry.lane]:
            del self._waiting[entry.lane]

    def _catch_up(self, flow: Flow[ItemT]) -> None:
        flow.finish = max(flow.finish, self._virtual.get(flow.share.priority, 0.0))

    def _forget(self, flow: Flow[ItemT]) -> None:
        """Nothing is known of a flow that has neither requests nor a debt."""
        owes = flow.finish > self._virtual.get(flow.share.priority, 0.0)
        if not flow.lanes and not flow.served and not owes:
            del self._flows[flow.share.flow]

    def check_integrity(self) -> None:
        """Raise AssertionError where the records contradict each other."""
        waiting: Counter[str] = Counter()
        for name, flow in self._flows.items():
            assert flow.share.flow == name, f"{name} is kept as {flow.share.flow}"
            assert flow.served >= 0, f"{name}: {flow.served} are in service"
            assert flow.costs.keys() == flow.lanes.keys(), f"{name}: a lane costs something in which nobody waits"
            for lane, entries in flow.lanes.items():
                waiting[lane] += len(entries)
                assert flow.costs[lane] == sum(entry.cost for entry in entries), f"{name}: the cost is miscounted"
                numbers = [entry.number for entry in entries]
                assert numbers, f"{name} keeps a lane in which nobody waits"
                assert numbers == sorted(numbers), f"{name}: those in one lane are not as they came"
                assert all(entry.flow is flow and entry.lane == lane and entry.waiting for entry in entries), (
                    f"{name} holds another flow's or lane's request, or one that has left"
                )
        assert waiting == self._waiting, "waiting is miscounted"
