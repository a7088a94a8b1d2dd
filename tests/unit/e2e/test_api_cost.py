"""Requests are counted from the API server's metrics, in the flow schemas of Plimsoll's own processes."""

from __future__ import annotations

from harness.api_cost import KINDS, parse, schema

COUNTED = "apiserver_flowcontrol_dispatched_requests_total"
METRICS = f"""# TYPE {COUNTED} counter
{COUNTED}{{flow_schema="e2e-1-reads",priority_level="workload-low"}} 40
{COUNTED}{{flow_schema="e2e-1-reads",priority_level="global-default"}} 2
{COUNTED}{{flow_schema="e2e-1-writes",priority_level="workload-low"}} 1.2e+06
{COUNTED}{{flow_schema="e2e-2-writes",priority_level="workload-low"}} 9
{COUNTED}{{flow_schema="service-accounts",priority_level="workload-low"}} 50
apiserver_flowcontrol_rejected_requests_total{{flow_schema="e2e-1-reads",priority_level="workload-low"}} 7
"""


def test_only_what_the_schemas_pick_out_is_counted() -> None:
    names = {"e2e-1-reads": "reads", "e2e-1-writes": "writes"}
    assert parse(METRICS, names) == {"reads": 42, "writes": 1_200_000}
    assert parse("", names) == {"reads": 0, "writes": 0}


def test_a_schema_picks_out_our_accounts_in_one_namespace_and_over_all_of_them() -> None:
    spec = schema("n", KINDS["reads"], "e2e-1", "system", ["operator", "gateway"])["spec"]
    [rule] = spec["rules"]
    assert [s["serviceAccount"] for s in rule["subjects"]] == [
        {"name": "operator", "namespace": "system"},
        {"name": "gateway", "namespace": "system"},
    ]
    [resources] = rule["resourceRules"]
    assert (resources["namespaces"], resources["clusterScope"]) == (["e2e-1"], True)
    assert resources["verbs"] == ["get", "list"]


def test_watches_last_and_are_not_counted() -> None:
    verbs = [verb for kind in KINDS.values() for verb in kind]
    assert "watch" not in verbs
    assert len(set(verbs)) == len(verbs)
