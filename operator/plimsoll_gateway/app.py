"""The gateway as an ASGI application: dispatches paths, and applies keys, quotas and queues to requests.

Plain ASGI instead of a framework: on the path of every token, a framework costs more than all of this code.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Collection
from contextlib import nullcontext
from functools import partial
from urllib.parse import quote

import msgspec
from prometheus_client.registry import Collector

from plimsoll_gateway.admission.body_memory import SMALL_BYTES, BodyMemory
from plimsoll_gateway.admission.capacity import Capacity
from plimsoll_gateway.admission.fair.fair_queue import Share
from plimsoll_gateway.admission.fair.model_queues import ModelQueues
from plimsoll_gateway.admission.limits import BATCHES, FILES, MODEL_PATHS, Limits
from plimsoll_gateway.admission.queue_limit import QueueLimit
from plimsoll_gateway.admission.quota.reservation import Quotas, Reservation
from plimsoll_gateway.admission.quota.token_meter import Meter
from plimsoll_gateway.client.pool import Pool
from plimsoll_gateway.demand.counters import DemandCounters
from plimsoll_gateway.discovery.routing_table import Model, Replica, RoutingTable, TableStore
from plimsoll_gateway.errors.dialects import dialect_of
from plimsoll_gateway.errors.refusals import (
    Refusal,
    internal_error,
    shutting_down,
    unknown_path,
)
from plimsoll_gateway.keys.credential import Credential
from plimsoll_gateway.keys.keyring import Keyring
from plimsoll_gateway.pages.operations import Operations
from plimsoll_gateway.pages.own_paths import OPEN, OwnPaths
from plimsoll_gateway.proxy.body import Body, ClientGone, Message, Receive, discard_unread
from plimsoll_gateway.proxy.cancellation import Cancellations
from plimsoll_gateway.proxy.exchange import Exchange
from plimsoll_gateway.proxy.files import FileReplicas, check_batch, filed_at
from plimsoll_gateway.proxy.headers import Voucher, request_id
from plimsoll_gateway.proxy.keepalive_comments import KeepaliveComments
from plimsoll_gateway.proxy.replica_proxy import ReplicaProxy, allowed_model, why_unready
from plimsoll_gateway.proxy.request_head import check_host, path_of
from plimsoll_gateway.proxy.request_peek import CpuTimeSlices, RequestFields, read_fields
from plimsoll_gateway.proxy.request_reporter import RequestReporter
from plimsoll_gateway.proxy.response_observer import ResponseObserver
from plimsoll_gateway.proxy.response_stream import ResponseStream, Send
from plimsoll_gateway.proxy.upload import Upload
from plimsoll_gateway.proxy.upstream_request import Call, is_alive
from plimsoll_gateway.routing.health_probe import Prober
from plimsoll_gateway.routing.model_cards import ModelCards
from plimsoll_gateway.routing.pick import Picker
from plimsoll_gateway.routing.prefix import prefix_blocks
from plimsoll_gateway.routing.response_affinity import Kept, ResponseAffinity, kept_at
from plimsoll_gateway.routing.scorers import RoutingHints
from plimsoll_gateway.server.connection_limit import ConnectionLimit
from plimsoll_gateway.server.cors import Cors, is_preflight
from plimsoll_gateway.telemetry.access_log import AccessLog, AccessMode
from plimsoll_gateway.telemetry.cold_start import ColdStarts
from plimsoll_gateway.telemetry.metrics import CLIENT_GONE, Metrics
from plimsoll_gateway.telemetry.request_record import TURN, RequestRecord
from plimsoll_telemetry.log_subject import SUBJECT
from plimsoll_telemetry.tracer import Tracer

log = logging.getLogger(__name__)

NO_KEYRING = Keyring(None)
Forward = Callable[[], Awaitable[None]]


class Gateway:
    """One OpenAI endpoint for all models of the routing table."""

    def __init__(
        self,
        pool: Pool,
        store: TableStore,
        picker: Picker,
        limits: Limits,
        *,
        metrics_apart: bool = False,
        keyring: Keyring = NO_KEYRING,
        credential: Credential | None = None,
        quotas: Quotas | None = None,
        files_model: str | None = None,
        files_claim: str | None = None,
        origins: Collection[str] = (),
        tracer: Tracer | None = None,
        access_log: AccessMode = "errors",
    ) -> None:
        """`metrics_apart`: this application does not serve /metrics; serve `operations` on another port.

        `keyring` authenticates requests. `credential` proves to runtimes that a request comes through this gateway.
        `quotas` are set if several gateways share the limits of keys. `files_model`: the model whose replicas keep
        files and batches; `files_claim`: the PersistentVolumeClaim (NAMESPACE/CLAIM) that holds them; None for what
        models declare. `origins`: origins of web pages that may use the API; `*` allows all. `tracer`: None if traces
        are off. `access_log`: which requests are logged.
        """
        self._store = store
        self._file_replicas = FileReplicas(picker, files_model, files_claim)
        self._picker = picker
        self._keyring = keyring
        self._credential = credential
        self._quotas = quotas or Quotas()
        self._cors = Cors(origins) if origins else None
        limits = limits.resolved()
        self._body_bytes = limits.body_bytes
        self._metrics = Metrics(store, keyring)
        self._reporter = RequestReporter(self._metrics, AccessLog(access_log), tracer)
        if tracer is not None:
            self.publish(tracer)
        self._demand = DemandCounters(store, picker.standing)
        self.operations = Operations(self._metrics, self._demand)
        self.connection_limit = ConnectionLimit(limits.connections, self._metrics)
        self._body_memory = BodyMemory(limits.held_bytes, self._metrics)
        self._time_slices = CpuTimeSlices()
        self._capacity = Capacity(store, picker)
        self._queue_limit = QueueLimit(limits.waiting, self._metrics, self._capacity.places)
        cold = ColdStarts(store, self._metrics)
        self._observer = ResponseObserver(self._metrics, self._demand, picker, self._capacity, cold)
        fair = max(1, limits.waiting // 2)  # the fair queue is full before the queue limit is reached
        self._queues = ModelQueues(self._capacity, fair, limits.wake_seconds, self._observer.held)
        self._hold_seconds = limits.hold_seconds
        self._affinity = ResponseAffinity(store)
        self._prober = Prober(partial(is_alive, pool), store, picker, self._metrics)
        self._proxy = ReplicaProxy(
            pool, store, self._affinity, picker, self._prober, self._observer, wake_seconds=limits.wake_seconds
        )
        self._cards = ModelCards(pool)
        self._own = OwnPaths(store, keyring, self._metrics, self._cards, metrics_apart=metrics_apart)
        self._running = Cancellations()
        store.listen(self._table_changed)

    def publish(self, collector: Collector) -> None:
        """Add the series of a collector to /metrics."""
        self._metrics.registry.register(collector)

    async def watch_replicas(self) -> None:
        """Probe replicas that requests wait for, and eject those that do not respond, until cancelled."""
        await self._prober.run()

    def drain(self) -> None:
        """Report unhealthy, so that load balancers choose other gateways; requests are still served."""
        self._own.drain()

    def cut(self) -> None:
        """End all running requests with an error."""
        self._running.cut_all(shutting_down)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one HTTP request. uvicorn is configured to send no other scopes."""
        headers, path = dict(scope["headers"]), path_of(scope)
        dialect = dialect_of(path, headers)
        stream = ResponseStream(send, request_id(headers.get(b"x-request-id")), dialect)
        if self._cors is not None:
            stream.extra = self._cors.fields(headers.get(b"origin"))
        record = RequestRecord() if path in OPEN else self._reporter.begin(headers)  # probes take no share of traces
        exchange = Exchange(scope, path, headers, receive, stream, record)
        token = SUBJECT.set(exchange.subject)
        try:
            await self._answer(exchange)
        except Refusal as refusal:
            exchange.code = dialect.status(refusal)  # if a stream has begun, the error is sent as an event
            await stream.fail(refusal)
        except ClientGone:
            if not stream.said_all:  # many clients disconnect as soon as they have read the last event
                exchange.code = CLIENT_GONE
        except Exception:
            log.exception("unexpected error")
            await stream.fail(internal_error())
        finally:
            self._reporter.ended(exchange, exchange.code or stream.status or CLIENT_GONE)
            SUBJECT.reset(token)

    async def _answer(self, exchange: Exchange) -> None:
        try:
            await self._lead(exchange)
        except Refusal:
            if not exchange.body_taken:
                await discard_unread(exchange.receive, exchange.headers)
            raise

    async def _lead(self, exchange: Exchange) -> None:
        """Dispatch a request by its path."""
        path = exchange.path
        check_host(exchange.scope)
        if self._cors is not None and is_preflight(exchange.scope["method"], exchange.headers):
            await exchange.stream.nothing(self._cors.preflight(exchange.headers))
        elif path in MODEL_PATHS:
            exchange.route = path
            exchange.allow("POST")
            await self._forward(exchange)
        elif (kept := kept_at(path)) is not None:
            exchange.route = "/v1/responses/{id}"
            exchange.allow(*kept.methods)
            await self._fetch(exchange, kept)
        elif (methods := filed_at(path)) is not None:
            exchange.route = BATCHES if path.startswith(BATCHES) else FILES
            exchange.allow(*methods)
            await self._file(exchange)
        elif path in self._own:
            await self._own.answer(exchange)
        else:
            raise unknown_path(path)

    async def _forward(self, exchange: Exchange) -> None:
        exchange.key = self._keyring.authenticate(exchange.headers)
        with (
            nullcontext() if exchange.key is None else self._quotas.admit(exchange.key) as reservation,
            await exchange.read_body(self._body_bytes, self._body_memory) as body,
        ):
            fields = await self._read_fields(exchange.path, body)
            exchange.model = exchange.logged(allowed_model(self._store.current, fields.model, exchange.key))
            if fields.place:  # refuse an unknown response before tokens are reserved and the request waits
                self._affinity.holders(exchange.model, fields.place)
            if reservation is not None:
                reservation.reserve(fields.tokens)
                exchange.stream.extra = [*exchange.stream.extra, *reservation.headers()]
            call = self._call(exchange, body, fields)
            exchange.record.streams = fields.streams
            exchange.record.phases.end("admit")
            with (
                self._demand.asking(exchange.model.key),
                self._metrics.of(exchange.model.key, self._metrics.in_flight).track_inprogress(),
                self._queue_limit.enter(exchange.model, fields.model) as ticket,
                self._running.hold(exchange.receive),
            ):
                comments = self._comments(exchange, fields)
                forward = partial(self._proxy.forward, call, exchange.stream, ticket, comments)
                if comments is None:
                    await self._in_turn(call, fields, reservation, exchange, forward)
                    return
                async with comments:
                    await self._in_turn(call, fields, reservation, exchange, forward)

    async def _fetch(self, exchange: Exchange, kept: Kept) -> None:
        """Forward a request to the replica that stores the response. That replica checks the owner."""
        exchange.key = self._keyring.authenticate(exchange.headers)
        model, replica = self._affinity.find(kept.response)
        exchange.model = exchange.logged(model)
        await self._ask_one(exchange, exchange.model, replica, with_body=False)

    async def _file(self, exchange: Exchange) -> None:
        """Forward a request about files or batches to any replica that keeps the key's files. That replica checks the
        owner.
        """
        exchange.key = self._keyring.authenticate(exchange.headers)
        model, replica = self._file_replicas.find(self._store.current, exchange.key)
        exchange.model = exchange.logged(model)
        posts = exchange.scope["method"] == "POST"
        if exchange.path == BATCHES and posts:
            check_batch(exchange.key)
        if exchange.path == FILES and posts:
            exchange.body_taken = True
            fields = RequestFields(exchange.model.served_names[0])
            upload = Upload(exchange.receive, exchange.headers, self._body_bytes[FILES])
            await upload.check()
            with Body(self._body_memory) as body:
                call = msgspec.structs.replace(self._call(exchange, body, fields), upload=upload)
                try:
                    with self._running.hold(upload.behind):
                        await self._proxy.fetch(call, exchange.model, replica, exchange.stream)
                except Refusal:
                    await upload.discard()
                    raise
            return
        await self._ask_one(exchange, exchange.model, replica)

    async def _ask_one(self, exchange: Exchange, model: Model, replica: Replica, *, with_body: bool = True) -> None:
        """Forward a request to this replica only. Without `with_body`, the body is read and discarded."""
        with await exchange.read_body(self._body_bytes, self._body_memory) as body:
            if not with_body:
                body.drop()
            call = self._call(exchange, body, RequestFields(model.served_names[0]))
            with self._running.hold(exchange.receive):
                await self._proxy.fetch(call, model, replica, exchange.stream)

    async def _in_turn(
        self,
        call: Call,
        fields: RequestFields,
        reservation: Reservation | None,
        exchange: Exchange,
        forward: Forward,
    ) -> None:
        """Run `forward` after the model's queue has admitted the request, and record the tokens that it used."""
        model, key = exchange.model, exchange.key
        assert model is not None
        if model.wakes and not model.ready_for(fields.model):
            exchange.record.reasons[TURN] = why_unready(model)
        if key is None or reservation is None or call.meter is None:
            async with self._queues.enter(model.key, fields.model, None, fields.tokens):
                exchange.record.phases.end(TURN)
                await forward()
            return
        came = time.monotonic()
        share = Share(key.name, key.limits.priority, key.limits.weight)
        async with self._queues.enter(model.key, fields.model, share, fields.tokens) as turn:
            exchange.record.phases.end(TURN)
            self._metrics.of(model.key, self._metrics.turn).observe(time.monotonic() - came)
            try:
                await forward()
            except Refusal:
                call.meter.failed()
                raise
            finally:
                if call.meter.sent:
                    reservation.begin()
                tokens = call.meter.tokens()
                turn.cost = tokens
                reservation.used(tokens)
                self._metrics.key_used(key.name, tokens)

    def _comments(self, exchange: Exchange, fields: RequestFields) -> KeepaliveComments | None:
        """Return keep-alive comments for a streaming request whose model may have to wake, else None.

        Their timer starts now if the model has no ready replica, or is in a pool: there, a ready replica may have to
        wake it.
        """
        model = exchange.model
        assert model is not None
        if not (fields.streams and model.wakes):
            return None
        comments = KeepaliveComments(exchange.stream, self._hold_seconds)
        if model.pooled or not model.ready_for(fields.model):
            comments.arm()
        return comments

    def _call(self, exchange: Exchange, body: Body, fields: RequestFields) -> Call:
        key, credential = exchange.key, self._credential
        tenant = "" if key is None else key.tenant
        root = b"\0".join([fields.model.encode(), tenant.encode(), fields.salt])
        return Call(
            path=exchange.path,
            query=quote(query, safe="=&%+:/?@!$'()*,;-._~") if (query := exchange.scope["query_string"]) else "",
            headers=exchange.scope["headers"],
            body=body,
            record=exchange.record,
            request_id=exchange.stream.request_id,
            model_name=fields.model,
            hints=RoutingHints(prefix_blocks(root, fields.prefix, fields.hint)),
            key=key,
            voucher=None if key is None else Voucher(tenant, credential.current if credential else None),
            meter=None if key is None else Meter(fields.tokens if fields.runs_on else fields.prompt_tokens),
            came=exchange.came,
            method=exchange.scope["method"],
            place=fields.place,
        )

    async def _read_fields(self, path: str, body: Body) -> RequestFields:
        if len(body) <= SMALL_BYTES:
            return read_fields(path, body.view)
        return await self._time_slices.take(lambda: read_fields(path, body.view))

    def _table_changed(self, table: RoutingTable) -> None:
        known = {replica.id for model in table.models for replica in model.replicas}
        self._picker.loads.keep(known)
        self._cards.keep(known)
        self._observer.keep(known)
        self._file_replicas.note(table)
        self._queues.wake()
