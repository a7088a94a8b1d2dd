"""Which group a new pod is: the least number that no pod of its object has.

A single pod is a group of one. Numbers begin at 0 and stay small, so that what is kept for a group, such as a series of
a dashboard, is found again: a pod that has ended leaves its number to the one that replaces it. One that drains keeps
its own until it is gone, so that no two that serve are the same. Pods of before numbers were given have other texts
there, which stand for themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import count

from plimsoll_operator.observe import Pod


def free_groups(pods: Iterable[Pod]) -> Iterator[str]:
    """The groups that are free, the least first, without end; `pods` are all of an object."""
    taken = {pod.group for pod in pods if not pod.dead or pod.stopping}
    return (group for group in map(str, count()) if group not in taken)
