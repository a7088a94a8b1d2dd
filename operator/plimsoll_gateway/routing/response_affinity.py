"""Response affinity: each response id begins with the place of the replica that stores it, by which any gateway
finds it.

A place is a hash of the replica's id, or of its keeper's name if its data outlives it. Gateways send it with each
request for a response, and the replica writes it into the ids that it creates. Gateways therefore store nothing.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from functools import lru_cache
from hashlib import blake2b

import msgspec

from plimsoll_gateway.discovery.routing_table import Model, Replica, RoutingTable, TableStore
from plimsoll_gateway.errors.dialects import RESPONSES
from plimsoll_gateway.errors.refusals import Refusal, response_away, response_gone, response_not_found

TAKE_OVER_SECONDS = 600.0
"""Time to wait for a replica that takes another's place: the longest time that a rollout may make no progress."""
NOWHERE = "0" * 12
"""The place in ids of a runtime that was called without a gateway."""
_RESPONSE = re.compile(r"resp_([0-9a-f]{12})[0-9a-f]{32}")
_ITEM = rb'"(?:msg|fc|fco|rs)_([0-9a-f]{12})[0-9a-f]{33,38}"'
_ID, _TYPE = rb'"id"\s*:\s*' + _ITEM, rb'"type"\s*:\s*"item_reference"'
_REFERENCE = re.compile(_TYPE + rb"\s*,\s*" + _ID + rb"|" + _ID + rb"\s*,\s*" + _TYPE)
_MENTION = re.compile(b"item_reference")
_KEPT = re.compile(re.escape(RESPONSES) + r"/([^/]+)(/cancel|/input_items)?")
_METHODS = {None: ("GET", "DELETE"), "/cancel": ("POST",), "/input_items": ("GET",)}
_TEXT = msgspec.json.Decoder(str)


@lru_cache(1 << 16)
def place_of(keeper: str) -> str:
    """Return the place of a replica id or a keeper's name."""
    return blake2b(keeper.encode(), digest_size=6).hexdigest()


class Kept(msgspec.Struct, frozen=True):
    """A response id in a path, and the methods of the path."""

    response: str
    methods: tuple[str, ...]


def kept_at(path: str) -> Kept | None:
    """Parse a path; None if it has no response id."""
    found = _KEPT.fullmatch(path)
    return None if found is None else Kept(found[1], _METHODS[found[2]])


def place_in(members: Mapping[str, memoryview]) -> str:
    """Return the place of the replica that stores the response or items that a request continues; empty if it
    continues none.
    """
    place = _place_of_previous(members.get("previous_response_id")) or _place_of_items(members.get("input"))
    return "" if place == NOWHERE else place


def _place_of_previous(text: memoryview | None) -> str:
    if text is None or len(text) > 100:
        return ""
    try:
        found = _RESPONSE.fullmatch(_TEXT.decode(text))
    except msgspec.MsgspecError:  # null, or an invalid value that the replica reports
        return ""
    return "" if found is None else found[1]


def _place_of_items(text: memoryview | None) -> str:
    if text is None or _MENTION.search(text) is None:  # the usual case; searching a plain word is faster
        return ""
    found = _REFERENCE.search(text)
    return "" if found is None else (found[1] or found[2]).decode()


class ResponseAffinity:
    """The replica of each place in the current table, and places whose replica has left and may be replaced."""

    def __init__(self, store: TableStore, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._table: RoutingTable | None = None
        self._known: dict[str, tuple[Model, Replica]] = {}
        self._keepers: frozenset[str] = frozenset()
        self._left: dict[str, float] = {}
        store.listen(self._note)

    def find(self, response: str) -> tuple[Model, Replica]:
        """Return the replica that stores a response, and a model that it serves. Raises Refusal 404, or 503 while the
        replica is being replaced.
        """
        found = _RESPONSE.fullmatch(response)
        if found is None or found[1] == NOWHERE:
            raise response_not_found(response)
        if self._table is not self._store.current:
            self._read()
        holder = self._known.get(found[1])
        if holder is None:
            raise self._absent(found[1])
        return holder

    def holders(self, model: Model, place: str) -> tuple[Replica, ...]:
        """Return the model's replicas with this place, at least one. Raises Refusal 404, or 503 while the replica is
        being replaced.
        """
        found = tuple(replica for replica in model.replicas if place_of(replica.keeps_as) == place)
        if not found:
            raise self._absent(place)
        return found

    def _absent(self, place: str) -> Refusal:
        left = self._left.get(place)
        return response_gone() if left is None or self._clock() > left + TAKE_OVER_SECONDS else response_away()

    def _read(self) -> None:
        self._table = self._store.current
        models = () if self._table is None else self._table.models
        self._known = {place_of(replica.keeps_as): (model, replica) for model in models for replica in model.replicas}

    def _note(self, table: RoutingTable) -> None:
        """Record the keepers' names in the table, and when those that are no longer in it have left."""
        keepers = frozenset(replica.keeper for model in table.models for replica in model.replicas if replica.keeper)
        if keepers == self._keepers:
            return
        now = self._clock()
        left = self._left | dict.fromkeys(map(place_of, self._keepers - keepers), now)
        there = set(map(place_of, keepers))
        self._left = {place: at for place, at in left.items() if at + TAKE_OVER_SECONDS >= now and place not in there}
        self._keepers = keepers
