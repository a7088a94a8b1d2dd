"""What a model is called within a host: the namespace and name of its ModelDeployment."""

from __future__ import annotations

import re
from typing import NamedTuple

from plimsoll_runtime.errors import UsageError

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", re.ASCII)
_LONGEST = 253


class ModelName(NamedTuple):
    """Compared and sorted by namespace, then name."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    @classmethod
    def parse(cls, text: str) -> ModelName:
        """From "namespace/name". Raises UsageError for anything else."""
        namespace, _, name = text.partition("/")
        return cls.checked(namespace, name)

    @classmethod
    def checked(cls, namespace: str, name: str) -> ModelName:
        """From its parts. Raises UsageError where Kubernetes would not take one of them as a name."""
        for what, part in (("namespace", namespace), ("name", name)):
            if len(part) > _LONGEST or _LABEL.fullmatch(part) is None:
                raise UsageError(
                    f"the {what} {part[:_LONGEST]!r} is none: use up to {_LONGEST} of a-z, 0-9, '-' and '.', "
                    "with a letter or a digit first and last"
                )
        return cls(namespace, name)
