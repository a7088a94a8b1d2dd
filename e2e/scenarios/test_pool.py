"""Eight models in two pods whose memory holds a third of them: all answer, those in use stay, nothing is killed."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import openai
import pytest

from harness.figures import Figures, told
from harness.kube import GROUP, Kube
from harness.load import load
from harness.settings import Settings
from harness.tiny_model import RUNTIME, write_tiny_model
from harness.volume import CLAIM, provide_volume
from harness.waiting import Stopwatch, hold, until

NAMES = [f"tiny-{number}" for number in range(8)]
PODS = 2
POOL = {
    "apiVersion": GROUP,
    "kind": "RuntimePool",
    "metadata": {"name": "shared"},
    "spec": {
        "replicas": PODS,
        "resources": {"cpu": "200m", "memory": "2Gi"},
        "memory": {"line": "90%", "sleepers": "256Mi"},
        "eviction": {"minimumResidencySeconds": 2},
        "template": {"volumes": [{"name": CLAIM, "persistentVolumeClaim": {"claimName": CLAIM}}]},
    },
}
PROMPT = "w5 w6 w7 w8 w9 w10"
TOKENS = 8
KILL = """
import os, signal
for pid in filter(str.isdigit, os.listdir("/proc")):
    command = open(f"/proc/{pid}/cmdline").read()
    if "plimsoll_runtime.driver.process" in command:
        os.kill(int(pid), signal.SIGKILL)
        print("killed", pid)
"""


@pytest.fixture
def models(kube: Kube, settings: Settings) -> list[str]:
    """Eight small random models in one pool, settled."""
    if not settings.shared_files:
        pytest.skip("its models are files that all nodes share, which only this machine's own cluster has")
    folder = Path(settings.shared_files)
    for seed, name in enumerate(NAMES):
        write_tiny_model(folder / name, seed)
    provide_volume(kube, folder)
    kube.apply(POOL)
    for name in NAMES:
        kube.apply(_model(name))
    for name in NAMES:
        kube.wait_condition(name, "Ready", "True")
    return NAMES


def _model(name: str) -> dict[str, Any]:
    spec = {"model": {"source": f"pvc://{CLAIM}/{name}"}, "placement": {"pool": "shared"}, "runtime": RUNTIME}
    return {"apiVersion": GROUP, "kind": "ModelDeployment", "metadata": {"name": name}, "spec": spec}


def test_more_models_than_memory_answer_and_nothing_is_killed(
    kube: Kube,
    models: list[str],
    client: openai.OpenAI,
    async_client: openai.AsyncOpenAI,
    settings: Settings,
    measured: Figures,
) -> None:
    answers: dict[str, str] = {}
    for name in models:
        took = Stopwatch()
        answers[name] = _ask(client, name)
        measured[f"first_answer_{name}"] = took.seconds
    assert len(set(answers.values())) == len(models), "models of different weights answer alike"
    assert {name: _ask(client, name) for name in reversed(models)} == answers
    hosts = [host["metadata"]["name"] for host in kube.model_hosts()]
    assert len(hosts) == PODS
    awake: Counter[str] = Counter()
    with load(async_client, _zipf(models), users=3, prompt=PROMPT, tokens=TOKENS) as outcome:
        for _ in range(200 if settings.long else 20):
            hold(3)
            awake.update(name for name in models if "Resident" in _states(kube, name))
    measured["awake_in_samples"] = dict(awake)
    measured["load"] = outcome.summary()
    measured["hosts"] = [host["status"] for host in kube.model_hosts()]
    assert outcome.failures == [], told(measured)
    assert outcome.texts == {name: {answers[name]} for name in outcome.texts}
    assert kube.restarts(*hosts) == dict.fromkeys(hosts, 0)
    asleep = [name for name in models if _states(kube, name) == {"Asleep"}]
    assert asleep, "all of them are in memory: there was nothing to decide"
    assert awake[models[0]] > awake[models[-1]], told(measured)
    reasons = {reason for name in models for _, reason, _ in kube.events(name)}
    assert {"Placed", "Woken", "Evicted"} <= reasons, reasons


def test_killed_engines_and_a_killed_host_cost_the_requests_on_them_alone(
    kube: Kube,
    models: list[str],
    client: openai.OpenAI,
    async_client: openai.AsyncOpenAI,
    settings: Settings,
    measured: Figures,
) -> None:
    answers = {name: _ask(client, name) for name in models}
    hosts = [host["metadata"]["name"] for host in kube.model_hosts()]
    with load(async_client, _zipf(models), users=2, prompt=PROMPT, tokens=TOKENS) as outcome:
        for number in range(50 if settings.long else 5):
            assert "killed" in kube.execute(hosts[number % PODS], "python3", "-c", KILL)
            hold(5)
        lost = hosts[0]
        kube.kill_now(lost)
        until("another host", lambda: lost not in _hosts(kube) and len(_hosts(kube)) == PODS, timeout=300)
        hold(10)
    measured["load"] = outcome.summary()
    assert len(outcome.failures) <= 2 * (51 if settings.long else 6), told(measured)
    assert {name: _ask(client, name) for name in models} == answers
    assert outcome.texts == {name: {answers[name]} for name in outcome.texts}


def _ask(client: openai.OpenAI, model: str) -> str:
    answer = client.completions.create(
        model=model, prompt=PROMPT, max_tokens=TOKENS, temperature=0, extra_body={"ignore_eos": True}
    )
    return answer.choices[0].text


def _zipf(models: list[str]) -> Any:
    """Asks for the model of rank n one n-th as often as for the first (Zipf)."""
    draw = random.Random(0)
    weights = [1 / (rank + 1) for rank in range(len(models))]
    return lambda: draw.choices(models, weights)[0]


def _states(kube: Kube, name: str) -> set[str]:
    return {placement["state"] for placement in kube.model(name)["status"]["placements"]}


def _hosts(kube: Kube) -> set[str]:
    return {host["metadata"]["name"] for host in kube.model_hosts()}
