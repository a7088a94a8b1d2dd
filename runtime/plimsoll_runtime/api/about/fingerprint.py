"""Names the software that answered, in answers' `system_fingerprint`."""

from plimsoll_runtime import __version__

FINGERPRINT = f"plimsoll-{__version__}"
