from __future__ import annotations

from typing import Any

import pytest

from goals import GOALS, OF_KIND, Goal, Results, Status, Verdict, judge, of_kind
from serving.systems import LLAMA_CPP, OPENVINO, TRANSFORMERS, US_HTTP


def row(name: str, ratios: dict[str, float], **more: Any) -> dict[str, Any]:
    return {"name": name, "ratios": ratios, "absent": {}, "of_roofline": 0.7, "rounds": [], **more}


def verdict(results: Results, work: str, part: str) -> Verdict:
    (found,) = [v for v in judge(results, GOALS) if v.goal.work == work and part in v.goal.wanted]
    return found


def test_a_goal_is_met_at_its_limit_and_missed_below() -> None:
    at = Results([row("W1", {LLAMA_CPP: 1.2})], {})
    below = Results([row("W1", {LLAMA_CPP: 1.199})], {})

    assert verdict(at, "W1", "llama.cpp").status is Status.MET
    assert verdict(below, "W1", "llama.cpp").status is Status.MISSED


def test_an_upper_limit_is_missed_above() -> None:
    assert verdict(Results([], {"kv_waste": {"waste": 0.04}}), "kv_waste", "4 %").status is Status.MET
    assert verdict(Results([], {"kv_waste": {"waste": 0.041}}), "kv_waste", "4 %").status is Status.MISSED


def test_without_results_nothing_is_met() -> None:
    judged = judge(Results([], {}), GOALS)

    assert {v.status for v in judged} == {Status.NOT_MEASURED}
    assert len(judged) == len(GOALS)
    assert all("did not run" in v.figure for v in judged)


def test_a_peer_that_is_absent_leaves_its_goal_unmeasured_also_with_rounds_before_it_failed() -> None:
    rows = [row("W2", {OPENVINO: 9.0, TRANSFORMERS: 2.0}, absent={OPENVINO: "failed: out of memory"})]

    found = verdict(Results(rows, {}), "W2", "OpenVINO")

    assert (found.status, found.value) == (Status.NOT_MEASURED, None)
    assert "out of memory" in found.figure


def test_the_best_peer_decides() -> None:
    rows = [row("W3", {OPENVINO: 5.5, LLAMA_CPP: 4.9, TRANSFORMERS: 20.0})]

    found = verdict(Results(rows, {}), "W3", "best")

    assert (found.status, found.value) == (Status.MISSED, 4.9)


def test_the_best_peer_is_unknown_while_one_is_not_installed() -> None:
    rows = [row("W3", {LLAMA_CPP: 50.0}, absent={OPENVINO: "not installed: make bench-peers"})]

    assert verdict(Results(rows, {}), "W3", "best").status is Status.NOT_MEASURED


def burst_round(ours: tuple[float, float], openvino: float, later: float, itl: tuple[float, float]) -> dict[str, Any]:
    mine = {
        "ttft_burst_ms": {"p50": ours[0], "p99": ours[1]},
        "ttft_later_ms": {"p99": later},
        "itl_ms": {"p50": itl[0], "p99": itl[1]},
    }
    theirs = {"ttft_burst_ms": {"p50": openvino}}
    return {"systems": {US_HTTP: mine, OPENVINO: theirs}, "burst_bound_ms": 1000.0}


def test_latencies_of_w4_are_medians_of_rounds() -> None:
    rounds = [
        burst_round((400, 1100), 500, 900, (10, 20)),
        burst_round((450, 1140), 500, 800, (10, 25)),
        burst_round((600, 9000), 500, 2000, (10, 90)),
    ]
    results = Results([row("W4", {OPENVINO: 1.2}, rounds=rounds)], {})

    judged = {v.goal.wanted: v.value for v in judge(results, GOALS) if v.goal.work == "W4"}

    assert sorted(v for v in judged.values() if v is not None) == pytest.approx([0.9, 0.9, 1.14, 1.2, 2.5])


def test_a_round_without_a_peer_is_no_measure_of_its_latency() -> None:
    rounds = [burst_round((400, 1100), 500, 900, (10, 20))]
    del rounds[0]["systems"][OPENVINO]
    results = Results([row("W4", {OPENVINO: 1.2}, rounds=rounds)], {})

    found = verdict(results, "W4", "p50")

    assert found.status is Status.NOT_MEASURED
    assert OPENVINO in found.figure


def test_each_kind_of_processor_has_the_goals_that_are_its_own() -> None:
    common = {(g.work, g.wanted) for g in GOALS}

    for kind, goals in OF_KIND.items():
        assert of_kind(kind) == goals
        assert [g.work for g in goals] == [g.work for g in GOALS]
    assert {(g.work, g.wanted) for g in of_kind("amx")} - common == {
        ("W2", "50 % of the roofline"),
        ("D16", "4.5x llama.cpp"),
    }
    assert of_kind("avx2") == GOALS


def product_results(**over: float | None) -> Results:
    cases = [{"rows": rows, "bfloat16": {"amx": over, "avx2": dict.fromkeys(over, 0.1)}} for rows in (16, 64)]
    return Results([], {"instructions": {"used": "amx", "cases": cases}})


def test_products_are_judged_in_the_instructions_that_are_used() -> None:
    results = product_results(over_onednn=1.2, over_memory=0.89)

    assert verdict(results, "instructions", "16 rows").status is Status.MISSED
    assert verdict(results, "instructions", "64 rows").value == 1.2
    assert verdict(results, "instructions", "512 rows").status is Status.NOT_MEASURED


def test_without_onednns_layout_there_is_no_ratio_to_its_product() -> None:
    found = verdict(product_results(over_onednn=None, over_memory=0.95), "instructions", "16 rows")

    assert found.status is Status.NOT_MEASURED
    assert "oneDNN packs no bfloat16" in found.figure


OF_ALL_KINDS = [*GOALS, *(goal for goals in OF_KIND.values() for goal in goals)]


@pytest.mark.parametrize("goal", OF_ALL_KINDS, ids=lambda g: f"{g.work} {g.wanted}")
def test_the_text_of_a_goal_names_its_limit(goal: Goal) -> None:
    shown = {f"{goal.limit:g}", f"{100 * goal.limit:g} %"}

    assert any(text in goal.wanted for text in shown) or "at most OpenVINO" in goal.wanted or "10 %" in goal.wanted
