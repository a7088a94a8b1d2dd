"""Groups of two pods on two nodes answer with the text of `LLM` with one rank, for each division and backend."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import openai
import pytest
from kernel_support import nccl_id

from harness.figures import Figures, judged
from harness.groups import Member, apart, joined_at, only_group, wait_formed
from harness.kube import Kube, Object, fresh_namespace
from harness.settings import Settings
from harness.sockets import listening, open_ports
from harness.tiny_model import RUNTIME, write_tiny_model
from harness.waiting import Stopwatch, until
from plimsoll_runtime import LLM, SamplingParams

MODEL = "group"
DIVISIONS = {
    "tp2": {"tensor": 2, "pods": 2},
    "pp2": {"pipeline": 2, "pods": 2},
    "tp2-pp2": {"tensor": 2, "pipeline": 2, "pods": 2},
}
BACKENDS = ("local", "gloo")
GROUPS = {f"{MODEL}-{division}-{backend}": (division, backend) for division in DIVISIONS for backend in BACKENDS}
ALONE, TIMED = f"{MODEL}-alone", f"{MODEL}-timed"
OPTIONS = RUNTIME | {"threads": 1}
PROMPTS = ["w5 w6 w7 w8 w9 w10", "w7", " ".join(f"w{number % 97}" for number in range(400))]
QUESTION: Any = [{"role": "user", "content": "w11 w12 w13"}]
TOKENS = 24
LATER_SECONDS, JOINED_SECONDS = 5.0, 3.0
LIBRARY = """
from importlib.util import find_spec
from pathlib import Path
spec = find_spec("nvidia.nccl") if find_spec("nvidia") else None
folders = list(spec.submodule_search_locations) if spec else []
print(*(path for folder in folders for path in Path(folder, "lib").glob("libnccl.so*")))
"""


@pytest.fixture(scope="module")
def kube() -> Iterator[Kube]:
    """One namespace for all tests."""
    with fresh_namespace() as kube:
        yield kube


@pytest.fixture
def formed(kube: Kube, tiny: Object, two_nodes: tuple[str, str]) -> dict[str, tuple[Member, ...]]:
    """The members of each of GROUPS. The first test creates all groups at once."""
    missing = GROUPS.keys() - kube.models().keys()
    for name in sorted(missing):
        kube.apply(_group(tiny, name, *GROUPS[name]))
    for name in missing:
        wait_formed(kube, name)
    found = {name: only_group(kube, name) for name in GROUPS}
    for name, members in found.items():
        assert sorted(member.node for member in members) == list(two_nodes), name
    return found


@pytest.fixture(scope="module")
def expected(settings: Settings) -> list[str]:
    """The outputs of `LLM` with one rank in this process: the chat's, then those of PROMPTS."""
    source = "demo://gemma-3-270m"
    if settings.shared_files:
        folder = Path(settings.shared_files) / "tiny-llama"
        write_tiny_model(folder)
        source = str(folder)
    llm = LLM(source, dtype="float32", max_model_len=1024, kv_memory="64MiB", threads=1)
    greedy = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)
    results = [*llm.chat([QUESTION], greedy), *llm.generate(PROMPTS, greedy)]
    return [result.outputs[0].text for result in results]


@pytest.mark.usefixtures("formed")
@pytest.mark.parametrize("name", GROUPS)
def test_the_text_is_that_of_one_rank(client: openai.OpenAI, expected: list[str], name: str) -> None:
    options: Any = {"model": name, "temperature": 0, "max_tokens": TOKENS, "extra_body": {"ignore_eos": True}}
    texts = [client.chat.completions.create(messages=QUESTION, **options).choices[0].message.content]
    texts += [client.completions.create(prompt=prompt, **options).choices[0].text for prompt in PROMPTS]
    assert texts == expected


@pytest.mark.parametrize("name", GROUPS)
def test_each_listening_port_is_in_the_network_policy(
    kube: Kube, formed: dict[str, tuple[Member, ...]], settings: Settings, name: str
) -> None:
    opened = open_ports(settings.release_namespace, "app.kubernetes.io/component=runtime")
    assert opened, "the release has no NetworkPolicy of runtime pods"
    for member in formed[name]:
        ports = {socket.port for socket in listening(kube, member.name)}
        assert 8000 in ports
        outside = {port for port in ports if not any(port in each for each in opened)}
        assert outside == set(), f"{member.name} listens on {sorted(ports)}; the policy opens {opened}"


def test_nccl_meets_at_the_address_of_each_pod(kube: Kube, formed: dict[str, tuple[Member, ...]]) -> None:
    """Both with the environment of the pod, and with what a rank adds to it."""
    members = formed[f"{MODEL}-tp2-local"]
    library = kube.execute(members[0].name, "python3", "-c", LIBRARY).split()
    if not library:
        pytest.skip("the image of the runtime has no libnccl: its PyTorch was built for CPUs")
    script = Path(nccl_id.__file__).read_text()
    for member in members:
        for address in ("", member.address):
            printed = kube.execute(member.name, "python3", "-c", script, library[0], address)
            assert printed.splitlines()[-1] == member.address


def test_how_long_a_group_takes_to_form(kube: Kube, tiny: Object, settings: Settings, measured: Figures) -> None:
    """Next to a model of one pod of the same size."""
    for name in GROUPS:
        kube.delete_model(name)
    until("no other group", lambda: not any(kube.pods(name) for name in GROUPS), timeout=120)
    alone, group, joined = [], [], []
    for _ in range(10 if settings.long else 1):
        kube.apply(tiny | {"metadata": {"name": ALONE}, "spec": tiny["spec"] | {"runtime": OPTIONS}})
        alone.append(_ready_after(kube, ALONE)[0])
        _remove(kube, ALONE)
        kube.apply(_group(tiny, TIMED, "tp2", "local"))
        seconds, addressed = _ready_after(kube, TIMED)
        group.append(seconds)
        joined.append(round(joined_at(kube.log(only_group(kube, TIMED)[0].name)) - addressed, 1))
        _remove(kube, TIMED)
    goal = round(median(alone) + LATER_SECONDS, 1)
    measured["ready"] = {"alone": alone, **judged(group, goal, 50)}
    measured["joined_after_the_leader_had_an_address"] = judged(joined, JOINED_SECONDS, 50)


def _group(tiny: Object, name: str, division: str, backend: str) -> Object:
    spec = {
        "parallel": DIVISIONS[division],
        "runtime": OPTIONS | {"groupBackend": backend},
        "template": apart(),
    }
    return tiny | {"metadata": {"name": name}, "spec": tiny["spec"] | spec}


def _ready_after(kube: Kube, name: str) -> tuple[float, float]:
    """Wait until a model is Ready. Return the seconds, and when (seconds since 1970) its first pod got an address."""
    since, addressed = Stopwatch(), 0.0

    def look() -> bool:
        nonlocal addressed
        if not addressed and any(pod["status"].get("podIP") for pod in kube.pods(name)):
            addressed = time.time()
        condition = kube.condition(name, "Ready")
        return condition is not None and condition["status"] == "True"

    until(f"{name} Ready", look, timeout=300, state=lambda: kube.describe(name))
    return since.seconds, addressed


def _remove(kube: Kube, name: str) -> None:
    kube.delete_model(name)
    until(f"{name} gone", lambda: not kube.pods(name), timeout=120)
