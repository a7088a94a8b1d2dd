"""Requests typed output as `instructor`'s users do; runs in the environment that has it.

`instructor_client.py WHAT MODEL MODES URL...` prints as JSON what each URL returned in each mode: WHAT is "one", or
"many" objects in an output.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any, Literal

import instructor
import openai
from pydantic import BaseModel, ConfigDict, Field, field_validator


class Ship(BaseModel):
    """A ship in the harbour."""

    model_config = ConfigDict(extra="forbid")

    name: Literal["Argo", "Beagle", "Fram"]
    masts: int = Field(ge=1, le=9)
    flags: list[Literal["red", "blue"]] = Field(min_length=1, max_length=2)


class Berth(BaseModel):
    """A place for a ship."""

    model_config = ConfigDict(extra="forbid")

    ship: Ship
    depth: Literal[3, 5, 8] | None


class Doubted(Ship):
    """A ship whose first answer always fails validation."""

    heard: int = Field(ge=0, le=0, default=0)

    @field_validator("name")
    @classmethod
    def is_seen_again(cls, name: str) -> str:
        SEEN.append(name)
        if len(SEEN) == 1:
            raise ValueError("look again")
        return name


SEEN: list[str] = []


QUESTION: Any = {"messages": [{"role": "user", "content": "Which ships are here?"}], "extra_body": {"seed": 1}}


def options(url: str) -> Any:
    return {"base_url": f"{url}/v1", "api_key": "none", "max_retries": 0, "timeout": 120}


async def one(url: str, model: str, mode: Any) -> dict[str, Any]:
    SEEN.clear()
    with openai.OpenAI(**options(url)) as plain:
        client = instructor.from_openai(plain, mode=mode, model=model)
        ship = client.create(response_model=Ship, **QUESTION)
        berth, raw = client.create_with_completion(response_model=Berth, **QUESTION)
        believed = client.create(response_model=Doubted, max_retries=2, **QUESTION)
        partial = [each.model_dump() for each in client.create_partial(response_model=Ship, **QUESTION)]
    async with openai.AsyncOpenAI(**options(url)) as waiting:
        awaited = await instructor.from_openai(waiting, mode=mode, model=model).create(response_model=Ship, **QUESTION)
    return {
        "ship": ship.model_dump(),
        "berth": berth.model_dump(),
        "model": raw.model,
        "doubted": len(SEEN),
        "believed": believed.model_dump(),
        "partial": partial,
        "awaited": awaited.model_dump(),
    }


async def many(url: str, model: str, mode: Any) -> dict[str, Any]:
    with openai.OpenAI(**options(url)) as plain:
        client = instructor.from_openai(plain, mode=mode, model=model)
        whole = client.create(response_model=list[Ship], **QUESTION)
        streamed = list(client.create_iterable(response_model=Ship, **QUESTION))
    return {"whole": [ship.model_dump() for ship in whole], "streamed": [ship.model_dump() for ship in streamed]}


if __name__ == "__main__":
    what, model, modes, *urls = sys.argv[1:]
    ask = {"one": one, "many": many}[what]
    told = {
        url: {mode: asyncio.run(ask(url, model, instructor.Mode[mode])) for mode in modes.split(",")} for url in urls
    }
    print(json.dumps(told))
