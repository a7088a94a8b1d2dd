"""The decodes of a batch that begin with the same blocks, as the kernels read them."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class PrefixTables:
    """int32 tensors of up to G groups among a batch's S sequences, on one device; their shapes do not depend on a step.

    members: `[S]`, numbers of sequences with one row each, group by group. No sequence is in two groups.
    starts: `[G + 1]`, the index in `members` at which each group begins, and the end of the last. Groups may be empty.
    shared: `[S]`, the tokens of each sequence that are read for its group: the same whole blocks for all members, and
      fewer tokens than any of them has. 0 for sequences in no group.
    """

    members: Tensor
    starts: Tensor
    shared: Tensor

    @classmethod
    def of(cls, numbers: Tensor, sequences: int) -> PrefixTables:
        """Return tables that are views of one tensor `[2 S + G + 1]`: members, shared tokens, starts."""
        return cls(
            members=numbers[:sequences],
            starts=numbers[2 * sequences :],
            shared=numbers[sequences : 2 * sequences],
        )
