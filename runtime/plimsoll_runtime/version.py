"""The version of the software, and how outputs name it."""

VERSION = "0.1.0"

FINGERPRINT = f"plimsoll-{VERSION}"
"""Names the software that answered, in outputs' `system_fingerprint`."""
