"""`make sweep`: the table of docs/models.md, one row a class, by what was seen and nothing else."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from model_support.forward import largest_difference, loaded_by_transformers, of_engine, of_transformers
from model_support.tiny import prompts, randomise, save_model

from plimsoll_runtime.errors import PlimsollError
from plimsoll_runtime.models.registry import has_program
from sweep.shrink import MOST_PARAMETERS, small_configs

PROMPTS = prompts((1, 17, 40))
TOLERANCE = 2e-3
BEGIN, END = "<!-- sweep: begin -->", "<!-- sweep: end -->"


@dataclass(frozen=True)
class Row:
    """`outcome`: native, transformers, refused, wrong, or not made (no small model of it could be)."""

    kind: str
    outcome: str
    detail: str = ""


def sweep(only: Sequence[str]) -> list[Row]:
    """Each model type of Transformers' table of causal language models, once."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    rows = []
    for kind in sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES):
        if only and kind not in only:
            continue
        rows.append(_row(kind, CONFIG_MAPPING[kind]))
        print(f"{rows[-1].kind:28} {rows[-1].outcome:13} {rows[-1].detail}", flush=True)
    return rows


def _row(kind: str, config_class: type[Any]) -> Row:
    try:
        model = _model(config_class)
    except Exception as error:  # noqa: BLE001 - of anybody's class, with sizes that it may not take
        return Row(kind, "not made", _first_line(error))
    with tempfile.TemporaryDirectory() as folder:
        try:
            save_model(model, Path(folder))
            expected = of_transformers(loaded_by_transformers(folder), PROMPTS)
        except Exception as error:  # noqa: BLE001 - as above
            return Row(kind, "not made", _first_line(error))
        if not all(each.isfinite().all() for each in expected):
            return Row(kind, "not made", "its own log probabilities are not finite")
        try:
            difference = largest_difference(of_engine(folder, PROMPTS), expected)
        except PlimsollError as error:
            return Row(kind, "refused", _first_line(error))
        who = "native" if has_program(json.loads((Path(folder) / "config.json").read_text())) else "transformers"
    return Row(kind, who if difference < TOLERANCE else "wrong", f"{difference:.0e}")


def _model(config_class: type[Any]) -> Any:
    """The first small model that can be made and that answers."""
    import transformers

    build: Any = transformers.AutoModelForCausalLM.from_config
    last: Exception | None = None
    for config in small_configs(config_class):
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
    assert last is not None
    raise last


def _without_padding(model: Any) -> None:
    """Rows of tables that stand for padding are zeros, as training leaves them: some classes make them so on load."""
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, torch.nn.Embedding) and module.padding_idx is not None:
                module.weight[module.padding_idx] = 0.0


def table(rows: Sequence[Row]) -> str:
    """For docs/models.md."""
    titles = {
        "native": "by a program of ours",
        "transformers": "on Transformers' own code",
        "refused": "refused, with the reason",
        "wrong": "WRONG",
        "not made": "not tried: no small model of it could be made",
    }
    lines = ["| | model types |", "|---|---|"]
    for outcome, title in titles.items():
        kinds = [row.kind for row in rows if row.outcome == outcome]
        if kinds:
            lines.append(f"| {title}: {len(kinds)} | {', '.join(kinds)} |")
    return "\n".join(lines)


def write_page(page: Path, rows: Sequence[Row]) -> None:
    """Put the table between its marks."""
    before, _, rest = page.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    if not rest or not after:
        raise SystemExit(f"{page} has no {BEGIN} ... {END}")
    page.write_text(f"{before}{BEGIN}\n{table(rows)}\n{END}{after}")


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:160]


def main() -> int:
    """Run it, and write what was seen."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write the rows there")
    parser.add_argument("--page", type=Path, help="put the table into this page")
    parser.add_argument("only", nargs="*", help="these model types alone")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    rows = sweep(args.only)
    counts = Counter(row.outcome for row in rows)
    print("\n" + ", ".join(f"{count} {outcome}" for outcome, count in counts.most_common()))
    if args.json is not None:
        args.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    if args.page is not None:
        write_page(args.page, rows)
    return 1 if counts["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
