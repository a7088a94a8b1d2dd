"""A Prometheus that evaluates rules each second, and an Alertmanager that sends each alert to a receiver."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlsplit

import yaml
from chart_support.helm import Object
from operator_support.apiserver import free_port
from telemetry_support.collectors import Received, http_collector
from telemetry_support.tools import LOCAL, answers, await_ready, get, program, running

EVERY = "1s"
"""Interval of scrapes and evaluations."""
OF_TARGET = ("instance", "job")
WITH_TEMPLATES = ("unshare", "--map-root-user", "--mount", "sh", "-c", 'mount --bind "$0" /usr/share && exec "$@"')
"""Runs a program that sees the first argument as /usr/share: Debian's Alertmanager reads its templates there."""


@dataclass(frozen=True)
class Target:
    """What Prometheus scrapes, with the labels that a PodMonitor gives it."""

    url: str
    namespace: str
    pod: str

    def config(self) -> Object:
        """Return its scrape configuration."""
        parts = urlsplit(self.url)
        labels = {"namespace": self.namespace, "pod": self.pod}
        targets = [{"targets": [parts.netloc], "labels": labels}]
        return {"job_name": self.pod, "honor_labels": True, "metrics_path": parts.path, "static_configs": targets}


@dataclass(frozen=True)
class Notice:
    """An alert as the receiver got it. `labels` lack those of OF_TARGET, which have ports."""

    status: str
    labels: Mapping[str, str]
    runbook: str

    @property
    def name(self) -> str:
        return self.labels["alertname"]


@dataclass(frozen=True)
class Notices:
    """All alerts that a receiver got, oldest first."""

    received: Received

    def all(self) -> list[Notice]:
        """Return the alerts so far: one when it fires, one when it ends."""
        alerts = [alert for body in list(self.received.bodies) for alert in json.loads(body)["alerts"]]
        return [
            Notice(
                alert["status"],
                {name: value for name, value in alert["labels"].items() if name not in OF_TARGET},
                alert["annotations"].get("runbook_url", ""),
            )
            for alert in alerts
        ]

    def firing(self) -> list[Mapping[str, str]]:
        """Return the labels of the alerts that have not ended."""
        last = {tuple(sorted(each.labels.items())): each for each in self.all()}
        return [each.labels for each in last.values() if each.status == "firing"]


@contextmanager
def alerting(folder: Path, rules: Object, targets: Sequence[Target]) -> Iterator[Notices]:
    """Run both on these targets. Raises MissingToolError."""
    with http_collector() as received, _alertmanager(folder, received.endpoint) as manager:
        (folder / "rules.yml").write_text(yaml.safe_dump(rules))
        config = folder / "prometheus.yml"
        settings = {
            "global": {"scrape_interval": EVERY, "scrape_timeout": EVERY, "evaluation_interval": EVERY},
            "rule_files": ["rules.yml"],
            "alerting": {"alertmanagers": [{"static_configs": [{"targets": [urlsplit(manager).netloc]}]}]},
            "scrape_configs": [target.config() for target in targets],
        }
        config.write_text(yaml.safe_dump(settings))
        subprocess.run([program("promtool"), "check", "config", config], check=True, capture_output=True)
        log, port = folder / "prometheus.log", free_port()
        argv: list[str | Path] = [
            program("prometheus"),
            f"--config.file={config}",
            f"--storage.tsdb.path={folder / 'series'}",
        ]
        url = f"http://{LOCAL}:{port}"
        with running([*argv, f"--web.listen-address={LOCAL}:{port}"], log) as process:
            await_ready(process, log, lambda: answers(f"{url}/-/ready") and _scraped(url) == len(targets))
            yield Notices(received)


def _scraped(url: str) -> int:
    """Return how many targets a Prometheus has scraped with success."""
    found = get(f"{url}/api/v1/query?query={quote('up == 1')}")
    return len(found["data"]["result"])


@contextmanager
def _alertmanager(folder: Path, receiver: str) -> Iterator[str]:
    """Run an Alertmanager that sends each alert by itself and at once; yield its URL."""
    config, log, port = folder / "alertmanager.yml", folder / "alertmanager.log", free_port()
    route = {"receiver": "test", "group_by": ["..."], "group_wait": "0s", "group_interval": EVERY}
    hook = {"url": f"{receiver}/alerts", "send_resolved": True}
    config.write_text(yaml.safe_dump({"route": route, "receivers": [{"name": "test", "webhook_configs": [hook]}]}))
    binary = program("prometheus-alertmanager")
    argv: list[str | Path] = [*WITH_TEMPLATES, binary.parents[1] / "share", binary, f"--config.file={config}"]
    argv += [f"--storage.path={folder / 'alertmanager'}"]
    url = f"http://{LOCAL}:{port}"
    with running([*argv, f"--web.listen-address={LOCAL}:{port}", "--cluster.listen-address="], log) as process:
        await_ready(process, log, lambda: answers(f"{url}/-/ready"))
        yield url
