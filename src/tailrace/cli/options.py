"""The options and parameter types that several commands share.

Converts text on the command line into values. Imports the protocol client only to check `--bootstrap`, so that other
commands start without it.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import click

from tailrace.cli.output import shown

if TYPE_CHECKING:
    ParamType: TypeAlias = click.ParamType[Any]
else:
    # Generic only in newer versions of click.
    ParamType = click.ParamType

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
MAX_INT32 = 2**31 - 1
MAX_INT64 = 2**63 - 1
#: The limits of librdkafka.
MOST_PARTITIONS = 100_000
MOST_REPLICAS = 10_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class BootstrapType(ParamType):
    """One or more `host:port`, separated by commas."""

    name = "HOST:PORT"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from tailrace.protocol_client.settings import split_addresses

        require_utf8(str(value))
        try:
            split_addresses(str(value))
        except ValueError as error:
            self.fail(f"{error}.", param, ctx)
        return str(value)


class WholeNumber(ParamType):
    """A whole number within bounds. Errors name the bounds; the help does not, unlike that of click's `IntRange`."""

    name = "N"

    def __init__(self, lowest: int, highest: int) -> None:
        self._lowest = lowest
        self._highest = highest

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            number = int(value)
        except ValueError:
            self.fail(f"'{value}' is not a whole number.", param, ctx)
        if not self._lowest <= number <= self._highest:
            self.fail(f"{number} is not between {self._lowest} and {self._highest}.", param, ctx)
        return number


class PairType(ParamType):
    """`name=value`; the value may be empty and may contain equal signs."""

    name = "NAME=VALUE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        name, separator, content = str(value).partition("=")
        if not separator or not name.strip():
            self.fail(f"'{value}' is not NAME=VALUE.", param, ctx)
        return name.strip(), content


class MomentType(ParamType):
    """A time as milliseconds since the Unix epoch or as ISO 8601 text, converted to milliseconds."""

    name = "MS|ISO"

    def __init__(self, earliest_ms: int = 0) -> None:
        self._earliest_ms = earliest_ms

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            return parse_moment(str(value), self._earliest_ms)
        except ValueError as error:
            self.fail(f"{error}.", param, ctx)


def parse_moment(text: str, earliest_ms: int = 0) -> int:
    """Parse a time into milliseconds since the Unix epoch; ISO text without an offset is UTC, like all our output."""
    if text.isascii() and text.isdigit():
        milliseconds = int(text)
    else:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise ValueError(
                f"'{text}' is neither milliseconds since 1970 nor a time such as 2026-01-31T12:00:00Z"
            ) from None
        zoned = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        milliseconds = (zoned - _EPOCH) // timedelta(milliseconds=1)
    if not earliest_ms <= milliseconds < 2**63:
        raise ValueError(f"'{text}' is out of range: {milliseconds} ms is not between {earliest_ms} and {MAX_INT64}")
    return milliseconds


def require_utf8(text: str) -> None:
    """Refuse an argument that is not UTF-8; Python has replaced its invalid bytes with surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise click.UsageError(f"{shown(text)} is not valid UTF-8.") from None


def client_options(function: F) -> F:
    """Add `--bootstrap` and `--json`, which every command that talks to a broker has."""
    bootstrap = click.option(
        "--bootstrap",
        type=BootstrapType(),
        default=DEFAULT_BOOTSTRAP,
        show_default=True,
        envvar="TAILRACE_BOOTSTRAP",
        show_envvar=True,
        help="Connect to this broker; separate several with commas.",
    )
    as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON, one object per line.")
    return bootstrap(as_json(function))


def pairs_without_repeats(pairs: tuple[tuple[str, str], ...], option: str) -> dict[str, str]:
    """Turn pairs into a mapping; raise UsageError if a name occurs twice."""
    mapping: dict[str, str] = {}
    for name, value in pairs:
        if name in mapping:
            raise click.UsageError(f"{option} gives '{name}' twice.")
        mapping[name] = value
    return mapping
