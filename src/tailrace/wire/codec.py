"""What all messages have in common: an API key, versions, and encoding and decoding of each version.

Chooses the compiled function for a version, which is compiled on first use and cached. A message is only the body;
headers and frames are in `frames`. This module knows no particular message.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Self

from tailrace.runtime.disk import Buffer
from tailrace.runtime.transport import Part
from tailrace.wire.decoding import compile_decoder
from tailrace.wire.encoding import compile_encoder, compile_parts_encoder
from tailrace.wire.fields import (
    FOREVER,
    NEVER,
    Field,
    Kind,
    Struct,
    array,
    boolean,
    byte_string,
    int8,
    int16,
    int32,
    int64,
    lineage_uuid,
    optional_struct,
    record_data,
    record_parts,
    string,
    struct,
    topic_uuid,
    uuid,
)

__all__ = [
    "FOREVER",
    "NEVER",
    "Field",
    "Kind",
    "Message",
    "Struct",
    "array",
    "boolean",
    "byte_string",
    "int8",
    "int16",
    "int32",
    "int64",
    "lineage_uuid",
    "optional_struct",
    "record_data",
    "record_parts",
    "string",
    "struct",
    "topic_uuid",
    "uuid",
]


class Message(Struct):
    """A request or response body in any of its versions."""

    API_KEY: ClassVar[int]
    MIN_VERSION: ClassVar[int]
    MAX_VERSION: ClassVar[int]
    FLEXIBLE_FROM: ClassVar[int]

    _decoders: ClassVar[dict[int, Callable[[Buffer], Any]]]
    _bounded_decoders: ClassVar[dict[int, Callable[[Buffer], Any]]]
    _encoders: ClassVar[dict[int, Callable[[Struct], bytearray]]]
    _parts_encoders: ClassVar[dict[int, Callable[[Struct], list[Part]]]]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls._decoders = {}
        cls._bounded_decoders = {}
        cls._encoders = {}
        cls._parts_encoders = {}

    @classmethod
    def decode(cls, version: int, body: Buffer) -> Self:
        """Decode a body, ignoring bytes after it; record data in the result are views of `body`."""
        decoder = cls._decoders.get(version)
        if decoder is None:
            decoder = cls._decoders[version] = compile_decoder(cls, version, cls._check(version))
        message: Self = decoder(body)
        return message

    @classmethod
    def decode_bounded(cls, version: int, body: Buffer) -> Self:
        """Decode a body like `decode`, unless it has more elements than `MOST_ELEMENTS`."""
        decoder = cls._bounded_decoders.get(version)
        if decoder is None:
            decoder = compile_decoder(cls, version, cls._check(version), is_bounded=True)
            cls._bounded_decoders[version] = decoder
        message: Self = decoder(body)
        return message

    def encode(self, version: int) -> bytearray:
        """Encode the body; fields that the version does not have are left out, whatever their value."""
        encoder = self._encoders.get(version)
        if encoder is None:
            cls = self.__class__
            encoder = self._encoders[version] = compile_encoder(cls, version, cls._check(version))
        return encoder(self)

    def encode_parts(self, version: int) -> list[Part]:
        """Encode the body as parts to send in order, without copying record data, which may be ranges of files."""
        encoder = self._parts_encoders.get(version)
        if encoder is None:
            cls = self.__class__
            encoder = self._parts_encoders[version] = compile_parts_encoder(cls, version, cls._check(version))
        return encoder(self)

    @classmethod
    def is_flexible(cls, version: int) -> bool:
        """Whether a version has compact lengths and tagged fields (KIP-482)."""
        return version >= cls.FLEXIBLE_FROM

    @classmethod
    def _check(cls, version: int) -> bool:
        if not cls.MIN_VERSION <= version <= cls.MAX_VERSION:
            known = f"{cls.MIN_VERSION} to {cls.MAX_VERSION}"
            raise ValueError(f"{cls.__name__} has versions {known}, not {version}")
        return version >= cls.FLEXIBLE_FROM
