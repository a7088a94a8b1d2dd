"""The planner: what to do next in a pool, and why."""

from __future__ import annotations
