"""The levels of this process's loggers, with Kafka's names for them.

Levels set here last until the process ends: they are for debugging, not for configuration. Owns which loggers are
visible: the root logger and tailrace's own, once something has used them.
"""

from __future__ import annotations

import logging

ROOT = "root"
_OURS = "tailrace"
#: Kafka's levels in ascending order, with Python's numbers.
LEVELS = {
    "TRACE": 5,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
}


def logger_levels() -> dict[str, str]:
    """Return every logger with its effective level."""
    return {name: _level_name(logging.getLogger(name).getEffectiveLevel()) for name in [ROOT, *_names()]}


def logger_exists(name: str) -> bool:
    """True if the logger exists."""
    return name == ROOT or (_is_ours(name) and isinstance(logging.root.manager.loggerDict.get(name), logging.Logger))


def set_level(name: str, level: str | None) -> None:
    """Set the level of a logger; None makes it inherit its level again."""
    number = logging.NOTSET if level is None else LEVELS[level]
    logging.getLogger(None if name == ROOT else name).setLevel(number)


def _names() -> list[str]:
    # Other entries are placeholders for parents of loggers.
    return sorted(
        name
        for name, logger in logging.root.manager.loggerDict.items()
        if isinstance(logger, logging.Logger) and _is_ours(name)
    )


def _is_ours(name: str) -> bool:
    return name == _OURS or name.startswith(f"{_OURS}.")


def _level_name(number: int) -> str:
    return next((name for name, least in LEVELS.items() if number <= least), "FATAL")
