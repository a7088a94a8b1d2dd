"""A tool for an agent, and the format of an answer."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

HEARD: list[str] = []
"""The cities of the tool's calls."""


class Forecast(BaseModel):
    """A weather forecast."""

    sky: Literal["clear", "grey"]
    degrees: int = Field(ge=-60, le=60)


def get_weather(city: str) -> str:
    """The weather of a city.

    Args:
        city: Where.
    """
    HEARD.append(city)
    return f"rain in {city}"
