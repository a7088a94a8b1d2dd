"""KEDA and a plain HorizontalPodAutoscaler scale ModelDeployments by their scale subresource.

KEDA, the autoscaler, the API server and the operator are real; only Prometheus, which serves the number of waiting
requests, is a stub. Without KEDA, which `python3 e2e/cluster keda` builds, the tests are skipped.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from chart_support.helm import NoHelmError
from operator_support.apiserver import ADMIN, FIRST, ApiServer, Missing, find_programs, free_port, until
from operator_support.direct import Direct
from operator_support.installed import install
from operator_support.keda import (
    Prometheus,
    autoscaler,
    find_keda,
    make_certificates,
    running_keda,
    scaled_by,
    scaled_object,
    serving_prometheus,
)
from operator_support.objects import Json
from operator_support.process import lease, running_operator
from operator_support.stub_gateway import StubGateway, serving

from plimsoll_operator.spec.identity import ObjectKey

SECONDS = 120.0
TEAM = "team"
SCALED = f"/apis/keda.sh/v1alpha1/namespaces/{TEAM}/scaledobjects"
AUTOSCALERS = f"/apis/autoscaling/v2/namespaces/{TEAM}/horizontalpodautoscalers"


@contextmanager
def running(folder: Path, *options: str) -> Iterator[Direct]:
    """Run operator, KEDA and autoscaler on an own API server, and yield requests in their namespace."""
    try:
        programs, keda = find_programs(), find_keda()
        certificates = make_certificates(folder / "certificates")
        with ApiServer(programs, folder, more=certificates.flags) as server:
            install(server)
            with (
                Direct(server.url, ADMIN, TEAM) as admin,
                lease(admin),
                running_operator(server, FIRST, folder, namespace=TEAM, more=options),
                running_keda(server, keda, certificates),
            ):
                admin.ask("POST", "/api/v1/namespaces", {"metadata": {"name": TEAM}})
                yield admin
    except (Missing, NoHelmError) as missing:
        pytest.skip(str(missing))


@pytest.fixture
def direct(tmp_path: Path) -> Iterator[Direct]:
    with running(tmp_path) as found:
        yield found


@pytest.fixture
def prometheus() -> Iterator[Prometheus]:
    with serving_prometheus() as found:
        yield found


@pytest.mark.timeout(900)
def test_from_zero_by_keda_and_by_a_plain_autoscaler_through_it(direct: Direct, prometheus: Prometheus) -> None:
    for name, replicas in (("sleeper", 0), ("server", 1), ("stopped", 0)):
        direct.create_model(name, {"model": {"source": "demo://gemma-3-270m"}, "replicas": replicas})
    assert until(lambda: all(_status(direct, name) for name in ("sleeper", "server", "stopped")), SECONDS)
    direct.ask("POST", SCALED, scaled_object("sleeper", prometheus))
    assert until(lambda: bool(_metrics(direct)), SECONDS), "KEDA takes up the ScaledObject"
    (metric,) = _metrics(direct)
    for name in ("server", "stopped"):
        direct.ask("POST", AUTOSCALERS, autoscaler(name, metric, scaled="sleeper"))
    assert until(lambda: len(prometheus.asked) >= 3, SECONDS)
    assert _wanted(direct, "sleeper") == 0, "nobody asks for it"

    prometheus.value = 6.0
    assert until(lambda: _wanted(direct, "sleeper") == 3, SECONDS), "two requests a replica"
    assert until(lambda: _status(direct, "sleeper").get("replicas") == 3, SECONDS), "the operator makes them"
    assert until(lambda: _wanted(direct, "server") == 3, SECONDS)
    assert until(lambda: _active(direct, "stopped") == ("False", "ScalingDisabled"), SECONDS)
    assert _wanted(direct, "stopped") == 0, "an autoscaler wakes nothing from zero"

    prometheus.value = 0.0
    assert until(lambda: _wanted(direct, "sleeper") == 0, SECONDS), "and to zero again"
    assert until(lambda: _wanted(direct, "server") == 1, SECONDS), "the least that an autoscaler leaves"


@pytest.mark.timeout(900)
def test_a_request_wakes_a_model_by_the_external_scaler_which_need_not_be_asked(tmp_path: Path) -> None:
    """KEDA polls once an hour, so only a push can wake the model. The autoscaler polls by itself."""
    gateway, key, scaler = StubGateway(now=time.time), ObjectKey(TEAM, "sleeper"), free_port()
    metadata = {"scalerAddress": f"127.0.0.1:{scaler}", "target": "2"}
    trigger: Json = {"type": "external-push", "metadata": metadata}
    with (
        serving(gateway) as (port, do),
        running(tmp_path, "--gateways", f"127.0.0.1:{port}", "--external-scaler-port", str(scaler)) as direct,
    ):
        direct.create_model("sleeper", {"model": {"source": "demo://gemma-3-270m"}, "replicas": 0})
        direct.ask("POST", SCALED, scaled_by("sleeper", trigger, pollingInterval=3600))
        assert until(lambda: bool(_metrics(direct)), SECONDS), "KEDA takes up the ScaledObject"
        assert _wanted(direct, "sleeper") == 0, "nobody asks for it"
        do(gateway.hold, key, 6)
        assert until(lambda: _wanted(direct, "sleeper") == 3, SECONDS), "two requests a replica"
        do(gateway.let_go, key)
        do(gateway.end, key, 4)
        assert until(lambda: _wanted(direct, "sleeper") == 1, SECONDS)


def _status(direct: Direct, name: str) -> Json:
    found: Json = direct.model(name).get("status", {})
    return found


def _wanted(direct: Direct, name: str) -> int:
    return int(direct.model(name)["spec"]["replicas"])


def _metrics(direct: Direct) -> list[str]:
    found: list[str] = direct.ask("GET", f"{SCALED}/sleeper").get("status", {}).get("externalMetricNames", [])
    return found


def _active(direct: Direct, name: str) -> tuple[str, str]:
    conditions = direct.ask("GET", f"{AUTOSCALERS}/{name}").get("status", {}).get("conditions", ())
    return next(((c["status"], c["reason"]) for c in conditions if c["type"] == "ScalingActive"), ("", ""))
