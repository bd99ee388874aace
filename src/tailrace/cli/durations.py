"""Durations as people write them: `90m`, `1d12h`, or in ISO 8601 as `P1DT12H`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, TypeAlias

import click

if TYPE_CHECKING:
    ParamType: TypeAlias = click.ParamType[Any]
else:
    # Generic only in newer versions of click.
    ParamType = click.ParamType

_SECOND_MS = 1000
_MINUTE_MS = 60 * _SECOND_MS
_HOUR_MS = 60 * _MINUTE_MS
_DAY_MS = 24 * _HOUR_MS
_WEEK_MS = 7 * _DAY_MS

_NUMBER = r"(\d+(?:\.\d+)?)"
_ISO = re.compile(
    rf"P(?:{_NUMBER}W)?(?:{_NUMBER}D)?(?:T(?=\d)(?:{_NUMBER}H)?(?:{_NUMBER}M)?(?:{_NUMBER}S)?)?", re.IGNORECASE
)
_ISO_UNITS = (_WEEK_MS, _DAY_MS, _HOUR_MS, _MINUTE_MS, _SECOND_MS)
_SHORT = re.compile(rf"(?:{_NUMBER}\s*(ms|s|m|h|d|w)\s*)+", re.IGNORECASE)
_SHORT_PART = re.compile(rf"{_NUMBER}\s*(ms|s|m|h|d|w)", re.IGNORECASE)
_SHORT_UNITS = {"ms": 1, "s": _SECOND_MS, "m": _MINUTE_MS, "h": _HOUR_MS, "d": _DAY_MS, "w": _WEEK_MS}


def parse_duration(text: str) -> int:
    """Parse a duration into milliseconds; raise ValueError if the text is not one."""
    stripped = text.strip()
    iso = _ISO.fullmatch(stripped)
    if iso is not None and any(iso.groups()):
        return round(sum(float(part) * unit for part, unit in zip(iso.groups(), _ISO_UNITS, strict=True) if part))
    if _SHORT.fullmatch(stripped):
        return round(sum(float(part) * _SHORT_UNITS[unit.lower()] for part, unit in _SHORT_PART.findall(stripped)))
    raise ValueError(f"'{text}' is not a duration such as 90m, 2h, 1d12h or P1DT12H")


class DurationType(ParamType):
    """A duration, converted to milliseconds."""

    name = "DURATION"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            return parse_duration(str(value))
        except ValueError as error:
            self.fail(f"{error}.", param, ctx)
