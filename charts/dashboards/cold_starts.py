"""The dashboard of cold starts: waiting requests, and wakes and loads on hosts."""

from __future__ import annotations

from dashboards.page import MODEL, NAMESPACE, OF_MODEL, Page, Panel, Query, Row, heat, mean, quantiles, rate, total

HERE = 'namespace=~"$namespace"'
COLD = "plimsoll_gateway_cold_start_seconds"
WAITS = Row(
    "Requests that waited for a replica",
    (
        heat("Until a replica was ready", COLD, f'{OF_MODEL}, until="ready"'),
        heat("Until a response began", COLD, f'{OF_MODEL}, until="first_byte"'),
        Panel(
            "Mean by model",
            (Query(mean(COLD, f'{OF_MODEL}, until="ready"', "namespace, model"), "{{namespace}}/{{model}}"),),
            "s",
        ),
        Panel(
            "Cold starts",
            (
                Query(
                    f'sum by (namespace, model) (increase({COLD}_count{{{OF_MODEL}, until="ready"}}[1h]))',
                    "{{namespace}}/{{model}}",
                ),
            ),
            text="In an hour.",
        ),
        Panel(
            "Held requests",
            (Query(total("plimsoll_gateway_held", OF_MODEL, "namespace, model"), "{{namespace}}/{{model}}"),),
        ),
    ),
)
HOSTS = Row(
    "Hosts of pools",
    (
        Panel("Load from files", quantiles("plimsoll_host_load_seconds", HERE), "s"),
        Panel("Wake from an image", quantiles("plimsoll_host_wake_seconds", HERE), "s"),
        Panel("Requests waiting for their model", quantiles("plimsoll_host_wait_seconds", HERE), "s"),
        Panel(
            "Loads and wakes",
            (
                Query(rate("plimsoll_host_model_loads_total", OF_MODEL, "model"), "{{model}} loaded"),
                Query(rate("plimsoll_host_model_wakes_total", OF_MODEL, "model"), "{{model}} woken"),
            ),
            "ops",
        ),
        Panel(
            "Why models must start again",
            (
                Query(rate("plimsoll_host_evictions_total", HERE), "put to sleep for others"),
                Query(rate("plimsoll_host_drops_total", HERE), "images dropped from host memory"),
                Query(rate("plimsoll_host_deaths_total", HERE), "engines died"),
                Query(rate("plimsoll_host_failures_total", HERE), "loads and wakes failed"),
            ),
            "ops",
        ),
        Panel(
            "Requests refused while they waited",
            (Query(rate("plimsoll_host_refusals_total", HERE, "code"), "{{code}}"),),
            "reqps",
        ),
    ),
)
PAGE = Page(
    "plimsoll-cold-starts",
    "Plimsoll / Cold starts",
    "How long requests wait for models that scale from zero or sleep, and why.",
    (NAMESPACE, MODEL),
    (WAITS, HOSTS),
)
