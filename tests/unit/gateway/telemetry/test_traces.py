"""Traces of a gateway: phases, attempts, and the headers that replicas get."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

import pytest
from telemetry_support.kept import KeptSpans, check_tree

from plimsoll_telemetry.span import Span, SpanKind
from plimsoll_telemetry.trace_context import TraceContext, read_context

if TYPE_CHECKING:
    from tests.unit.gateway.conftest import Behaviour, World

    RunWorld = Callable[..., AbstractAsyncContextManager[World]]

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = f"00-{TRACE}-{SPAN}-01"


@pytest.fixture
def kept() -> Iterator[KeptSpans]:
    made = KeptSpans()
    yield made
    made.close()


def sent_context(headers: dict[str, str]) -> TraceContext:
    """Return the span that a replica was given as parent."""
    found = read_context(headers.get("traceparent"), headers.get("tracestate"))
    assert found is not None
    return found


def attempts_of(spans: list[Span]) -> list[Span]:
    return [span for span in spans if span.name == "attempt"]


async def test_phases_add_up_to_the_request(run_world: RunWorld, ok: Behaviour, kept: KeptSpans) -> None:
    async with run_world(tracer=kept.tracer) as world:
        upstream = await world.model(ok)
        async with world.post(headers={"x-request-id": "mine"}) as response:
            assert response.status == 200
    spans = kept.close()
    root = check_tree(spans)
    assert (root.name, root.kind, root.parent_id, root.error) == (
        *("POST /v1/chat/completions", SpanKind.SERVER),
        *(0, None),
    )
    assert root.attributes == {
        "http.request.method": "POST",
        "http.route": "/v1/chat/completions",
        "http.response.status_code": 200,
        "plimsoll.request_id": "mine",
        "gen_ai.provider.name": "plimsoll",
        "gen_ai.operation.name": "chat",
        "plimsoll.namespace": "ns",
        "plimsoll.model": "m",
    }
    phases = [span for span in spans if span.parent_id == root.span_id]
    assert [span.name for span in phases] == ["read", "admit", "turn", "pick", "attempt", "respond"]
    assert [span.start_ns for span in phases] == [root.start_ns, *(span.end_ns for span in phases[:-1])]
    assert phases[-1].end_ns == root.end_ns
    (attempt,) = attempts_of(spans)
    assert (attempt.kind, attempt.error) == (SpanKind.CLIENT, None)
    assert attempt.attributes == {"plimsoll.replica": "r0", "http.response.status_code": 200}
    assert [event.name for event in attempt.events] == ["response begins"]
    context = sent_context(upstream.requests[0].headers)
    assert (context.trace_id, context.span_id, context.sampled) == (root.trace_id, attempt.span_id, True)


@pytest.mark.parametrize("failure", ["connect", "reset", "unavailable"])
async def test_a_retry_is_two_attempts_and_the_second_is_the_replicas_parent(
    run_world: RunWorld,
    ok: Behaviour,
    resets: Behaviour,
    unavailable: Behaviour,
    refused_port: int,
    kept: KeptSpans,
    failure: str,
) -> None:
    async with run_world(tracer=kept.tracer) as world:
        bad = (
            refused_port
            if failure == "connect"
            else await world.upstream(resets if failure == "reset" else unavailable)
        )
        good = await world.upstream(ok)
        world.show(world.replica(bad), world.replica(good))
        for _ in range(20):  # until the bad one is picked first
            async with world.post() as response:
                assert response.status == 200
            if isinstance(bad, int) or bad.requests:
                retried = await world.metric(
                    f'plimsoll_gateway_retries_total{{model="m",namespace="ns",reason="{failure}"}}'
                )
                if retried or not isinstance(bad, int):
                    break
        sent = [sent_context(request.headers) for request in good.requests]
        first_sent = [] if isinstance(bad, int) else [sent_context(request.headers) for request in bad.requests]
    traces: dict[int, list[Span]] = {}
    for span in kept.close():
        traces.setdefault(span.trace_id, []).append(span)
    (spans,) = [spans for spans in traces.values() if len(attempts_of(spans)) == 2]
    check_tree(spans)
    first, second = attempts_of(spans)
    assert first.span_id != second.span_id
    assert first.attributes["error.type"] == first.error == failure
    assert second.attributes["http.request.resend_count"] == 1
    assert (second.error, second.attributes["http.response.status_code"]) == (None, 200)
    assert second.span_id in [context.span_id for context in sent]
    assert first.span_id not in [context.span_id for context in sent]
    assert [context.span_id for context in first_sent] == ([] if failure == "connect" else [first.span_id])


@pytest.mark.parametrize("state", ["", "vendor=x"])
async def test_a_callers_trace_continues_and_its_span_is_not_forwarded(
    run_world: RunWorld, ok: Behaviour, kept: KeptSpans, state: str
) -> None:
    async with run_world(tracer=kept.tracer) as world:
        upstream = await world.model(ok)
        headers = {"traceparent": PARENT} | ({"tracestate": state} if state else {})
        async with world.post(headers=headers):
            pass
    root = check_tree(kept.close(), int(SPAN, 16))
    (request,) = upstream.requests
    context = sent_context(request.headers)
    assert (context.trace, context.state, root.state) == (TRACE, state, state)
    assert context.span_id != int(SPAN, 16)
    assert "\n".join(request.headers).count("traceparent") == 1


@pytest.mark.parametrize("header", [f"00-{TRACE}-{SPAN}-00", None])
async def test_a_request_that_is_not_sampled_is_forwarded_so(
    run_world: RunWorld, ok: Behaviour, header: str | None
) -> None:
    kept = KeptSpans(ratio=0.0)
    async with run_world(tracer=kept.tracer) as world:
        upstream = await world.model(ok)
        async with world.post(headers={} if header is None else {"traceparent": header}):
            pass
    assert kept.close() == []
    context = sent_context(upstream.requests[0].headers)
    assert context.sampled is False
    assert (context.trace == TRACE) == (header is not None)


async def test_over_the_bound_a_callers_choice_is_not_forwarded(run_world: RunWorld, ok: Behaviour) -> None:
    """Otherwise each replica would spend its own bound on it, for pieces of traces."""
    kept = KeptSpans(most=0.0)
    async with run_world(tracer=kept.tracer) as world:
        upstream = await world.model(ok)
        async with world.post(headers={"traceparent": PARENT}):
            pass
        assert await world.metric("plimsoll_traces_over_bound_total") == 1
    assert kept.close() == []
    assert sent_context(upstream.requests[0].headers).sampled is False


@pytest.mark.parametrize("header", [PARENT, "garbage", f"ff-{TRACE}-{SPAN}-01"])
async def test_without_traces_the_callers_headers_are_forwarded_unchanged(
    world: World, ok: Behaviour, header: str
) -> None:
    upstream = await world.model(ok)
    async with world.post(headers={"traceparent": header, "tracestate": "a=b ,c=d", "baggage": "k=v"}):
        pass
    headers = upstream.requests[0].headers
    assert [headers[name] for name in ("traceparent", "tracestate", "baggage")] == [header, "a=b ,c=d", "k=v"]


@pytest.mark.parametrize("header", ["garbage", "0" * 6000, f"00-{TRACE}-{'0' * 16}-01"])
async def test_a_malformed_parent_begins_a_new_trace(
    run_world: RunWorld, ok: Behaviour, kept: KeptSpans, header: str
) -> None:
    async with run_world(tracer=kept.tracer) as world:
        upstream = await world.model(ok)
        async with world.post(headers={"traceparent": header, "tracestate": "a=b"}) as response:
            assert response.status == 200
    root = check_tree(kept.close())
    assert f"{root.trace_id:032x}" != TRACE
    context = sent_context(upstream.requests[0].headers)
    assert (context.trace_id, context.state) == (root.trace_id, "")


async def test_refusals_are_traces_and_probes_are_not(run_world: RunWorld, ok: Behaviour, kept: KeptSpans) -> None:
    async with run_world(tracer=kept.tracer) as world:
        await world.model(ok)
        for path in ("/health", "/metrics", "/"):
            async with world.get(path):
                pass
        for method, path, wanted in (
            ("GET", "/v1/nonsense", 404),
            ("POST", "/v1/completions", 400),
            ("PUT", "/v1/completions", 405),
        ):
            assert (await world.ask(method, path))[0] == wanted
    roots = [(span.name, span.attributes["http.response.status_code"]) for span in kept.close() if not span.parent_id]
    assert roots == [
        ("GET other", 404),
        ("POST /v1/completions", 400),
        ("PUT /v1/completions", 405),
    ]


async def test_a_client_that_hangs_up_leaves_a_whole_trace(run_world: RunWorld, kept: KeptSpans) -> None:
    async def begin(request: object) -> None:
        request.begin_events()  # type: ignore[attr-defined]
        request.chunk("data: {}\n\n")  # type: ignore[attr-defined]

    async with run_world(tracer=kept.tracer) as world:
        upstream = await world.model(begin)
        async with world.post({"model": "m", "stream": True}) as response:
            await response.content.readany()
            response.close()
        await asyncio.wait_for(upstream.requests[0].hung_up.wait(), 30)
        while not await world.metric('plimsoll_gateway_requests_total{code="499",model="m",namespace="ns"}'):
            await asyncio.sleep(0.01)
    root = check_tree(kept.close())
    assert root.attributes["http.response.status_code"] == 499
