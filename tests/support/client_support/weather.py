"""A tool that an agent calls, and the form of an answer."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

HEARD: list[str] = []
"""The cities that the tool was called with."""


class Forecast(BaseModel):
    """What the weather will be."""

    sky: Literal["clear", "grey"]
    degrees: int = Field(ge=-60, le=60)


def get_weather(city: str) -> str:
    """The weather of a city.

    Args:
        city: Where.
    """
    HEARD.append(city)
    return f"rain in {city}"
