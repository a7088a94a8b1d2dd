"""One request on its way: pick a replica, send, stream the answer through; try once more where that is safe."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass

import aiohttp

from plimsoll_gateway.demand.ledger import Demand
from plimsoll_gateway.demand.tally import Pulse, Tally
from plimsoll_gateway.errors import no_table, not_ready, stream_broken, unknown_model, upstream_failed
from plimsoll_gateway.headers import BELIEVED, LOAD, TENANT, response_headers
from plimsoll_gateway.keys.record import ApiKey
from plimsoll_gateway.limits import HOLD_SECONDS
from plimsoll_gateway.metrics import Metrics, labels_of
from plimsoll_gateway.pick import Picker
from plimsoll_gateway.probe import Prober, SilentError
from plimsoll_gateway.room import Place
from plimsoll_gateway.route.scores import Wanted
from plimsoll_gateway.stream import Stream
from plimsoll_gateway.table import Model, Replica, Table, TableStore
from plimsoll_gateway.upstream import Call, post

log = logging.getLogger(__name__)

ATTEMPTS = 2
MOVED = "moved"
# No connection was made: the replica has seen nothing of the request.
CONNECT_ERRORS = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
# The connection broke before an answer began. Either the replica died, or it had closed a kept-alive connection
# just as we wrote to it; generating is free of side effects, so a second attempt is safe both times.
RESET_ERRORS = (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError)
UPSTREAM_ERRORS = (aiohttp.ClientError, TimeoutError, OSError)


def find_model(table: Table | None, name: str, key: ApiKey | None = None) -> Model:
    """The model of that name. Raises Refusal 404 with the names that the key may use, or 503 before the first table."""
    if table is None:
        raise no_table()
    model = table.find(name)
    if model is None:
        raise unknown_model(name, [known for known in table.names() if key is None or key.may_use(known)])
    return model


@dataclass(frozen=True, slots=True)
class Failure:
    """An attempt that ended before anything was sent to the client.

    `same_again`: where there is no other replica, the same one may be asked.
    """

    replica: Replica
    kind: str
    reason: str
    same_again: bool


class Relay:
    """Carries calls to replicas; one for the whole gateway."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        store: TableStore,
        picker: Picker,
        prober: Prober,
        metrics: Metrics,
        demand: Demand,
        clock: Callable[[], float] = time.monotonic,
        *,
        hold_seconds: float = HOLD_SECONDS,
    ) -> None:
        self._session = session
        self._store = store
        self._picker = picker
        self._prober = prober
        self._metrics = metrics
        self._demand = demand
        self._clock = clock
        self._hold_seconds = hold_seconds
        self._unbelieving: set[str] = set()

    def keep(self, replica_ids: Collection[str]) -> None:
        """All other replicas are gone, and what was told of them with them."""
        self._unbelieving.intersection_update(replica_ids)

    async def carry(self, call: Call, stream: Stream, place: Place) -> None:
        """Answer one call through `stream`; its place is free and its body dropped once the answer begins.

        Raises Refusal where no replica's answer can be had.
        The table is read again for the second attempt: the first may have failed because the world has changed.
        """
        began = self._clock()
        failures: list[Failure] = []
        while len(failures) < ATTEMPTS:
            model = find_model(self._store.current, call.model_name)
            moved = failures[-1].replica if failures and failures[-1].kind == MOVED else None
            if model.pooled and (moved is not None or not model.ready_for(call.model_name)):
                model = await self._hold(call.model_name, model, moved)
            ready = model.ready_for(call.model_name)
            if not ready:
                raise not_ready(call.model_name, model)
            replica = self._choose(ready, failures, call.wanted)
            if replica is None:
                break
            if failures:
                self._metrics.retries.labels(*labels_of(model), failures[-1].kind).inc()
            may_retry = not failures and any(other.id != replica.id for other in ready)
            with self._picker.hold(replica):
                tally = self._demand.tally(model.key, replica.revision)
                answer = await self._ask(call, model, replica, may_retry, tally)
                if isinstance(answer, Failure):
                    failures.append(answer)
                    continue
                tally.answered(answer.status)
                place.leave()
                call.body.drop()  # there will be no further attempt
                self._metrics.first_byte.labels(*labels_of(model)).observe(self._clock() - began)
                try:
                    await self._pipe(answer, model, call, stream, tally)
                finally:
                    answer.close()
                    self._metrics.duration.labels(*labels_of(model)).observe(self._clock() - began)
                return
        raise upstream_failed(call.model_name, failures[-1].reason)

    async def _hold(self, name: str, model: Model, moved: Replica | None) -> Model:
        """The model once a pod of its pool has it, another than the one it left; as it is when time is up."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._hold_seconds):
                while not any(moved is None or other.id != moved.id for other in model.ready_for(name)):
                    await self._store.changed(name, model)
                    model = find_model(self._store.current, name)
        return model

    def _choose(self, ready: Sequence[Replica], failures: Sequence[Failure], wanted: Wanted) -> Replica | None:
        """Another replica than those that failed; where there is none, one whose connection merely broke."""
        other = self._picker.pick(ready, {failure.replica.id for failure in failures}, wanted)
        if other is None:
            avoid = {failure.replica.id for failure in failures if not failure.same_again}
            other = self._picker.pick(ready, avoid, wanted)
        return other

    async def _ask(
        self, call: Call, model: Model, replica: Replica, may_retry: bool, tally: Tally
    ) -> aiohttp.ClientResponse | Failure:
        """Send, and wait for the headers of the answer. A 503 is an answer unless another replica can be asked."""
        try:
            async with self._prober.listen(replica, model):
                response = await post(self._session, replica, call)
        except SilentError as error:
            tally.unanswered()
            return _failure(call, replica, "silent", error, same_again=False)
        except CONNECT_ERRORS as error:
            self._picker.failed(replica)
            if isinstance(error, TimeoutError):
                self._prober.eject(replica, model)
            tally.unanswered()
            return _failure(call, replica, "connect", error, same_again=False)
        except RESET_ERRORS as error:
            tally.unanswered()
            return _failure(call, replica, "reset", error, same_again=True)
        except UPSTREAM_ERRORS as error:
            tally.unanswered()
            raise upstream_failed(call.model_name, _failure(call, replica, "invalid", error).reason) from None
        self._picker.answered(replica)
        self._note(call, model, replica, response)
        if not 200 <= response.status <= 599:
            response.close()
            tally.unanswered()
            raise upstream_failed(call.model_name, f"its status was {response.status}")
        if response.status == 503 and may_retry:
            response.close()
            return Failure(replica, "unavailable", "it was unavailable", same_again=False)
        if response.status == 404 and model.pooled:
            # The model was there when the table was made. Nothing else of a gateway's requests is not found.
            response.close()
            return Failure(replica, MOVED, "the model is not there any more", same_again=True)
        return response

    def _note(self, call: Call, model: Model, replica: Replica, response: aiohttp.ClientResponse) -> None:
        """Remember what the replica says beside its answer."""
        load = response.headers.get(LOAD)
        if load is not None:
            self._picker.heard(replica, load.encode("ascii", "replace"))
        vouched = call.voucher is not None and response.status < 400
        if vouched and response.headers.get(TENANT) != BELIEVED:
            self._metrics.unbelieved.labels(*labels_of(model)).inc()
            if replica.id not in self._unbelieving:
                self._unbelieving.add(replica.id)
                log.warning(
                    "replica %s of %s takes all API keys for one tenant: it does not know the gateway's credential "
                    "(docs/keys.md)",
                    replica.id,
                    model.key,
                )

    async def _pipe(
        self, answer: aiohttp.ClientResponse, model: Model, call: Call, stream: Stream, tally: Tally
    ) -> None:
        """Stream the answer through, one piece at a time: what the client does not take is not read either."""
        events, meter = _is_event_stream(answer), call.meter
        pulse = Pulse(tally, call.came) if events else None
        if meter is not None:
            meter.begin(answer.status)
        await stream.start(answer.status, response_headers(answer.raw_headers, call.request_id), events=events)
        while True:
            try:
                chunk = await answer.content.readany()
            except UPSTREAM_ERRORS as error:
                reason = str(error) or type(error).__name__
                log.warning("%s: the answer of %s broke off: %s", call.request_id, model.key, reason)
                self._metrics.broken_streams.labels(*labels_of(model)).inc()
                tally.broke()
                await stream.fail(stream_broken(call.model_name, "its replica went away"))
                return
            if not chunk:
                break
            if pulse is not None:
                pulse.passed(chunk, self._clock())
            if meter is not None:
                meter.read(chunk, events=events)
            await stream.push(chunk)
        await stream.finish()


def _failure(call: Call, replica: Replica, kind: str, error: Exception, *, same_again: bool = False) -> Failure:
    """Log what happened with its details; the client is told no addresses."""
    log.warning("%s: replica %s failed (%s): %s", call.request_id, replica.id, kind, error or type(error).__name__)
    reasons = {
        "connect": "it could not be reached",
        "silent": "it took the request and did not answer, nor does it answer whether it lives",
        "reset": "it closed the connection without an answer",
        "invalid": "its answer was not valid HTTP",
    }
    return Failure(replica, kind, reasons[kind], same_again)


def _is_event_stream(response: aiohttp.ClientResponse) -> bool:
    return response.content_type == "text/event-stream" and "content-encoding" not in response.headers
