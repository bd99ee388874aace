"""When a server is warm: what it does gets no cheaper any more.

A Java virtual machine compiles what it has seen often, and costs two to three times as much until then. A short fixed
warm-up would flatter its rivals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WarmUp:
    """How many runs of the same are made, and when they are enough."""

    least_runs: int
    most_runs: int
    #: A run that is not cheaper than this share of the best before it shows no progress.
    progress: float = 0.95
    #: Noise alone may hide progress once.
    runs_without_progress: int = 2

    def has_settled(self, costs: Sequence[float]) -> bool:
        """Whether the last runs were no cheaper than the best one before them."""
        if len(costs) >= self.most_runs:
            return True
        if len(costs) < self.least_runs:
            return False
        best = min(costs[: -self.runs_without_progress])
        return min(costs[-self.runs_without_progress :]) > self.progress * best
