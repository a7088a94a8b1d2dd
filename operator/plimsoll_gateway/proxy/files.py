"""Files and batches: the paths that are about them, and who may make a batch.

They name no model, and any replica that has the folder in which they are kept can answer: one that has mounted the
claim (`spec.files.claim`, or that of a pool).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from plimsoll_gateway.discovery.routing_table import Model, Replica, RoutingTable
from plimsoll_gateway.errors.refusals import (
    Refusal,
    batch_not_allowed,
    files_away,
    files_not_shared,
    no_table,
    not_ready,
)
from plimsoll_gateway.keys.api_key import ApiKey
from plimsoll_gateway.proxy.replica_proxy import find_model
from plimsoll_gateway.routing.pick import Picker

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


class FileReplicas:
    """Finds a replica that keeps the files of a key.

    They are on one claim: the one that the key's file names, else the gateway's `claim`, else that of a model which the
    key may use. Of several, a model in the namespace that has the name of the key's tenant comes first, then one whose
    claim a ready replica has mounted, then the oldest.
    """

    def __init__(self, picker: Picker, model: str | None = None, claim: str | None = None) -> None:
        """`model`: whose replicas alone are asked for keys that name no claim."""
        self._picker = picker
        self._model = model
        self._claim = claim
        self._mounted: frozenset[str] = frozenset()

    def note(self, table: RoutingTable) -> None:
        """Remember which claims ready replicas have mounted, for as long as models name them.

        So a model whose replicas are away does not lose its keys' files to another one.
        """
        named = {model.files: model for model in table.models if model.files}
        if named or self._mounted:
            ready = {replica.files for model in table.models if model.files for replica in _keepers(model)}
            self._mounted = (self._mounted | ready) & named.keys()

    def find(self, table: RoutingTable | None, key: ApiKey | None) -> tuple[Model, Replica]:
        """A replica to ask, and its model. Raises Refusal: 501 if no model keeps files for the key, 503 if none of
        those that do is ready.
        """
        if table is None:
            raise no_table()
        claim = (None if key is None else key.limits.files) or self._claim
        if claim is not None:
            away = files_away(claim)
        elif self._model is not None:
            named = find_model(table, self._model)
            return self._pick(dict.fromkeys(named.ready_for(self._model), named), not_ready(self._model, named))
        else:
            chosen = self._chosen(table, key)
            claim, away = chosen.files, not_ready(chosen.served_names[0], chosen)
        keeping = [model for model in table.models if model.files == claim]
        return self._pick({replica: model for model in keeping for replica in _keepers(model)}, away)

    def _pick(self, keepers: Mapping[Replica, Model], away: Refusal) -> tuple[Model, Replica]:
        replica = self._picker.pick(tuple(keepers))
        if replica is None:
            raise away
        return keepers[replica], replica

    def _chosen(self, table: RoutingTable, key: ApiKey | None) -> Model:
        """The model whose claim a key uses that names none. Raises Refusal 501."""
        usable = [model for model in table.models if model.files and _may_use(table, model, key)]
        if not usable:
            raise files_not_shared()
        tenant = None if key is None else key.tenant
        # Models are in order of age, of which `min` takes the first.
        return min(usable, key=lambda model: (model.key.namespace != tenant, model.files not in self._mounted))


def _keepers(model: Model) -> Iterator[Replica]:
    """The ready replicas that have mounted the claim which their model names; others do while a new one rolls out."""
    return (replica for replica in model.ready_replicas if replica.files == model.files)


def _may_use(table: RoutingTable, model: Model, key: ApiKey | None) -> bool:
    """Whether the key may ask for the model, by a name that it has."""
    return any(table.owners[name] is model and (key is None or key.may_use(name)) for name in model.served_names)


def check_batch(key: ApiKey | None) -> None:
    """Raises Refusal 403 for a key that makes no batches: what their lines ask is not seen here."""
    if key is not None and key.batch is None:
        raise batch_not_allowed(key.name)
