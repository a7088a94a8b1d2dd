"""The attention backends in use, and their measured times."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import GaugeMetricFamily, Metric

from plimsoll_runtime.api.telemetry.labelled import labelled
from plimsoll_runtime.engine.protocol.messages import EngineInfo, EngineStats
from plimsoll_runtime.residency.spec import ModelName

GAUGE = GaugeMetricFamily
PHASES = ("prompt", "decode")


def attention_metrics(
    infos: Mapping[ModelName, EngineInfo], stats: Mapping[ModelName, EngineStats]
) -> Iterator[Metric]:
    """Yield the backend in use for prompts and for decodes, and what their measured work took at the start."""
    used = {model: stats[model].attention_backend or info.attention_backend for model, info in infos.items()}
    backends = {model: _by_phase(name) for model, name in used.items()}
    yield from labelled(
        GAUGE,
        "plimsoll_attention_backend_info",
        "1 for the attention backend that computes prompts, and for the one that computes decodes.",
        ("phase", "backend"),
        {model: dict.fromkeys(own.items(), 1.0) for model, own in backends.items()},
    )
    yield from labelled(
        GAUGE,
        "plimsoll_attention_backend_measured_seconds",
        "Seconds of all layers' attention when the backend was selected: for a chunk of a prompt, or for some decodes.",
        ("phase", "backend"),
        {
            model: dict(zip(backends[model].items(), info.attention_seconds, strict=True))
            for model, info in infos.items()
            if info.attention_seconds is not None and used[model] == info.attention_backend
        },
    )


def _by_phase(name: str) -> Mapping[str, str]:
    """Return the backends of prompts and of decodes: the two of "cudnn+triton", or the only one twice."""
    prompts, _, decodes = name.partition("+")
    return dict(zip(PHASES, (prompts, decodes or prompts), strict=True))
