"""The dashboard of the operator: leadership, reconciles, conditions, and placement."""

from __future__ import annotations

from dashboards.page import NAMESPACE, Chart, Page, Panel, Query, Row, number, quantiles, rate, total

HERE = 'namespace=~"$namespace"'
RECONCILES = Row(
    "Operator",
    (
        number("Leaders", "sum(plimsoll_operator_leader)", text="1 is right."),
        number("Seconds without a leader", "min(plimsoll_operator_leaderless_seconds)", "s"),
        number("Waiting objects", "sum(plimsoll_operator_queue)"),
        number("Failed watches", "sum(plimsoll_operator_unfollowed)"),
        number("Waiting groups", "sum(plimsoll_operator_waiting_groups)"),
        number("Names without a record", "sum(plimsoll_operator_unrecorded_names)"),
        Panel(
            "Reconciles",
            (
                Query(rate("plimsoll_operator_reconciles_total", ""), "succeeded"),
                Query(rate("plimsoll_operator_reconcile_failures_total", ""), "failed"),
            ),
            "ops",
        ),
        Panel("Duration of reconciles", quantiles("plimsoll_operator_reconcile_seconds", ""), "s"),
        Panel("Duration of planning", quantiles("plimsoll_operator_plan_seconds", ""), "s"),
    ),
)
MODELS = Row(
    "Models",
    (
        Panel(
            "Missing replicas",
            (
                Query(
                    f"max by (namespace, model) (plimsoll_operator_wanted_replicas{{{HERE}}}) - "
                    f"max by (namespace, model) (plimsoll_operator_ready_replicas{{{HERE}}})",
                    "{{namespace}}/{{model}}",
                ),
            ),
        ),
        Panel(
            "Conditions that are false",
            (
                Query(
                    f"max by (namespace, model, type) (plimsoll_operator_condition{{{HERE}}}) == 0",
                    "{{namespace}}/{{model}} {{type}}",
                ),
            ),
            chart=Chart.TABLE,
        ),
        Panel(
            "Draining pods",
            (
                Query(
                    f"max by (namespace, kind, name) (plimsoll_operator_draining_pods{{{HERE}}})",
                    "{{kind}} {{namespace}}/{{name}}",
                ),
            ),
            text="Pods that finish their running requests.",
        ),
    ),
)
PLACEMENT = Row(
    "Placement",
    (
        Panel(
            "Decisions",
            (
                Query(
                    rate("plimsoll_operator_placement_actions_total", "", "action, reason"), "{{action}}: {{reason}}"
                ),
                Query(
                    rate("plimsoll_operator_placement_failures_total", "", "action, outcome"), "{{action}} {{outcome}}"
                ),
            ),
            "ops",
            Chart.STACK,
            width=12,
        ),
        Panel("Age of host reports", quantiles("plimsoll_operator_report_age_seconds", ""), "s", width=6),
        Panel(
            "Groups given back",
            (Query(rate("plimsoll_operator_groups_given_back_total", ""), "groups"),),
            "ops",
            text="Groups whose pods were deleted because not all of them got a node.",
            width=6,
        ),
        Panel(
            "Models by state",
            (Query(total("plimsoll_host_model_state", HERE, "state"), "{{state}}"),),
            chart=Chart.STACK,
            width=12,
        ),
        Panel(
            "Refused placements",
            (
                Query(
                    f"max by (namespace, pool, reason) (plimsoll_operator_refused_placements{{{HERE}}})",
                    "{{namespace}}/{{pool}}: {{reason}}",
                ),
            ),
            width=12,
            text="Models that the last plan of a pool could not place or wake.",
        ),
        Panel(
            "Evictions by model",
            (Query(rate("plimsoll_operator_evictions_total", HERE, "namespace, model"), "{{namespace}}/{{model}}"),),
            "ops",
            width=12,
        ),
        Panel(
            "Models put to sleep for others",
            (Query(rate("plimsoll_host_evictions_total", HERE, "instance"), "{{instance}}"),),
            "ops",
            width=12,
        ),
    ),
)
PAGE = Page(
    "plimsoll-operator",
    "Plimsoll / Operator and placement",
    "Who leads, what fails, which models are incomplete, and what placement decides.",
    (NAMESPACE,),
    (RECONCILES, MODELS, PLACEMENT),
)
