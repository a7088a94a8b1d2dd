"""Plimsoll's model runtime: from an HTTP request to a batch of tokens and back.

`LLM`, `SamplingParams` and `Constraint` are the public interface for offline use; everything else is reached through
the `plimsoll` command.
"""

from typing import TYPE_CHECKING, Any

from plimsoll_runtime.version import VERSION

if TYPE_CHECKING:
    from plimsoll_runtime.engine.protocol.constraint import Constraint
    from plimsoll_runtime.engine.protocol.sampling_params import SamplingParams
    from plimsoll_runtime.offline.llm import LLM

__all__ = ["LLM", "Constraint", "SamplingParams"]
__version__ = VERSION


def __getattr__(name: str) -> Any:
    """Import the public names on first use, so that the server process never pays for torch."""
    if name == "LLM":
        from plimsoll_runtime.offline.llm import LLM

        return LLM
    if name == "SamplingParams":
        from plimsoll_runtime.engine.protocol.sampling_params import SamplingParams

        return SamplingParams
    if name == "Constraint":
        from plimsoll_runtime.engine.protocol.constraint import Constraint

        return Constraint
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
