"""Families of ours show what prometheus_client's own would, from the same figures."""

from __future__ import annotations

from functools import partial

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from plimsoll_gateway.telemetry.fast_series import Count, Family, Level, Spans

BOUNDS = (0.005, 0.1, 1, 2.5, 300)
LABELS = ("model", "code")
NAMES = st.tuples(st.sampled_from(['m"\\\n', "b"]), st.sampled_from(["200", "503"]))
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["count", "begin", "end", "observe", "remove"]),
        NAMES,
        st.sampled_from([0.0, 0.005, 0.0051, 1.0, 2.5, 299.0, 300.0, 1e6]),
    )
)


@given(STEPS)
def test_a_scrape_sees_what_it_would_of_the_library_s(steps: list[tuple[str, tuple[str, str], float]]) -> None:
    own, theirs = CollectorRegistry(), CollectorRegistry()
    counts = Family("c", "C.", LABELS, Count, own), Counter("c", "C.", LABELS, registry=theirs)
    levels = Family("l", "L.", LABELS, Level, own), Gauge("l", "L.", LABELS, registry=theirs)
    spans = (
        Family("s", "S.", LABELS, partial(Spans, BOUNDS), own),
        Histogram("s", "S.", LABELS, buckets=BOUNDS, registry=theirs),
    )
    for step, names, seconds in steps:
        if step == "count":
            counts[0].labels(*names).inc(int(seconds))
            counts[1].labels(*names).inc(int(seconds))
        elif step == "begin":
            levels[0].labels(*names).__enter__()
            levels[1].labels(*names).inc()
        elif step == "end":
            levels[0].labels(*names).__exit__(None, None, None)
            levels[1].labels(*names).dec()
        elif step == "observe":
            spans[0].labels(*names).observe(seconds)
            spans[1].labels(*names).observe(seconds)
        else:
            for family in (*counts, *levels, *spans):
                family.remove(*names)
    assert _shown(own) == _shown(theirs)


def _shown(registry: CollectorRegistry) -> list[str]:
    """What is scraped, without the moments at which series were made."""
    lines = generate_latest(registry).decode().splitlines()
    return [line.rpartition(" ")[0] if "_created{" in line else line for line in lines]
