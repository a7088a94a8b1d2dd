"""Files and batches: their paths, the choice of a replica, and the right to create batches.

These requests name no model. Any replica that has the folder of files can answer: it mounts the claim of its model
(`spec.files.claim`) or pool.
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
    """Return the methods allowed for a path; None if it is not about files or batches."""
    return next((methods for pattern, methods in _PATHS if pattern.fullmatch(path)), None)


class FileReplicas:
    """Finds a replica that keeps the files of a key.

    They are on one PersistentVolumeClaim: the one in the key's file, else the gateway's `claim`. Without these, the
    replicas of `model` keep them; without `model`, they are on the claim of a model that the key may use. Of several
    models, one in the namespace named like the key's tenant comes first, then one whose claim a ready replica has
    mounted, then the oldest.
    """

    def __init__(self, picker: Picker, model: str | None = None, claim: str | None = None) -> None:
        """`model`: served name of a model whose replicas keep files of keys without a claim; None with `claim`."""
        self._picker = picker
        self._model = model
        self._claim = claim
        self._mounted: frozenset[str] = frozenset()

    def note(self, table: RoutingTable) -> None:
        """Remember the claims that ready replicas have mounted, as long as models name them.

        A model without replicas therefore does not lose its keys' files to another one.
        """
        named = {model.files: model for model in table.models if model.files}
        if named or self._mounted:
            ready = {replica.files for model in table.models if model.files for replica in _keepers(model)}
            self._mounted = (self._mounted | ready) & named.keys()

    def find(self, table: RoutingTable | None, key: ApiKey | None) -> tuple[Model, Replica]:
        """Return a replica and its model. Raises Refusal: 501 if no model keeps files for the key, 503 if no replica
        is ready.
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
        """Return the model whose claim keeps the files of a key that names no claim. Raises Refusal 501."""
        usable = [model for model in table.models if model.files and _may_use(table, model, key)]
        if not usable:
            raise files_not_shared()
        tenant = None if key is None else key.tenant
        # Models are in order of age; `min` returns the first of equals.
        return min(usable, key=lambda model: (model.key.namespace != tenant, model.files not in self._mounted))


def _keepers(model: Model) -> Iterator[Replica]:
    """Return the ready replicas that mount their model's claim. While a changed claim rolls out, some mount the old
    one.
    """
    return (replica for replica in model.ready_replicas if replica.files == model.files)


def _may_use(table: RoutingTable, model: Model, key: ApiKey | None) -> bool:
    """Return whether the key may use the model under one of its names."""
    return any(table.owners[name] is model and (key is None or key.may_use(name)) for name in model.served_names)


def check_batch(key: ApiKey | None) -> None:
    """Raise Refusal 403 if the key may not create batches; their lines are not checked here."""
    if key is not None and key.batch is None:
        raise batch_not_allowed(key.name)
