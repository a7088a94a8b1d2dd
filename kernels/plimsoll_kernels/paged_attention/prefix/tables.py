"""Which decodes of a batch begin with the same blocks, as the kernels read it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class PrefixTables:
    """int32 tensors of up to G groups among a batch's S sequences, on one device; their shapes say nothing of a step.

    members: `[S]`, numbers of sequences that have one row each, one group's behind the other's. No sequence is in two.
    starts: `[G + 1]`, where each group's members begin in `members`, and where the last one's end. Groups may be empty.
    shared: `[S]`, the tokens of each sequence that are read for its group: the same whole blocks for all members, and
        fewer tokens than any of them has. 0 for sequences in no group.
    """

    members: Tensor
    starts: Tensor
    shared: Tensor

    @classmethod
    def of(cls, numbers: Tensor, sequences: int) -> PrefixTables:
        """From all of them in one, `[2 S + G + 1]`: members, tokens that are shared, starts."""
        return cls(
            members=numbers[:sequences],
            starts=numbers[2 * sequences :],
            shared=numbers[sequences : 2 * sequences],
        )
