"""Why Transformers' code for a model cannot be served."""

from __future__ import annotations


class UnservedError(Exception):
    """The message is the second half of a sentence whose subject is the model's code: "it ..."."""
