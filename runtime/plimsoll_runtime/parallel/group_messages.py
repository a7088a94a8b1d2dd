"""Messages between the leader of a parallel group and its other members, and from their ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

NONCE_BYTES = 16
MOST_JOIN_BYTES = 2**14
"""Largest message of a connection that has not joined."""
MOST_CONTROL_BYTES = 2**18
"""Largest message of a member that has joined."""


class Challenge(msgspec.Struct, frozen=True, tag="challenge"):
    """The leader's first message on a connection."""

    nonce: bytes


class Join(msgspec.Struct, frozen=True, tag="join"):
    """A member's answer to a challenge.

    - `group`: see `membership.group_id`. `facts`: what all members must agree on, as texts.
    - `host`: name of the member's machine, for messages.
    - `proof`: see `proofs`; empty without a token.
    - `generation`: the largest number of a generation that this member has seen.
    - `instructions`: see `instruction_sets.Sets`.
    """

    group: str
    index: int
    facts: Mapping[str, str]
    host: str
    nonce: bytes
    proof: bytes
    generation: int = 0
    instructions: Sequence[str] = ()


class Welcome(msgspec.Struct, frozen=True, tag="welcome"):
    """The member has joined."""

    proof: bytes


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """The member cannot join. `final`: nor can it later."""

    proof: bytes
    message: str
    final: bool


class StartGeneration(msgspec.Struct, frozen=True, tag="start", kw_only=True):
    """Starts a member's ranks, numbers `first` to `end` - 1 of `size`.

    All ranks meet gloo at `meeting`. Each opens a connection to `host` and `port`, whose first message is `Hello`.
    `num_blocks`: see `parallel.rank`. `max_model_len`: None if the option decides. `instructions`: the instruction set
    that the CPU kernels of all ranks use; None if each rank chooses.
    """

    generation: int
    secret: bytes
    first: int
    end: int
    size: int
    meeting: str
    host: str
    port: int
    num_blocks: int | None = None
    max_model_len: int | None = None
    instructions: str | None = None


class GenerationReady(msgspec.Struct, frozen=True, tag="ready"):
    """All ranks of the generation can run steps."""

    generation: int


class EndGeneration(msgspec.Struct, frozen=True, tag="end"):
    """Ends all ranks of a generation."""

    generation: int


class AskSums(msgspec.Struct, frozen=True, tag="ask-sums"):
    """Asks how many sums each rank of the member has begun."""

    generation: int
    question: int


class ShowStacks(msgspec.Struct, frozen=True, tag="stacks"):
    """Makes a rank write the stacks of its threads to the log."""

    generation: int
    rank: int


class GenerationFailed(msgspec.Struct, frozen=True, tag="failed"):
    """A rank of the member has ended, or could not start. `message`: says which, and how."""

    generation: int
    message: str


class Sums(msgspec.Struct, frozen=True, tag="sums"):
    """The answer to `AskSums`, by rank."""

    generation: int
    question: int
    sums: Mapping[int, int]


class Leaving(msgspec.Struct, frozen=True, tag="leaving"):
    """The member's process is to end. It stays until the leader closes the connection."""


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """The first message on a rank's connection for steps."""

    generation: int
    rank: int
    secret: bytes


FromLeader = Challenge | Welcome | Refused | StartGeneration | GenerationReady | EndGeneration | AskSums | ShowStacks
FromMember = Join | GenerationFailed | Sums | Leaving
