"""The levels of this process's loggers, by the names and with the words that Kafka has for them.

Levels set here last until the process ends: they are for looking closer, not for configuration. Owns which
loggers are told of: the root and this software's own, once something has used them.
"""

from __future__ import annotations

import logging

ROOT = "root"
_OURS = "tailrace"
#: Kafka's levels, the least important first, with the numbers that Python has for them.
LEVELS = {
    "TRACE": 5,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
}


def logger_levels() -> dict[str, str]:
    """Every logger and the level it goes by, be it its own or one that it inherits."""
    return {name: _level_name(logging.getLogger(name).getEffectiveLevel()) for name in [ROOT, *_names()]}


def logger_exists(name: str) -> bool:
    """Whether there is such a logger."""
    return name == ROOT or (_is_ours(name) and isinstance(logging.root.manager.loggerDict.get(name), logging.Logger))


def set_level(name: str, level: str | None) -> None:
    """Give a logger a level of its own, or with None let it inherit one again."""
    number = logging.NOTSET if level is None else LEVELS[level]
    logging.getLogger(None if name == ROOT else name).setLevel(number)


def _names() -> list[str]:
    # What is not a logger is a placeholder for the parent of one.
    return sorted(
        name
        for name, logger in logging.root.manager.loggerDict.items()
        if isinstance(logger, logging.Logger) and _is_ours(name)
    )


def _is_ours(name: str) -> bool:
    return name == _OURS or name.startswith(f"{_OURS}.")


def _level_name(number: int) -> str:
    return next((name for name, least in LEVELS.items() if number <= least), "FATAL")
