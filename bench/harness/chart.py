"""The chart: for each workload one bar per peer, on a logarithmic axis around 1.

Writes SVG as text; does not know how the figures were measured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any
from xml.sax.saxutils import escape

BAR_HEIGHT = 14
#: The average maximum width of a letter in the legend.
LETTER_WIDTH = 7
ROW_GAP = 10
LEFT = 330
WIDTH = 1040
RIGHT = 120
TOP = 70
COLOURS = {
    "kafka": "#3b6ea8",
    "redis": "#b5483b",
    "nats": "#3f9a6b",
    "rabbitmq-quorum": "#d98b2b",
    "rabbitmq-stream": "#e6b566",
}
#: The chart shows the most important figures; the table has the others.
CHARTED = (
    "throughput_mb_s",
    "requests_s",
    "p99_ms",
    "cpu_s_per_gb",
    "first_ack_s",
    "rss_mb",
    "takeover_s",
    "restart_s",
)
#: Memory is shown once: it is nearly the same for every workload.
RSS_WORKLOAD = "start"


def advantage(ratio: Mapping[str, Any]) -> float:
    """Return how many times better ours is: above 1 is ahead, whichever direction of the ratio is good."""
    value = float(ratio["ratio"])
    return value if ratio["better"] == "higher" else 1 / value


def rows(ratios: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """Group the charted ratios by the label of their row."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for ratio in ratios:
        # A logarithmic axis cannot show zero.
        if ratio["metric"] not in CHARTED or not ratio["ratio"] or ratio["ratio"] < 0:
            continue
        if ratio["metric"] == "rss_mb" and ratio["workload"] != RSS_WORKLOAD:
            continue
        if ratio["metric"] == "throughput_mb_s" and ratio["workload"].startswith("raw-produce-1k"):
            continue
        found.setdefault(f"{ratio['workload']}  {ratio['metric']}", []).append(ratio)
    return found


def render(ratios: Sequence[Mapping[str, Any]], title: str) -> str:
    """Return the whole chart as an SVG document."""
    charted = rows(ratios)
    bars = [advantage(ratio) for group in charted.values() for ratio in group]
    low, high = min([0.5, *bars]), max([2.0, *bars])
    span = WIDTH - LEFT - RIGHT

    def x(value: float) -> float:
        return LEFT + span * (math.log(value) - math.log(low)) / (math.log(high) - math.log(low))

    height = TOP + sum(len(group) * BAR_HEIGHT + ROW_GAP for group in charted.values()) + 40
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        'font-family="sans-serif" font-size="11">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="12" y="24" font-size="16" font-weight="bold">{escape(title)}</text>',
        _legend(charted),
    ]
    for tick in ticks(low, high):
        parts.append(
            f'<line x1="{x(tick):.1f}" y1="{TOP - 6}" x2="{x(tick):.1f}" y2="{height - 30}" '
            f'stroke="{"#444444" if tick == 1 else "#dddddd"}"/>'
            f'<text x="{x(tick):.1f}" y="{height - 14}" text-anchor="middle">{tick:g}x</text>'
        )
    y = TOP
    for label, group in charted.items():
        middle = y + len(group) * BAR_HEIGHT / 2 + 4
        parts.append(f'<text x="{LEFT - 8}" y="{middle:.1f}" text-anchor="end">{escape(label)}</text>')
        for ratio in group:
            parts.append(_bar(ratio, x, y))
            y += BAR_HEIGHT
        y += ROW_GAP
    return "\n".join([*parts, "</svg>", ""])


def _bar(ratio: Mapping[str, Any], x: Any, y: int) -> str:
    value = advantage(ratio)
    left, right = sorted((x(1.0), x(value)))
    colour = COLOURS.get(ratio["peer"], "#777777")
    return (
        f'<rect x="{left:.1f}" y="{y}" width="{max(right - left, 1):.1f}" height="{BAR_HEIGHT - 2}" fill="{colour}"/>'
        f'<text x="{right + 4:.1f}" y="{y + BAR_HEIGHT - 4}">{value:.2f}x</text>'
    )


def _legend(charted: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    peers = dict.fromkeys(ratio["peer"] for group in charted.values() for ratio in group)
    parts = []
    left = 12
    for peer in peers:
        parts.append(
            f'<rect x="{left}" y="36" width="12" height="12" fill="{COLOURS.get(peer, "#777777")}"/>'
            f'<text x="{left + 17}" y="46">against {escape(peer)}</text>'
        )
        left += 17 + LETTER_WIDTH * len(f"against {peer}") + 16
    return "".join(parts)


def ticks(low: float, high: float) -> list[float]:
    """Return round factors within the axis."""
    steps = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0)
    return [step for step in steps if low <= step <= high]
