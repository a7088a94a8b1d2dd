"""A real Prometheus scrapes a gateway and servers, and promtool finds nothing wrong with their series.

Without it, which `python3 e2e/cluster telemetry` fetches, the tests are skipped.
"""

from __future__ import annotations

import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, urlsplit

import httpx
import pytest
import yaml
from operator_support.apiserver import free_port, until
from telemetry_support.plant import MODEL, Plant, running_plant
from telemetry_support.tools import LOCAL, MissingToolError, answers, await_ready, get, program, running

SECONDS = 60.0


@pytest.fixture
def plant(model: Path, tmp_path: Path) -> Iterator[Plant]:
    try:
        program("promtool")
    except MissingToolError as missing:
        pytest.skip(str(missing))
    with running_plant(model, tmp_path, [{}] * 3, "--kv-memory", "8MiB", "--max-model-len", "512") as found:
        yield found


@pytest.fixture
def prometheus(plant: Plant, tmp_path: Path) -> Iterator[str]:
    """A Prometheus that scrapes each part twice a second; its URL."""
    jobs = [
        {
            "job_name": part.name,
            "metrics_path": urlsplit(part.metrics).path,
            "static_configs": [{"targets": [urlsplit(part.metrics).netloc]}],
        }
        for part in plant.parts
    ]
    settings = {"global": {"scrape_interval": "500ms", "scrape_timeout": "400ms"}, "scrape_configs": jobs}
    config, log, port = tmp_path / "prometheus.yml", tmp_path / "prometheus.log", free_port()
    config.write_text(yaml.safe_dump(settings))
    subprocess.run([program("promtool"), "check", "config", config], check=True, capture_output=True)
    argv: list[str | Path] = [
        program("prometheus"),
        f"--config.file={config}",
        f"--storage.tsdb.path={tmp_path / 'data'}",
    ]
    url = f"http://{LOCAL}:{port}"
    with running([*argv, f"--web.listen-address={LOCAL}:{port}"], log) as process:
        await_ready(process, log, lambda: answers(f"{url}/-/ready"))
        yield url


def query(url: str, expression: str) -> dict[str, float]:
    """Return the values of an instant query by job."""
    found = get(f"{url}/api/v1/query?query={quote(expression)}")["data"]["result"]
    return {each["metric"].get("job", ""): float(each["value"][1]) for each in found}


@pytest.mark.long
@pytest.mark.timeout(600)
def test_it_scrapes_every_part_and_promtool_has_no_complaint(plant: Plant, prometheus: str) -> None:
    with httpx.Client(base_url=plant.gateway.url, timeout=120) as client:
        for _ in range(20):
            body = {"model": MODEL, "prompt": "w5 w6", "max_tokens": 4}
            assert client.post("/v1/completions", json=body).status_code == 200
    jobs = {part.name for part in plant.parts}
    assert until(lambda: query(prometheus, "up") == dict.fromkeys(jobs, 1.0), SECONDS), query(prometheus, "up")
    runtimes = {part.name for part in plant.runtimes}
    requests = 'sum by (job) (plimsoll_requests_total{code="200"})'
    assert until(lambda: sum(query(prometheus, requests).values()) == 20, SECONDS), query(prometheus, requests)
    assert query(prometheus, requests).keys() <= runtimes
    answered = 'sum by (job) (plimsoll_gateway_requests_total{code="200"})'
    assert query(prometheus, answered) == {"gateway": 20}
    quantile = "histogram_quantile(0.9, sum by (job, le) (plimsoll_queue_seconds_bucket))"
    assert all(0 <= value <= 1 for value in query(prometheus, quantile).values())
    for part in plant.parts:
        with urllib.request.urlopen(part.metrics, timeout=60) as response:
            text = response.read()
        checked = subprocess.run(
            [program("promtool"), "check", "metrics"], input=text, check=False, capture_output=True, timeout=60
        )
        assert (checked.returncode, checked.stdout + checked.stderr) == (0, b""), part.name
