"""When a sequence ends."""

import pytest
from builders import sequence_of

from plimsoll_runtime.engine.protocol.sampling_params import SamplingParams
from plimsoll_runtime.engine.sequence import QueueEntry


@pytest.mark.parametrize(
    ("tokens", "reason"),
    [
        ([1, 2, 3], None),
        ([1, 2, 9], None),
        ([1, 2, 3, 9], "stop"),
        ([1, 2, 3, 4], None),
        ([1, 2, 3, 4, 5], "length"),
        ([1, 2, 3, 4, 9], "stop"),
    ],
)
def test_end_reason(tokens: list[int], reason: str | None) -> None:
    """The prompt has two tokens. Token 9 ends the sequence from the second output on; the third output always ends
    it.
    """
    sequence = sequence_of(SamplingParams(), QueueEntry(0), tokens[:2], max_len=5, stop_ids={9}, min_len=4)
    for token in tokens[2:]:
        sequence.append(token)
    assert sequence.end_reason(tokens[-1]) == reason
