"""The dashboard of the whole cluster: traffic, replicas, and the hosts' load lines."""

from __future__ import annotations

from dashboards.page import NAMESPACE, Chart, Page, Panel, Query, Row, number, rate, total

HERE = 'namespace=~"$namespace"'
REQUESTS = "plimsoll_gateway_requests_total"
READY = f"max by (namespace, model) (plimsoll_gateway_ready_replicas{{{HERE}}})"
"""Each gateway knows all replicas."""
OBJECTIVE = "plimsoll_gateway_objective_requests_total"
MISSED = f'{HERE}, outcome="missed"'
PER_OBJECTIVE = "namespace, model, objective"
SERVER_ERRORS = f'{HERE}, code=~"5.."'
TRAFFIC = Row(
    "Traffic",
    (
        number("Ready replicas", f"sum({READY})"),
        number("Models that serve", f"count({READY} > 0)"),
        number("Requests a second", rate(REQUESTS, HERE), "reqps"),
        number(
            "Errors of the server",
            f"({rate(REQUESTS, SERVER_ERRORS)} or vector(0)) / {rate(REQUESTS, HERE)}",
            "percentunit",
            "Share of requests that were answered with a status of 500 or more.",
        ),
        number("Waiting sequences", total("plimsoll_sequences_waiting", HERE)),
        number("Alerts", '(count(ALERTS{alertname=~"Plimsoll.*", alertstate="firing"}) or vector(0))'),
        Panel("Requests by status", (Query(rate(REQUESTS, HERE, "code"), "{{code}}"),), "reqps", Chart.STACK),
        Panel(
            "Generated tokens",
            (Query(rate("plimsoll_generated_tokens_total", HERE, "namespace, model"), "{{namespace}}/{{model}}"),),
            "short",
            Chart.STACK,
            "Tokens a second, by model.",
        ),
        Panel(
            "Missed objectives",
            (
                Query(
                    f"{rate(OBJECTIVE, MISSED, PER_OBJECTIVE)} / {rate(OBJECTIVE, HERE, PER_OBJECTIVE)}",
                    "{{namespace}}/{{model}} {{objective}}",
                ),
            ),
            "percentunit",
            text="Share of requests that missed an objective of their model.",
        ),
        Panel(
            "Firing alerts",
            (
                Query(
                    'count by (alertname, severity) (ALERTS{alertname=~"Plimsoll.*", alertstate="firing"})',
                    "{{alertname}} ({{severity}})",
                ),
            ),
            width=24,
            height=6,
        ),
    ),
)
LOAD_LINE = Row(
    "Load line",
    (
        Panel(
            "Device memory against the line",
            (
                Query(total("plimsoll_host_device_used_bytes", "", "instance"), "{{instance}} used"),
                Query(total("plimsoll_host_device_line_bytes", "", "instance"), "{{instance}} line"),
            ),
            "bytes",
            text="A host admits models up to its line. The rest up to the capacity is a reserve.",
        ),
        Panel(
            "Use of the line",
            (
                Query(
                    f"{total('plimsoll_host_device_used_bytes', '', 'instance')} / "
                    f"{total('plimsoll_host_device_line_bytes', '', 'instance')}",
                    "{{instance}}",
                ),
            ),
            "percentunit",
        ),
        Panel(
            "Free device memory",
            (Query(total("plimsoll_host_device_free_bytes", "", "instance"), "{{instance}}"),),
            "bytes",
        ),
        Panel(
            "Models by state",
            (Query(total("plimsoll_host_model_state", HERE, "state"), "{{state}}"),),
            chart=Chart.STACK,
        ),
        Panel(
            "Models put to sleep for others",
            (Query(rate("plimsoll_host_evictions_total", HERE, "instance"), "{{instance}}"),),
            "ops",
            text="Each is a later wake or load. If there are many, the models need more memory than the hosts have.",
        ),
        Panel(
            "Memory pressure",
            (
                Query(
                    f'max by (instance, level) (plimsoll_host_pressure{{{HERE}, level=~"some|full"}})',
                    "{{instance}} {{level}}",
                ),
            ),
            text="1 while a host shrinks caches and drops images to get memory back.",
        ),
    ),
)
REPLICAS = Row(
    "Replicas and versions",
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
            width=12,
        ),
        Panel(
            "Versions",
            (Query("count by (component, version) (plimsoll_build_info)", "{{component}} {{version}}"),),
            chart=Chart.TABLE,
            width=12,
        ),
    ),
)
PAGE = Page(
    "plimsoll-cluster",
    "Plimsoll / Cluster and load line",
    "Traffic, replicas, and the memory of hosts against their load lines.",
    (NAMESPACE,),
    (TRAFFIC, LOAD_LINE, REPLICAS),
)
