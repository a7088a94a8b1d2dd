"""Alerts of the chart fire at real faults, reach the receiver of a real Alertmanager, and end; no others do.

A gateway, two servers, a host, and an operator on a real API server are scraped by a real Prometheus. It evaluates the
chart's rules with all times divided by 60: what takes five minutes takes five seconds. Without the programs, which
`python3 e2e/cluster telemetry` and `make cluster` fetch and build, the tests are skipped.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from chart_support.helm import NoHelmError
from operator_support.apiserver import ADMIN, FIRST, ApiServer, Missing, find_programs, free_port, until
from operator_support.direct import Direct
from operator_support.installed import install
from operator_support.process import Running, lease, running_operator
from telemetry_support.alerting import Notices, Target, alerting
from telemetry_support.collectors import Received, http_collector
from telemetry_support.load import loading
from telemetry_support.plant import COMMON
from telemetry_support.quick_rules import quickened, rendered_rules
from telemetry_support.restartable import Restartable
from telemetry_support.tools import LOCAL, MissingToolError, program

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

REPO = Path(__file__).parents[3]
FACTOR = 60
SECONDS = 120.0
LIMITS = {"overdueDrainSeconds": 1, "evictionsPerHalfHour": 5, "kvUsage": 0.9}
"""Limits that the shorter windows do not scale. In a small KV cache, what one sequence leaves is a larger share."""
SYSTEM, TEAM, STEADY, BUSY, SHARED = "plimsoll-system", "team", "steady", "busy", "shared"
OBJECTIVES = {"availability": "95%", "ttftMilliseconds": 250, "ttftShare": "95%"}
CPU = ("--threads", "1", "--dtype", "float32", "--max-model-len", "512")
FEW_SLOTS = ("--max-sequences", "2", "--kv-memory", "16MiB")
FEW_BLOCKS = ("--max-sequences", "128", "--kv-memory", "128MiB", "--max-model-len", "1024", "--no-prefix-caching")
ONE_AWAKE = ("--line", "2150MiB", "--sleepers", "64MiB", "--minimum-residency", "0.1", "--service-slice", "0.1")
"""Two KV caches of 1 GiB never fit below the line; one does with up to 1 GiB of the host itself."""
WARNING, CRITICAL = {"severity": "warning"}, {"severity": "critical"}


def alert(name: str, severity: Mapping[str, str], /, **labels: str) -> dict[str, str]:
    """Return the labels of an alert."""
    return {"alertname": f"Plimsoll{name}", **severity, **labels}


@dataclass
class Scene:
    """One fault, from no alert to no alert."""

    notices: Notices
    before: int

    def are_firing(self, *alerts: Mapping[str, str]) -> bool:
        """Return whether all of these fire, with exactly these labels."""
        firing = self.notices.firing()
        return all(each in firing for each in alerts)

    def await_firing(self, *alerts: Mapping[str, str]) -> None:
        """Wait until all of these fire."""
        assert until(lambda: self.are_firing(*alerts), SECONDS), self._words(*alerts)

    def await_end(self, *alerts: Mapping[str, str]) -> None:
        """Wait until none of these fires; by default, until no alert at all does."""

        def over() -> bool:
            firing = self.notices.firing()
            return not any(each in firing for each in alerts) if alerts else not firing

        assert until(over, SECONDS), self._words()

    def check(self, *names: str) -> None:
        """Check that no alert but these fired, and that each one names an existing page."""
        seen = [each for each in self.notices.all()[self.before :] if each.status == "firing"]
        assert {each.name for each in seen} <= {f"Plimsoll{name}" for name in names}, seen
        for each in seen:
            assert each.runbook == f"docs/operations/runbooks/{each.name}.md"
            assert (REPO / each.runbook).is_file()

    def _words(self, *missing: Mapping[str, str]) -> str:
        return f"missing: {missing}; firing: {self.notices.firing()}; all: {self.notices.all()[self.before :]}"


@dataclass
class Operator:
    """An operator process that can be killed and started again."""

    server: ApiServer
    folder: Path
    port: int = field(default_factory=free_port)
    stack: ExitStack = field(default_factory=ExitStack)

    def start(self) -> Running:
        """Start it."""
        running = running_operator(self.server, FIRST, self.folder, namespace=TEAM, port=self.port)
        return self.stack.enter_context(running)

    def start_leading(self) -> None:
        """Start it, and wait until it holds the Lease."""
        running = self.start()
        assert until(lambda: running.metric("plimsoll_operator_leader") == 1.0)

    def kill(self) -> None:
        """Kill it."""
        self.stack.close()


@dataclass(frozen=True)
class Site:
    """Everything that is scraped. `direct` acts as administrator and kubelet in the models' namespace."""

    gateway: Restartable
    steady: Restartable
    busy: Restartable
    host: Restartable
    operator: Operator
    direct: Direct
    collector: Received
    notices: Notices

    @contextmanager
    def scene(self, *explained: str) -> Iterator[Scene]:
        """Begin when no alert fires; afterwards check that only the `explained` ones fired and that all have ended."""
        assert until(lambda: not self.notices.firing(), SECONDS), self.notices.firing()
        scene = Scene(self.notices, len(self.notices.all()))
        yield scene
        scene.await_end()
        scene.check(*explained)


def serving(model: Path, folder: Path, name: str, collector: Received, *options: str) -> Restartable:
    """Return a server of a replica of team/NAME."""
    port = free_port()
    argv: list[str | Path] = [sys.executable, "-m", "plimsoll_runtime", "serve", model, "--name", name]
    argv += ["--deployment", f"{TEAM}/{name}", "--host", LOCAL, "--port", str(port), *CPU, *options]
    environment = COMMON | {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint}
    return Restartable(f"{name}-0", argv, environment, folder, f"http://{LOCAL}:{port}")


def hosting(model: Path, folder: Path) -> Restartable:
    """Return a host of two models of which one can be awake."""
    runtime = {"kvMemory": "1GiB", "maxModelLen": 512, "dtype": "float32", "threads": 1}
    spec = {"model": {"source": f"file://{model}"}, "runtime": runtime}
    kind = {"apiVersion": "plimsoll.dev/v1alpha1", "kind": "ModelDeployment"}
    documents = [kind | {"metadata": {"namespace": TEAM, "name": name}, "spec": spec} for name in ("one", "two")]
    manifest, port = folder / "models.yaml", free_port()
    manifest.write_text("\n---\n".join(map(json.dumps, documents)))
    argv: list[str | Path] = [sys.executable, "-m", "plimsoll_runtime", "host", "--models", manifest]
    argv += ["--host", LOCAL, "--port", str(port), "--host-port", "0", *ONE_AWAKE]
    environment = {"PLIMSOLL_CACHE": str(folder / "cache")}
    return Restartable(f"{SHARED}-0", argv, environment, folder, f"http://{LOCAL}:{port}")


def routing(folder: Path, metrics: int, collector: Received, *replicas: Restartable) -> Restartable:
    """Return a gateway before one replica of each model."""
    table, port = folder / "table.json", free_port()
    models = [
        {
            "namespace": TEAM,
            "name": (name := replica.name.partition("-")[0]),
            "servedNames": [name],
            "created": "2026-01-01T00:00:00Z",
            "message": "",
            "objectives": OBJECTIVES if name == STEADY else {},
            "replicas": [{"id": replica.name, "url": replica.url, "ready": True}],
        }
        for replica in replicas
    ]
    table.write_text(json.dumps({"models": models}))
    argv: list[str | Path] = [sys.executable, "-m", "plimsoll_gateway", "--table", table, "--host", LOCAL]
    argv += ["--port", str(port), "--metrics-port", str(metrics), "--wake-seconds", "1"]
    environment = COMMON | {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint}
    return Restartable("gateway-0", argv, environment, folder, f"http://{LOCAL}:{port}")


@contextmanager
def operated(folder: Path) -> Iterator[tuple[Operator, Direct]]:
    """Run an API server with the chart's definitions, and an operator that leads."""
    folder.mkdir()
    with ExitStack() as stack:
        server = stack.enter_context(ApiServer(find_programs(), folder))
        install(server)
        direct = stack.enter_context(Direct(server.url, ADMIN, TEAM))
        direct.ask("POST", "/api/v1/namespaces", {"metadata": {"name": TEAM}})
        stack.enter_context(lease(direct))
        operator = Operator(server, folder)
        stack.callback(operator.kill)
        operator.start_leading()
        yield operator, direct


@pytest.fixture(scope="module")
def site(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    try:
        program("prometheus-alertmanager")
        rules = quickened(rendered_rules(LIMITS), FACTOR)
        with ExitStack() as stack:
            collector = stack.enter_context(http_collector())
            steady = serving(model, folder, STEADY, collector, *FEW_SLOTS)
            busy = serving(model, folder, BUSY, collector, *FEW_BLOCKS)
            host, metrics = hosting(model, folder), free_port()
            gateway = routing(folder, metrics, collector, steady, busy)
            programs = (steady, busy, host, gateway)
            for each in programs:
                stack.enter_context(each).start()
            operator, direct = stack.enter_context(operated(folder / "cluster"))
            for each in programs:
                each.await_ready()
            targets = [
                *(Target(f"{each.url}/metrics", TEAM, each.name) for each in (steady, busy)),
                Target(f"{host.url}/metrics", TEAM, host.name),
                Target(f"http://{LOCAL}:{metrics}/metrics", SYSTEM, gateway.name),
                Target(f"http://{LOCAL}:{operator.port}/metrics", SYSTEM, "operator-0"),
            ]
            notices = stack.enter_context(alerting(folder, rules, targets))
            yield Site(gateway, steady, busy, host, operator, direct, collector, notices)
    except (MissingToolError, Missing, NoHelmError) as missing:
        pytest.skip(str(missing))


def body(model: str, tokens: int, *, words: int = 4, stream: bool = False) -> dict[str, Any]:
    """Return a request for a completion of this many tokens."""
    prompt = " ".join(f"w{number + 3}" for number in range(words))
    return {"model": model, "prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "stream": stream}


def dilute(site: Site, scene: Scene, *bodies: dict[str, Any]) -> None:
    """Send good requests until no alert fires, and as many again: slow alerts on burn rates end by their share."""
    with loading(site.gateway.url) as load:
        for each in bodies:
            load.add(6, each)
        scene.await_end()
        enough = 2 * load.statuses[200]
        assert until(lambda: load.statuses[200] >= enough, SECONDS)
    assert load.statuses.keys() <= {200}


def test_an_engine_is_killed(site: Site) -> None:
    dead = alert("EngineDead", CRITICAL, namespace=TEAM, model=STEADY, pod="steady-0")
    burn = alert("AvailabilityBurn", CRITICAL, namespace=TEAM, model=STEADY, objective="availability")
    with site.scene("EngineDead", "AvailabilityBurn") as scene:
        with loading(site.gateway.url) as load:
            load.add(3, body(STEADY, 1), pause=0.7)
            assert until(lambda: load.statuses[200] > 10, SECONDS)
            site.steady.part("").engine().kill()
            assert until(lambda: site.steady.process.poll() is not None, SECONDS), "its container ends with it"
            scene.await_firing(dead, burn)
        site.steady.kill()
        site.steady.start()
        site.steady.await_ready()
        scene.await_end(dead)
        dilute(site, scene, body(STEADY, 1))


def test_an_engine_dies_again_and_again(site: Site) -> None:
    restarting = alert("EngineRestarting", WARNING, namespace=TEAM, pod="steady-0")
    with site.scene("EngineRestarting", "EngineDead") as scene:
        for _ in range(3):
            site.steady.part("").engine().kill()
            assert until(lambda: site.steady.process.poll() is not None, SECONDS)
            site.steady.kill()
            site.steady.start()
            site.steady.await_ready()
        scene.await_firing(restarting)


def test_a_queue_grows(site: Site) -> None:
    growing = alert("QueueGrowing", WARNING, namespace=TEAM, model=STEADY)
    late = alert("FirstTokenBurn", CRITICAL, namespace=TEAM, model=STEADY, objective="first_token")
    with site.scene("QueueGrowing", "FirstTokenBurn") as scene:
        with loading(site.gateway.url) as load:
            load.add(20, body(STEADY, 100))
            load.add(4, body(STEADY, 100, stream=True))
            ends = time.monotonic() + SECONDS
            while not scene.are_firing(growing, late) and time.monotonic() < ends:
                load.add(1, body(STEADY, 100))
                time.sleep(1)
            scene.await_firing(growing, late)
        dilute(site, scene, body(STEADY, 2, stream=True))


def test_the_kv_cache_is_full(site: Site) -> None:
    full = alert("KvExhausted", WARNING, namespace=TEAM, model=BUSY, pod="busy-0")
    twice = alert("PreemptionsFrequent", WARNING, namespace=TEAM, model=BUSY)
    with site.scene("KvExhausted", "PreemptionsFrequent", "QueueGrowing") as scene:
        with loading(site.gateway.url) as load:
            for client in range(110):  # long answers, of different lengths, so that few end at a time
                load.add(1, body(BUSY, 500 + client % 12 * 18, words=300))
            scene.await_firing(full, twice)
        scene.await_end()


def test_a_collector_refuses(site: Site) -> None:
    with site.scene("TracesDropped") as scene:
        with loading(site.gateway.url) as load:
            load.add(2, body(BUSY, 1), pause=0.2)
            site.collector.code = 500
            scene.await_firing(
                alert("TracesDropped", WARNING, namespace=TEAM, pod="busy-0"),
                alert("TracesDropped", WARNING, namespace=SYSTEM, pod="gateway-0"),
            )
            site.collector.code = 200
            scene.await_end()
        assert load.statuses.keys() == {200}


def test_models_are_swapped_too_often(site: Site) -> None:
    thrashing = alert("ModelsThrashing", WARNING, namespace=TEAM, pod=f"{SHARED}-0")
    with site.scene("ModelsThrashing") as scene:
        with loading(site.host.url) as load:
            for name in ("one", "two"):
                load.add(1, body(name, 1))
            scene.await_firing(thrashing)
        scene.await_end()


def test_no_gateway(site: Site) -> None:
    with site.scene("GatewayAbsent") as scene:
        site.gateway.kill()
        scene.await_firing(alert("GatewayAbsent", CRITICAL))
        site.gateway.start()
        site.gateway.await_ready()
        scene.await_end()


def test_no_operator_leads(site: Site) -> None:
    with site.scene("OperatorLeaderless") as scene:
        site.operator.kill()
        scene.await_firing(alert("OperatorLeaderless", CRITICAL))
        site.operator.start_leading()
        scene.await_end()


@pytest.fixture
def deployed(site: Site) -> Iterator[Callable[[str], None]]:
    """Create ModelDeployments, and delete them afterwards."""
    names: list[str] = []

    def create(name: str) -> None:
        site.direct.create_model(name, {"model": {"source": "demo://gemma-3-270m"}})
        names.append(name)
        assert until(lambda: len(site.direct.pods(name)) == 1, SECONDS)

    yield create
    for name in names:
        site.direct.delete_model(name)
        for pod in site.direct.pods(name):
            site.direct.end(pod)


def ready(site: Site, name: str) -> bool:
    """Start the pods of a model that are not deleted, like a kubelet; return whether its replica is ready."""
    for pod in site.direct.pods(name):
        if "deletionTimestamp" not in pod["metadata"] and not pod["status"].get("podIP"):
            site.direct.bind(pod)
            site.direct.report(pod, {"running": {}}, ready=True)
    return bool(site.direct.model(name).get("status", {}).get("readyReplicas") == 1)


def test_a_replica_is_missing(site: Site, deployed: Callable[[str], None]) -> None:
    with site.scene("ReplicasMissing") as scene:
        deployed("spare")
        scene.await_firing(alert("ReplicasMissing", WARNING, namespace=TEAM, model="spare"))
        assert until(lambda: ready(site, "spare"), SECONDS)
        scene.await_end()


def test_a_drain_is_stuck(site: Site, deployed: Callable[[str], None]) -> None:
    stuck = alert("DrainStuck", WARNING, namespace=TEAM, kind="ModelDeployment", name="leaving")
    with site.scene("DrainStuck") as scene:
        deployed("leaving")
        assert until(lambda: ready(site, "leaving"), SECONDS)
        (pod,) = site.direct.pods("leaving")
        path = f"/api/v1/namespaces/{TEAM}/pods/{pod['metadata']['name']}"
        site.direct.ask("DELETE", path, {"gracePeriodSeconds": 1})
        assert until(lambda: len(site.direct.pods("leaving")) == 2, SECONDS)
        assert until(lambda: ready(site, "leaving"), SECONDS)
        scene.await_firing(stuck)
        site.direct.end(pod)
        scene.await_end()
