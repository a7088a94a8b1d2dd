"""The software's version and the fingerprint that outputs carry."""

VERSION = "0.1.0"

FINGERPRINT = f"plimsoll-{VERSION}"
"""Value of `system_fingerprint` in outputs."""
