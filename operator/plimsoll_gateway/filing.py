"""Files and batches: the paths that are about them, and who may make a batch.

They name no model, and any replica that has the folder in which they are kept can answer. Which ones have it, the
models say (`spec.files.claim`, or that of their pool), or a setting of the gateway names the model whose replicas are
asked.
"""

from __future__ import annotations

import re

from plimsoll_gateway.errors import batch_not_allowed, files_not_shared, no_table, not_ready
from plimsoll_gateway.keys.record import ApiKey
from plimsoll_gateway.pick import Picker
from plimsoll_gateway.relay import find_model
from plimsoll_gateway.table import Model, Replica, Table

_PATHS: tuple[tuple[re.Pattern[str], tuple[str, ...]], ...] = (
    (re.compile(r"/v1/(files|batches)"), ("GET", "POST")),
    (re.compile(r"/v1/files/[^/]+"), ("GET", "DELETE")),
    (re.compile(r"/v1/files/[^/]+/content"), ("GET",)),
    (re.compile(r"/v1/batches/[^/]+"), ("GET",)),
    (re.compile(r"/v1/batches/[^/]+/cancel"), ("POST",)),
)


def filed_at(path: str) -> tuple[str, ...] | None:
    """The methods that a path takes; None for one that is about neither files nor batches."""
    return next((methods for pattern, methods in _PATHS if pattern.fullmatch(path)), None)


class Filing:
    """Finds a replica that has the files. `model`: whose replicas alone are asked; None for those that say that they
    do.
    """

    def __init__(self, picker: Picker, model: str | None) -> None:
        self._picker = picker
        self._model = model

    def find(self, table: Table | None) -> tuple[Model, Replica]:
        """A replica to ask, and its model. Raises Refusal: 501 where nobody keeps files, 503 where nobody is ready."""
        if self._model is not None:
            named = find_model(table, self._model)
            keepers = dict.fromkeys(named.ready_for(self._model), named)
        else:
            named = self._keeping(table)
            keepers = {
                replica: model
                for model in (() if table is None else table.models)
                if model.files == named.files
                for replica in model.ready_replicas
                if replica.files == named.files
            }
        replica = self._picker.pick(tuple(keepers))
        if replica is None:
            raise not_ready(self._model or named.served_names[0], named)
        return keepers[replica], replica

    def _keeping(self, table: Table | None) -> Model:
        """One of the models that keep files, all on one claim."""
        if table is None:
            raise no_table()
        keeping = [model for model in table.models if model.files]
        claims = sorted({model.files for model in keeping})
        if len(claims) != 1:
            raise files_not_shared(claims)
        return keeping[0]


def check_batch(key: ApiKey | None) -> None:
    """Raises Refusal 403 for a key that makes no batches: what their lines ask is not seen here."""
    if key is not None and key.batch is None:
        raise batch_not_allowed(key.name)
