"""Start-time fair queueing (Goyal, Vin and Cheng, 1996): waiting flows get service in proportion to their weights.

The start tag of a flow's head is the flow's finish tag. The head with the smallest start tag is served next, and its
flow's finish tag rises by cost / weight. The algorithm does not need the speed of the server, which varies with
batching. Costs are estimates: the actual cost corrects the flow's tag and so shifts the flow's next requests.

Requests wait in lanes, since a server may be able to serve one lane and not another. A flow has one tag for all of its
lanes. If only closed lanes kept a flow from being served, its tag rises with the others, so that it gains no credit.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection
from typing import Generic, TypeVar

import msgspec

ItemT = TypeVar("ItemT")


class Share(msgspec.Struct, frozen=True):
    """The flow of a request, its priority (higher first), and its weight among flows of equal priority."""

    flow: str
    priority: int = 0
    weight: int = 1


class Entry(Generic[ItemT]):
    """A request in the queue or in service."""

    def __init__(self, flow: Flow[ItemT], lane: str, number: int, cost: int, item: ItemT) -> None:
        self.flow = flow
        self.lane = lane
        self.number = number
        self.cost = cost
        self.item = item
        self.waiting = True


class Flow(Generic[ItemT]):
    """The waiting requests of one key, by lane, in order of arrival."""

    def __init__(self, share: Share) -> None:
        self.share = share
        self.finish = 0.0
        self.lanes: dict[str, deque[Entry[ItemT]]] = {}
        self.costs: dict[str, int] = {}  # sum of the costs of waiting entries, by lane
        self.served = 0  # entries in service, whose cost may still be corrected

    def entries(self, lanes: Collection[str]) -> list[deque[Entry[ItemT]]]:
        """Return the non-empty lanes among `lanes`."""
        return [entries for lane, entries in self.lanes.items() if lane in lanes]

    def head(self, lanes: Collection[str]) -> Entry[ItemT] | None:
        """Return the oldest entry in `lanes`, or None."""
        heads = (entries[0] for entries in self.entries(lanes))
        return min(heads, key=lambda entry: entry.number, default=None)

    def last(self, lanes: Collection[str]) -> Entry[ItemT]:
        """Return the newest entry in `lanes`, of which at least one has an entry."""
        return max((entries[-1] for entries in self.entries(lanes)), key=lambda entry: entry.number)

    def cost(self, lanes: Collection[str]) -> int:
        """Return the total cost of the entries in `lanes`."""
        return sum(self.costs.get(lane, 0) for lane in lanes)

    def add(self, entry: Entry[ItemT]) -> None:
        """Append an entry to its lane."""
        self.lanes.setdefault(entry.lane, deque()).append(entry)
        self.costs[entry.lane] = self.costs.get(entry.lane, 0) + entry.cost

    def take(self, entry: Entry[ItemT]) -> None:
        """Remove an entry, which stops waiting."""
        entries = self.lanes[entry.lane]
        entries.remove(entry)  # searches from the left: O(1) for the head
        self.costs[entry.lane] -= entry.cost
        if not entries:
            del self.lanes[entry.lane], self.costs[entry.lane]
        entry.waiting = False


class FairQueue(Generic[ItemT]):
    """A fair queue of requests. Push, pop and settle take time proportional to the waiting flows, not to their
    requests.
    """

    def __init__(self) -> None:
        self._flows: dict[str, Flow[ItemT]] = {}
        self._virtual: dict[int, float] = {}  # start tag served last, by priority
        self._waiting: dict[str, int] = {}  # number of waiting requests, by lane
        self._came = 0

    def __len__(self) -> int:
        return sum(self._waiting.values())

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def waiting(self, lanes: Collection[str]) -> int:
        """Return the number of requests that wait in `lanes`."""
        return sum(self._waiting.get(lane, 0) for lane in lanes)

    def push(self, share: Share, cost: int, item: ItemT, lane: str = "") -> Entry[ItemT]:
        """Add a request to the end of its flow's lane."""
        entry = self._entry(share, cost, item, lane)
        entry.flow.add(entry)
        self._waiting[lane] = self._waiting.get(lane, 0) + 1
        return entry

    def serve(self, share: Share, cost: int, item: ItemT, lane: str = "") -> Entry[ItemT]:
        """Put a request straight into service, like `push` followed by `pop`. Requires an empty queue."""
        assert not self._waiting, "serve() requires an empty queue"
        entry = self._entry(share, cost, item, lane)
        entry.waiting = False
        self._charge(entry)
        return entry

    def pop(self, lanes: Collection[str] = ("",)) -> Entry[ItemT] | None:
        """Remove the next request in `lanes` from the queue and return it; None if none waits there.

        Its flow is charged the estimated cost, which `settle` replaces by the actual one.
        """
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
        """Remove a waiting request at no cost to its flow."""
        self._take(entry)
        self._forget(entry.flow)

    def settle(self, entry: Entry[ItemT], cost: int) -> None:
        """End the service of a popped request with its actual cost; 0 if it was not served after all."""
        flow = entry.flow
        flow.finish += (cost - entry.cost) / flow.share.weight
        flow.served -= 1
        self._forget(flow)

    def crowd(self, share: Share, cost: int, lanes: Collection[str] = ("",)) -> Entry[ItemT] | None:
        """Return the entry to evict so that a new request of this share and cost can wait in `lanes`; None to reject
        the new request instead.

        The flow with the highest cost per weight in the lowest priority loses, the new request counted in its own flow:
        if that is the new request's flow, the new request is rejected, else the flow's newest entry is evicted.
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
        """Return a new entry, and create its flow if needed."""
        flow = self._flows.get(share.flow)
        if flow is None:
            flow = self._flows[share.flow] = Flow(share)
        elif flow.share.priority != share.priority:
            flow.finish = 0.0  # tags of different priorities cannot be compared
        flow.share = share
        if not flow.lanes:  # a flow without requests gains no credit
            self._catch_up(flow)
        self._came += 1
        return Entry(flow, lane, self._came, cost, item)

    def _charge(self, entry: Entry[ItemT]) -> None:
        """Count the entry as in service, and add its cost / weight to the finish tag of its flow."""
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
        """Remove a flow that has no requests, none in service, and no debt."""
        owes = flow.finish > self._virtual.get(flow.share.priority, 0.0)
        if not flow.lanes and not flow.served and not owes:
            del self._flows[flow.share.flow]

    def check_integrity(self) -> None:
        """Raise AssertionError if the records contradict each other."""
        waiting: Counter[str] = Counter()
        for name, flow in self._flows.items():
            assert flow.share.flow == name, f"{name} is stored as {flow.share.flow}"
            assert flow.served >= 0, f"{name}: {flow.served} are in service"
            assert flow.costs.keys() == flow.lanes.keys(), f"{name}: costs and lanes differ"
            for lane, entries in flow.lanes.items():
                waiting[lane] += len(entries)
                assert flow.costs[lane] == sum(entry.cost for entry in entries), f"{name}: the cost is miscounted"
                numbers = [entry.number for entry in entries]
                assert numbers, f"{name} has an empty lane"
                assert numbers == sorted(numbers), f"{name}: a lane is not in order of arrival"
                assert all(entry.flow is flow and entry.lane == lane and entry.waiting for entry in entries), (
                    f"{name} holds another flow's or lane's request, or one that does not wait"
                )
        assert waiting == self._waiting, "waiting is miscounted"
