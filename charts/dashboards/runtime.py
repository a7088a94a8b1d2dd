"""The dashboard of one runtime: phases of steps, work, memory, cache tiers and attention."""

from __future__ import annotations

from dashboards.page import (
    INSTANCE,
    NAMESPACE,
    OF_INSTANCE,
    Chart,
    Page,
    Panel,
    Query,
    Row,
    mean,
    quantile,
    rate,
    total,
)

STEPS = Row(
    "Steps",
    (
        Panel(
            "Phases of a step",
            (
                Query(
                    f"{rate('plimsoll_step_seconds_total', OF_INSTANCE, 'phase')} / ignoring (phase) group_left "
                    f"{rate('plimsoll_engine_steps_total', OF_INSTANCE)}",
                    "{{phase}}",
                ),
            ),
            "s",
            Chart.STACK,
            "Mean seconds of a step, by phase.",
            width=12,
        ),
        Panel(
            "Steps a second", (Query(rate("plimsoll_engine_steps_total", OF_INSTANCE, "model"), "{{model}}"),), "ops"
        ),
        Panel(
            "Server's work on answers",
            (Query(rate("plimsoll_answer_seconds_total", OF_INSTANCE, "phase"), "{{phase}}"),),
            "percentunit",
            text="Share of one processor.",
            width=4,
        ),
        Panel(
            "Tokens of a step",
            (
                Query(mean("plimsoll_step_tokens", OF_INSTANCE), "mean"),
                Query(quantile(0.95, "plimsoll_step_tokens", OF_INSTANCE), "p95"),
            ),
        ),
        Panel(
            "Sequences of a step",
            (
                Query(mean("plimsoll_step_sequences", OF_INSTANCE), "mean"),
                Query(quantile(0.95, "plimsoll_step_sequences", OF_INSTANCE), "p95"),
            ),
        ),
        Panel(
            "Queue",
            (
                Query(total("plimsoll_sequences_running", OF_INSTANCE, "model"), "{{model}} running"),
                Query(total("plimsoll_sequences_waiting", OF_INSTANCE, "model"), "{{model}} waiting"),
            ),
        ),
    ),
)
WORK = Row(
    "Work against the measured peaks",
    (
        Panel(
            "Share of the peaks",
            (
                Query(
                    f"{rate('plimsoll_step_flops_total', OF_INSTANCE, 'model')} / "
                    f"{total('plimsoll_device_peak_flops_per_second', OF_INSTANCE, 'model')}",
                    "{{model}} compute (MFU)",
                ),
                Query(
                    f"{rate('plimsoll_step_bytes_total', OF_INSTANCE, 'model')} / "
                    f"{total('plimsoll_device_peak_bytes_per_second', OF_INSTANCE, 'model')}",
                    "{{model}} memory bandwidth",
                ),
            ),
            "percentunit",
            text="The higher one is what limits the steps. If both are low while sequences run, look at the phases.",
        ),
        Panel(
            "Operations a second",
            (Query(rate("plimsoll_step_flops_total", OF_INSTANCE, "model"), "{{model}}"),),
            "flops",
        ),
        Panel("Bytes a second", (Query(rate("plimsoll_step_bytes_total", OF_INSTANCE, "model"), "{{model}}"),), "Bps"),
    ),
)
MEMORY = Row(
    "Memory",
    (
        Panel(
            "Memory by owner",
            (Query(total("plimsoll_memory_bytes", OF_INSTANCE, "owner"), "{{owner}}"),),
            "bytes",
            Chart.STACK,
        ),
        Panel(
            "KV cache in use",
            (Query(f"max by (model) (plimsoll_kv_usage_ratio{{{OF_INSTANCE}}})", "{{model}}"),),
            "percentunit",
            most=1,
        ),
        Panel(
            "Preemptions and evicted blocks",
            (
                Query(rate("plimsoll_preemptions_total", OF_INSTANCE), "preemptions"),
                Query(rate("plimsoll_evictions_total", OF_INSTANCE), "cached blocks evicted"),
            ),
            "ops",
        ),
    ),
)
TIERS = Row(
    "Cached prefixes and tiers",
    (
        Panel(
            "Prompt tokens found in the cache",
            (
                Query(
                    f"{rate('plimsoll_prefix_hit_tokens_total', OF_INSTANCE, 'model')} / "
                    f"{rate('plimsoll_prefix_query_tokens_total', OF_INSTANCE, 'model')}",
                    "{{model}}",
                ),
            ),
            "percentunit",
            most=1,
        ),
        Panel(
            "Blocks by place",
            (
                Query(total("plimsoll_kv_blocks_cached", OF_INSTANCE), "device"),
                Query(total("plimsoll_tier_host_blocks", OF_INSTANCE), "host memory"),
                Query(total("plimsoll_tier_disk_blocks", OF_INSTANCE), "disk"),
                Query(total("plimsoll_tier_blocks_under_way", OF_INSTANCE), "under way"),
            ),
        ),
        Panel(
            "Blocks moved",
            (
                Query(rate("plimsoll_tier_spilled_blocks_total", OF_INSTANCE), "to host memory"),
                Query(rate("plimsoll_tier_loaded_blocks_total", OF_INSTANCE), "read from disk"),
                Query(rate("plimsoll_tier_dropped_blocks_total", OF_INSTANCE), "dropped"),
                Query(rate("plimsoll_tier_failed_blocks_total", OF_INSTANCE), "failed"),
                Query(rate("plimsoll_tier_passed_blocks_total", OF_INSTANCE), "computed again"),
            ),
            "ops",
        ),
    ),
)
PARTS = Row(
    "Attention and ranks",
    (
        Panel(
            "Attention backends",
            (
                Query(
                    f"max by (model, phase, backend) (plimsoll_attention_backend_info{{{OF_INSTANCE}}})",
                    "{{model}} {{phase}}: {{backend}}",
                ),
            ),
            chart=Chart.TABLE,
        ),
        Panel(
            "Failed backends and late compilations",
            (
                Query(rate("plimsoll_attention_fallbacks_total", OF_INSTANCE), "attention fallbacks"),
                Query(rate("plimsoll_kernels_compiled_total", OF_INSTANCE), "kernels compiled in service"),
            ),
            "ops",
        ),
        Panel(
            "Ranks waiting for others",
            (Query(rate("plimsoll_rank_wait_seconds_total", OF_INSTANCE, "model, rank"), "{{model}} rank {{rank}}"),),
            "percentunit",
        ),
    ),
)
PROCESS = Row(
    "Processes and GPUs",
    (
        Panel(
            "Processors in use",
            (
                Query(rate("process_cpu_seconds_total", OF_INSTANCE, "instance"), "{{instance}} server"),
                Query(rate("plimsoll_engine_process_cpu_seconds_total", OF_INSTANCE, "model"), "{{model}} engine"),
                Query(rate("plimsoll_cpu_throttled_seconds_total", OF_INSTANCE, "instance"), "{{instance}} throttled"),
            ),
        ),
        Panel(
            "Resident memory",
            (
                Query(total("process_resident_memory_bytes", OF_INSTANCE, "instance"), "{{instance}} server"),
                Query(total("plimsoll_engine_process_resident_bytes", OF_INSTANCE, "model"), "{{model}} engine"),
            ),
            "bytes",
        ),
        Panel(
            "GPU utilisation",
            (
                Query(
                    f"max by (instance, gpu) (plimsoll_gpu_utilisation_ratio{{{OF_INSTANCE}}})", "{{instance}} {{gpu}}"
                ),
            ),
            "percentunit",
        ),
    ),
)
PAGE = Page(
    "plimsoll-runtime",
    "Plimsoll / Runtime",
    "One pod of a model or a pool: steps, work, memory, cached prefixes, attention.",
    (NAMESPACE, INSTANCE),
    (STEPS, WORK, MEMORY, TIERS, PARTS, PROCESS),
)
