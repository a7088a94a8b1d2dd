"""Tries constraints in a separate, expendable process: `python -m plimsoll_runtime.structured.check_process`.

llguidance bounds most of the work of a grammar, but it recurses through rules and references without limit: some
thousands of them overflow the stack, which ends the process. In this process that does not affect the server. A trial
has less stack than the engine has, and one second of processor time. A grammar that passes is compiled, and its first
masks are computed.

Reads one constraint per line (JSON), and answers with one line: the error, or null.
"""

from __future__ import annotations

import resource
import sys
import threading
from typing import TYPE_CHECKING

import msgspec

from plimsoll_runtime.engine.protocol.constraint import Constraint, ConstraintError
from plimsoll_runtime.structured.grammar import check, limits, readable_error, to_llguidance

if TYPE_CHECKING:
    from llguidance import LLTokenizer

STACK_BYTES = 1024 * 1024
"""Half of the stack of any thread that computes masks."""
CPU_SECONDS = 1
MEMORY_BYTES = 2**30
MOST_TOKENS = 2**19
_MASKS = 8


class _Bytes:
    """A vocabulary of single bytes and an end token, padded with empty tokens to the size of the largest models'
    vocabularies, because grammars may name token ids.
    """

    is_tokenizer_wrapper = True
    eos_token_id = 256
    bos_token_id = None
    special_token_ids = (256,)

    def __init__(self) -> None:
        self.tokens = [bytes([value]) for value in range(256)] + [b"</s>"] + [b""] * (MOST_TOKENS - 257)

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


def attempt(constraint: Constraint, tokenizer: LLTokenizer) -> None:
    """Compile a constraint and compute its first masks. Raises ConstraintError if it is malformed, cannot be enforced,
    or takes too much work.
    """
    from llguidance import LLMatcher

    check(constraint, tokenizer)
    matcher = LLMatcher(tokenizer, to_llguidance(constraint), log_level=0, limits=limits())
    for _ in range(_MASKS):
        mask = matcher.compute_bitmask()
        if matcher.is_error():
            raise ConstraintError(readable_error(matcher.get_error()))
        if matcher.is_stopped():
            return
        matcher.consume_token(next(token for token in range(8 * len(mask)) if mask[token // 8] >> (token % 8) & 1))


def serve() -> None:
    """Check the constraint in each line of standard input and write a line with the result, until the input ends."""
    from llguidance import LLTokenizer

    tokenizer = LLTokenizer(_Bytes(), eos_token=256, slices=[])  # type: ignore[arg-type]
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    decoder = msgspec.json.Decoder(Constraint)
    for line in sys.stdin.buffer:
        used = resource.getrusage(resource.RUSAGE_SELF)
        ends = int(used.ru_utime + used.ru_stime) + 1 + CPU_SECONDS
        resource.setrlimit(resource.RLIMIT_CPU, (ends, resource.RLIM_INFINITY))
        try:
            attempt(decoder.decode(line), tokenizer)
        except ConstraintError as error:
            answer: str | None = str(error)
        else:
            answer = None
        sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
        sys.stdout.buffer.flush()


def main() -> None:
    """Serve in a thread with a stack of STACK_BYTES."""
    threading.stack_size(STACK_BYTES)
    server = threading.Thread(target=serve, daemon=True)
    server.start()
    server.join()


if __name__ == "__main__":
    main()
