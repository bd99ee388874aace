"""Declares broker keys, and the rules for values that broker and topic keys share."""

from __future__ import annotations

from tailrace.broker.config.types import (
    ArchivePlace,
    Between,
    ConfigKey,
    ConfigType,
    Importance,
    OneOf,
    UpdateMode,
    Valid,
    Value,
)

HOUR_MS = 3_600_000
MIB = 1 << 20

CLEANUP_POLICIES = OneOf(("compact", "delete"))
SHARES = Between(0, 1)
COMPRESSION_TYPES = OneOf(("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"))
GZIP_LEVELS = Between(1, 9, special=-1)
LZ4_LEVELS = Between(1, 17)
ZSTD_LEVELS = Between(-131072, 22)
TIMESTAMP_TYPES = OneOf(("CreateTime", "LogAppendTime"))
ARCHIVE_PLACES = ArchivePlace()
ARCHIVE_LAG_POLICIES = OneOf(("keep", "drop"))
LOG_FORMATS = OneOf(("text", "json"))
LOG_LEVELS = OneOf(("DEBUG", "INFO", "WARNING", "ERROR"))

BOOLEAN, STRING, INT = ConfigType.BOOLEAN, ConfigType.STRING, ConfigType.INT
LONG, LIST, DOUBLE = ConfigType.LONG, ConfigType.LIST, ConfigType.DOUBLE


def key(
    name: str,
    kind: ConfigType,
    default: Value,
    importance: Importance,
    documentation: str,
    valid: Valid | None = None,
    aliases: tuple[str, ...] = (),
    update_mode: UpdateMode = "read-only",
) -> ConfigKey:
    """Declare one key."""
    return ConfigKey(
        name=name,
        type=kind,
        default=default,
        importance=importance,
        documentation=documentation,
        valid=valid,
        aliases=aliases,
        update_mode=update_mode,
    )
