"""What `plimsoll status` says of a run in a table, and below it of what is not as it should be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from plimsoll_runtime.local.board import Phase, first_line
from plimsoll_runtime.local.placementtext import WORDS
from plimsoll_runtime.local.usage import ANSWER_SECONDS, is_ready, placed_of
from plimsoll_runtime.local.words import cut, duration_text, size_text

HEAD = ("MODEL", "STATE", "MEMORY", "REQUESTS", "TOKENS/S", "IDLE")
WIDEST_STATE = 18
UNKNOWN = "-"
NO_ANSWER = "no answer"
SILENT = f"{NO_ANSWER} within {ANSWER_SECONDS:g} s"
_PHASES = {Phase.WAITING.value: "restarting"}
"""Where a table has another word than the record."""


def rows(record: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """A row for each model of an observed record (see `usage.observe`), as HEAD says."""
    host = record.get("host")
    return [
        (model["servedNames"][0], cut(_state(model, host), WIDEST_STATE), *_figures(model))
        for model in record["models"]
    ]


def notes(record: Mapping[str, Any]) -> Iterator[str]:
    """A line for each process that does not serve, and for each model of a host that failed."""
    told = set()
    for model in record["models"]:
        for replica in model["replicas"]:
            if not is_ready(replica) and replica["slot"] not in told:
                told.add(replica["slot"])
                yield f"{replica['slot']}: {_why(replica)}"
        if (placed := placed_of(record.get("host"), model)) is not None and placed["error"]:
            yield f"{model['servedNames'][0]}: {first_line(placed['error'])}"
    gateway = record["gateway"]
    if gateway["phase"] != Phase.READY.value:
        yield f"{gateway['slot']}: {gateway['detail']}"


def _why(replica: Mapping[str, Any]) -> str:
    return SILENT if replica["phase"] == Phase.READY.value else str(replica["detail"])


def _state(model: Mapping[str, Any], host: Any) -> str:
    replicas = model["replicas"]
    if not replicas:
        return "off"
    if (placed := placed_of(host, model)) is not None:
        return str(WORDS.get(placed["state"], placed["state"]))
    if len(replicas) > 1:
        return f"{sum(map(is_ready, replicas))}/{len(replicas)} ready"
    [replica] = replicas
    phase = replica["phase"]
    return NO_ANSWER if phase == Phase.READY.value and not replica["answers"] else _PHASES.get(phase, phase)


def _figures(model: Mapping[str, Any]) -> tuple[str, ...]:
    usage = model["usage"]
    if usage is None:
        return (UNKNOWN,) * 4
    rate = f"{usage['tokensPerSecond']:.0f}"
    return (size_text(usage["memoryBytes"]), str(usage["requests"]), rate, _idle(usage))


def _idle(usage: Mapping[str, Any]) -> str:
    if usage["requests"]:
        return UNKNOWN
    return "never used" if usage["idleSeconds"] is None else duration_text(usage["idleSeconds"])
