"""The runtime's image, and the images that a template may use instead."""

from __future__ import annotations

from dataclasses import dataclass

from plimsoll_operator.spec.template import SpecError
from plimsoll_operator.spec.workload import Workload


@dataclass(frozen=True, slots=True)
class Image:
    """The runtime's image and its pull policy. `allowed`: prefixes of images that a template may use.

    `fixed_user`: whether pods set the image's user; otherwise the cluster assigns one.
    """

    reference: str
    pull_policy: str = "IfNotPresent"
    allowed: tuple[str, ...] = ()
    fixed_user: bool = True

    def of(self, spec: Workload) -> str:
        """Return the image of an object's pods. Raise SpecError if it is not allowed."""
        own = spec.template.image
        if own is None:
            return self.reference
        if not any(f"{own}/".startswith(f"{place.rstrip('/')}{end}") for place in self.allowed for end in "/:@"):
            places = f"only {', '.join(self.allowed)}" if self.allowed else "none"
            raise SpecError(
                f"template.image {own} is not among the images that this installation allows ({places}): leave it out, "
                "or add its prefix to the chart's runtime.allowedImages"
            )
        return own
