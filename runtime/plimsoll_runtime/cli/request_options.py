"""Options of `serve` and `batch` for what requests leave out, and for what models here cannot read."""

from __future__ import annotations

import argparse


def add_generation_config(group: argparse._ArgumentGroup) -> None:
    """Whether a model's files set defaults for sampling."""
    group.add_argument(
        "--generation-config",
        choices=("model", "none"),
        default="model",
        help="defaults for requests that leave out temperature, top_p, top_k, min_p or repetition_penalty: those of "
        "the model's generation_config.json (model), or temperature 1 and no filter (none) (default: %(default)s)",
    )


def add_image_parts(group: argparse._ArgumentGroup) -> None:
    """What becomes of images."""
    group.add_argument(
        "--image-parts",
        choices=("refuse", "describe"),
        default="refuse",
        help="images in conversations: refuse the request, or describe each as left out, so that the "
        "conversation can go on (default: %(default)s)",
    )
