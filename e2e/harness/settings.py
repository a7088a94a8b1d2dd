"""Settings of the scenarios, passed by `e2e/prove.py` through the environment."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass

PREFIX = "PLIMSOLL_E2E_"


@dataclass(frozen=True, slots=True)
class Settings:
    """One installation under test.

    - `url`, `host`: the ingress, and the host name of its rule.
    - `route_hosts`: host names of the HTTPRoute, comma-separated; empty if the cluster has no Gateway.
    - `release_namespace`: namespace of the operator and the gateway.
    - `shared_files`: a folder that every node sees, for a volume with a model; empty on clusters without one, where
      scenarios use the demo model.
    - `own_cluster`: "yes" for this machine's own cluster, whose daemons can be stopped.
    - `length`: "short" or "long". `results`: folder for the scenarios' figures.
    - `runs`: folder for records of whole runs, for later analysis; empty to keep none.
    """

    url: str
    host: str
    route_hosts: str
    release: str
    release_namespace: str
    shared_files: str
    own_cluster: str
    length: str
    results: str
    runs: str

    @property
    def long(self) -> bool:
        """Whether the scenarios run at full length."""
        return self.length == "long"

    def environment(self) -> dict[str, str]:
        """Return the settings as environment variables."""
        return {PREFIX + name.upper(): value for name, value in asdict(self).items()}

    @classmethod
    def from_environment(cls) -> Settings:
        """Read the variables of `environment`. Raises KeyError with a missing name."""
        return cls(**{name: os.environ[PREFIX + name.upper()] for name in cls.__slots__})
