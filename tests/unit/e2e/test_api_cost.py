"""Requests are counted from the API server's metrics: what the operator may cause, and no watch."""

from __future__ import annotations

from harness.api_cost import parse

COUNTED = "apiserver_request_total"
POD_LISTS = 'component="apiserver",group="",resource="pods",scope="namespace",subresource="",verb="LIST"'
APPLIES = 'group="plimsoll.dev",resource="modeldeployments",subresource="status",verb="APPLY"'
METRICS = f"""# TYPE {COUNTED} counter
{COUNTED}{{code="200",{POD_LISTS},version="v1"}} 40
{COUNTED}{{code="500",{POD_LISTS},version="v1"}} 2
{COUNTED}{{code="200",resource="pods",subresource="",verb="WATCH"}} 9
{COUNTED}{{code="200",{APPLIES},version="v1alpha1"}} 1.2e+06
{COUNTED}{{code="200",resource="leases",subresource="",verb="PUT"}} 50
apiserver_request_duration_seconds_count{{resource="pods",verb="LIST"}} 7
"""


def test_only_what_the_operator_may_cause_is_counted() -> None:
    assert parse(METRICS) == {"LIST pods": 42, "APPLY modeldeployments/status": 1_200_000}
