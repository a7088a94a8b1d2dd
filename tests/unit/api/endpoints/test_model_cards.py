"""The card of a model."""

from typing import Any


async def test_what_a_person_should_know_of_a_model_is_on_its_card(run_server: Any) -> None:
    for about, expected in (("a base model", {"about": "a base model"}), (None, {})):
        async with run_server(about=about) as server, server.http() as http:
            card = (await http.get("/v1/models/fake")).json()
            assert {key: value for key, value in card.items() if key == "about"} == expected
