"""Compiles the description of a struct to a function that encodes one version of it.

Invariant: the output is identical to that of Kafka's own encoder; tagged fields are written only if they differ from
their default, in the order of their tags. A field that the version does not have is left out, whatever its value, so a
broker can answer old clients without knowing which fields they lack. Runs of fixed-size fields, together with the
length that follows them, become one pack; nested structs are inlined.
"""

from __future__ import annotations

import struct as packing
from collections.abc import Callable
from typing import Any

from tailrace.runtime.transport import Part
from tailrace.wire.fields import FIXED_FORMATS, Field, Kind, Struct
from tailrace.wire.source import Source

_INTEGER_BITS = {Kind.INT8: 8, Kind.INT16: 16, Kind.INT32: 32, Kind.INT64: 64}


def compile_encoder(struct: type[Struct], version: int, flexible: bool) -> Callable[[Struct], bytearray]:
    """The function that encodes one version of a struct to one buffer."""
    encoder: Callable[[Struct], bytearray] = _compile(struct, version, flexible, split=False)
    return encoder


def compile_parts_encoder(struct: type[Struct], version: int, flexible: bool) -> Callable[[Struct], list[Part]]:
    """The function that encodes one version of a struct to parts, without copying record data."""
    encoder: Callable[[Struct], list[Part]] = _compile(struct, version, flexible, split=True)
    return encoder


def _compile(struct: type[Struct], version: int, flexible: bool, *, split: bool) -> Any:
    def refusal(message: Struct) -> ValueError:
        return ValueError(f"{struct.__name__} v{version}: {_problem(message, version) or 'cannot be encoded'}")

    source = Source({"struct_error": packing.error, "pack": packing.pack, "refusal": refusal})
    writer = _EncoderSource(source, version, flexible, split)
    with source.block("def encode(o):"):
        source.line("out = bytearray()")
        if split:
            source.line("parts = []")
        with source.block("try:"):
            writer.write_struct(struct, "o")
            writer.flush()
        with source.block("except (AttributeError, TypeError, struct_error) as error:"):
            source.line("raise refusal(o) from error")
        if split:
            source.line("if out: parts.append(out)")
        source.line("return parts" if split else "return out")
    return source.function("encode", f"encode {struct.__name__} v{version}")


class _EncoderSource:
    """Writes lines that append fields to a buffer; a run of fixed-size fields is pending until flushed."""

    def __init__(self, source: Source, version: int, flexible: bool, split: bool) -> None:
        self._source = source
        self._version = version
        self._flexible = flexible
        self._split = split
        self._out = "out"
        self._run: list[tuple[str, str]] = []

    def flush(self) -> None:
        """Write the pending run as one pack."""
        if self._run:
            self._source.line(self._pack(self._run))
            self._run = []

    def _pack(self, run: list[tuple[str, str]]) -> str:
        layout = ">" + "".join(code for code, _ in run)
        values = [value for _, value in run if value]
        if not values:
            if len(run) == 1:
                return f"{self._out}.append(0)"
            return f"{self._out} += {bytes(packing.calcsize(layout))!r}"
        if layout == ">B":
            return f"{self._out}.append({values[0]})"
        pack = self._source.constant(layout, packing.Struct(layout).pack)
        return f"{self._out} += {pack}({', '.join(values)})"

    def write_struct(self, struct: type[Struct], name: str) -> None:
        """Write the lines that append the struct in a local variable."""
        tagged: list[tuple[Field, str]] = []
        for key, field in struct.FIELDS.items():
            if not field.in_version(self._version):
                continue
            if field.tag is None:
                self._write_field(field, f"{name}.{key}")
            else:
                tagged.append((field, f"{name}.{key}"))
        if tagged:
            self._write_tagged(tagged)
        elif self._flexible:
            self._run.append(("x", ""))

    def _write_field(self, field: Field, value: str) -> None:
        nullable = field.is_nullable(self._version)
        if field.kind is Kind.ARRAY:
            self._write_array(field, value, nullable)
        elif field.kind is Kind.STRUCT:
            self._write_nested(field, value, nullable)
        else:
            self._write_value(field.kind, value, nullable)

    def _write_value(self, kind: Kind, value: str, nullable: bool) -> None:
        if kind is Kind.UUID:
            self._run.append(("16s", f"{value}.bytes"))
        elif kind in FIXED_FORMATS:
            self._run.append((FIXED_FORMATS[kind][0], value))
        elif kind is Kind.STRING:
            self._write_string(value, nullable)
        else:
            self._write_bytes(kind, value, nullable)

    def _write_length(self, code: str, length: str, usual_bytes: int = 1) -> None:
        """Write a length, with the pending run if the length is fixed or no longer than `usual_bytes`."""
        if not self._flexible:
            self._run.append((code, length))
            self.flush()
            return
        source = self._source
        with source.block(f"if {length} < 128:"):
            source.line(self._pack([*self._run, ("B", length)]))
        for more in range(1, usual_bytes):
            pieces = [("B", f"{length} >> {7 * index} & 127 | 128") for index in range(more)]
            with source.block(f"elif {length} < {1 << 7 * (more + 1)}:"):
                source.line(self._pack([*self._run, *pieces, ("B", f"{length} >> {7 * more}")]))
        with source.block("else:"):
            self.flush()
            self._write_long_uvarint(length)
        self._run = []

    def _write_long_uvarint(self, number: str) -> None:
        with self._source.block(f"while {number} > 127:"):
            self._source.line(f"{self._out}.append({number} & 127 | 128)")
            self._source.line(f"{number} >>= 7")
        self._source.line(f"{self._out}.append({number})")

    def _length_of(self, content: str) -> str:
        return f"len({content}) + 1" if self._flexible else f"len({content})"

    def _write_string(self, value: str, nullable: bool) -> None:
        source = self._source
        text, length = source.fresh("s"), source.fresh("n")
        if nullable:
            source.line(f"{text} = {value}")
            with source.block(f"if {text} is None:"):
                source.line(f'{text} = b""')
                source.line(f"{length} = {0 if self._flexible else -1}")
            with source.block("else:"):
                source.line(f"{text} = {text}.encode()")
                source.line(f"{length} = {self._length_of(text)}")
        else:
            source.line(f"{text} = {value}.encode()")
            source.line(f"{length} = {self._length_of(text)}")
        self._write_length("h", length)
        source.line(f"{self._out} += {text}")

    def _write_bytes(self, kind: Kind, value: str, nullable: bool) -> None:
        source = self._source
        content, length = source.fresh("b"), source.fresh("n")
        source.line(f"{content} = {value}")
        self._take_length(content, length, nullable)
        self._write_length("i", length, usual_bytes=3)
        with source.block(f"if {content}:"):
            if kind is Kind.RECORDS and self._split and self._out == "out":
                source.line(f"parts += out, {content}")
                source.line("out = bytearray()")
            else:
                source.line(f"{self._out} += {content}")

    def _take_length(self, content: str, length: str, nullable: bool) -> None:
        if nullable:
            null = 0 if self._flexible else -1
            self._source.line(f"{length} = {null} if {content} is None else {self._length_of(content)}")
        else:
            self._source.line(f"{length} = {self._length_of(content)}")

    def _write_array(self, field: Field, value: str, nullable: bool) -> None:
        source = self._source
        items, length, item = source.fresh("a"), source.fresh("n"), source.fresh("o")
        source.line(f"{items} = {value}")
        self._take_length(items, length, nullable)
        self._write_length("i", length)
        with source.block(f"if {items}:"):
            if field.element in FIXED_FORMATS and field.element is not Kind.UUID:
                code = FIXED_FORMATS[field.element][0]
                source.line(f'{self._out} += pack(f">{{len({items})}}{code}", *{items})')
                return
            with source.block(f"for {item} in {items}:"):
                if field.struct is not None:
                    self.write_struct(field.struct, item)
                else:
                    self._write_value(field.element or Kind.STRING, item, nullable=False)
                self.flush()

    def _write_nested(self, field: Field, value: str, nullable: bool) -> None:
        source = self._source
        assert field.struct is not None
        name = source.fresh("o")
        source.line(f"{name} = {value}")
        if not nullable:
            self.write_struct(field.struct, name)
            return
        self.flush()
        if field.tag is not None:
            # A tagged struct is sent only if it is not null, and its marker is a varint.
            source.line(f"{self._out}.append(1)")
            self.write_struct(field.struct, name)
            return
        with source.block(f"if {name} is None:"):
            source.line(f"{self._out}.append(255)")
        with source.block("else:"):
            source.line(f"{self._out}.append(1)")
            self.write_struct(field.struct, name)
            self.flush()

    def _write_tagged(self, tagged: list[tuple[Field, str]]) -> None:
        source = self._source
        self.flush()
        tagged.sort(key=lambda entry: entry[0].tag or 0)
        wanted = [self._is_sent(field, value) for field, value in tagged]
        with source.block(f"if {' or '.join(wanted)}:"):
            outer, body, count = self._out, source.fresh("tags"), source.fresh("t")
            source.line(f"{body} = bytearray()")
            source.line(f"{count} = 0")
            for (field, value), condition in zip(tagged, wanted, strict=True):
                with source.block(f"if {condition}:"):
                    source.line(f"{count} += 1")
                    self._out = source.fresh("tag")
                    source.line(f"{self._out} = bytearray()")
                    self._write_field(field, value)
                    self.flush()
                    content, size = self._out, source.fresh("n")
                    source.line(f"{size} = len({content})")
                    self._out = body
                    source.line(f"{body}.append({field.tag})")
                    self._write_long_uvarint(size)
                    source.line(f"{body} += {content}")
            self._out = outer
            source.line(f"{outer}.append({count})")
            source.line(f"{outer} += {body}")
        with source.block("else:"):
            source.line(f"{self._out}.append(0)")

    def _is_sent(self, field: Field, value: str) -> str:
        if field.kind is Kind.ARRAY:
            if field.default is None:
                return f"{value} is not None"
            return f"({value} is None or {value})" if field.is_nullable(self._version) else value
        if field.kind is Kind.STRUCT:
            assert field.struct is not None
            if field.is_nullable(self._version):
                return f"{value} is not None"
            default = self._source.constant(("default", field.struct), field.struct())
            return f"({value} is not None and {value} != {default})"
        default = self._source.literal(field.default)
        if field.kind is Kind.UUID:
            return f"({value} is not {default} and {value} != {default})"
        return f"{value} != {default}"


def _problem(struct: Struct, version: int) -> str | None:
    """Which field of a struct cannot be encoded and why; None if all look valid."""
    for name, field in struct.FIELDS.items():
        if not field.in_version(version):
            continue
        value = getattr(struct, name, ...)
        if value is ...:
            return f"{name} is missing"
        if value is None:
            if field.is_nullable(version) or (field.tag is not None and field.kind is Kind.STRUCT):
                continue
            return f"{name} cannot be null"
        problem = _value_problem(field, value, version)
        if problem is not None:
            return f"{name}: {problem}"
    return None


def _value_problem(field: Field, value: object, version: int) -> str | None:
    if field.kind in _INTEGER_BITS:
        limit = 1 << (_INTEGER_BITS[field.kind] - 1)
        if not isinstance(value, int) or not -limit <= value < limit:
            return f"{value!r} is not an {field.kind.value}"
    elif field.kind is Kind.STRUCT:
        if not isinstance(value, Struct):
            return f"{value!r} is not a struct"
        return _problem(value, version)
    elif field.kind is Kind.ARRAY:
        if not isinstance(value, list):
            return f"{value!r} is not a list"
        element = Field(Kind.STRUCT) if field.element is None else Field(field.element)
        for index, item in enumerate(value):
            problem = "cannot be null" if item is None else _value_problem(element, item, version)
            if problem is not None:
                return f"[{index}]: {problem}"
    elif field.kind is Kind.STRING:
        if not isinstance(value, str):
            return f"{value!r} is not text"
        return "is longer than a string can be" if len(value.encode()) > 0x7FFF else None
    return None
