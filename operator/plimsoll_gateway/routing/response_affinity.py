"""Where responses are kept: each id begins with the place of the replica that has it, by which every gateway finds it.

A replica's place is a hash of its id, or of its keeper's name where what it keeps outlives it. Gateways say it with
each request for a response, and the replica writes it into the ids that it makes; so no gateway has to remember
anything.
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
"""How long a replica that takes another's place is waited for: as long as a roll may be without any progress."""
NOWHERE = "0" * 12
"""The place in ids of a runtime that was asked without a gateway."""
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
    """The place of whoever keeps things under that name."""
    return blake2b(keeper.encode(), digest_size=6).hexdigest()


class Kept(msgspec.Struct, frozen=True):
    """What a path names of a response, and the methods that it takes."""

    response: str
    methods: tuple[str, ...]


def kept_at(path: str) -> Kept | None:
    """None for a path that names no response."""
    found = _KEPT.fullmatch(path)
    return None if found is None else Kept(found[1], _METHODS[found[2]])


def place_in(members: Mapping[str, memoryview]) -> str:
    """The place that has what a request for a response goes on from; empty where it goes on from nothing."""
    place = _place_of_previous(members.get("previous_response_id")) or _place_of_items(members.get("input"))
    return "" if place == NOWHERE else place


def _place_of_previous(text: memoryview | None) -> str:
    if text is None or len(text) > 100:
        return ""
    try:
        found = _RESPONSE.fullmatch(_TEXT.decode(text))
    except msgspec.MsgspecError:  # null, or something of which the replica says what is wrong
        return ""
    return "" if found is None else found[1]


def _place_of_items(text: memoryview | None) -> str:
    if text is None or _MENTION.search(text) is None:  # as in most; a word alone is found faster
        return ""
    found = _REFERENCE.search(text)
    return "" if found is None else (found[1] or found[2]).decode()


class ResponseAffinity:
    """Who is at which place, by the newest table, and who was until lately and has a successor coming."""

    def __init__(self, store: TableStore, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._table: RoutingTable | None = None
        self._known: dict[str, tuple[Model, Replica]] = {}
        self._keepers: frozenset[str] = frozenset()
        self._left: dict[str, float] = {}
        store.listen(self._note)

    def find(self, response: str) -> tuple[Model, Replica]:
        """Who keeps the response of that id, and one of the models that are there. Raises Refusal 404, or 503 while
        whoever keeps it is replaced.
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
        """The replica of the model at that place. Raises the same where there is none."""
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
        """Names that outlive replicas: which are there, and since when others are not."""
        keepers = frozenset(replica.keeper for model in table.models for replica in model.replicas if replica.keeper)
        if keepers == self._keepers:
            return
        now = self._clock()
        left = self._left | dict.fromkeys(map(place_of, self._keepers - keepers), now)
        there = set(map(place_of, keepers))
        self._left = {place: at for place, at in left.items() if at + TAKE_OVER_SECONDS >= now and place not in there}
        self._keepers = keepers
