"""Sampling parameters out of range are refused when the record is made."""

from __future__ import annotations

import pytest

from plimsoll_runtime.engine.protocol.sampling_params import ParamsError, SamplingParams


def test_a_negative_stop_token_is_refused() -> None:
    # As an index into the logits it would forbid another token, or an index out of range, until min_tokens.
    with pytest.raises(ParamsError, match="stop_token_ids: token id -7 is negative"):
        SamplingParams(stop_token_ids=(3, -7), min_tokens=1)
    assert SamplingParams(stop_token_ids=(0, 3)).stop_token_ids == (0, 3)
