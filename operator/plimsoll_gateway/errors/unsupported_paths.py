"""Paths under /v1 that other servers offer and this gateway does not, for its 404."""

from __future__ import annotations

NOT_OFFERED = {
    "assistants": "Assistants",
    "audio": "Audio",
    "complete": "Anthropic's text completion",
    "containers": "Containers",
    "conversations": "Conversations",
    "evals": "Evaluations",
    "fine_tuning": "Fine-tuning",
    "images": "Images",
    "moderations": "Moderation",
    "organization": "Administration",
    "organizations": "Administration",
    "realtime": "The realtime API",
    "skills": "Skills",
    "threads": "Assistants",
    "uploads": "Uploads in parts",
    "vector_stores": "Vector stores",
    "videos": "Videos",
}
"""API names by the first part of the path after /v1/."""


def not_offered(path: str) -> str | None:
    """Return the API that a path belongs to, if it is known and not offered."""
    root, version, family, *_ = [*path.split("/", 3), "", ""]
    return NOT_OFFERED.get(family) if (root, version) == ("", "v1") else None
