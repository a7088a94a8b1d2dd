"""Without kernels, for any reason, stock torch computes the same and one line of the log says why."""

from __future__ import annotations

import ctypes
import importlib.util
import logging
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sampling_support.definition import Wish, row_params

from plimsoll_kernels.cpu import compile as compiling
from plimsoll_kernels.cpu import library
from plimsoll_kernels.cpu.library import INSTRUCTION_SETS, InstructionsError, kernels, runnable
from plimsoll_kernels.sampling.op import sample

ROOT = Path(library.__file__).parents[3]


@pytest.fixture(autouse=True)
def _forgotten(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Clear the cached facts about this machine, before and after."""
    cached: list[Any] = [library._find, library._best, library.library, library._refusal, library.runnable]
    monkeypatch.delenv(library.VARIABLE, raising=False)
    monkeypatch.setattr(library._chosen, "name", None)
    for function in cached:
        function.cache_clear()
    yield
    for function in cached:
        function.cache_clear()


@pytest.fixture
def built() -> Path:
    path = compiling.library_path()
    if not path.is_file():
        pytest.skip("the kernels were not built")
    return path


def absent(path: Path, patch: pytest.MonkeyPatch) -> None:
    path.unlink()


def cut(path: Path, patch: pytest.MonkeyPatch) -> None:
    path.write_bytes(path.read_bytes()[:200_000])


def changed(path: Path, patch: pytest.MonkeyPatch) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def no_library_at_all(path: Path, patch: pytest.MonkeyPatch) -> None:
    path.write_bytes(b"what is this?")
    compiling._seal(path)


def unreadable(path: Path, patch: pytest.MonkeyPatch) -> None:
    def read(self: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(self))

    patch.setattr(library, "is_whole", read)


def old_processor(path: Path, patch: pytest.MonkeyPatch) -> None:
    def found(dtype: bytes, name: bytes | None) -> None:
        return None

    def leave(cores: int) -> None:
        return None

    functions = SimpleNamespace(plimsoll_kernels=found, plimsoll_amx=lambda: -1, plimsoll_leave=leave)
    patch.setattr(ctypes, "CDLL", lambda path: functions)


def arm(path: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(platform, "machine", lambda: "aarch64")


@pytest.mark.parametrize(
    ("happened", "told"),
    [
        (
            absent,
            "the kernels of this version were not built; install a C++ compiler, then python -m plimsoll_kernels.cpu",
        ),
        (cut, "is damaged; install a C++ compiler, then python -m plimsoll_kernels.cpu.compile"),
        (changed, "is damaged"),
        (no_library_at_all, "file too short"),
        (unreadable, "Permission denied"),
        (old_processor, "the kernels need AVX2 with FMA"),
        (arm, "need Linux on x86-64; this is linux on aarch64"),
    ],
)
def test_torch_computes_and_one_line_says_why(
    happened: Callable[[Path, pytest.MonkeyPatch], None],
    told: str,
    built: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    params = row_params(Wish(1.0, top_k=9), Wish(0.7), Wish(0.0))
    asked = torch.randn(3, 1000), params, torch.rand(3, dtype=torch.float64)
    expected = sample(*asked)
    for function in (library._find, library._best, library.library, library.runnable):
        function.cache_clear()
    copy = Path(shutil.copy(built, tmp_path))
    monkeypatch.setattr(library, "library_path", lambda: copy)
    happened(copy, monkeypatch)
    with caplog.at_level(logging.WARNING):
        assert kernels(torch.float32) is None
        assert kernels(torch.bfloat16, "avx2") is None
        assert runnable() == ()
        actual = sample(*asked)
    assert all(torch.equal(a, b) for a, b in zip(actual, expected, strict=True))
    [line] = [record.getMessage() for record in caplog.records]
    assert "stock torch computes instead of the CPU kernels (slower, same results)" in line
    assert told in line
    monkeypatch.setenv(library.VARIABLE, "avx2")
    with pytest.raises(InstructionsError, match="needs the CPU kernels, which are not available here"):
        kernels(torch.float32)


def test_the_best_instructions_unless_others_are_asked_for(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "product_seconds", lambda systems, rows: [1.0] * len(systems))
    able = runnable()
    assert able == INSTRUCTION_SETS[: len(able)]
    found = kernels(torch.bfloat16)
    assert found is not None
    assert found.name == able[-1].encode()
    for name in able:
        monkeypatch.setenv(library.VARIABLE, name)
        found = kernels(torch.bfloat16)
        assert found is not None
        assert found.name == name.encode()


def test_instructions_that_this_processor_lacks_are_refused(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "runnable", lambda: ("avx2",))
    monkeypatch.setattr(library, "_find", lambda dtype, name: None)
    monkeypatch.setenv(library.VARIABLE, "avx512")
    with pytest.raises(InstructionsError, match="PLIMSOLL_CPU_ISA=avx512 cannot run on this processor, which has avx2"):
        kernels(torch.float32)


@pytest.mark.parametrize(
    ("milliseconds", "chosen"),
    [
        ({"amx": 1, "avx512_bf16": 4, "avx512": 3, "avx2": 9}, "amx"),
        ({"amx": 9, "avx512_bf16": 4, "avx512": 5, "avx2": 9}, "avx512_bf16"),
        ({"amx": 9, "avx512_bf16": 4, "avx512": 3.9, "avx2": 9}, "avx512_bf16"),
        ({"amx": 9, "avx512_bf16": 4, "avx512": 2, "avx2": 9}, "avx512"),
        ({"avx2": 9}, "avx2"),
    ],
)
def test_the_fastest_are_taken(milliseconds: dict[str, float], chosen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def find(dtype: torch.dtype, name: str | None) -> Any:
        return SimpleNamespace(name=name.encode() if name else b"by CPUID")

    def seconds(found: Sequence[Any], rows: int) -> list[float]:
        return [milliseconds[one.name.decode()] / 1000 for one in found]

    monkeypatch.setattr(library, "runnable", lambda: tuple(reversed(milliseconds)))
    monkeypatch.setattr(library, "_refusal", lambda: None)
    monkeypatch.setattr(library, "_find", find)
    monkeypatch.setattr(library, "product_seconds", seconds)
    for dtype, name in ((torch.bfloat16, chosen), (torch.float32, "by CPUID")):
        found = kernels(dtype)
        assert found is not None
        assert found.name == name.encode()


def test_a_damaged_library_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "lib.so"
    made: list[bool] = []
    path.write_bytes(b"whole")
    compiling._seal(path)
    monkeypatch.setattr(compiling, "library_path", lambda: path)
    monkeypatch.setattr(compiling, "compile_library", lambda: made.append(True))
    assert (compiling.main(), made) == (0, [])
    path.write_bytes(path.read_bytes()[1:])
    assert (compiling.main(), made) == (0, [True])


@pytest.mark.parametrize(
    ("machine", "compiler", "told"),
    [
        ("aarch64", "g++", "the CPU kernels need Linux on x86-64; this is linux on aarch64"),
        ("x86_64", "no-such-compiler", "found no C++ compiler 'no-such-compiler'"),
        ("x86_64", "false", "failed with exit code 1"),
    ],
)
def test_an_install_goes_on_without(machine: str, compiler: str, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The build hook, as hatchling calls it: a warning, and a wheel for any machine."""
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    hooks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hooks)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setenv("CXX", compiler)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr("plimsoll_kernels.cpu.compile.is_whole", lambda library: False)
    warnings: list[str] = []
    hook = hooks.CpuKernels(
        str(ROOT), {}, None, None, "", "wheel", app=SimpleNamespace(display_warning=warnings.append)
    )
    data: dict[str, Any] = {"artifacts": []}
    hook.initialize("standard", data)
    [warning] = warnings
    assert "the CPU kernels are left out, stock torch will compute instead" in warning
    assert told in warning
    assert data == {"artifacts": []}


def test_a_build_needs_the_standard_library_alone() -> None:
    code = f"import sys; sys.path.insert(0, {str(ROOT / 'kernels')!r}); import plimsoll_kernels.cpu.compile"
    subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True, timeout=60)


def test_what_was_chosen_is_used_without_a_trial(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(library, "product_seconds")
    for name in runnable():
        library.choose(torch.bfloat16, name)
        found = kernels(torch.bfloat16)
        assert found is not None
        assert found.name == name.encode()


def test_a_choice_that_cannot_be_had_is_refused(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        InstructionsError, match=r"bfloat16 are packed for neon, but this processor and system run .*avx2"
    ):
        library.choose(torch.bfloat16, "neon")
    if len(runnable()) < 2:
        pytest.skip("this processor runs one set of instructions only")
    least, *_, best = runnable()
    monkeypatch.setenv(library.VARIABLE, best)
    with pytest.raises(InstructionsError, match=f"for {least}, but {library.VARIABLE}={best} selects the kernels of"):
        library.choose(torch.bfloat16, least)
    library.choose(torch.bfloat16, best)


def test_a_choice_holds_where_the_variable_leads_to_the_same_kernels(
    built: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In float32 the better instruction sets have the kernels of AVX512."""
    if "amx" not in runnable():
        pytest.skip("this processor has no AMX")
    monkeypatch.setenv(library.VARIABLE, "amx")
    found = kernels(torch.float32)
    assert found is not None
    library.choose(torch.float32, found.name.decode())
