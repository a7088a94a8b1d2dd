"""The dashboard of one model: objectives, traffic, latency, and hints at its bottleneck."""

from __future__ import annotations

from dashboards.page import (
    MODEL,
    NAMESPACE,
    OF_MODEL,
    Chart,
    Page,
    Panel,
    Query,
    Row,
    heat,
    mean,
    quantiles,
    rate,
    total,
)

OBJECTIVE = "plimsoll_gateway_objective_requests_total"
MET = f'{OF_MODEL}, outcome="met"'
HINTS = """
| you see | the bottleneck is | do |
|---|---|---|
| queue is the largest part, the KV cache is full | memory for the KV cache | raise `kvMemory`, add replicas |
| queue is the largest part, the KV cache is not full | slots or computing | raise `maxSequences`, add replicas |
| prefill is the largest part, compute use is high | computing prompts | a stable prefix, faster devices |
| decode is the largest part, bandwidth use is high | reading weights | quantise, a parallel group |
| preemptions rise | memory for the KV cache | raise `kvMemory`, lower `maxSequences` |
| compute and bandwidth are idle, sequences run | the steps' overhead | the runtime's dashboard: phases |
"""
SERVICE = Row(
    "Objectives",
    (
        Panel(
            "Share in time",
            (
                Query(
                    f"{rate(OBJECTIVE, MET, 'objective')} / {rate(OBJECTIVE, OF_MODEL, 'objective')}",
                    "{{objective}}",
                ),
            ),
            "percentunit",
            text="Requests that met an objective, of all that have it.",
            most=1,
        ),
        Panel(
            "Misses an hour",
            (
                Query(
                    f'sum by (objective) (increase({OBJECTIVE}{{{OF_MODEL}, outcome="missed"}}[1h]))', "{{objective}}"
                ),
            ),
        ),
        Panel(
            "Replicas",
            (
                Query(f"sum(max by (namespace, model) (plimsoll_operator_wanted_replicas{{{OF_MODEL}}}))", "wanted"),
                Query(f"sum(max by (namespace, model) (plimsoll_gateway_ready_replicas{{{OF_MODEL}}}))", "ready"),
            ),
        ),
    ),
)
TRAFFIC = Row(
    "Traffic",
    (
        Panel(
            "Requests by status",
            (Query(rate("plimsoll_gateway_requests_total", OF_MODEL, "code"), "{{code}}"),),
            "reqps",
            Chart.STACK,
        ),
        Panel(
            "Requests in progress",
            (
                Query(total("plimsoll_gateway_requests_in_flight", OF_MODEL), "at the gateway"),
                Query(total("plimsoll_gateway_held", OF_MODEL), "held for a replica"),
                Query(total("plimsoll_sequences_running", OF_MODEL), "sequences that run"),
                Query(total("plimsoll_sequences_waiting", OF_MODEL), "sequences that wait"),
            ),
        ),
        Panel(
            "Tokens a second",
            (
                Query(rate("plimsoll_prompt_tokens_total", OF_MODEL), "prompt, computed"),
                Query(rate("plimsoll_prefix_hit_tokens_total", OF_MODEL), "prompt, from the cache"),
                Query(rate("plimsoll_generated_tokens_total", OF_MODEL), "generated"),
            ),
        ),
    ),
)
LATENCY = Row(
    "Latency",
    (
        heat("Time to first token", "plimsoll_time_to_first_token_seconds", OF_MODEL),
        heat("Between tokens", "plimsoll_inter_token_seconds", OF_MODEL),
        Panel("Queue", quantiles("plimsoll_queue_seconds", OF_MODEL), "s"),
        Panel("Prefill", quantiles("plimsoll_prefill_seconds", OF_MODEL), "s"),
        Panel("Decode", quantiles("plimsoll_decode_seconds", OF_MODEL), "s"),
    ),
)
BOTTLENECK = Row(
    "Bottleneck",
    (
        Panel(
            "Time of a choice, by phase",
            (
                Query(mean("plimsoll_queue_seconds", OF_MODEL), "queue"),
                Query(mean("plimsoll_prefill_seconds", OF_MODEL), "prefill"),
                Query(mean("plimsoll_decode_seconds", OF_MODEL), "decode"),
            ),
            "s",
            Chart.STACK,
            "Means, one on top of the other.",
        ),
        Panel(
            "Use of what limits",
            (
                Query(f"max(plimsoll_kv_usage_ratio{{{OF_MODEL}}})", "KV cache"),
                Query(
                    f"{rate('plimsoll_step_flops_total', OF_MODEL)} / "
                    f"{total('plimsoll_device_peak_flops_per_second', OF_MODEL)}",
                    "compute (MFU)",
                ),
                Query(
                    f"{rate('plimsoll_step_bytes_total', OF_MODEL)} / "
                    f"{total('plimsoll_device_peak_bytes_per_second', OF_MODEL)}",
                    "memory bandwidth",
                ),
            ),
            "percentunit",
            text="Work of the steps against the measured peaks of the devices.",
        ),
        Panel(
            "Lost work",
            (
                Query(rate("plimsoll_preemptions_total", OF_MODEL), "preemptions"),
                Query(rate("plimsoll_evictions_total", OF_MODEL), "cached blocks evicted"),
                Query(rate("plimsoll_expired_total", OF_MODEL), "requests past their deadline"),
                Query(rate("plimsoll_refused_total", OF_MODEL), "requests refused"),
            ),
            "ops",
        ),
        Panel("How to read it", (), chart=Chart.NOTE, text=HINTS, width=24),
    ),
)
PAGE = Page(
    "plimsoll-model",
    "Plimsoll / Model",
    "One model: objectives, traffic, latency, and what limits it.",
    (NAMESPACE, MODEL),
    (SERVICE, TRAFFIC, LATENCY, BOTTLENECK),
)
