"""Eight models in two pods with memory for a third of them: all answer, used ones stay awake, and nothing is killed."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import openai
import pytest

from harness import pool
from harness.figures import Figures, told
from harness.host_api import HostApi
from harness.kube import Kube, fresh_namespace
from harness.load import Outcome, load
from harness.pool import PODS
from harness.release import Release
from harness.settings import Settings
from harness.waiting import Stopwatch, hold, until
from placement.recorded import Asked, Run, judge

MODELS = pool.names("pooled", 8)
MEMORY = "1Gi"
"""Memory of a pod. Its awake models share 295 MiB: 90 % of 768 MiB (1 GiB without the 256 MiB for sleeping models),
less 396 MiB for the runtime. Each of a pod's four models takes 148 MiB, so one fits, and two nearly do.
"""
PROMPT = "w5 w6 w7 w8 w9 w10"
TOKENS = 8
USERS = 3
WRITTEN_SECONDS = 5
"""Time until hosts have written their reports about the last request."""
LOADING_RATIO = 1.3
LEAST_ANSWERS = 100
"""Minimum number of responses for comparing demand; a busy machine takes longer to reach it."""
NOTICED_SECONDS = 10.0
"""Maximum time after a kill until the requests that it interrupts have ended."""
KILL = """
import os, signal
for pid in filter(str.isdigit, os.listdir("/proc")):
    if open(f"/proc/{pid}/comm").read() == "plimsoll-engine\\n":
        os.kill(int(pid), signal.SIGKILL)
        print("killed", pid)
"""


@pytest.fixture(scope="module")
def kube() -> Iterator[Kube]:
    """One namespace for all tests."""
    with fresh_namespace() as kube:
        yield kube


@pytest.fixture(scope="module")
def hosts(kube: Kube, settings: Settings) -> list[str]:
    """The hosts of a pool with eight small random models without requests."""
    if not settings.shared_files:
        pytest.skip("its models are files that all nodes share, which only this machine's own cluster has")
    pool.start(kube, Path(settings.shared_files), MODELS, memory=MEMORY)
    return pool.wait_replicas(kube)


def test_more_models_than_memory_answer_and_nothing_is_killed(
    kube: Kube,
    release: Release,
    hosts: list[str],
    client: openai.OpenAI,
    async_client: openai.AsyncOpenAI,
    settings: Settings,
    measured: Figures,
) -> None:
    watched = _Watched(HostApi(kube, release.namespace, pool.NAME), hosts)
    samples = [kube.model_hosts()]
    began = Stopwatch()
    with load(async_client, _zipf(), users=USERS, prompt=PROMPT, tokens=TOKENS) as outcome:
        while began.seconds < (600 if settings.long else 60) or outcome.answered < LEAST_ANSWERS:
            hold(2)
            watched.look()
            samples.append(kube.model_hosts())
    hold(WRITTEN_SECONDS)
    samples.append(kube.model_hosts())
    measured |= watched.figures(began.seconds) | {"load": outcome.summary(), "asked": dict(_asked(outcome))}
    measured["seconds_of_first_requests"] = {name: round(_first(outcome, name), 1) for name in outcome.texts}
    asked = [Asked(r.began, f"{kube.namespace}/{r.model}", r.seconds) for r in outcome.requests if r.fault is None]
    run = Run(samples, asked, pool.RESIDENCY)
    if settings.runs:
        run.save(Path(settings.runs) / "pool.json")
    loading = judge(run)
    goal = {"goal_ratio": LOADING_RATIO, "goal": "met" if loading.ratio <= LOADING_RATIO else "missed"}
    measured["loading"] = asdict(loading) | goal
    assert outcome.failures == [], told(measured)
    answers = {name: _ask(client, name) for name in MODELS}
    assert len(set(answers.values())) == len(MODELS), "models of different weights answer alike"
    assert outcome.texts == {name: {answers[name]} for name in outcome.texts}
    assert kube.restarts(*hosts) == dict.fromkeys(hosts, 0)
    assert kube.out_of_memory(*hosts) == dict.fromkeys(hosts, 0)
    asleep = [name for name in MODELS if pool.states(kube, name) == {"Asleep"}]
    assert asleep, "all of them are in memory: there was nothing to decide"
    assert _follows(watched.awake), told(measured)
    until(
        "an event for each eviction",
        lambda: not watched.unexplained(kube),
        timeout=30,
        state=lambda: f"{watched.unexplained(kube)}\n{told(measured)}",
    )


@pytest.mark.usefixtures("hosts")
def test_killed_engines_and_killed_hosts_cost_the_requests_on_them_alone(
    kube: Kube,
    client: openai.OpenAI,
    async_client: openai.AsyncOpenAI,
    settings: Settings,
    measured: Figures,
) -> None:
    engines, lost = (90, 10) if settings.long else (5, 1)
    kills: list[tuple[float, float]] = []
    with load(async_client, _zipf(), users=USERS, prompt=PROMPT, tokens=64) as outcome:

        def kill(strike: Callable[[Kube, str], None], number: int) -> str:
            host = pool.hosts(kube)[number % PODS]
            at = outcome.now()
            strike(kube, host)
            kills.append((at, outcome.now() + NOTICED_SECONDS))
            return host

        for number in range(engines):
            hold(4)
            kill(_kill_engines, number)
        for number in range(lost):
            gone = kill(Kube.kill_now, number)
            until("another host", partial(_without, kube, gone), timeout=pool.SETTLED_SECONDS)
        hold(5)
    failed = [request for request in outcome.requests if request.fault is not None]
    measured |= {"engine_kills": engines, "host_kills": lost, "load": outcome.summary()}
    measured["failures"] = [str(request) for request in failed]
    for request in failed:
        assert any(request.began < end and at < request.ended for at, end in kills), f"{request}\n{told(measured)}"
        assert request.told, f"no error event was sent: {request}\n{told(measured)}"
    assert len(failed) <= USERS * len(kills), told(measured)
    answers = {name: _ask(client, name) for name in MODELS}
    for name, texts in outcome.texts.items():
        assert {text[: len(answers[name])] for text in texts} == {answers[name]}


class _Watched:
    """Samples the hosts' reports during a load. `awake`: name of a model -> number of samples and hosts where it was
    Resident.
    """

    def __init__(self, api: HostApi, hosts: list[str]) -> None:
        self._api = api
        self._hosts = hosts
        self.awake: Counter[str] = Counter()
        self._samples = 0
        self._before = {host: api.report(host) for host in hosts}
        self._decisions: dict[tuple[str, int, str], tuple[str, str, str]] = {}

    def look(self) -> None:
        """Take a sample: read the report of each host once."""
        self._samples += 1
        for host in self._hosts:
            report = self._api.report(host)
            self.awake.update(entry["name"] for entry in report["models"] if entry["state"] == "Resident")
            for decision in report["decisions"]:
                if decision["sequence"] > self._before[host]["sequence"]:
                    told = (decision["action"], decision["name"], f"{host}: {decision['why']}")
                    self._decisions[host, decision["sequence"], decision["name"]] = told

    def unexplained(self, kube: Kube) -> list[tuple[str, str, str]]:
        """Return (action, model, text) of each eviction in the reports for which the model has no Kubernetes event."""
        evicted = [decision for decision in self._decisions.values() if decision[0] == "Evicted"]
        events = {name: {(reason, text) for _, reason, text in kube.events(name)} for _, name, _ in evicted}
        return [(action, name, text) for action, name, text in evicted if (action, text) not in events[name]]

    def figures(self, seconds: float) -> Figures:
        """Return figures to save. `seconds`: duration of the load. The figure `loads` is host -> result of `_sums`."""
        after = {host: self._api.report(host) for host in self._hosts}
        counts = Counter(action for action, _, _ in self._decisions.values())
        return {
            "seconds": seconds,
            "awake_in_samples": dict(self.awake.most_common()),
            "samples": self._samples,
            "decisions": dict(counts),
            "loads": {host: _sums(self._before[host], after[host]) for host in self._hosts},
        }


def _sums(before: dict[str, Any], after: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Return, for each model of a host, the number of loads and wakes between two reports, and the seconds that its
    last load and its last wake took.
    """
    old = {entry["name"]: entry for entry in before["models"]}
    return {
        entry["name"]: {
            "loads": entry["loads"] - old.get(entry["name"], {"loads": 0})["loads"],
            "wakes": entry["wakes"] - old.get(entry["name"], {"wakes": 0})["wakes"],
            "load_seconds": entry["loadSeconds"],
            "wake_seconds": entry["wakeSeconds"],
        }
        for entry in after["models"]
    }


def _follows(awake: Counter[str]) -> bool:
    """Return whether models with more requests are awake more often."""
    half = len(MODELS) // 2
    return awake[MODELS[0]] > awake[MODELS[-1]] and sum(awake[name] for name in MODELS[:half]) > sum(
        awake[name] for name in MODELS[half:]
    )


def _asked(outcome: Outcome) -> Counter[str]:
    return Counter(request.model for request in outcome.requests)


def _first(outcome: Outcome, name: str) -> float:
    return next(request.seconds for request in outcome.requests if request.model == name)


def _kill_engines(kube: Kube, host: str) -> None:
    assert "killed" in kube.execute(host, "python3", "-c", KILL)


def _without(kube: Kube, gone: str) -> bool:
    """Return whether a host is gone and another one reports in its place."""
    return gone not in pool.hosts(kube) and len(pool.reporting(kube)) == PODS


def _ask(client: openai.OpenAI, model: str) -> str:
    answer = client.completions.create(
        model=model, prompt=PROMPT, max_tokens=TOKENS, temperature=0, extra_body={"ignore_eos": True}
    )
    return answer.choices[0].text


def _zipf() -> Callable[[], str]:
    """Return a function that draws a model: rank n has 1/n of the first one's requests (Zipf)."""
    draw = random.Random(0)
    weights = [1 / (rank + 1) for rank in range(len(MODELS))]
    return lambda: draw.choices(MODELS, weights)[0]
