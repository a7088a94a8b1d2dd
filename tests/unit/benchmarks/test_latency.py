from __future__ import annotations

import pytest

from serving.latency import Timeline, expect, latencies, percentiles


def test_the_burst_is_the_first_users_and_the_rest_is_later() -> None:
    burst = [Timeline(0.0, [1.0, 1.1]), Timeline(0.0, [2.0, 2.3])]
    later = [Timeline(5.0, [5.25, 5.35])]

    measured = latencies([*burst, *later], users=2)

    assert measured["ttft_burst_ms"] == {"p50": 2000, "p80": 2000, "p99": 2000}
    assert measured["ttft_later_ms"]["p50"] == 250
    assert measured["ttft_ms"]["p50"] == 1000
    assert measured["itl_ms"] == {"p50": 100, "p80": 300, "p99": 300}


def test_without_later_requests_there_is_nothing_to_say_of_them() -> None:
    assert latencies([Timeline(0.0, [1.0, 2.0])], users=4)["ttft_later_ms"] is None


def test_p99_of_a_hundred_is_the_last_but_none_is_beyond() -> None:
    assert percentiles([i / 1000 for i in range(100)]) == {"p50": 50, "p80": 80, "p99": 99}


def test_an_answer_of_another_length_is_no_measurement() -> None:
    with pytest.raises(RuntimeError, match="7 tokens came instead of 8"):
        expect(7, 8)


def test_answers_that_come_whole_have_no_gaps() -> None:
    measured = latencies([Timeline(0.0, [1.0]), Timeline(0.0, [1.5])], users=2)
    assert measured["itl_ms"] == {"p50": 0, "p80": 0, "p99": 0}
    assert measured["ttft_later_ms"] is None
