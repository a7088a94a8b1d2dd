"""Check and evaluate Prometheus' rules with the real promtool."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import yaml

Object = dict[str, Any]
HEALTHY = {"plimsoll_operator_leader": "1x2000", "plimsoll_gateway_connections": "1x2000"}
"""Series of a healthy cluster whose absence is an alert."""


class NoPromtoolError(Exception):
    """promtool was not found; the message says where to get it."""


def find_promtool() -> str:
    """Return the path of promtool: PLIMSOLL_PROMTOOL, the one on the PATH, or the one in the cluster's cache. Raises
    NoPromtoolError.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "plimsoll" / "cluster"
    stored = sorted(Path(os.environ.get("PLIMSOLL_CLUSTER_CACHE") or cache).glob("bin/prometheus-*/usr/bin/promtool"))
    found = os.environ.get("PLIMSOLL_PROMTOOL") or shutil.which("promtool") or (str(stored[-1]) if stored else None)
    if found is None:
        raise NoPromtoolError(
            "no promtool: put it on the PATH (Debian's package prometheus), name it in PLIMSOLL_PROMTOOL, or run "
            "`python3 e2e/cluster telemetry`"
        )
    return found


def promtool(*arguments: str) -> tuple[int, str]:
    """Run promtool; return its exit status and its output. Raises NoPromtoolError."""
    command = [find_promtool(), *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return done.returncode, done.stdout


def unit_tests(rules: Path, alert: str, cases: list[Object]) -> Object:
    """Return promtool's form of the cases of an alert: at each time exactly these of its alerts fire, and no others.

    Rules are evaluated each minute, or as often as the first case says by `every`. A case has a `name`, `series` with
    their values a minute apart, and the labels of the `firing` alerts by time. If a case does not say otherwise, an
    operator leads and a gateway is scraped.
    """
    return {
        "rule_files": [str(rules)],
        "evaluation_interval": cases[0].get("every", "1m"),
        "tests": [
            {
                "name": f"{alert} {case['name']}",
                "interval": "1m",
                "input_series": [
                    {"series": name, "values": values} for name, values in (_background(case) | case["series"]).items()
                ],
                "promql_expr_test": [
                    {
                        "expr": 'ALERTS{alertstate="firing"}',
                        "eval_time": time,
                        "exp_samples": [{"labels": _sample(alert, labels), "value": 1} for labels in firing],
                    }
                    for time, firing in case["firing"].items()
                ],
            }
            for case in cases
        ],
    }


def _background(case: Object) -> dict[str, str]:
    own = {name.partition("{")[0] for name in case["series"]}
    return {name: values for name, values in HEALTHY.items() if name not in own}


def _sample(alert: str, labels: dict[str, str]) -> str:
    pairs = {"alertname": alert, "alertstate": "firing", **labels}
    return "ALERTS{" + ",".join(f"{name}={json.dumps(value)}" for name, value in pairs.items()) + "}"


def write_yaml(path: Path, content: Object) -> Path:
    """Write a YAML file and return its path."""
    path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    return path
