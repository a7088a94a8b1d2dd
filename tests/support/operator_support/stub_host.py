"""A host that implements the host API over states and bytes alone, and misbehaves on request.

`StubHost` is the host, `StubClient` calls it directly, `serve` puts it behind real HTTP.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
from aiohttp import web

from plimsoll_operator.pools.hosts.client import HostClient, HostError
from plimsoll_operator.pools.hosts.report import ON_DEVICE, Report, decode_report
from plimsoll_operator.spec.identity import ObjectKey

MIB = 2**20
Json = dict[str, Any]


@dataclass
class StubModel:
    """A model on the host. `wish` is the level that it is changing to, "" after that, "gone" for a removal."""

    spec: Json
    state: str
    since: float
    wish: str = ""
    why: str = "placed"
    error: str | None = None
    active: int = 0
    waiting: int = 0
    last_used: float | None = None


@dataclass
class StubHost:
    """Models take `size` bytes each, or the bytes in `sizes` by name. `slow`: changes end when `proceed` is called."""

    instance: str = "i1"
    capacity: int = 1024 * MIB
    sleepers: int = 512 * MIB
    reserved: int = 0
    size: int = 100 * MIB
    sizes: dict[str, int] = field(default_factory=dict)
    slow: bool = False
    dead: bool = False
    now: float = 1767225600.0
    sequence: int = 0
    models: dict[ObjectKey, StubModel] = field(default_factory=dict)
    loads: list[ObjectKey] = field(default_factory=list)
    operations: dict[str, tuple[str, Any]] = field(default_factory=dict)
    decisions: list[Json] = field(default_factory=list)
    refusals: dict[str, str] = field(default_factory=dict)
    lie: Callable[[Json], Json] = lambda report: report
    tokens: frozenset[str] | None = None

    def report(self) -> Report:
        """Return the report. Raise HostError if the host is dead, BadReportError for a report that is not valid."""
        if self.dead:
            raise HostError(None, "it is not reachable")
        return decode_report(json.dumps(self.lie(self.body())).encode())

    def body(self) -> Json:
        """Return the report as JSON."""
        models = [self._entry(key, model) for key, model in sorted(self.models.items())]
        line = self.capacity * 9 // 10
        used = self.reserved + sum(entry["weights"] for entry in models)
        device = {"kind": "cpu", "name": "stub", "capacity": self.capacity, "line": line, "reserved": self.reserved}
        device |= {"used": used, "free": line - used, "pressure": "none"}
        asleep = sum(entry["hostBytes"] for entry in models)
        return {
            "instance": self.instance,
            "sequence": self.sequence,
            "time": self.now,
            "device": device,
            "sleepers": {"capacity": self.sleepers, "used": asleep},
            "models": models,
            "decisions": self.decisions[-64:],
        }

    def restart(self, instance: str) -> None:
        """Replace the process by an empty one."""
        self.instance, self.sequence, self.dead = instance, 0, False
        self.models.clear()
        self.operations.clear()
        self.decisions.clear()

    def change(self, verb: str, key: ObjectKey, body: Mapping[str, Any]) -> tuple[int, Any]:
        """Execute a change of the API; return status and response. Raise HostError."""
        if self.dead:
            raise HostError(None, "it is not reachable")
        content = json.dumps([verb, str(key), body], sort_keys=True)
        known = self.operations.get(body["operation"])
        if known is not None:
            if known[0] != content:
                raise HostError(409, "it answered 409: another content")
            return self._answer(key, body)
        if verb != "place" and key not in self.models:
            raise HostError(404, f"it answered 404: {key} is not placed")
        if verb == "place" and key.name in self.refusals:
            raise HostError(507, f"it answered 507: {self.refusals[key.name]}")
        self.operations[body["operation"]] = (content, None)
        getattr(self, f"_{verb}")(key, body)
        if not self.slow:
            self.proceed()
        return self._answer(key, body)

    def proceed(self) -> None:
        """End running operations."""
        for key, model in list(self.models.items()):
            if model.wish == "gone":
                del self.models[key]
                self.sequence += 1
            elif model.wish:
                self.become(key, model.wish, model.why)

    def use(self, key: ObjectKey) -> None:
        """Add a request for a model, which wakes it."""
        model = self.models[key]
        model.last_used = self.now
        if model.state != "Resident":
            self.become(key, "Resident", "woken for a request")
            self.decide(key, "Woken", "woken for a request")

    def become(self, key: ObjectKey, level: str, why: str) -> None:
        """Set the level of a model."""
        model = self.models[key]
        model.state, model.wish, model.since, model.why, model.error = level, "", self.now, why, None
        self.sequence += 1

    def decide(self, key: ObjectKey, action: str, why: str) -> None:
        """Record a decision of the host."""
        self.sequence += 1
        self.decisions.append(
            {"sequence": self.sequence, "time": self.now, "namespace": key.namespace, "name": key.name}
            | {"action": action, "why": why}
        )

    def fits(self, key: ObjectKey) -> bool:
        """Return whether one more model can be awake."""
        return self._awake() + self._size_of(key) <= self.capacity * 9 // 10

    def check_integrity(self) -> None:
        """Raise AssertionError if the host holds more than its capacity."""
        awake = [model for model in self.models.values() if model.state in ("Resident", "Waking", "Draining")]
        assert sum(self._size(model) for model in awake) <= self.capacity

    def _place(self, key: ObjectKey, body: Mapping[str, Any]) -> None:
        known, spec = self.models.get(key), dict(body["spec"])
        same = known is not None and known.spec["revision"] == spec["revision"]
        if known is not None and same and known.wish != "gone" and known.state != "Absent":
            return
        self.loads.append(key)
        level = body["level"]
        if level == "Resident" and not self.fits(key):
            level = "OnDisk"  # The host itself decides which models are awake.
        error = known.error if known is not None and same else None  # until the next try is better
        self.models[key] = StubModel(spec, "Fetching", self.now, wish=level, error=error)
        self.sequence += 1

    def _remove(self, key: ObjectKey, body: Mapping[str, Any]) -> None:
        self.models[key].wish = "gone"
        self.models[key].state = "Draining"
        self.sequence += 1

    def _wake(self, key: ObjectKey, body: Mapping[str, Any]) -> None:
        self._go(key, "Resident", "asked to wake")

    def _sleep(self, key: ObjectKey, body: Mapping[str, Any]) -> None:
        self._go(key, body["level"], "asked to sleep")

    def _pin(self, key: ObjectKey, body: Mapping[str, Any]) -> None:
        self.models[key].spec |= {name: body[name] for name in ("pinned", "weight", "priority")}
        self.sequence += 1

    def _go(self, key: ObjectKey, level: str, why: str) -> None:
        model = self.models[key]
        if model.state != level:
            model.state, model.wish, model.why = ("Waking" if level == "Resident" else "Draining"), level, why
            self.sequence += 1

    def _answer(self, key: ObjectKey, body: Mapping[str, Any]) -> tuple[int, Any]:
        model = self.models.get(key)
        if model is None:
            return 200, None
        return (202 if model.wish else 200), self._entry(key, model)

    def _awake(self) -> int:
        return sum(self._size_of(key) for key, model in self.models.items() if model.state in ("Resident", "Waking"))

    def _size_of(self, key: ObjectKey) -> int:
        return self.sizes.get(key.name, self.size)

    def _size(self, model: StubModel) -> int:
        return next(self._size_of(key) for key, found in self.models.items() if found is model)

    def _needs(self, key: ObjectKey, model: StubModel) -> Json | None:
        """Return the needs of a model, which are known once its files are fetched."""
        if model.state in ("Absent", "Fetching"):
            return None
        size = self._size_of(key)
        return {"weights": size, "workspace": 0, "kv": 0, "image": size}

    def _entry(self, key: ObjectKey, model: StubModel) -> Json:
        return {
            "namespace": key.namespace,
            "name": key.name,
            "revision": model.spec["revision"],
            "servedNames": model.spec["servedNames"],
            "state": model.state,
            "since": model.since,
            "why": model.why,
            "weights": self._size_of(key) if model.state in ON_DEVICE else 0,
            "workspace": 0,
            "kv": 0,
            "hostBytes": self._size_of(key) if model.state == "InHost" else 0,
            "needs": self._needs(key, model),
            "active": model.active,
            "waiting": model.waiting,
            "rate": 0.0,
            "lastUsed": model.last_used,
            "value": 1.0,
            "loadSeconds": 1.0,
            "wakeSeconds": 0.1,
            "loads": self.loads.count(key),
            "wakes": 0,
            "loadingSeconds": float(self.loads.count(key)),
            "pinned": model.spec["pinned"],
            "weight": model.spec["weight"],
            "priority": model.spec["priority"],
            "error": model.error,
        }


class StubClient(HostClient):
    """Calls a host without HTTP. `before` is called at each change, because a process may end there."""

    def __init__(self, host: StubHost, before: Callable[[], None] = lambda: None) -> None:
        self._host = host
        self._before = before

    async def report(self, after: int, wait: float = 0.0) -> Report:
        return self._host.report()

    async def _change(self, method: str, model: ObjectKey, verb: str, body: Mapping[str, Any]) -> bool:
        name = {"PUT": "place", "DELETE": "remove"}.get(method) or verb.strip("/")
        status, _ = self._host.change(name, model, body)
        self._before()
        return status == 200


@asynccontextmanager
async def serve(host: StubHost, address: str = "127.0.0.1", port: int = 0) -> AsyncIterator[str]:
    """Serve the host over HTTP on loopback; yield its URL."""

    def refused(request: web.Request) -> web.Response | None:
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if host.tokens is not None and hashlib.sha256(token.encode()).hexdigest() not in host.tokens:
            return web.json_response({"error": {"code": "unauthorized", "message": "no such token"}}, status=401)
        return None

    async def report(request: web.Request) -> web.Response:
        if (answer := refused(request)) is not None:
            return answer
        if host.dead:
            request.transport.close()  # type: ignore[union-attr]
            return web.Response()
        return web.json_response(host.lie(host.body()))

    async def change(request: web.Request) -> web.Response:
        if (answer := refused(request)) is not None:
            return answer
        key = ObjectKey(request.match_info["namespace"], request.match_info["name"])
        verb = {"PUT": "place", "DELETE": "remove"}.get(request.method) or request.match_info["verb"]
        body = msgspec.json.decode(await request.read())
        try:
            status, found = host.change(verb, key, body)
        except HostError as error:
            words = str(error).partition(": ")[2]
            return web.json_response({"error": {"code": "refused", "message": words}}, status=error.code or 500)
        return web.json_response(found, status=status)

    app = web.Application()
    path = "/host/v1/models/{namespace}/{name}"
    app.add_routes([web.get("/host/v1/report", report), web.put(path, change), web.delete(path, change)])
    app.add_routes([web.post(f"{path}/{{verb}}", change)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, address, port)
        await site.start()
        yield f"http://{address}:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
