"""The example of a third-party family is installed as a package, and serves."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from model_support.forward import largest_difference, of_engine, of_transformers
from model_support.tiny import edit_config, make_model, prompts, save_model
from safetensors.torch import load_file, save_file

from plimsoll_runtime.models.registry import registry

ROOT = Path(__file__).resolve().parents[4]
PLUGIN = ROOT / "examples" / "plugin"
PROMPTS = prompts((1, 40))


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install a copy of the example in a folder on Python's path."""
    target = tmp_path / "site"
    options = ["--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--disable-pip-version-check"]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, "--target", target, PLUGIN], check=True)
    monkeypatch.syspath_prepend(str(target))


def paired(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Reorder rows for a rope that rotates halves so that one that rotates neighbours gives the same result."""
    halves = weight.view(heads, 2, -1, weight.shape[1])
    return halves.transpose(1, 2).reshape(weight.shape).contiguous()


def test_the_example_serves(installed: None, tmp_path: Path) -> None:
    """The example computes what Arcee does in Transformers, on the same weights with reordered rows."""
    assert registry.plugins() == {"BasaltForCausalLM": "plimsoll_basalt:describe"}
    model = make_model("ArceeConfig", {"max_position_embeddings": 512})
    expected = of_transformers(model, PROMPTS)
    folder = tmp_path / "model"
    save_model(model, folder)
    tensors = load_file(folder / "model.safetensors")
    for name, weight in tensors.items():
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            tensors[name] = paired(weight, 4 if "q_proj" in name else 2)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    edit_config(folder, architectures=["BasaltForCausalLM"], model_type="basalt")
    assert largest_difference(of_engine(str(folder), PROMPTS), expected) < 1e-3


def test_the_page_about_models_has_the_same_words() -> None:
    code = (PLUGIN / "plimsoll_basalt.py").read_text()
    assert f"```python\n{code}```" in (ROOT / "docs" / "tasks" / "models.md").read_text()
