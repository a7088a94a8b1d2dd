"""KEDA's calls by a gRPC client over a real socket, with stub gateways."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import grpc
import pytest
from operator_support.stub_gateway import StubGateway, serve

from plimsoll_operator.kube.health import ListenError
from plimsoll_operator.scaling.gateways import HEARD_SECONDS, KEPT_SECONDS, GatewayRegistry
from plimsoll_operator.scaling.keda.messages import (
    SERVICE,
    GetMetricSpecResponse,
    GetMetricsRequest,
    GetMetricsResponse,
    IsActiveResponse,
    ScaledObjectRef,
)
from plimsoll_operator.scaling.keda.server import ExternalScaler, Load, external_scaler, load_of, serving_scaler
from plimsoll_operator.scaling.poller import Gateways
from plimsoll_operator.spec.identity import ObjectKey

NOW = 1767225600.0
KEY = ObjectKey("team", "gemma")


class Place:
    """Two gateways, the registry of their reports, the scaler on a port, and a client."""

    def __init__(self) -> None:
        self.now = NOW
        self.registry = GatewayRegistry()
        self.scaler = ExternalScaler(self.registry, lambda: self.now)
        self.gateways = {address: StubGateway(address, now=lambda: self.now) for address in ("one", "two")}
        self.registry.keep(self.gateways, self.now)
        self.channel: Any = None

    def hear(self, *addresses: str) -> None:
        """Let these gateways report; all, if none is named."""
        for address in addresses or self.gateways:
            self.registry.take(address, self.gateways[address].answer(), self.now)

    def connect(self, port: int) -> None:
        self.channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")

    async def ask(self, method: str, request: Any, response: Any) -> Any:
        call = self.channel.unary_unary(
            f"/{SERVICE}/{method}", request.__class__.SerializeToString, response.FromString
        )
        return await call(request, timeout=60)

    async def is_active(self, **metadata: str) -> bool:
        return bool((await self.ask("IsActive", reference(**metadata), IsActiveResponse)).result)

    async def value(self, metric: str = "requests") -> float:
        request = GetMetricsRequest(scaledObjectRef=reference(), metricName=metric)
        (found,) = (await self.ask("GetMetrics", request, GetMetricsResponse)).metricValues
        assert found.metricName == "requests"
        return float(found.metricValueFloat)

    def stream(self) -> Any:
        path = f"/{SERVICE}/StreamIsActive"
        call = self.channel.unary_stream(path, ScaledObjectRef.SerializeToString, IsActiveResponse.FromString)
        return call(reference(), timeout=60)


def reference(**metadata: str) -> Any:
    return ScaledObjectRef(name="gemma", namespace="team", scalerMetadata=metadata)


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    made = Place()
    async with serving_scaler(made.scaler, "127.0.0.1:0") as port:
        made.connect(port)
        yield made
        await made.channel.close()


async def test_requests_of_all_gateways_are_added_up(place: Place) -> None:
    place.gateways["one"].ask(KEY, 3)
    place.gateways["two"].hold(KEY, 2)
    place.gateways["two"].ask(ObjectKey("other", "gemma"), 50)
    place.hear()
    assert await place.value() == 5
    assert await place.is_active()
    (spec,) = (await place.ask("GetMetricSpec", reference(target="2.5"), GetMetricSpecResponse)).metricSpecs
    assert (spec.metricName, spec.targetSizeFloat) == ("requests", 2.5)


async def test_a_model_is_active_for_a_while_after_its_last_request(place: Place) -> None:
    place.hear()
    assert not await place.is_active()
    place.gateways["one"].ask(KEY)
    place.gateways["one"].end(KEY)
    place.now += 10
    place.hear()
    assert await place.value() == 0
    assert await place.is_active()
    assert await place.is_active(activeSeconds="10")
    assert not await place.is_active(activeSeconds="9")
    place.now += 5  # Time passes without newer reports.
    assert not await place.is_active(activeSeconds="10")


async def test_a_gateway_that_is_not_heard_makes_numbers_unknown(place: Place) -> None:
    """KEDA would scale down by a number that is too small; that requests exist is certain all the same."""
    place.gateways["one"].ask(KEY, 3)
    place.hear("one")
    assert await place.is_active()
    with pytest.raises(grpc.aio.AioRpcError, match="gateway two has not reported yet") as told:
        await place.value()
    assert told.value.code() is grpc.StatusCode.UNAVAILABLE
    place.hear()
    place.now += HEARD_SECONDS + 1
    place.hear("one")
    with pytest.raises(grpc.aio.AioRpcError, match="gateway two has not reported yet"):
        await place.value()


async def test_what_an_idle_model_is_is_unknown_too_while_a_gateway_is_not_heard(place: Place) -> None:
    place.hear("one")
    with pytest.raises(grpc.aio.AioRpcError, match="the number of requests is not known"):
        await place.is_active()


async def test_a_request_for_a_sleeping_model_is_pushed_once(place: Place) -> None:
    place.hear()
    stream = place.stream()
    first = asyncio.ensure_future(stream.read())
    await stream.wait_for_connection()
    place.hear()
    assert not first.done()
    place.gateways["one"].hold(KEY)
    place.hear()
    assert (await first).result is True
    place.gateways["two"].hold(KEY)
    place.hear()
    second = asyncio.ensure_future(stream.read())
    assert await place.is_active()  # a whole exchange later
    assert not second.done(), "it has been said already"
    for gateway in place.gateways.values():
        gateway.let_go(KEY)
        gateway.end(KEY)
    place.now += 61
    place.hear()
    assert not await place.is_active()
    assert not second.done(), "that it rests is not pushed"
    place.gateways["two"].hold(KEY)
    place.hear()
    assert (await second).result is True
    stream.cancel()


async def test_a_model_that_is_active_already_is_pushed_at_once(place: Place) -> None:
    place.gateways["one"].hold(KEY)
    place.hear()
    stream = place.stream()
    assert (await stream.read()).result is True
    stream.cancel()


@pytest.mark.parametrize(
    ("method", "request_", "response"),
    [
        ("IsActive", reference(modle="x"), IsActiveResponse),
        ("GetMetricSpec", reference(target="0"), GetMetricSpecResponse),
        ("GetMetrics", GetMetricsRequest(metricName="requests"), GetMetricsResponse),
        ("GetMetrics", GetMetricsRequest(scaledObjectRef=reference(), metricName="x"), GetMetricsResponse),
    ],
)
async def test_a_question_that_cannot_be_is_told_why(place: Place, method: str, request_: Any, response: Any) -> None:
    place.hear()
    with pytest.raises(grpc.aio.AioRpcError) as told:
        await place.ask(method, request_, response)
    assert told.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert told.value.details()


def test_what_was_said_too_long_ago_counts_for_nothing() -> None:
    registry, gateway = GatewayRegistry(), StubGateway(now=lambda: NOW)
    registry.keep(["one"], NOW)
    gateway.ask(KEY, 2)
    registry.take("one", gateway.answer(), NOW)
    assert load_of(registry, KEY, NOW + KEPT_SECONDS) == Load(2, 0.0)
    assert load_of(registry, KEY, NOW + KEPT_SECONDS + 1) == Load()
    gateway.restart("another")
    registry.take("one", gateway.answer(), NOW + 1)
    assert load_of(registry, KEY, NOW + 1) == Load()


async def test_a_port_that_is_taken_is_told() -> None:
    scaler = ExternalScaler(GatewayRegistry(), lambda: NOW)
    async with serving_scaler(scaler, "127.0.0.1:0") as port:
        with pytest.raises(ListenError, match=f"127.0.0.1:{port}; choose another --external-scaler-port"):
            async with serving_scaler(scaler, f"127.0.0.1:{port}"):
                raise AssertionError("two have one port")


async def test_it_finds_gateways_by_itself() -> None:
    """With real HTTP to a gateway and real gRPC from KEDA."""
    gateway = StubGateway("g", now=time.time)
    gateway.hold(KEY, 3)
    async with (
        serve(gateway) as http,
        aiohttp.ClientSession() as session,
        external_scaler(Gateways("127.0.0.1", http), 0, session) as port,
    ):
        place = Place()
        place.connect(port)
        stream = place.stream()
        assert (await stream.read()).result is True
        assert await place.value() == 3
        stream.cancel()
        await place.channel.close()


def test_nobody_pays_for_it_who_does_not_want_it() -> None:
    """gRPC takes about 10 MiB."""
    grpc_loaded = "'grpc' in sys.modules or 'google.protobuf' in sys.modules"
    code = f"import sys, plimsoll_operator.controller.main; sys.exit({grpc_loaded})"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
