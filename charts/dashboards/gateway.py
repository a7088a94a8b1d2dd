"""The dashboard of the gateway and its API keys."""

from __future__ import annotations

from dashboards.page import Chart, Page, Panel, Query, Row, Variable, quantiles, rate, total

KEY = Variable("key", "plimsoll_gateway_key_requests_total")
OF_KEY = 'key=~"$key"'
OWN = '* on (job, instance) group_left plimsoll_build_info{component="gateway"}'
REQUESTS = Row(
    "Requests",
    (
        Panel(
            "Requests by status",
            (Query(rate("plimsoll_gateway_requests_total", "", "code"), "{{code}}"),),
            "reqps",
            Chart.STACK,
        ),
        Panel(
            "Requests in progress",
            (
                Query(total("plimsoll_gateway_requests_in_flight", ""), "in flight"),
                Query(total("plimsoll_gateway_held", ""), "held for a replica"),
            ),
        ),
        Panel(
            "Refused",
            (
                Query(rate("plimsoll_gateway_refused_total", ""), "too many waiting"),
                Query(rate("plimsoll_gateway_refused_bodies_total", ""), "too many bytes of bodies"),
                Query(rate("plimsoll_gateway_connections_closed_total", "", "why"), "connections: {{why}}"),
            ),
            "ops",
        ),
        Panel("Until a replica answers", quantiles("plimsoll_gateway_upstream_first_byte_seconds", ""), "s"),
        Panel(
            "Retries",
            (Query(rate("plimsoll_gateway_retries_total", "", "reason"), "{{reason}}"),),
            "ops",
            text="Requests sent to another replica, by why the first attempt failed.",
        ),
        Panel(
            "Replicas that fail",
            (
                Query(
                    rate("plimsoll_gateway_ejections_total", "", "namespace, model"), "{{namespace}}/{{model}} ejected"
                ),
                Query(
                    rate("plimsoll_gateway_broken_streams_total", "", "namespace, model"),
                    "{{namespace}}/{{model}} broken streams",
                ),
                Query(
                    rate("plimsoll_gateway_unbelieved_total", "", "namespace, model"),
                    "{{namespace}}/{{model}} without the credential",
                ),
            ),
            "ops",
        ),
    ),
)
KEYS = Row(
    "API keys",
    (
        Panel(
            "Requests by key",
            (Query(rate("plimsoll_gateway_key_requests_total", OF_KEY, "key"), "{{key}}"),),
            "reqps",
            Chart.STACK,
        ),
        Panel(
            "Refused by key",
            (
                Query(
                    rate("plimsoll_gateway_key_requests_total", f'{OF_KEY}, code=~"4.."', "key, code"),
                    "{{key}} {{code}}",
                ),
            ),
            "reqps",
        ),
        Panel(
            "Tokens by key",
            (Query(rate("plimsoll_gateway_key_tokens_total", OF_KEY, "key"), "{{key}}"),),
            chart=Chart.STACK,
        ),
        Panel("Wait for a fair turn", quantiles("plimsoll_gateway_turn_seconds", ""), "s"),
        Panel(
            "Shares of limits",
            (Query(f"sum by (key, limit) (plimsoll_gateway_key_share{{{OF_KEY}}})", "{{key}} {{limit}}"),),
            text="The parts of a key's limits that the gateways may use, together.",
        ),
        Panel(
            "Gateways that share limits",
            (
                Query("min(plimsoll_gateway_peers)", "peers"),
                Query("min(plimsoll_gateway_answering_peers)", "peers that answer"),
                Query(f"max(plimsoll_gateway_lease_age_seconds{{{OF_KEY}}})", "oldest grant, in seconds"),
                Query("sum(plimsoll_gateway_damaged_keys)", "damaged key files"),
            ),
        ),
    ),
)
PROCESS = Row(
    "Processes",
    (
        Panel(
            "Processors in use",
            (Query(f"rate(process_cpu_seconds_total[$__rate_interval]) {OWN}", "{{instance}}"),),
        ),
        Panel("Resident memory", (Query(f"process_resident_memory_bytes {OWN}", "{{instance}}"),), "bytes"),
        Panel(
            "Connections and held bodies",
            (
                Query(total("plimsoll_gateway_connections", "", "instance"), "{{instance}} connections"),
                Query(total("plimsoll_gateway_body_bytes", "", "instance"), "{{instance}} bytes of bodies"),
            ),
        ),
        Panel(
            "Traces",
            (
                Query(rate("plimsoll_traces_total", "", "outcome"), "{{outcome}}"),
                Query(rate("plimsoll_traces_over_bound_total", ""), "over the bound"),
            ),
            "ops",
            text="Traces of all components, by outcome.",
            width=24,
        ),
    ),
)
PAGE = Page(
    "plimsoll-gateway",
    "Plimsoll / Gateway and keys",
    "The gateway's requests, replicas and processes, and the use of API keys.",
    (KEY,),
    (REQUESTS, KEYS, PROCESS),
)
