"""`make sweep`: tests every class and writes the table of docs/tasks/models.md, from measurements only."""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from model_support.forward import largest_difference, loaded_by_transformers, of_engine, of_transformers
from model_support.tiny import prompts, randomise, save_model
from torch import Tensor

from plimsoll_runtime import LLM, SamplingParams
from plimsoll_runtime.driver.build.model_facts import outline_of
from plimsoll_runtime.errors import PlimsollError
from plimsoll_runtime.models.transformers_code.model_classes import DRAFTS, what_else
from plimsoll_runtime.models.transformers_code.outline import TransformersOutline
from sweep.shrink import MOST_PARAMETERS, small_configs

PROMPTS = prompts((1, 17, 40, 40))
"""Two of them have the same length."""
CHUNK, ANSWER = 24, 8
TOLERANCE = 2e-3
GOAL = 0.95
BEGIN, END = "<!-- sweep: begin -->", "<!-- sweep: end -->"
SERVED: Mapping[str, str] = {
    "native": "by a program of ours",
    "attention": "on Transformers' own code, with our attention",
    "caches": "on Transformers' own code, with caches of its own",
}


@dataclass(frozen=True)
class Row:
    """`outcome`: one of SERVED, else other (not a text decoder), refused, not made (no small model could be created),
    or wrong; `detail`: the largest difference of log probabilities, or the reason.
    """

    kind: str
    outcome: str
    detail: str = ""


def sweep(only: Sequence[str], seen: Sequence[Row] = ()) -> list[Row]:
    """Test each model type in Transformers' table of causal language models once. `only`: test only these, and keep
    earlier results of the others.
    """
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    rows = []
    before = {row.kind: row for row in seen}
    for kind in sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES):
        if only and kind not in only:
            rows += [before[kind]] if kind in before else []
            continue
        rows.append(_row(kind, CONFIG_MAPPING[kind]))
        print(f"{rows[-1].kind:28} {rows[-1].outcome:13} {rows[-1].detail}", flush=True)
    return rows


def _row(kind: str, config_class: type[Any]) -> Row:
    """Return a type's row. Types that are not text decoders are tried too, because some have a text part that is
    served.
    """
    if kind in DRAFTS:
        return Row(kind, "refused", DRAFTS[kind])
    other = what_else(kind)
    with tempfile.TemporaryDirectory() as folder:
        try:
            save_model(_model(config_class, kind), Path(folder))
            reference = loaded_by_transformers(folder)
            reference.config.use_cache = False
            expected = of_transformers(reference, PROMPTS)
            if not all(each.isfinite().all() for each in expected):
                raise ValueError("Transformers' log probabilities of this model are not finite")
        except Exception as error:  # noqa: BLE001 - any class may reject these sizes
            return Row(kind, "not made", _first_line(error)) if other is None else Row(kind, "other", other)
        try:
            difference = _difference(folder, reference, expected)
        except PlimsollError as error:
            return Row(kind, "refused", _reason(error)) if other is None else Row(kind, "other", other)
        who = _who(json.loads((Path(folder) / "config.json").read_text()))
    return Row(kind, who if difference < TOLERANCE else "wrong", f"{difference:.0e}")


def _difference(folder: str, reference: Any, expected: Sequence[Tensor]) -> float:
    """Return the largest difference of log probabilities between Plimsoll and Transformers, for prompts at once,
    prompts in chunks, and outputs of different lengths in one batch.
    """
    whole = largest_difference(of_engine(folder, PROMPTS), expected)
    chunked = largest_difference(of_engine(folder, PROMPTS, max_batch_tokens=CHUNK), expected)
    llm = LLM(folder, dtype="float32", threads=1, kv_memory="4MiB", check_integrity_every=1)
    vocab = llm.info.vocab_size
    params = SamplingParams(temperature=0.0, max_tokens=ANSWER, ignore_eos=True, logprobs=vocab)
    answers = []
    for prompt, result in zip(PROMPTS, llm.generate(PROMPTS, params), strict=True):
        [output] = result.outputs
        [right] = of_transformers(reference, [[*prompt, *output.token_ids][:-1]])
        assert output.logprobs is not None
        rows = torch.tensor([[dict(r.top)[i] for i in range(vocab)] for r in output.logprobs], dtype=torch.float64)
        answers.append(largest_difference([rows], [right[-ANSWER:]]))
    return max(whole, chunked, *answers)


def _who(config: Mapping[str, Any]) -> str:
    outline = outline_of(config)
    if not isinstance(outline, TransformersOutline):
        return "native"
    return "attention" if outline.own is None else "caches"


def _model(config_class: type[Any], kind: str) -> Any:
    """Return the first small model that can be created and answers."""
    import transformers

    build: Any = transformers.AutoModelForCausalLM.from_config
    last: Exception = ValueError("no size fits")
    for config in small_configs(config_class, kind):
        try:
            with torch.device("meta"):
                count = sum(p.numel() for p in build(config).parameters())
            if count > MOST_PARAMETERS:
                raise ValueError(f"with small sizes it has {count:,} parameters")
            model = build(config, dtype=torch.float32)
            randomise(model, config.get_text_config())
            _without_padding(model)
            model.config.use_cache = False
            with torch.inference_mode():
                model.eval()(torch.tensor([[3, 4, 5]]))
            return model
        except Exception as error:  # noqa: BLE001 - as above
            last = error
    raise last


def _without_padding(model: Any) -> None:
    """Set padding rows of tables to zeros, like training leaves them: some classes do so on load."""
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, torch.nn.Embedding) and module.padding_idx is not None:
                module.weight[module.padding_idx] = 0.0


def table(rows: Sequence[Row]) -> str:
    """Return the table for docs/tasks/models.md."""
    lines = ["| | model types |", "|---|---|"]
    for outcome, title in {**SERVED, "wrong": "WRONG"}.items():
        kinds = [row.kind for row in rows if row.outcome == outcome]
        if kinds:
            lines.append(f"| {title}: {len(kinds)} | {', '.join(kinds)} |")
    lines += [f"| **served of {counted(rows)} that count** | **{share(rows):.1%}** |", "", _not_served(rows)]
    return "\n".join(lines)


def _not_served(rows: Sequence[Row]) -> str:
    lines = ["| not served | because |", "|---|---|"]
    for outcome, prefix in (
        ("refused", ""),
        ("not made", "no small one could be made: "),
        ("other", "does not count: "),
    ):
        reasons: dict[str, list[str]] = {}
        for row in rows:
            if row.outcome == outcome:
                reasons.setdefault(row.detail, []).append(row.kind)
        lines += [f"| {', '.join(kinds)} | {prefix}{reason} |" for reason, kinds in sorted(reasons.items())]
    return "\n".join(lines)


def counted(rows: Sequence[Row]) -> int:
    """Return the number of model types that are text decoders, or have one that is served."""
    return sum(row.outcome != "other" for row in rows)


def share(rows: Sequence[Row]) -> float:
    """Return the share of the counted model types that is served."""
    return sum(row.outcome in SERVED for row in rows) / max(1, counted(rows))


def write_page(page: Path, rows: Sequence[Row]) -> None:
    """Write the table between its marks."""
    before, _, rest = page.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    if not rest or not after:
        raise SystemExit(f"{page} has no {BEGIN} ... {END}")
    page.write_text(f"{before}{BEGIN}\n{table(rows)}\n{END}{after}")


def _reason(error: PlimsollError) -> str:
    """Return the reason without the common start of refusals."""
    return re.sub(r"^config.json: architecture \w+ is not supported: ", "", _first_line(error))


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300].replace("|", "/")


def main() -> int:
    """Run the sweep, and write the results. Return 1 if a type is wrong, or if a sweep of all types serves a smaller
    share than GOAL.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write the rows there")
    parser.add_argument("--seen", type=Path, help="rows of an earlier run, for the types that are not among `only`")
    parser.add_argument("--page", type=Path, help="put the table into this page")
    parser.add_argument("only", nargs="*", help="these model types alone")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    seen = [] if args.seen is None else [Row(**each) for each in json.loads(args.seen.read_text())]
    rows = sweep(args.only, seen)
    counts = Counter(row.outcome for row in rows)
    found = ", ".join(f"{count} {outcome}" for outcome, count in counts.most_common())
    print(f"\n{found}; {share(rows):.1%} of {counted(rows)} that count are served")
    if args.json is not None:
        args.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    if args.page is not None:
        write_page(args.page, rows)
    return 1 if counts["wrong"] or ((seen or not args.only) and share(rows) < GOAL) else 0


if __name__ == "__main__":
    sys.exit(main())
