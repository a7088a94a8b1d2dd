"""Models that are compared with Transformers, each with a mistake that its logits would show."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from model_support.forward import loaded_by_transformers, of_transformers
from model_support.tiny import edit_config, make_model, save_model
from torch import Tensor

from plimsoll_runtime.models.registry import registry
from plimsoll_runtime.models.spec.decoder import DecoderSpec
from plimsoll_runtime.models.validation import config

VISIBLE = 0.05
"""Smallest effect of a mistake, far above any tolerance."""

Spec = Callable[[DecoderSpec], DecoderSpec]
Saved = Callable[[str], tuple[Path, list[Tensor]]]
"""Returns the folder of a case's model, and Transformers' results with that folder."""


@dataclass(frozen=True)
class Case:
    """A model: its config, a mistake, how to save it, changes to config.json, and an engine's `options`.

    `shortest`: only prompts with at least this many tokens are compared.
    """

    config: str
    values: Mapping[str, Any] = field(default_factory=dict)
    mistake: Spec | None = None
    save: Mapping[str, Any] = field(default_factory=dict)
    drop: tuple[str, ...] = ()
    edit: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    shortest: int = 1

    def write(self, folder: Path, **values: Any) -> None:
        """Save the model, and add these values to its config."""
        save_model(make_model(self.config, {**values, **self.values}), folder, **self.save)
        edit_config(folder, drop=self.drop, **self.edit)

    def compared(self, prompts: list[list[int]]) -> list[list[int]]:
        """Return the prompts that are long enough."""
        return [prompt for prompt in prompts if len(prompt) >= self.shortest]

    def be_mistaken(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Patch spec building so that all models loaded from now on have the mistake."""
        mistake = self.mistake
        assert mistake is not None
        monkeypatch.setattr(config, "describe", lambda config: mistake(registry.describe(config)))


def with_mistakes(cases: Mapping[str, Case]) -> list[str]:
    """Return the names of cases with a mistake."""
    return [name for name, case in cases.items() if case.mistake is not None]


def saved_cases(factory: pytest.TempPathFactory, cases: Mapping[str, Case], prompts: list[list[int]]) -> Saved:
    """Return a function that saves and computes a case on first use."""

    @cache
    def make(name: str) -> tuple[Path, list[Tensor]]:
        folder = factory.mktemp(name)
        cases[name].write(folder)
        return folder, of_transformers(loaded_by_transformers(folder), cases[name].compared(prompts))

    return make
