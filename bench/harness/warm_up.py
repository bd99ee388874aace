"""When a server is warm: its work no longer becomes cheaper.

A Java virtual machine compiles frequently used code, and costs two to three times as much until then. A short fixed
warm-up would favour its rivals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WarmUp:
    """How many equal runs to make, and when they are enough."""

    least_runs: int
    most_runs: int
    #: A run above this share of the best one before shows no progress.
    progress: float = 0.95
    #: Noise may hide progress once.
    runs_without_progress: int = 2

    def has_settled(self, costs: Sequence[float]) -> bool:
        """True if the last runs were no cheaper than the best one before them."""
        if len(costs) >= self.most_runs:
            return True
        if len(costs) < self.least_runs:
            return False
        best = min(costs[: -self.runs_without_progress])
        return min(costs[-self.runs_without_progress :]) > self.progress * best
