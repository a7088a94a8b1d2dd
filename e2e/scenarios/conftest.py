"""Fixtures of the scenarios: a new namespace for each, and clients that use the ingress."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
import yaml
from kubernetes import config
from kubernetes.client import ApiException
from urllib3.exceptions import HTTPError

from harness import figures, nodes
from harness.figures import Figures
from harness.kube import GROUP, Kube, fresh_namespace
from harness.release import Release
from harness.settings import Settings
from harness.tiny_model import RUNTIME, write_tiny_model
from harness.volume import CLAIM, provide_volume

REPOSITORY = Path(__file__).parents[2]
SMALL = {"cpu": "200m", "memory": "1500Mi"}


Serve = Callable[..., dict[str, Any]]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the last log lines of operator and gateway to the report of a failed test."""
    report = yield
    if report.when == "call" and report.failed:
        report.sections.append(("the release's logs", _log_ends()))
    return report


def _log_ends() -> str:
    """Return the log ends, or why they cannot be read (the API server may be what failed)."""
    try:
        return Release(Settings.from_environment().release_namespace).log_ends()
    except (HTTPError, ApiException) as error:
        return f"They could not be read: {error}"


@pytest.fixture(scope="session", autouse=True)
def _cluster() -> None:
    """Configure every Kubernetes client of the process."""
    load: Any = config.load_kube_config
    load()


@pytest.fixture(scope="session")
def settings() -> Settings:
    return Settings.from_environment()


@pytest.fixture
def own_cluster(settings: Settings) -> None:
    """Skip the test unless it can stop the cluster's daemons."""
    if not settings.own_cluster:
        pytest.skip("stopping the cluster's daemons works only on this machine's own cluster: unset KUBECONFIG")


@pytest.fixture
def two_nodes() -> tuple[str, str]:
    """The two nodes between which pods move, both alive. The ingress is reached through the first."""
    found = nodes.names()
    if len(found) != 2:
        pytest.skip(f"the test needs exactly two nodes, but the cluster has {len(found)}: {', '.join(found)}")
    nodes.wait_ready(*found)
    return found[0], found[1]


@pytest.fixture
def measured(settings: Settings, request: pytest.FixtureRequest) -> Iterator[Figures]:
    """An empty dict into which the test writes its figures. They are saved even if the test fails."""
    found: Figures = {}
    yield found
    figures.save(Path(settings.results), request.node.nodeid.rpartition("/")[2], found)


@pytest.fixture
def kube() -> Iterator[Kube]:
    """A new namespace, deleted afterwards."""
    with fresh_namespace() as kube:
        yield kube


@pytest.fixture
def release(settings: Settings) -> Release:
    """The operator and the gateway."""
    return Release(settings.release_namespace)


@pytest.fixture
def openai_options(settings: Settings) -> dict[str, Any]:
    return {
        "base_url": f"{settings.url}/v1",
        "api_key": "unused",
        "default_headers": {"Host": settings.host},
        "max_retries": 0,
        "timeout": 120,
    }


@pytest.fixture
def client(openai_options: dict[str, Any]) -> Iterator[openai.OpenAI]:
    """A real OpenAI client that reaches the models through the ingress and never retries."""
    with openai.OpenAI(**openai_options) as client:
        yield client


@pytest.fixture
def async_client(openai_options: dict[str, Any]) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(**openai_options)


@pytest.fixture
def new_client(openai_options: dict[str, Any]) -> Callable[[], openai.AsyncOpenAI]:
    """Return a function that creates clients, for tests with several loads that each close their own."""
    return lambda: openai.AsyncOpenAI(**openai_options)


@pytest.fixture
def demo() -> dict[str, Any]:
    """The ModelDeployment in examples/gemma.yaml, which the README applies."""
    manifest: dict[str, Any] = yaml.safe_load((REPOSITORY / "examples" / "gemma.yaml").read_text())
    return manifest


@pytest.fixture
def tiny(kube: Kube, settings: Settings, demo: dict[str, Any], request: pytest.FixtureRequest) -> dict[str, Any]:
    """A ModelDeployment that is ready in seconds: a random model on a volume, or the demo model if nodes share no
    files. Its name is its scenario's `MODEL`, because served names are shared with parallel scenarios.
    """
    name: str = request.module.MODEL
    if not settings.shared_files:
        manifest = demo | {"metadata": {"name": name}}
        manifest["spec"] = demo["spec"] | {"model": {"source": demo["spec"]["model"]["source"]}}
        return manifest
    folder = Path(settings.shared_files) / "tiny-llama"
    write_tiny_model(folder)
    provide_volume(kube, folder.parent)
    return {
        "apiVersion": GROUP,
        "kind": "ModelDeployment",
        "metadata": {"name": name},
        "spec": {
            "model": {"source": f"pvc://{CLAIM}/{folder.name}"},
            "replicas": 1,
            "resources": SMALL,
            "runtime": RUNTIME | {"threads": 1},
        },
    }


@pytest.fixture
def serve(kube: Kube, tiny: dict[str, Any]) -> Serve:
    """Return a function that applies the tiny model with these replicas and spec fields, and waits until it has
    settled. Another `name` creates another model.
    """

    def start(replicas: int = 1, name: str = "", **fields: Any) -> dict[str, Any]:
        model = tiny | {"metadata": tiny["metadata"] | ({"name": name} if name else {})}
        model["spec"] = tiny["spec"] | {"replicas": replicas, **fields}
        kube.apply(model)
        pods = fields.get("parallel", {}).get("pods", 1)
        kube.wait_settled(model["metadata"]["name"], replicas * pods)
        return model

    return start


@pytest.fixture
def serving(kube: Kube, serve: Serve, request: pytest.FixtureRequest) -> dict[str, Any]:
    """Ensure one ready and settled replica, reusing the previous test's model if it exists."""
    name: str = request.module.MODEL
    if name not in kube.models():
        return serve()
    kube.scale(name, 1)
    kube.wait_settled(name, 1)
    return {
        "apiVersion": GROUP,
        "kind": "ModelDeployment",
        "metadata": {"name": name},
        "spec": kube.model(name)["spec"],
    }
