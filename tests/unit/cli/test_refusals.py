"""A config that is not supported is rejected before torch loads, an engine process starts, or weights are
downloaded.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from model_support.configs import LLAMA
from model_support.hub import Hub, serving

from plimsoll_runtime.driver.build.model_files import check_folder
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.errors import ModelError


def test_only_folders_are_looked_at_before_a_process_starts(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA, "quantization_config": {"quant_method": "awq"}}))
    config = EngineConfig(model=str(tmp_path))
    for model in (str(tmp_path), f"file://{tmp_path}"):
        with pytest.raises(ModelError, match="awq is not supported"):
            check_folder(replace(config, model=model))
    for model in ("org/name", "hf://org/name", "demo://gemma-3-270m", str(tmp_path / "config.json")):
        check_folder(replace(config, model=model))


WITHOUT_TORCH = """
import subprocess, sys

def no_process(*arguments, **options):
    raise AssertionError("a process is started")

from plimsoll_runtime.cli.main import main
from plimsoll_runtime.driver.build.model_files import find_files
from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.errors import PlimsollError
code = 0
if sys.argv[1] == "serve":
    subprocess.Popen = no_process
    code = main(sys.argv[1:])
else:
    for _ in range(2):
        try:
            find_files(EngineConfig(model=sys.argv[1]))
        except PlimsollError as error:
            print(error)
assert "torch" not in sys.modules
sys.exit(code)
"""


def without_torch(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("HF_") and "proxy" not in k.lower()}
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, *arguments],
        env={**inherited, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.matrix(2)
@pytest.mark.parametrize(
    ("config", "options", "code", "words"),
    [
        ({"architectures": ["FooForCausalLM"], "model_type": "foo"}, (), 4, "supports the model_type foo"),
        ({**LLAMA, "quantization_config": {"quant_method": "gptq"}}, (), 4, "gptq is not supported"),
        (LLAMA, ("--max-model-len", "9000"), 2, "exceeds the model's limit of 4096 tokens"),
        (LLAMA, ("--task", "score"), 2, "--task score"),
    ],
)
def test_a_folder_is_refused_without_torch_and_without_a_process(
    tmp_path: Path, config: dict[str, Any], options: tuple[str, ...], code: int, words: str
) -> None:
    config = {**config, **({"architectures": ["BertModel"], "model_type": "bert"} if "score" in options else {})}
    (tmp_path / "config.json").write_text(json.dumps(config))
    done = without_torch("serve", str(tmp_path), "--port", "0", *options)
    assert words in done.stderr
    assert done.returncode == code


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serving(Hub()) as made:
        yield made


@pytest.mark.long
def test_of_a_hubs_model_the_config_comes_first(hub: Hub, tmp_path: Path) -> None:
    """The second start, from the cache, is rejected too; a later, supported revision is not."""
    settings = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path), "HF_HUB_DISABLE_XET": "1"}
    refused = {"architectures": ["FooForCausalLM"], "model_type": "foo"}
    hub.files = {**hub.files, "config.json": json.dumps(refused).encode()}
    done = without_torch("hf://org/model", **settings)
    assert done.stdout.count("supports the model_type foo") == 2, done.stderr
    assert not any(asked.endswith((".safetensors", "tokenizer.json")) for asked in hub.asked)
    hub.files = {**hub.files, "config.json": json.dumps(LLAMA).encode()}
    hub.revisions = {"main": "c" * 40}
    assert "supports the model_type foo" not in without_torch("hf://org/model", **settings).stdout
    assert any(asked.endswith(".safetensors") for asked in hub.asked)
    hub.asked.clear()
    without_torch("hf://org/model", **settings)
    looks = [asked for asked in hub.asked if "/revision/main" in asked]
    assert len(looks) == 2, "one for each of two starts: what the cache has passes"
