"""lm-eval scores a model over HTTP as its own `hf` backend does, on tasks of every kind that are created here."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path
from typing import Any

import openai
import pytest

from .conftest import HERE, Ways, client_python, run_client

pytestmark = pytest.mark.long

CHOICES = ["sails", "sinks fast", "tacks über"]


def write_tasks(folder: Path, documents: list[dict[str, Any]], **going_on: Any) -> Path:
    """Write tasks over the same questions: multiple choice, likelihood of a text after a question or alone, and
    generation."""
    folder.mkdir()
    data = folder / "questions.jsonl"
    data.write_text("".join(f"{json.dumps(each)}\n" for each in documents))
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
            "generation_kwargs": {"max_gen_toks": 24, "do_sample": False, **going_on},
            "metric_list": [{"metric": "exact_match"}],
        },
    }
    for name, kind in kinds.items():
        (folder / f"{name}.yaml").write_text(json.dumps({"task": name} | shared | kind))
    return folder


def documents(tiny: Ways) -> list[dict[str, Any]]:
    """Return documents; in every second one, `likely` is the model's own first token if it is text."""
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


def compare(told: dict[str, Any], urls: tuple[str, ...], within: float) -> dict[str, Any]:
    """Compare log likelihoods with a tolerance, scores and texts exactly; return the results of `hf`."""
    expected: dict[str, Any] = told.pop("hf")
    assert set(expected["results"]) == {"choose", "likely", "alone", "go_on"}
    assert set(told) == set(urls)
    for scored in told.values():
        for task, results in expected["results"].items():
            assert numbers(scored["results"][task]) == pytest.approx(numbers(results), rel=within)
        for task in ("choose", "likely", "alone"):
            seen, wanted = (flat(each["answers"][task]) for each in (scored, expected))
            assert seen == pytest.approx(wanted, abs=within)
        assert scored["answers"]["go_on"] == expected["answers"]["go_on"]
    assert len({text for [text] in expected["answers"]["go_on"]}) > 1
    return expected


@pytest.mark.long
def test_scores_are_those_of_the_hf_backend(tiny: Ways, tiny_that_calls: Path, tmp_path: Path) -> None:
    python = client_python("lm_eval")
    tasks = write_tasks(tmp_path / "tasks", documents(tiny), until=["{", "\n\n"])
    urls = (tiny.server, tiny.gateway)
    told = run_client(python, HERE / "lm_eval_client.py", tiny_that_calls, "tiny", tasks, *urls)
    assert compare(told, urls, 1e-4)["results"]["likely"]["acc,none"] == 0.5


def numbers(results: dict[str, Any]) -> dict[str, float]:
    return {name: value for name, value in results.items() if not isinstance(value, str)}


def flat(value: Any) -> list[float]:
    """Return log likelihoods, and whether each is of the likeliest token."""
    return [number for each in value for number in flat(each)] if isinstance(value, list) else [float(value)]
