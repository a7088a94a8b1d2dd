"""The command line and both servers suggest the name that was probably meant."""

from __future__ import annotations

import random
import string

import pytest

from plimsoll_gateway.errors import refusals
from plimsoll_runtime.api.model_directory import unknown_model
from plimsoll_runtime.cli.main import build_parser
from plimsoll_runtime.utils.suggestions import did_you_mean


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["statsu"], "status"),
        (["modles", "show"], "models"),
        (["serve", "m", "--max-model-length", "4"], "--max-model-len"),
        (["up", "--prot", "80", "f.yaml"], "--port"),
        (["serve", "m", "--dtype", "bfloat61"], "bfloat16"),
        (["serve", "m", "--completely-different"], ""),
        (["x"], ""),
    ],
)
def test_a_command_line(arguments: list[str], meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        build_parser().parse_args(arguments)
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert f"Did you mean '{meant}'?" in said if meant else "Did you mean" not in said


@pytest.mark.parametrize(
    ("asked", "meant"),
    [("gemma-270m", "gemma-3-270m"), ("GEMMA-3-270M", "gemma-3-270m"), ("Qwen3", "qwen-3"), ("o1", ""), ("", "")],
)
def test_a_models_name_to_both_servers(asked: str, meant: str) -> None:
    names = ["gemma-3-270m", "qwen-3", "org/embedder"]
    said = f" Did you mean '{meant}'?" if meant else ""
    assert refusals.unknown_model(asked, names).message.endswith(f"org/embedder.{said}")
    assert str(unknown_model(asked, names)).endswith(f"org/embedder.{said}")


def test_a_name_of_any_length_and_any_number_of_names_are_compared_in_little_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The number of compared candidates and the length of compared names are limited."""
    chosen = random.Random(0)
    known = ["".join(chosen.choices(string.ascii_lowercase, k=20)) for _ in range(5_000)]
    compared: list[int] = []

    def counted(word: str, candidates: object, **options: object) -> list[str]:
        compared.append(len(list(candidates)))  # type: ignore[call-overload]
        return []

    monkeypatch.setattr("plimsoll_runtime.utils.suggestions.get_close_matches", counted)
    monkeypatch.setattr("plimsoll_gateway.errors.refusals.get_close_matches", counted)
    for name in (known[-1], "a" * 100_000):
        did_you_mean(name, known)
        refusals.unknown_model(name, known)
    assert compared == [500, 200]
