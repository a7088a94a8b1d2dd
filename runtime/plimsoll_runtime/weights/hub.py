"""Models of the Hugging Face hub, or of a mirror (HF_ENDPOINT), in the hub library's own cache."""

from __future__ import annotations

from pathlib import Path

from plimsoll_runtime.errors import SourceError

PATTERNS = ["*.safetensors", "*.json", "*.jinja", "tokenizer.model", "*.txt"]
IGNORED = ["*/*", "consolidated*.safetensors"]
"""Folders (other formats of the same weights), and the copy of the weights that Mistral's models carry."""


def fetch_snapshot(model_id: str, revision: str | None, token: str | None = None) -> Path:
    """The folder of a snapshot, downloaded if need be, with this token or the environment's.

    Raises SourceError saying what to do.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    name = f"hf://{model_id}" + (f"@{revision}" if revision else "")
    try:
        found = snapshot_download(
            model_id, revision=revision, token=token, allow_patterns=PATTERNS, ignore_patterns=IGNORED
        )
    except HFValidationError as error:
        raise SourceError(f"{model_id!r} is no folder, no .gguf file and no Hugging Face id: {error}") from error
    except GatedRepoError as error:
        raise SourceError(f"{name} is gated: accept its terms on the hub and set HF_TOKEN") from error
    except RepositoryNotFoundError as error:
        raise SourceError(f"{name} does not exist (or is private: set HF_TOKEN)") from error
    except RevisionNotFoundError as error:
        raise SourceError(f"{name}: the hub has no revision {revision!r} of it") from error
    except LocalEntryNotFoundError as error:
        raise SourceError(
            f"{name} is not in the cache and the hub cannot be reached ({_first_line(error)}): "
            "check the network, HF_ENDPOINT, HF_HUB_OFFLINE and HF_HOME; if you meant a folder, it is not there"
        ) from error
    except Exception as error:
        # The library lets through what its HTTP client raises, and what a mirror's odd answers lead to.
        raise SourceError(f"{name} cannot be fetched: {type(error).__name__}: {_first_line(error)}") from error
    return Path(found)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
