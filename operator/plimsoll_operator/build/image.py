"""The runtime's image, and which others a template may take."""

from __future__ import annotations

from dataclasses import dataclass

from plimsoll_operator.spec.template import SpecError
from plimsoll_operator.spec.workload import Workload


@dataclass(frozen=True, slots=True)
class Image:
    """The runtime's image and when the kubelet pulls it. `allowed`: from where a template may take another.

    `fixed_user`: whether pods name the image's user; otherwise the cluster assigns one.
    """

    reference: str
    pull_policy: str = "IfNotPresent"
    allowed: tuple[str, ...] = ()
    fixed_user: bool = True

    def of(self, spec: Workload) -> str:
        """The image of an object's pods. Raises SpecError for one that is not allowed."""
        own = spec.template.image
        if own is None:
            return self.reference
        if not any(f"{own}/".startswith(f"{place.rstrip('/')}{end}") for place in self.allowed for end in "/:@"):
            places = f"only {', '.join(self.allowed)}" if self.allowed else "none"
            raise SpecError(
                f"template.image {own} is not among the images that this installation allows ({places}): leave it out, "
                "or have its place added to the chart's runtime.allowedImages"
            )
        return own
