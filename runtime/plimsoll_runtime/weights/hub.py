"""Models of the Hugging Face hub, or of a mirror (HF_ENDPOINT), in the hub library's own cache."""

from __future__ import annotations

from pathlib import Path

from plimsoll_runtime.errors import SourceError

PATTERNS = ["*.safetensors", "*.json", "*.jinja", "tokenizer.model", "*.txt"]


def fetch_snapshot(model_id: str, revision: str | None) -> Path:
    """The folder of a snapshot, downloaded if need be. Raises SourceError saying what to do."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    name = f"hf://{model_id}" + (f"@{revision}" if revision else "")
    try:
        return Path(snapshot_download(model_id, revision=revision, allow_patterns=PATTERNS))
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
            f"{name} is not in the cache and the hub cannot be reached: check the network, HF_ENDPOINT and HF_HOME"
        ) from error
    except (HfHubHTTPError, OSError) as error:
        raise SourceError(f"{name} cannot be fetched: {error}") from error
