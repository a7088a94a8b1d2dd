"""Compilations while serving are counted and logged; those of the warm-up are not."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from plimsoll_kernels import compilations
from plimsoll_kernels.compilations import Compilations, CompileHook, watch_triton


def test_only_what_is_compiled_in_service_counts(caplog: pytest.LogCaptureFixture) -> None:
    counted = Compilations()
    counted.compiled("_decode")
    counted.begin()
    with counted.paused():
        counted.compiled("_decode")
    assert (counted.count, caplog.records) == (0, [])
    with caplog.at_level(logging.WARNING):
        for kernel in ("_decode", "_join", "_decode"):
            counted.compiled(kernel)
    assert counted.count == 3
    first, second = [record.getMessage() for record in caplog.records]
    assert first.startswith("the Triton kernel _decode was compiled while serving")
    assert second.startswith("the Triton kernel _join ")


def test_a_build_that_breaks_off_does_not_stop_the_counting() -> None:
    counted = Compilations()
    counted.begin()
    with pytest.raises(ValueError, match="no model"), counted.paused():
        raise ValueError("no model")
    counted.compiled("_decode")
    assert counted.count == 1


def test_whoever_had_the_hook_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    knobs = pytest.importorskip("triton").knobs
    counted, heard = Compilations(), []

    def before(**info: Any) -> str:
        heard.append(info["key"])
        return "theirs"

    monkeypatch.setattr(compilations, "COMPILATIONS", counted)
    monkeypatch.setattr(knobs.runtime, "jit_post_compile_hook", before)
    assert watch_triton() is watch_triton() is counted
    counted.begin()
    hook = knobs.runtime.jit_post_compile_hook
    assert isinstance(hook, CompileHook)
    assert hook(fn=SimpleNamespace(name="_decode"), key="k", already_compiled=False) == "theirs"
    assert (counted.count, heard) == (1, ["k"])


def test_without_triton_nothing_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compilations, "find_spec", lambda name: None)
    assert watch_triton() is None
