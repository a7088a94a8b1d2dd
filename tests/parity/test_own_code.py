"""Log probabilities of models with their own code equal Transformers' with the same code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from model_support.forward import largest_difference, of_engine, of_transformers
from model_support.own_code import CONFIG, write_code
from model_support.tiny import edit_config, make_model, prompts, save_model

from plimsoll_runtime import LLM
from plimsoll_runtime.errors import ModelError, UsageError

TOLERANCE = 1e-3
PROMPTS = prompts((1, 30, 70))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    save_model(make_model("LlamaConfig", {}), tmp_path)
    write_code(tmp_path, monkeypatch)
    edit_config(tmp_path, **CONFIG)
    return tmp_path


def test_its_own_code_computes_it(folder: Path) -> None:
    import transformers

    load: Any = transformers.AutoModelForCausalLM.from_pretrained
    expected = of_transformers(load(folder, dtype=torch.float32, trust_remote_code=True).eval(), PROMPTS)
    for options in ({}, {"max_batch_tokens": 24}):
        found = of_engine(str(folder), PROMPTS, trust_remote_code=True, **options)
        assert largest_difference(found, expected) < TOLERANCE
    load_plain: Any = transformers.LlamaForCausalLM.from_pretrained
    plain = of_transformers(load_plain(folder, dtype=torch.float32).eval(), PROMPTS)
    assert largest_difference(plain, expected) > 10 * TOLERANCE, "its MLPs are others"


def test_nobody_runs_it_unasked(folder: Path) -> None:
    (folder / "modeling_buoy.py").write_text("raise SystemExit")
    with pytest.raises(ModelError, match=r"modeling_buoy.BuoyForCausalLM.*--trust-remote-code"):
        LLM(str(folder), threads=1)
    with pytest.raises(ModelError, match="is not supported; supported are"):
        LLM(str(folder), threads=1, model_impl="native", trust_remote_code=True)


def test_quantised_it_is_refused_before_its_code_is_run(folder: Path) -> None:
    (folder / "modeling_buoy.py").write_text("raise SystemExit")
    edit_config(folder, quantization_config={"quant_method": "awq"})
    with pytest.raises(ModelError, match="awq"):
        LLM(str(folder), threads=1, trust_remote_code=True)
    with pytest.raises(UsageError):
        LLM(str(folder), threads=0, trust_remote_code=True)
