"""API keys in a folder, as a gateway reads them, and the credential for runtimes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from plimsoll_gateway.keys.credential import Credential
from plimsoll_gateway.keys.key_folder import KeyFolder
from plimsoll_gateway.keys.keyring import Keyring
from plimsoll_gateway.keys.secret import digest_of, new_key

CREDENTIAL = "a-credential-for-the-runtimes"


class Keys:
    """A folder of keys, their headers, and a file with the credential, created below `place`."""

    def __init__(self, place: Path) -> None:
        self.folder, self.token = place / "keys", place / "token"
        self.folder.mkdir()
        self.token.write_text(f"{CREDENTIAL}\n")
        self.texts: dict[str, str] = {}

    def add(self, name: str, **terms: object) -> None:
        text = self.texts[name] = new_key()
        (self.folder / f"{name}.json").write_text(json.dumps({"hashes": [digest_of(text.encode())], **terms}))

    def header(self, name: str) -> dict[str, str]:
        return {"authorization": f"Bearer {self.texts[name]}"}

    def options(self) -> dict[str, Any]:
        """Return the options of a gateway that requires one of these keys."""
        return {"keyring": Keyring(KeyFolder(self.folder)), "credential": Credential(self.token)}
