"""Data that a killed pod has stored on a claim is available again when another pod takes over: found, continued,
deleted.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openai
import pytest

from harness import pool
from harness.kube import Kube
from harness.settings import Settings
from harness.volume import provide_store
from harness.waiting import until
from plimsoll_gateway.routing.response_affinity import place_of

MODEL = "kept"
KEEPER = "plimsoll.dev/keeper"
TOKENS = 8


@pytest.fixture
def store(kube: Kube, settings: Settings) -> str:
    """The name of a claim to which all pods may write."""
    if not settings.shared_files:
        pytest.skip(
            "the test needs a folder that every node sees, which only this machine's own cluster has: unset KUBECONFIG"
        )
    provide_store(kube, Path(settings.shared_files), "kept")
    return "kept"


class Talk:
    """A conversation of background responses. `seen` collects the HTTP statuses of `find`. `client` retries, like
    OpenAI's client does by default, because one of two gateways learns of a new pod first.
    """

    def __init__(self, client: openai.OpenAI, model: str) -> None:
        self._once, self.client, self._model = client, client.with_options(max_retries=8), model
        self.seen: set[int] = set()

    def turn(self, text: str, before: Any = None) -> Any:
        """Run one turn and return its response."""
        made = self.client.responses.create(
            model=self._model,
            input=text,
            background=True,
            temperature=0,
            max_output_tokens=TOKENS,
            previous_response_id=before.id if before else None,
            extra_body={"ignore_eos": True},
        )
        return until("the answer", lambda: self._ended(made.id), timeout=60)

    def find(self, response: str) -> Any:
        """Return the response, or None while the pod that stores it is being replaced."""
        try:
            found = self._once.responses.retrieve(response)
        except openai.APIStatusError as error:
            self.seen.add(error.status_code)
            return None
        self.seen.add(200)
        return found

    def _ended(self, response: str) -> Any:
        found = self.client.responses.retrieve(response)
        return found if found.status not in ("queued", "in_progress") else None


def place(response: Any) -> str:
    """Return the place in the response's id: it identifies the replica, or the stored data that its replacement takes
    over.
    """
    return str(response.id.removeprefix("resp_")[:12])


def keepers(kube: Kube, pods: list[Any]) -> dict[str, str]:
    """Return the place in a response's id -> name of the pod that stores responses with this place."""
    labels = {pod["metadata"]["name"]: pod["metadata"]["labels"][KEEPER] for pod in pods}
    return {place_of(f"{kube.namespace}/{keeper}"): name for name, keeper in labels.items()}


def check_taken_over(talk: Talk, first: Any, second: Any) -> None:
    """Check that the conversation is unchanged, can be continued, and can be deleted."""
    found = until("the response", lambda: talk.find(second.id), timeout=120, state=lambda: talk.seen)
    assert talk.seen <= {200, 503}, "it was never gone, only away"
    assert (found.status, found.output_text, found.previous_response_id) == ("incomplete", second.output_text, first.id)
    assert found.incomplete_details.reason == "max_output_tokens"
    third = talk.turn("w7", found)
    assert place(third) == place(second)
    client = talk.client
    items: list[Any] = client.responses.input_items.list(third.id, order="asc").data
    texts = [part.text for item in items for part in item.content]
    assert texts == ["w5", first.output_text, "w6", second.output_text, "w7"]
    for response in (first, second, third):
        client.responses.delete(response.id)
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(response.id)


def test_a_killed_replicas_responses_are_taken_over(kube: Kube, store: str, serve: Any, client: openai.OpenAI) -> None:
    serve(2, responses={"claim": store})
    talk = Talk(client, MODEL)
    first = talk.turn("w5")
    second = talk.turn("w6", first)
    assert place(second) == place(first), "a conversation continues on the pod that stores it"
    holders = keepers(kube, kube.pods(MODEL))
    victim, others = holders[place(first)], set(holders.values()) - {holders[place(first)]}
    kube.kill_now(victim)
    check_taken_over(talk, first, second)
    taken = keepers(kube, kube.pods(MODEL))[place(first)]
    assert taken not in {victim, *others}, "another pod has its place"


def test_what_a_killed_host_of_a_pool_kept_is_taken_over(
    kube: Kube, store: str, settings: Settings, client: openai.OpenAI
) -> None:
    """Files are taken over, too. The pool sets the claim for them, and the status of its models names it."""
    name = f"{MODEL}-0"
    pool.provide_models(kube, Path(settings.shared_files), [name])
    manifest = pool.pool(1)
    manifest["spec"] |= {"responses": {"claim": store}, "files": {"claim": store}}
    kube.apply(manifest)
    kube.apply(pool.model(name))
    kube.wait_condition(name, "Ready", "True")
    assert kube.model(name)["status"]["filesClaim"] == f"{kube.namespace}/{store}"
    talk = Talk(client, name)
    first = talk.turn("w5")
    second = talk.turn("w6", first)
    file = client.files.create(file=("lines.jsonl", b"{}\n"), purpose="batch")
    (victim,) = pool.hosts(kube)
    kube.kill_now(victim)
    check_taken_over(talk, first, second)
    assert talk.client.files.content(file.id).content == b"{}\n"
    assert pool.hosts(kube) != [victim]
