"""The formats of a scrape, and exemplars."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_text

from plimsoll_telemetry.exposition import OPENMETRICS, TEXT, exemplar_of, expose
from plimsoll_telemetry.trace_context import TraceContext

PROMETHEUS_2 = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,application/openmetrics-text;"
    "version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)
SAMPLED = TraceContext(0xABC, 7, sampled=True)


@pytest.fixture
def registry() -> CollectorRegistry:
    made = CollectorRegistry()
    Counter("plimsoll_things", "Things.", ("model",), registry=made).labels('a "b"\n<c>').inc(3)
    waits = Histogram("plimsoll_wait_seconds", "Seconds of waiting.", buckets=(0.1, 1.0), registry=made)
    waits.observe(0.5, exemplar_of(SAMPLED))
    waits.observe(0.05, exemplar_of(SAMPLED._replace(sampled=False)))
    return made


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        ("", TEXT),
        ("*/*", TEXT),
        ("text/plain", TEXT),
        (PROMETHEUS_2, OPENMETRICS),
        (PROMETHEUS_3, OPENMETRICS),
        ("application/openmetrics-text", OPENMETRICS),
        ("Application/OpenMetrics-Text; version=1.0.0", OPENMETRICS),
        ("application/openmetrics-text; version=2.0.0", TEXT),
        ("application/openmetrics-text; q=0", TEXT),
        ("application/openmetrics-text; q=0.2, text/plain; q=0.9", TEXT),
        ("application/openmetrics-text; q=nonsense", TEXT),
        ("application/openmetrics-text; version=abc; q=1", TEXT),
    ],
)
def test_the_format_is_the_one_that_the_scraper_prefers(
    registry: CollectorRegistry, accept: str, content_type: str
) -> None:
    assert expose(registry, accept).content_type == content_type


@given(st.text(alphabet=";,=q./ versionapplicationtextpl*0123456789", max_size=200))
def test_no_header_is_an_error(accept: str) -> None:
    assert expose(CollectorRegistry(), accept).content_type in (TEXT, OPENMETRICS)


def test_both_formats_have_the_same_samples(registry: CollectorRegistry) -> None:
    text = expose(registry).body.decode()
    families = {one.name: one for one in read_text(text)}
    opened = {one.name: one for one in read_openmetrics(expose(registry, PROMETHEUS_2).body.decode())}  # type: ignore[no-untyped-call]
    assert families.keys() == opened.keys() == {"plimsoll_things", "plimsoll_wait_seconds"}
    for name, family in families.items():
        found = {(one.name, frozenset(one.labels.items())): one.value for one in family.samples}
        assert found == {(one.name, frozenset(one.labels.items())): one.value for one in opened[name].samples}
    assert families["plimsoll_things"].samples[0].labels == {"model": 'a "b"\n<c>'}


def test_no_series_has_a_creation_time(registry: CollectorRegistry) -> None:
    assert b"_created" not in expose(registry).body + expose(registry, PROMETHEUS_2).body


def test_sampled_requests_are_exemplars_in_openmetrics_alone(registry: CollectorRegistry) -> None:
    opened = {one.name: one for one in read_openmetrics(expose(registry, PROMETHEUS_2).body.decode())}  # type: ignore[no-untyped-call]
    exemplars = [one.exemplar for one in opened["plimsoll_wait_seconds"].samples if one.exemplar is not None]
    assert [(one.labels, one.value) for one in exemplars] == [({"trace_id": f"{0xABC:032x}"}, 0.5)]
    assert b"trace_id" not in expose(registry).body
    assert exemplar_of(None) is None
