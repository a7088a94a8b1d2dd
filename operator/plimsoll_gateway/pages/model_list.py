"""`/v1/models`: the models that a client may use, in OpenAI's format or Anthropic's."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qs

from plimsoll_gateway.discovery.routing_table import Model, RoutingTable
from plimsoll_gateway.errors.dialects import MODELS
from plimsoll_gateway.errors.refusals import bad_request, no_table
from plimsoll_gateway.keys.api_key import ApiKey
from plimsoll_gateway.proxy.replica_proxy import allowed_model
from plimsoll_gateway.routing.model_cards import Card, ModelCards

MODEL_PREFIX = f"{MODELS}/"
PAGE = 20
MOST_OF_A_PAGE = 1000


class ModelList:
    """Makes the responses to `/v1/models` and `/v1/models/NAME` from the routing table and the model cards."""

    def __init__(self, cards: ModelCards) -> None:
        self._cards = cards

    async def answer(
        self, table: RoutingTable | None, path: str, query: bytes, key: ApiKey | None = None, *, anthropic: bool = False
    ) -> bytes:
        """Return all models that the key may use, or one, as JSON; in Anthropic's format one page by the query.

        Raises Refusal: 404 for an unknown name, 403 for one that the key may not use, 400 for an invalid query, and 503
        before the first table.
        """
        form = _anthropic_entry if anthropic else _entry
        if path != MODELS:
            name = path.removeprefix(MODEL_PREFIX)
            model = allowed_model(table, name, key)
            return json.dumps(form(name, model, (await self._cards.of([(name, model)]))[name])).encode()
        if table is None:
            raise no_table()
        names = names_for(table, key)
        page, more = page_of(names, query) if anthropic else (names, False)
        cards = await self._cards.of([(name, table.owners[name]) for name in page])
        data = [form(name, table.owners[name], cards[name]) for name in page]
        if not anthropic:
            return json.dumps({"object": "list", "data": data}).encode()
        ends = {"first_id": page[0] if page else None, "last_id": page[-1] if page else None}
        return json.dumps({"data": data, "has_more": more, **ends}).encode()


def page_of(names: Sequence[str], query: bytes) -> tuple[Sequence[str], bool]:
    """Return the names of the page that `query` asks for, and whether there are more in this direction.

    These are `limit` names after `after_id` or before `before_id`.

    Raises Refusal 400.
    """
    asked = parse_qs(query.decode("latin-1"), keep_blank_values=True)
    limit = _limit(asked)
    after, before = (_place(names, asked, field) for field in ("after_id", "before_id"))
    if after is not None and before is not None:
        raise bad_request("Give 'after_id' or 'before_id', not both.", param="before_id")
    if before is not None:
        return names[max(0, before - limit) : before], before > limit
    start = 0 if after is None else after + 1
    return names[start : start + limit], len(names) > start + limit


def _limit(asked: Mapping[str, Sequence[str]]) -> int:
    text = asked.get("limit", [str(PAGE)])[-1]
    if not (text.isascii() and text.isdigit() and len(text) < 6 and 1 <= int(text) <= MOST_OF_A_PAGE):
        raise bad_request(f"'limit' must be a whole number from 1 to {MOST_OF_A_PAGE}.", param="limit")
    return int(text)


def _place(names: Sequence[str], asked: Mapping[str, Sequence[str]], field: str) -> int | None:
    if field not in asked:
        return None
    try:
        return names.index(asked[field][-1])
    except ValueError:
        raise bad_request(f"'{field}' is not the id of a listed model.", param=field) from None


def names_for(table: RoutingTable | None, key: ApiKey | None) -> list[str]:
    """Return the names that a key may use; none before the first table."""
    return [] if table is None else [name for name in table.names() if key is None or key.may_use(name)]


def _entry(name: str, model: Model, card: Card) -> dict[str, Any]:
    """Return OpenAI's four fields, the readiness of the model, and the data that replicas report."""
    ready = len(model.ready_for(name))
    told = {"task": card.task, "endpoints": card.endpoints, "abilities": card.abilities, "about": card.about}
    return {
        "id": name,
        "object": "model",
        "created": int(model.created),
        "owned_by": model.key.namespace,
        "ready": ready > 0,
        "ready_replicas": ready,
        "message": model.message,
        "max_model_len": card.max_model_len,
        **{field: value for field, value in told.items() if value is not None},
    }


def _anthropic_entry(name: str, model: Model, card: Card) -> dict[str, Any]:
    created = datetime.fromtimestamp(int(model.created), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "type": "model",
        "id": name,
        "display_name": name,
        "created_at": created,
        "max_input_tokens": card.max_model_len,
        "max_tokens": card.max_model_len,
        "lifecycle": "active",
    }
