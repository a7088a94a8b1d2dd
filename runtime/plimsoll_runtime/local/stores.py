"""What models keep on a laptop beyond an answer: responses, and files with the batches made of them.

A claim of a cluster is a folder of that name here, in the run's own, which stays when the run ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Stores:
    """Those of one process: the claims, by names that no claim of another namespace has, and options beside them."""

    responses_claim: str | None = None
    responses_options: tuple[str, ...] = ()
    files_claim: str | None = None
    files_options: tuple[str, ...] = ()

    def arguments(self, claims: Path, slot: str) -> tuple[str, ...]:
        """What `plimsoll serve` and `plimsoll host` are told, for the process of that slot; the folders are made."""
        words = list(self.responses_options)
        if self.responses_claim is not None:
            words += ["--response-store", str(_folder(claims, self.responses_claim) / f"{slot}.sqlite")]
        if self.files_claim is not None:
            words += ["--files-dir", str(_folder(claims, self.files_claim) / "files"), "--files-shared"]
        return (*words, *self.files_options)


def read_stores(namespace: str, spec: Mapping[str, Any]) -> Stores:
    """From a valid spec with its defaults."""
    responses, files = spec.get("responses") or {}, spec.get("files") or {}
    of_responses = {
        "count": "--max-responses",
        "size": "--max-response-bytes",
        "days": "--response-days",
        "tenantShare": "--response-tenant-share",
    }
    of_files = {"size": "--files-size", "batchLines": "--batch-lines"}
    return Stores(
        responses_claim=_claim(namespace, responses),
        responses_options=_options(responses, of_responses),
        files_claim=_claim(namespace, files),
        files_options=_options(files, of_files),
    )


def _claim(namespace: str, values: Mapping[str, Any]) -> str | None:
    return f"{namespace}/{values['claim']}" if "claim" in values else None


def _options(values: Mapping[str, Any], flags: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(word for field, flag in flags.items() if field in values for word in (flag, str(values[field])))


def _folder(claims: Path, claim: str) -> Path:
    folder = claims / claim
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder
