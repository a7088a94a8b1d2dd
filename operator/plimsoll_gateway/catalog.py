"""`/v1/models`: what can be asked for, in OpenAI's shape."""

from __future__ import annotations

import json
from typing import Any

from plimsoll_gateway.errors import model_not_allowed, no_table
from plimsoll_gateway.keys.record import ApiKey
from plimsoll_gateway.relay import find_model
from plimsoll_gateway.table import Model, Table


def model_list(table: Table | None, key: ApiKey | None = None) -> bytes:
    """All names, or those that the key may use, as JSON. Raises Refusal before the first table."""
    if table is None:
        raise no_table()
    names = [name for name in table.names() if key is None or key.may_use(name)]
    return json.dumps({"object": "list", "data": [_entry(name, table.owners[name]) for name in names]}).encode()


def one_model(table: Table | None, name: str, key: ApiKey | None = None) -> bytes:
    """One name, as JSON. Raises Refusal 404 for an unknown one, 403 for one that the key may not use."""
    if key is not None and not key.may_use(name):
        raise model_not_allowed(key.name, name)
    return json.dumps(_entry(name, find_model(table, name, key))).encode()


def _entry(name: str, model: Model) -> dict[str, Any]:
    """OpenAI's four fields, and beside them whether a request would be answered now."""
    ready = len(model.ready_for(name))
    return {
        "id": name,
        "object": "model",
        "created": int(model.created),
        "owned_by": model.key.namespace,
        "ready": ready > 0,
        "ready_replicas": ready,
        "message": model.message,
    }
