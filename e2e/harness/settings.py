"""Where the cluster and its parts are; `e2e/prove.py` fills it in, through the environment."""

from __future__ import annotations

import os
from dataclasses import dataclass

PREFIX = "PLIMSOLL_E2E_"


@dataclass(frozen=True, slots=True)
class Settings:
    """One installation under test.

    `url` and `host`: the ingress, and the host name that its rule matches. `release_namespace`: where Helm put the
    operator and the gateway. `shared_files`: a folder that every node sees, for a volume with a model; None on
    clusters where there is none, and the scenarios then use the demo model for everything.
    """

    url: str
    host: str
    release: str
    release_namespace: str
    shared_files: str | None

    def environment(self) -> dict[str, str]:
        """As environment variables."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        return {PREFIX + name.upper(): value for name, value in fields.items() if value is not None}

    @classmethod
    def from_environment(cls) -> Settings:
        """Read back what `environment` wrote. Raises KeyError naming what is missing."""
        required = {name: os.environ[PREFIX + name.upper()] for name in cls.__slots__ if name != "shared_files"}
        return cls(**required, shared_files=os.environ.get(PREFIX + "SHARED_FILES"))
