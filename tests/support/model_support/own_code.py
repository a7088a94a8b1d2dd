"""A model with its own code: a Llama whose MLPs return half of their result."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

CONFIG: Mapping[str, Any] = {
    "architectures": ["BuoyForCausalLM"],
    "model_type": "buoy",
    "auto_map": {
        "AutoConfig": "configuration_buoy.BuoyConfig",
        "AutoModelForCausalLM": "modeling_buoy.BuoyForCausalLM",
    },
}
CONFIGURATION = """
from transformers import LlamaConfig


class BuoyConfig(LlamaConfig):
    model_type = "buoy"
"""
MODELING = """
from transformers import LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaMLP

from .configuration_buoy import BuoyConfig


class BuoyMLP(LlamaMLP):
    def forward(self, x):
        return 0.5 * super().forward(x)


class BuoyForCausalLM(LlamaForCausalLM):
    config_class = BuoyConfig

    def __init__(self, config):
        super().__init__(config)
        for layer in self.model.layers:
            layer.mlp = BuoyMLP(config)
"""


def write_code(folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Write the model's code files. Transformers keeps its copies in the folder instead of the home."""
    patch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(folder / "modules"))
    patch.setattr(sys, "path", list(sys.path))
    for name in [name for name in sys.modules if name.startswith("transformers_modules")]:
        patch.delitem(sys.modules, name)
    (folder / "configuration_buoy.py").write_text(CONFIGURATION)
    (folder / "modeling_buoy.py").write_text(MODELING)
