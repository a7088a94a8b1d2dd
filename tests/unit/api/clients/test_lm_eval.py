"""lm-eval scores a model over HTTP as its own `hf` backend does, on tasks of every kind that are made here."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path
from typing import Any

import openai
import pytest

from .conftest import HERE, Ways, client_python, run_client

pytestmark = pytest.mark.slow

CHOICES = ["sails", "sinks fast", "tacks über"]


@pytest.fixture
def tasks(tiny: Ways, tmp_path: Path) -> Path:
    """Tasks over the same questions: choosing, what a text's likelihood is, after a question or alone, and going on."""
    folder = tmp_path / "tasks"
    folder.mkdir()
    data = folder / "ships.jsonl"
    data.write_text("".join(f"{json.dumps(each)}\n" for each in documents(tiny)))
    shared = {
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(data)}},
        "test_split": "test",
        "doc_to_text": "{{question}}",
        "target_delimiter": "",
    }
    kinds: dict[str, dict[str, Any]] = {
        "choose": {
            "output_type": "multiple_choice",
            "doc_to_choice": "{{choices}}",
            "doc_to_target": "answer",
            "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
        },
        "likely": {
            "output_type": "loglikelihood",
            "doc_to_target": "{{likely}}",
            "metric_list": [{"metric": "perplexity"}, {"metric": "acc"}],
        },
        "alone": {
            "output_type": "loglikelihood_rolling",
            "doc_to_text": "",
            "doc_to_target": "{{question}}",
            "metric_list": [{"metric": "word_perplexity"}, {"metric": "bits_per_byte"}],
        },
        "go_on": {
            "output_type": "generate_until",
            "doc_to_target": "{{likely}}",
            "generation_kwargs": {"until": ["{", "\n\n"], "max_gen_toks": 24, "do_sample": False},
            "metric_list": [{"metric": "exact_match"}],
        },
    }
    for name, kind in kinds.items():
        (folder / f"{name}.yaml").write_text(json.dumps({"task": name} | shared | kind))
    return folder


def documents(tiny: Ways) -> list[dict[str, Any]]:
    """Every second one's `likely` is what the model says first, where that is text."""
    found: list[dict[str, Any]] = []
    with openai.OpenAI(base_url=f"{tiny.server}/v1", api_key="none", max_retries=0) as client:
        for number in count():
            question = f"Ship {number} — Köln:"
            said = client.completions.create(model="tiny", prompt=question, max_tokens=1, temperature=0).choices[0].text
            if said.isascii() and said.isalnum():
                answer = len(found) % len(CHOICES)
                likely = said if len(found) % 2 == 0 else CHOICES[answer]
                found.append({"question": question, "choices": CHOICES, "answer": answer, "likely": likely})
            if len(found) == 6:
                return found
    raise AssertionError("counting does not end")


def test_scores_are_those_of_the_hf_backend(tiny: Ways, tiny_that_calls: Path, tasks: Path) -> None:
    python = client_python("lm_eval")
    urls = (tiny.server, tiny.gateway)
    told = run_client(python, HERE / "lm_eval_client.py", tiny_that_calls, "tiny", tasks, *urls)
    expected = told.pop("hf")
    assert set(expected["results"]) == {"choose", "likely", "alone", "go_on"}
    assert expected["results"]["likely"]["acc,none"] == 0.5
    assert set(told) == set(urls)
    for scored in told.values():
        for task, results in expected["results"].items():
            assert numbers(scored["results"][task]) == pytest.approx(numbers(results), rel=1e-4)
        for task in ("choose", "likely", "alone"):
            seen, wanted = (flat(each["answers"][task]) for each in (scored, expected))
            assert seen == pytest.approx(wanted, abs=1e-4)
        assert scored["answers"]["go_on"] == expected["answers"]["go_on"]
    assert len({text for [text] in expected["answers"]["go_on"]}) > 1


def numbers(results: dict[str, Any]) -> dict[str, float]:
    return {name: value for name, value in results.items() if not isinstance(value, str)}


def flat(value: Any) -> list[float]:
    """Log likelihoods, and whether they are of what is likeliest."""
    return [number for each in value for number in flat(each)] if isinstance(value, list) else [float(value)]
