"""`PYTHONPATH=benchmarks python -m first_answers.run`: number of 20 questions that a model answers correctly.

Each question is a new chat with a server of the model, like in `plimsoll chat`: requests set only `max_tokens` and
`seed`, so the model's own defaults apply to sampling.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any

import aiohttp

from first_answers.questions import QUESTIONS, Question
from plimsoll_runtime.local.chat.conversation import Server, Talk, names
from plimsoll_runtime.local.chat.server import own_server
from plimsoll_runtime.utils.progress import silent
from provenance import provenance

LONGEST = 64
"""Maximum number of tokens of an answer; longer ones are truncated."""


async def measure(source: str, seeds: list[int]) -> dict[str, Any]:
    """Return the number of correct answers by seed (`right`), their mean, and each question's answers in the order of
    the seeds.
    """
    with tempfile.TemporaryDirectory(prefix="plimsoll-") as folder:
        async with aiohttp.ClientSession() as session, own_server(session, source, Path(folder), silent) as server:
            [model] = await names(session, server)
            answers = {seed: [await _ask(session, server, model, q, seed) for q in QUESTIONS] for seed in seeds}
    right = {seed: sum(map(Question.right, QUESTIONS, given)) for seed, given in answers.items()}
    return {
        "model": source,
        "right": right,
        "mean": sum(right.values()) / len(right),
        "answers": {q.text: [answers[seed][number] for seed in seeds] for number, q in enumerate(QUESTIONS)},
    }


async def _ask(session: aiohttp.ClientSession, server: Server, model: str, question: Question, seed: int) -> str:
    talk = Talk(server, model, settings={"max_tokens": LONGEST, "seed": seed})
    return "".join([chunk.text async for chunk in talk.say(session, question.text)])


def main() -> None:
    """Measure, and print a line for each question and the mean, or with --json the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo://gemma-3-270m", help="any model (default: %(default)s)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], metavar="N", help="(default: 1 2 3)")
    parser.add_argument("--json", action="store_true", help="print the complete record with its provenance as JSON")
    args = parser.parse_args()
    result = asyncio.run(measure(args.model, args.seeds))
    if args.json:
        print(json.dumps({**result, "provenance": provenance()}, indent=1, ensure_ascii=False))
        return
    for question in QUESTIONS:
        given = result["answers"][question.text]
        print(f"{sum(map(question.right, given))} of {len(given)}  {question.text}  {' | '.join(given)!r}")
    print(f"right by seed: {result['right']}, mean {result['mean']:.1f} of {len(QUESTIONS)}")


if __name__ == "__main__":
    main()
