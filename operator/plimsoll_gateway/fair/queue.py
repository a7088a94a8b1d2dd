"""Start-time fair queueing (Goyal, Vin and Cheng, 1996): flows that wait get service in proportion to their weights.

A flow's head has a start tag, the flow's finish tag; the smallest start tag is served next, and the flow's finish tag
rises by cost over weight. It needs no knowledge of how fast the server is, which batching changes all the time. A cost
is an estimate: what it turns out to be is corrected in the flow's tag, and so moves the flow's next requests.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Generic, TypeVar

ItemT = TypeVar("ItemT")


@dataclass(frozen=True, slots=True)
class Share:
    """Whose request it is: a higher `priority` goes first, equals share by `weight`."""

    flow: str
    priority: int = 0
    weight: int = 1


class Entry(Generic[ItemT]):
    """A request that waits, or has been served."""

    def __init__(self, flow: Flow[ItemT], cost: int, item: ItemT) -> None:
        self.flow = flow
        self.cost = cost
        self.item = item
        self.waiting = True


class Flow(Generic[ItemT]):
    """The requests of one key that wait, in their order."""

    def __init__(self, share: Share) -> None:
        self.share = share
        self.finish = 0.0
        self.entries: deque[Entry[ItemT]] = deque()
        self.cost = 0  # of the entries
        self.served = 0  # entries that have left for service, and may still be corrected


class FairQueue(Generic[ItemT]):
    """Pushed, popped and corrected in time that grows with the flows that wait, not with their requests."""

    def __init__(self) -> None:
        self._flows: dict[str, Flow[ItemT]] = {}
        self._virtual: dict[int, float] = {}  # by priority, the start tag that was served last
        self._waiting = 0

    def __len__(self) -> int:
        return self._waiting

    def push(self, share: Share, cost: int, item: ItemT) -> Entry[ItemT]:
        """Add a request at the end of its flow."""
        flow = self._flows.get(share.flow)
        if flow is None:
            flow = self._flows[share.flow] = Flow(share)
        elif flow.share.priority != share.priority:
            flow.finish = 0.0  # tags of different priorities cannot be compared
        flow.share = share
        if not flow.entries:  # whoever asked for nothing has saved nothing up
            flow.finish = max(flow.finish, self._virtual.get(share.priority, 0.0))
        entry = Entry(flow, cost, item)
        flow.entries.append(entry)
        flow.cost += cost
        self._waiting += 1
        return entry

    def pop(self) -> Entry[ItemT] | None:
        """The request whose turn it is, charged to its flow until `settle` or `undo`; None where nobody waits."""
        if not self._waiting:
            return None
        flow = min((f for f in self._flows.values() if f.entries), key=lambda f: (-f.share.priority, f.finish))
        entry = flow.entries.popleft()
        entry.waiting = False
        flow.cost -= entry.cost
        self._waiting -= 1
        flow.served += 1
        self._virtual[flow.share.priority] = max(flow.finish, self._virtual.get(flow.share.priority, 0.0))
        flow.finish += entry.cost / flow.share.weight
        return entry

    def remove(self, entry: Entry[ItemT]) -> None:
        """A request no longer waits. It has cost its flow nothing."""
        entry.flow.entries.remove(entry)
        entry.waiting = False
        entry.flow.cost -= entry.cost
        self._waiting -= 1
        self._forget(entry.flow)

    def settle(self, entry: Entry[ItemT], cost: int) -> None:
        """A popped request has ended, and this is what it cost; 0 for one that was not served after all."""
        flow = entry.flow
        flow.finish += (cost - entry.cost) / flow.share.weight
        flow.served -= 1
        self._forget(flow)

    def crowd(self, share: Share, cost: int) -> Entry[ItemT] | None:
        """Who must give way where a request of that share and cost comes and there is no room: the last of those that
        wait longest for their weight, in the lowest priority. None: that would be the newcomer itself.
        """
        flows = [flow for flow in self._flows.values() if flow.entries]
        lowest = min([share.priority, *(flow.share.priority for flow in flows)])

        def load(flow: Flow[ItemT]) -> float:
            own = cost if flow.share.flow == share.flow else 0
            return (flow.cost + own) / flow.share.weight

        heaviest = max((flow for flow in flows if flow.share.priority == lowest), key=load, default=None)
        if heaviest is None or heaviest.share.flow == share.flow:
            return None
        if share.priority == lowest and load(heaviest) <= cost / share.weight:
            return None
        return heaviest.entries[-1]

    def _forget(self, flow: Flow[ItemT]) -> None:
        """Nothing is known of a flow that has neither requests nor a debt."""
        owes = flow.finish > self._virtual.get(flow.share.priority, 0.0)
        if not flow.entries and not flow.served and not owes:
            del self._flows[flow.share.flow]

    def check_integrity(self) -> None:
        """Raise AssertionError where the records contradict each other."""
        assert self._waiting == sum(len(flow.entries) for flow in self._flows.values()), "waiting is miscounted"
        for name, flow in self._flows.items():
            assert flow.share.flow == name, f"{name} is kept as {flow.share.flow}"
            assert flow.cost == sum(entry.cost for entry in flow.entries), f"{name}: the cost is miscounted"
            assert flow.served >= 0, f"{name}: {flow.served} are in service"
            assert all(entry.flow is flow and entry.waiting for entry in flow.entries), (
                f"{name} holds another flow's request, or one that has left"
            )
