"""Records the data of replicas' responses in the picker, the metrics and the demand."""

from __future__ import annotations

import logging
from collections.abc import Collection

from plimsoll_gateway.admission.capacity import Capacity
from plimsoll_gateway.client.response import Response
from plimsoll_gateway.demand.counters import DemandCounters
from plimsoll_gateway.demand.revision_totals import RevisionTotals
from plimsoll_gateway.discovery.routing_table import Model, ObjectKey, Replica
from plimsoll_gateway.proxy.headers import BELIEVED, LOAD, TENANT
from plimsoll_gateway.proxy.upstream_request import Call
from plimsoll_gateway.routing.pick import Picker
from plimsoll_gateway.telemetry.cold_start import ColdStarts
from plimsoll_gateway.telemetry.metrics import Metrics
from plimsoll_telemetry.exposition import exemplar_of

log = logging.getLogger(__name__)


class ResponseObserver:
    """Records responses; one object for the whole gateway."""

    def __init__(
        self, metrics: Metrics, demand: DemandCounters, picker: Picker, capacity: Capacity, cold: ColdStarts
    ) -> None:
        self.metrics = metrics
        self._demand = demand
        self._picker = picker
        self._capacity = capacity
        self._cold = cold
        self._unbelieving: set[str] = set()

    def keep(self, replica_ids: Collection[str]) -> None:
        """Forget all replicas except these."""
        self._unbelieving.intersection_update(replica_ids)

    def held(self, key: ObjectKey, change: int) -> None:
        """Add `change` to the number of requests that wait for a replica of the model."""
        self._demand.held(key, change)
        held = self._demand.held_now(key)
        self.metrics.of(key, self.metrics.held).set(held)
        if held:
            self._cold.held(key)
        else:
            self._cold.released(key)

    def totals(self, model: Model, replica: Replica) -> RevisionTotals:
        """Return the totals of the revision of this replica, to be added to."""
        return self._demand.totals(model.key, replica.revision)

    def answered(
        self, call: Call, model: Model, replica: Replica, totals: RevisionTotals, response: Response, seconds: float
    ) -> None:
        """Record a response that began `seconds` after the first attempt."""
        self.heard(call, model, replica, response)
        totals.answered(response.status)
        self._cold.answered(model.key)
        self.metrics.of(model.key, self.metrics.first_byte).observe(seconds, exemplar_of(call.record.span))

    def heard(self, call: Call, model: Model, replica: Replica, response: Response) -> None:
        """Record the load in a response's headers, and whether the credential was accepted."""
        load = response.header(LOAD)
        if load is not None:
            self._picker.heard(replica, load)
            self._capacity.heard(model, replica)
        vouched = call.voucher is not None and response.status < 400
        if vouched and response.header(TENANT) != BELIEVED:
            self.metrics.of(model.key, self.metrics.unbelieved).inc()
            if replica.id not in self._unbelieving:
                self._unbelieving.add(replica.id)
                log.warning(
                    "replica %s of %s treats all API keys as one tenant: it does not accept the gateway's credential "
                    "(docs/tasks/keys.md)",
                    replica.id,
                    model.key,
                )
