"""The images of the weights of this machine's ranks, from which the ranks of later generations wake."""

from __future__ import annotations

from plimsoll_runtime.engine.config import EngineConfig
from plimsoll_runtime.weights.image import Image


class RankImages:
    """One image for each rank of this machine, in their order."""

    def __init__(self, config: EngineConfig) -> None:
        """Create empty images. Raises MemoryLimitError."""
        self._config = config
        self._instructions: str | None = None
        self.images = self._empty()

    def prepare(self, instructions: str | None) -> None:
        """Replace images whose weights are packed for another instruction set than that of the next generation."""
        if instructions != self._instructions:
            self._instructions = instructions
            self.renew()

    def renew(self) -> None:
        """Replace all images by empty ones, because they may not fit the model's files any more."""
        self.close()
        self.images = self._empty()

    def close(self) -> None:
        """Free the images when no rank uses them. May be called again."""
        for image in self.images:
            image.close()

    def _empty(self) -> list[Image]:
        config = self._config
        ranks = config.group.ranks(config.ranks, config.group.index)
        return [Image.create(0, f"{config.model} rank {number}") for number in ranks]
