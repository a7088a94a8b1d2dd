"""Forwards one request: picks a replica, sends, and streams the response; retries once if that is safe."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from plimsoll_gateway.admission.limits import WAKE_SECONDS
from plimsoll_gateway.admission.queue_limit import QueueTicket
from plimsoll_gateway.client.errors import ConnectError, ConnectTimeoutError, ResetError, UpstreamError, text_of
from plimsoll_gateway.client.pool import Pool
from plimsoll_gateway.client.response import Response
from plimsoll_gateway.demand.revision_totals import RevisionTotals
from plimsoll_gateway.discovery.routing_table import Model, Replica, RoutingTable, TableStore
from plimsoll_gateway.errors.refusals import (
    ANTHROPIC_OVERLOADED,
    UNAVAILABLE,
    code_of,
    model_not_allowed,
    no_table,
    not_believed,
    not_ready,
    unknown_model,
    upstream_failed,
)
from plimsoll_gateway.keys.api_key import ApiKey
from plimsoll_gateway.proxy.headers import BELIEVED, TENANT
from plimsoll_gateway.proxy.keepalive_comments import KeepaliveComments
from plimsoll_gateway.proxy.response_observer import ResponseObserver
from plimsoll_gateway.proxy.response_pipe import MOST_ERROR_BYTES, pipe
from plimsoll_gateway.proxy.response_stream import ResponseStream
from plimsoll_gateway.proxy.upstream_request import Call, send
from plimsoll_gateway.routing.health_probe import Prober, SilentError
from plimsoll_gateway.routing.pick import Picker
from plimsoll_gateway.routing.response_affinity import ResponseAffinity
from plimsoll_gateway.routing.scorers import RoutingHints
from plimsoll_gateway.telemetry.request_record import HOLD
from plimsoll_telemetry.exposition import exemplar_of

log = logging.getLogger(__name__)

ATTEMPTS = 2
MOVED, UNABLE = "moved", "unavailable"
NO_SUCH_MODEL = "model_not_found"  # the `code` of a runtime's error
ELSEWHERE = frozenset([UNAVAILABLE, ANTHROPIC_OVERLOADED])
"""Statuses of a replica that cannot answer at the moment; another one may."""


def find_model(table: RoutingTable | None, name: str, key: ApiKey | None = None) -> Model:
    """Return the model of a name. Raises Refusal 404 with the names that the key may use, or 503 before the first
    table.
    """
    if table is None:
        raise no_table()
    model = table.find(name)
    if model is None:
        raise unknown_model(name, [known for known in table.names() if key is None or key.may_use(known)])
    return model


def allowed_model(table: RoutingTable | None, name: str, key: ApiKey | None) -> Model:
    """Return the model of a name. Raises Refusal: 403 if the key may not use it, and those of `find_model`."""
    if key is not None and not key.may_use(name):
        raise model_not_allowed(key.name, name)
    return find_model(table, name, key)


def why_unready(model: Model) -> str:
    """Return why a model without a ready replica has none, for traces."""
    if not model.replicas:
        return "not_placed" if model.pooled else "scaled_to_zero"
    return "not_ready"


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed attempt before anything was sent to the client.

    `same_again`: if there is no other replica, this one may be tried again.
    """

    replica: Replica
    kind: str
    reason: str
    same_again: bool


class ReplicaProxy:
    """Sends calls to replicas; one object for the whole gateway."""

    def __init__(
        self,
        pool: Pool,
        store: TableStore,
        affinity: ResponseAffinity,
        picker: Picker,
        prober: Prober,
        observer: ResponseObserver,
        clock: Callable[[], float] = time.monotonic,
        *,
        wake_seconds: float = WAKE_SECONDS,
    ) -> None:
        self._pool = pool
        self._store = store
        self._affinity = affinity
        self._picker = picker
        self._prober = prober
        self._observer = observer
        self._clock = clock
        self._wake_seconds = wake_seconds

    async def forward(
        self, call: Call, stream: ResponseStream, place: QueueTicket, comments: KeepaliveComments | None = None
    ) -> None:
        """Answer one call through `stream`. When the response begins, its queue ticket is released and its body
        dropped.

        `comments` end at that time, too; once they have begun, there is no second attempt. Raises Refusal if no replica
        answers. The routing table is read again for the second attempt: the first may have failed because it has
        changed.
        """
        began = self._clock()
        failures: list[Failure] = []
        metrics = self._observer.metrics
        while len(failures) < ATTEMPTS:
            model, ready = await self._replicas(call, failures, comments)
            replica = self._pick(ready, failures, call.hints)
            if replica is None:
                break
            if failures:
                metrics.of(model.key, metrics.retries, failures[-1].kind).inc()
            others = not failures and len(ready) > 1
            with self._picker.hold(replica):
                totals = self._observer.totals(model, replica)
                response = await self._ask(call, model, replica, totals, stream if others else None)
                if isinstance(response, Failure):
                    call.record.end_attempt()
                    failures.append(response)
                    if call.meter is not None:
                        call.meter.failed()
                    if stream.status is not None:
                        break
                    continue
                place.leave()
                call.body.drop()  # there will be no further attempt
                seconds, whole = self._clock() - began, response.is_whole
                if not whole:  # a complete response is sent first and recorded afterwards
                    self._observer.answered(call, model, replica, totals, response, seconds)
                try:
                    if comments is not None:
                        await comments.end()
                    await pipe(response, model, call, stream, totals, metrics)
                finally:
                    response.close()
                    call.record.end_attempt()
                    if whole:
                        self._observer.answered(call, model, replica, totals, response, seconds)
                    exemplar = exemplar_of(call.record.span)
                    metrics.of(model.key, metrics.duration).observe(self._clock() - began, exemplar)
                return
        raise upstream_failed(call.model_name, failures[-1].reason)

    async def fetch(self, call: Call, model: Model, replica: Replica, stream: ResponseStream) -> None:
        """Answer a call about data that one replica stores: only that one is asked, once. Does not count as a
        request for the model. Raises Refusal.
        """
        if not replica.may_answer:
            raise not_ready(call.model_name, model)
        totals = RevisionTotals()
        response = await self._ask(call, model, replica, totals, None)
        if isinstance(response, Failure):
            raise upstream_failed(call.model_name, response.reason)
        try:
            if call.voucher is not None and response.status < 400 and response.header(TENANT) != BELIEVED:
                raise not_believed()
            await pipe(response, model, call, stream, totals, self._observer.metrics)
        finally:
            response.close()

    async def _replicas(
        self, call: Call, failures: Sequence[Failure], comments: KeepaliveComments | None
    ) -> tuple[Model, Sequence[Replica]]:
        """Return the model and the replicas that may be asked, after waiting for them if necessary. Raises Refusal."""
        model = find_model(self._store.current, call.model_name, call.key)
        if call.place:
            return model, self._keepers(call, model)
        moved = failures[-1].replica if failures and failures[-1].kind == MOVED else None
        if model.wakes and (moved is not None or not model.ready_for(call.model_name)):
            if comments is not None:
                comments.arm()
            call.record.phases.end("pick")
            call.record.reasons[HOLD] = MOVED if moved is not None else why_unready(model)
            model = await self._hold(call, model, moved)
            call.record.phases.end(HOLD)
        ready = model.ready_for(call.model_name)
        if not ready:
            raise not_ready(call.model_name, model)
        return model, ready

    def _keepers(self, call: Call, model: Model) -> Sequence[Replica]:
        """Return the model's replicas that store the response which the call continues, usually one. Raises Refusal."""
        found = [replica for replica in self._affinity.holders(model, call.place) if replica.may_answer]
        if not found:
            raise not_ready(call.model_name, model)
        return found

    async def _hold(self, call: Call, model: Model, moved: Replica | None) -> Model:
        """Wait until the model has a ready replica other than `moved`, or until the time is up, and return the model.

        A request for a model without replicas waits in the model's queue first; here it waits if the replica or the
        model on it has gone since.
        """
        name, key = call.model_name, model.key
        self._observer.held(key, 1)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(call.came + self._wake_seconds - self._clock()):
                    while model.wakes and not any(
                        moved is None or other.id != moved.id for other in model.ready_for(name)
                    ):
                        await self._store.changed(name, model)
                        model = find_model(self._store.current, name, call.key)
        finally:
            self._observer.held(key, -1)
        return model

    def _pick(self, ready: Sequence[Replica], failures: Sequence[Failure], hints: RoutingHints) -> Replica | None:
        """Return a replica that has not failed, or else one that may be asked again (`Failure.same_again`), or None."""
        failed = {failure.replica.id for failure in failures} if failures else ()
        other = self._picker.pick(ready, failed, hints)
        if other is None and failures:
            avoid = {failure.replica.id for failure in failures if not failure.same_again}
            other = self._picker.pick(ready, avoid, hints)
        return other

    async def _ask(
        self, call: Call, model: Model, replica: Replica, totals: RevisionTotals, stream: ResponseStream | None
    ) -> Response | Failure:
        """Send the call and wait for the response's headers. Returns a Failure for an error after which the call may be
        sent again; raises Refusal 502 for other errors.

        `stream` is given if another replica can be asked: then a status in ELSEWHERE is a failure as long as the stream
        has not begun. Otherwise a response with such a status is returned.
        """
        meter = call.meter
        if meter is not None:
            meter.sending()
        attempt = call.record.begin_attempt(replica.id)
        try:
            with self._prober.listen(replica, model):
                response = await send(self._pool, replica, call, attempt.span)
        except (SilentError, UpstreamError) as error:
            totals.unanswered()
            if isinstance(error, ConnectError):
                if meter is not None:
                    meter.not_sent()
                self._picker.failed(replica)
                if isinstance(error, ConnectTimeoutError):
                    self._prober.eject(replica, model)
            failure = _failure(replica, error)
            attempt.failure = failure.kind
            if not isinstance(error, RETRIED):
                raise upstream_failed(call.model_name, failure.reason) from None
            return failure
        self._picker.answered(replica)
        attempt.status, attempt.headers_ns = response.status, time.monotonic_ns()
        if not 200 <= response.status <= 599:
            response.close()
            totals.unanswered()
            raise upstream_failed(call.model_name, f"a replica sent the invalid status {response.status}")
        if response.status in ELSEWHERE and stream is not None and stream.status is None:
            self._observer.heard(call, model, replica, response)
            response.close()
            attempt.failure = UNABLE
            return Failure(replica, UNABLE, "it was unavailable", same_again=False)
        if response.status == 404 and model.pooled and await _has_left(response):
            self._observer.heard(call, model, replica, response)
            response.close()
            attempt.failure = MOVED
            return Failure(replica, MOVED, "the model has left it", same_again=True)
        return response


async def _has_left(response: Response) -> bool:
    """Return whether a 404 says that the model has left the replica since the table was made.

    Another 404, such as for an unknown path, is the response.
    """
    try:
        return code_of(await response.peek(MOST_ERROR_BYTES)) == NO_SUCH_MODEL
    except BaseException:
        response.close()
        raise


FAILURES: Mapping[type[Exception], tuple[str, str]] = {
    SilentError: ("silent", "it accepted the request but did not respond, and its health check fails"),
    ConnectError: ("connect", "it could not be reached"),
    ResetError: ("reset", "it closed the connection without a response"),
}
"""Kind and reason of failures after which another replica is asked."""
RETRIED = tuple(FAILURES)
INVALID = ("invalid", "its response was not valid HTTP")


def _failure(replica: Replica, error: Exception) -> Failure:
    """Log a failure with its details, and return it without addresses for the client."""
    kind, reason = next((found for known, found in FAILURES.items() if isinstance(error, known)), INVALID)
    log.warning("replica %s failed (%s): %s", replica.id, kind, text_of(error))
    return Failure(replica, kind, reason, same_again=isinstance(error, ResetError))
