"""Options of `serve` and `batch` about the contents of requests: sampling defaults and images."""

from __future__ import annotations

import argparse


def add_generation_config(group: argparse._ArgumentGroup) -> None:
    """Add `--generation-config`."""
    group.add_argument(
        "--generation-config",
        choices=("model", "none"),
        default="model",
        help="defaults for requests that leave out temperature, top_p, top_k, min_p or repetition_penalty: those of "
        "the model's generation_config.json (model), or temperature 1 and no filter (none) (default: %(default)s)",
    )


def add_image_parts(group: argparse._ArgumentGroup) -> None:
    """Add `--image-parts`."""
    group.add_argument(
        "--image-parts",
        choices=("refuse", "describe"),
        default="refuse",
        help="images in conversations: refuse the request, or replace each image by a text that says it was left out "
        "(default: %(default)s)",
    )
