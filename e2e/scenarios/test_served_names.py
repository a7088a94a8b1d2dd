"""Served names belong to namespaces: a rule reserves some, and a used name stays reserved while its object is
recreated.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from harness.helm import with_values
from harness.kube import Kube, fresh_namespace
from harness.kubectl import kubectl
from harness.release import Release
from harness.settings import Settings
from harness.volume import provide_volume
from harness.waiting import until

MODEL = "served-names"
RULE = 'servedNames.rules=[{"names":["reserved-*"],"namespaces":["nobody"]}]'
GRACE = 30
"""Seconds: long enough to observe, short enough to wait for. Other scenarios have none."""
TOLD_SECONDS = 60


@pytest.fixture(autouse=True, scope="module")
def _rules(settings: Settings) -> Iterator[None]:
    with with_values(settings.release, settings.release_namespace, RULE, f"servedNames.graceSeconds={GRACE}"):
        yield


@pytest.fixture
def rival(settings: Settings) -> Iterator[Kube]:
    """Another tenant's namespace."""
    with fresh_namespace() as kube:
        if settings.shared_files:
            provide_volume(kube, Path(settings.shared_files))
        yield kube


def test_a_name_stays_while_its_object_is_made_again(
    kube: Kube, rival: Kube, release: Release, settings: Settings, tiny: dict[str, Any], client: openai.OpenAI
) -> None:
    def record() -> str:
        """Return the operator's record of the served names of this test's namespace; "" if it has none."""
        of = ["configmap", f"{settings.release}-served-names", "--namespace", release.namespace]
        return kubectl("get", *of, "--output", f"jsonpath={{.data.{kube.namespace}}}")

    kube.apply(tiny)
    kube.wait_settled(MODEL, 1)
    assert _answers(client)
    until("the name on record", record, timeout=TOLD_SECONDS)
    rival.apply(copy.deepcopy(tiny))
    _wait_reason(rival, "ServedNameTaken")
    kube.delete_model(MODEL)
    for pod in release.component_pods("operator"):
        release.kill_now(pod)
    _wait_reason(rival, "ServedNameKept")
    assert not _answers(client), "the rival's pod was asked"
    kube.apply(copy.deepcopy(tiny))
    kube.wait_condition(MODEL, "Ready", "True")
    until("answers", lambda: _answers(client), timeout=TOLD_SECONDS)
    _wait_reason(rival, "ServedNameTaken")

    kube.delete_model(MODEL)
    rival.wait_condition(MODEL, "Routable", "True", timeout=GRACE + TOLD_SECONDS)
    until("answers of the rival", lambda: _answers(client), timeout=TOLD_SECONDS)


def test_a_reserved_name_is_nobodys(kube: Kube, tiny: dict[str, Any], client: openai.OpenAI) -> None:
    tiny["spec"]["model"]["servedNames"] = ["reserved-e2e"]
    kube.apply(tiny)
    kube.wait_settled(MODEL, 1)
    _wait_reason(kube, "ServedNameReserved")
    assert not _answers(client, "reserved-e2e")


def _wait_reason(kube: Kube, reason: str) -> None:
    until(
        reason,
        lambda: (found := kube.condition(MODEL, "Routable")) and found["reason"] == reason,
        timeout=TOLD_SECONDS,
        state=lambda: kube.describe(MODEL),
    )


def _answers(client: openai.OpenAI, name: str = MODEL) -> bool:
    """Return whether a model serves the name: a request for it gets a response, not a 404."""
    try:
        client.completions.create(model=name, prompt="a", max_tokens=1)
    except openai.NotFoundError:
        return False
    return True
