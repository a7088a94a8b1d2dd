"""Where the cluster and its parts are; `e2e/prove.py` fills it in, through the environment."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass

PREFIX = "PLIMSOLL_E2E_"


@dataclass(frozen=True, slots=True)
class Settings:
    """One installation under test.

    `url` and `host`: the ingress, and the host name that its rule matches. `route_hosts`: those of the HTTPRoute, with
    commas between; empty where the cluster has no Gateway. `release_namespace`: where Helm put the
    operator and the gateway. `shared_files`: a folder that every node sees, for a volume with a model; empty on
    clusters where there is none, and the scenarios then use the demo model for everything. `own_cluster`: "yes" where
    it is this machine's own, whose daemons can be stopped. `length`: "short" or "long". `results`: a folder that
    scenarios leave their figures in. `runs`: one for what a whole run was, to be judged again; empty to keep none.
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
        """As environment variables."""
        return {PREFIX + name.upper(): value for name, value in asdict(self).items()}

    @classmethod
    def from_environment(cls) -> Settings:
        """Read back what `environment` wrote. Raises KeyError naming what is missing."""
        return cls(**{name: os.environ[PREFIX + name.upper()] for name in cls.__slots__})
