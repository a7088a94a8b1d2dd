"""Series are removed with their owners, after their last values have been scraped."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from types import MappingProxyType
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter
from prometheus_client.parser import text_string_to_metric_families

from plimsoll_gateway.discovery.routing_table import Model, ObjectKey, TableStore, build_table
from plimsoll_gateway.keys.api_key import ApiKey, KeyLimits
from plimsoll_gateway.keys.key_folder import NO_KEYS, Keys
from plimsoll_gateway.keys.keyring import Keyring
from plimsoll_gateway.telemetry.label_sets import MOST_GONE, Owners
from plimsoll_gateway.telemetry.metrics import Metrics

Behaviour = Callable[[Any], Awaitable[None]]


def model(name: str) -> Model:
    return Model(ObjectKey("ns", name), (name,), 1.0, "", ())


def told(metrics: Metrics) -> dict[tuple[str, str], float]:
    """Return the counted responses of a scrape by model and code."""
    families = {family.name: family for family in text_string_to_metric_families(metrics.render(None).body.decode())}
    samples = families["plimsoll_gateway_requests"].samples
    return {
        (sample.labels["model"], sample.labels["code"]): sample.value
        for sample in samples
        if sample.name == "plimsoll_gateway_requests_total"
    }


def lines(metrics: Metrics, name: str) -> list[str]:
    return [line for line in metrics.render(None).body.decode().splitlines() if f'"{name}"' in line]


def test_a_scrape_sees_the_last_figures_of_a_model_and_the_next_one_nothing() -> None:
    store = TableStore()
    metrics = Metrics(store)
    kept, gone = model("kept"), model("gone")
    store.replace(build_table([kept, gone]))
    for one in (kept, gone):
        metrics.of(one.key, metrics.in_flight).inc()
        metrics.of(one.key, metrics.retries, "connect").inc()
        metrics.of(one.key, metrics.cold_start, "ready").observe(1)
        metrics.answered(one, 200)
    metrics.answered(None, 404)
    store.replace(build_table([kept]))
    metrics.answered(gone, 499)  # a request that was still running
    assert told(metrics) == {("kept", "200"): 1, ("gone", "200"): 1, ("gone", "499"): 1, ("", "404"): 1}
    assert told(metrics) == {("kept", "200"): 1, ("", "404"): 1}
    assert lines(metrics, "gone") == []
    assert len(lines(metrics, "kept")) == len(lines(metrics, "kept")) > 10


def test_a_model_that_comes_back_counts_from_nothing() -> None:
    store = TableStore()
    metrics = Metrics(store)
    store.replace(build_table([model("m")]))
    metrics.answered(model("m"), 200)
    store.replace(build_table([]))
    metrics.render(None)
    store.replace(build_table([model("m")]))
    metrics.answered(model("m"), 200)
    assert told(metrics) == {("m", "200"): 1}


def test_series_of_what_is_gone_are_bounded_where_nobody_scrapes() -> None:
    store = TableStore()
    metrics = Metrics(store)
    for number in range(MOST_GONE + 50):
        one = model(f"m{number}")
        store.replace(build_table([one]))
        metrics.answered(one, 200)
    store.replace(build_table([]))
    assert len(told(metrics)) == MOST_GONE


def test_series_of_a_key_end_with_it() -> None:
    class Source:
        current = NO_KEYS

    def keys(*names: str) -> Keys:
        made = {name: ApiKey(name, KeyLimits(hashes=(f"sha256:{number:064x}",))) for number, name in enumerate(names)}
        return Keys(MappingProxyType({key.limits.hashes[0]: key for key in made.values()}), MappingProxyType({}))

    source = Source()
    metrics = Metrics(TableStore(), Keyring(source))
    source.current = keys("a", "b")
    for name in ("a", "b"):
        metrics.key_answered(name, 200)
        metrics.key_used(name, 7)
    source.current = keys("b")
    assert len(lines(metrics, "a")) == 2
    assert lines(metrics, "a") == []
    assert len(lines(metrics, "b")) == 2


names = st.sampled_from("abcde")


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("count"), names, st.sampled_from(["200", "503"])),
            st.tuples(st.just("keep"), st.frozensets(names), st.integers(0, 2)),
        )
    )
)
def test_a_registry_has_the_series_of_its_owners(steps: list[tuple[str, Any, Any]]) -> None:
    """Models a count for each owner and code, in the order of first use of the owners."""
    family = Counter("c", "C.", ("owner", "code"), registry=CollectorRegistry())
    owners: Owners[str] = Owners()
    expected: dict[str, dict[str, int]] = {}
    for what, first, second in steps:
        if what == "count":
            owners.of(first, (first,)).of(family, second).inc()
            codes = expected.setdefault(first, {})
            codes[second] = codes.get(second, 0) + 1
        else:
            owners.keep(first, second)
            gone = [owner for owner in expected if owner not in first]
            for owner in gone[: max(0, len(gone) - second)]:
                del expected[owner]
        assert len(owners) == len(expected)
        assert counts(family) == {(owner, code): n for owner, codes in expected.items() for code, n in codes.items()}


def counts(family: Counter) -> dict[tuple[str, str], float]:
    samples: Iterable[Any] = (sample for metric in family.collect() for sample in metric.samples)
    return {(s.labels["owner"], s.labels["code"]): s.value for s in samples if s.name == "c_total"}


async def test_a_model_deleted_under_requests_leaves_nothing_behind(world: Any) -> None:
    """Held and running requests: one that ends after the scrape neither raises nor counts below zero."""
    arrived, go_on = asyncio.Event(), asyncio.Event()

    async def late(request: Any) -> None:
        arrived.set()
        await go_on.wait()
        request.respond(200, "{}")

    upstream = await world.upstream(late)
    world.show(world.replica(upstream), scales_to=1)
    under_way = asyncio.create_task(status(world))
    await arrived.wait()
    world.show(scales_to=1)
    held = asyncio.create_task(status(world))
    while await world.metric('plimsoll_gateway_held{model="m",namespace="ns"}') != 1:
        await asyncio.sleep(0)
    world.store.replace(build_table([]))
    await world.metric("")
    go_on.set()
    assert (await under_way, await held) == (200, 404)
    async with world.get("/metrics") as response:
        seen = [line for line in (await response.text()).splitlines() if 'model="m"' in line]
    assert not [line for line in seen if line.split()[-1].startswith("-")]
    async with world.get("/metrics") as response:
        assert 'model="m"' not in await response.text()


async def status(world: Any) -> int:
    async with world.post() as response:
        await response.read()
        return int(response.status)
