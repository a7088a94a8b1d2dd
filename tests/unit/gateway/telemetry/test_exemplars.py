"""Trace ids of sampled requests as exemplars of the gateway's latencies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from plimsoll_telemetry.exporters import start_tracer
from plimsoll_telemetry.settings import TracingSettings

if TYPE_CHECKING:
    from tests.unit.gateway.conftest import Behaviour

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SETTINGS = TracingSettings(exporter="zipkin", zipkin="http://127.0.0.1:9/", delay=3600)
ACCEPT = {"Accept": "application/openmetrics-text; version=1.0.0"}


@pytest.mark.parametrize("flags", ["01", "00"])
async def test_sampled_requests_are_exemplars(run_world: Any, ok: Behaviour, flags: str) -> None:
    tracer = start_tracer(SETTINGS, "test", {})
    assert tracer is not None
    try:
        async with run_world(tracer=tracer) as world:
            await world.model(ok)
            async with world.post(headers={"traceparent": f"00-{TRACE}-00f067aa0ba902b7-{flags}"}) as response:
                assert response.status == 200
            found = {page: await exemplars(world, page) for page in (world.url, world.inside_url)}
            async with world.get("/metrics") as response:
                assert TRACE not in await response.text()
    finally:
        tracer.close(0)
    names = {"plimsoll_gateway_upstream_first_byte_seconds", "plimsoll_gateway_upstream_seconds"}
    sampled = {name: {"trace_id": TRACE} for name in names} if flags == "01" else {}
    assert found == dict.fromkeys(found, sampled)


async def exemplars(world: Any, url: str) -> dict[str, dict[str, str]]:
    async with world.client.get(f"{url}/metrics", headers=ACCEPT) as response:
        assert response.headers["content-type"] == "application/openmetrics-text; version=1.0.0; charset=utf-8"
        families = list(text_string_to_metric_families(await response.text()))  # type: ignore[no-untyped-call]
    samples = [sample for family in families for sample in family.samples if sample.exemplar is not None]
    return {sample.name.removesuffix("_bucket"): sample.exemplar.labels for sample in samples}
