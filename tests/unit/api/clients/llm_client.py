"""The `llm` command; runs in the environment of `make clients`.

`llm_client.py SCRIPTED TINY FOLDER` prints exit codes and outputs as JSON. SCRIPTED is the URL of a server with
scripted answers, TINY that of a small real model, FOLDER the settings of `llm`.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from click.testing import CliRunner
from llm.cli import cli

MODELS, SETTINGS = ("fake", "tiny"), "extra-openai-models.yaml"
WEATHER = 'def get_weather(city: str) -> str:\n    "The weather of a city."\n    return "rain in " + city\n'
SCHEMA = {
    "type": "object",
    "properties": {"sky": {"enum": ["clear", "grey"]}, "degrees": {"type": "integer", "minimum": -60, "maximum": 60}},
    "required": ["sky", "degrees"],
    "additionalProperties": False,
}


def run(*command: str) -> tuple[int, str]:
    """The exit code and the output of `llm prompt` with these arguments."""
    done = CliRunner().invoke(cli, ("prompt", *command))
    return done.exit_code, done.output.strip()


def configure(*urls: str) -> None:
    """Write the models' URLs into the settings of `llm`."""
    can = {"supports_schema": True, "supports_tools": True}
    found = [
        {"model_id": f"at-{name}", "model_name": name, "api_base": f"{url}/v1"} | can
        for name, url in zip(MODELS, urls, strict=True)
    ]
    Path(os.environ["LLM_USER_PATH"], SETTINGS).write_text(json.dumps(found))


if __name__ == "__main__":
    os.environ["LLM_USER_PATH"] = sys.argv[3]
    configure(*sys.argv[1:3])
    asking = ["-m", "at-fake", "--functions", WEATHER]
    print(
        json.dumps(
            {
                "whole": run("Weather in Bonn?", *asking, "--no-stream"),
                "streamed": run("Weather in Bonn?", *asking),
                "cut": run("Weather in Bonn?", *asking, "-o", "max_tokens", "60"),
                "after": run("And now?", "--continue", *asking),
                "long": run("x" * 5000, "-m", "at-fake"),
                "typed": run("Weather?", "-m", "at-tiny", "--schema", json.dumps(SCHEMA), "-o", "seed", "1"),
            }
        )
    )
