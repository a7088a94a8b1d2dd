"""Model cards of replicas: context length, task and endpoints of a model."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from urllib.parse import quote

import msgspec

from plimsoll_cluster.decode_errors import UNREADABLE
from plimsoll_gateway.client.errors import UpstreamError
from plimsoll_gateway.client.pool import Pool
from plimsoll_gateway.discovery.routing_table import Model, Replica

ANSWER_SECONDS = 2.0
"""Time limit for all cards of one list; cards that arrive later are left out."""
AGAIN_SECONDS = 10.0
"""Time until a replica without a card is asked again: it did not answer, or never had the model awake."""
MOST_BYTES = 16 << 10
AT_ONCE = 16


class Card(msgspec.Struct, frozen=True):
    """The fields of the runtime's `GET /v1/models/NAME`; None for a field that it leaves out."""

    max_model_len: int | None = None
    task: str | None = None
    endpoints: list[str] | None = None
    abilities: list[str] | None = None
    about: str | None = None


UNTOLD = Card()


class ModelCards:
    """Fetches model cards from ready replicas when a client lists models, and keeps them by replica and name."""

    def __init__(self, pool: Pool, clock: Callable[[], float] = time.monotonic) -> None:
        self._pool = pool
        self._clock = clock
        self._told: dict[tuple[str, str], tuple[float, Card]] = {}
        self._turns = asyncio.Semaphore(AT_ONCE)

    async def of(self, models: Sequence[tuple[str, Model]]) -> dict[str, Card]:
        """Return the card of each name; `UNTOLD` if there is none."""
        silent = [(name, model.ready_for(name)[:1]) for name, model in models if self._known(name, model) is None]
        with suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_SECONDS):
                await asyncio.gather(*(self._ask(name, replica) for name, ready in silent for replica in ready))
        return {name: self._known(name, model) or UNTOLD for name, model in models}

    def keep(self, replica_ids: Collection[str]) -> None:
        """Remove the cards of all other replicas."""
        for gone in [key for key in self._told if key[0] not in replica_ids]:
            del self._told[gone]

    def _known(self, name: str, model: Model) -> Card | None:
        now = self._clock()
        told = (self._told.get((replica.id, name)) for replica in model.ready_for(name))
        return next((one[1] for one in told if one is not None and now < one[0]), None)

    async def _ask(self, name: str, replica: Replica) -> None:
        card = UNTOLD
        try:
            async with self._turns:
                card = await self._response(name, replica)
        finally:  # a replica that timed out is not asked again immediately either
            until = math.inf if card.max_model_len is not None else self._clock() + AGAIN_SECONDS
            self._told[replica.id, name] = until, card

    async def _response(self, name: str, replica: Replica) -> Card:
        try:
            response = await self._pool.ask(replica.url, "GET", f"/v1/models/{quote(name)}")
        except UpstreamError:
            return UNTOLD
        try:
            text = await response.peek(MOST_BYTES)
            return msgspec.json.decode(text, type=Card) if response.status == 200 else UNTOLD
        except UNREADABLE:
            return UNTOLD
        finally:
            response.close()
