"""The option that says whether a model's files set defaults for sampling."""

from __future__ import annotations

import argparse


def add_generation_config(group: argparse._ArgumentGroup) -> None:
    """Add it."""
    group.add_argument(
        "--generation-config",
        choices=("model", "none"),
        default="model",
        help="defaults for requests that leave out temperature, top_p, top_k, min_p or repetition_penalty: those of "
        "the model's generation_config.json (model), or temperature 1 and no filter (none) (default: %(default)s)",
    )
