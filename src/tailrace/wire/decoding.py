"""Compiles the description of a struct to a function that decodes one version of it.

Invariants: every length is checked against the remaining bytes before anything is allocated for it; malformed bytes
raise `WireError` and nothing else. Runs of fixed-size fields, together with the length or tag count that follows them,
become one unpack; nested structs are inlined.

Untrusted bytes can have more elements than there is time to process; a bounded decoder refuses those.
"""

from __future__ import annotations

import struct as packing
from collections.abc import Callable

from tailrace.errors import WireError
from tailrace.runtime.disk import Buffer
from tailrace.wire.fields import FIXED_FORMATS, Field, Kind, S, Struct
from tailrace.wire.primitives import (
    MOST_ELEMENTS,
    finish_uvarint,
    skip_tagged_fields,
    tag_count,
    too_many_elements,
    uuid_from_bytes,
)
from tailrace.wire.source import Source

_CONSTANTS: dict[str, object] = {
    "WireError": WireError,
    "finish_uvarint": finish_uvarint,
    "new": object.__new__,
    "skip_tagged_fields": skip_tagged_fields,
    "tag_count": tag_count,
    "too_many_elements": too_many_elements,
    "struct_error": packing.error,
    "unpack_from": packing.unpack_from,
    "uuid_from_bytes": uuid_from_bytes,
}
_BAD_LENGTH = 'raise WireError("a length is negative, null or runs past the end")'


def compile_decoder(
    struct: type[S], version: int, flexible: bool, *, is_bounded: bool = False
) -> Callable[[Buffer], S]:
    """The function that decodes a body of one version; bytes after the struct are ignored.

    A bounded one refuses bodies whose arrays have more than `MOST_ELEMENTS` in total.
    """
    source = Source(_CONSTANTS)
    writer = _DecoderSource(source, version, flexible, is_bounded)
    with source.block("def decode(body):"):
        source.line("view = memoryview(body)")
        source.line("end = len(view)")
        source.line("p = 0")
        if is_bounded:
            source.line(f"left = {MOST_ELEMENTS}")
        with source.block("try:"):
            result = writer.read_struct(struct)
            writer.flush()
            source.line(f"return {result}")
        with source.block("except (struct_error, IndexError):"):
            source.line('raise WireError("the body ends too early") from None')
        with source.block("except UnicodeDecodeError:"):
            source.line('raise WireError("a string is not UTF-8") from None')
    decoder: Callable[[Buffer], S] = source.function("decode", f"decode {struct.__name__} v{version}")
    return decoder


def minimum_size(struct: type[Struct], version: int, flexible: bool) -> int:
    """The smallest possible size of a struct on the wire."""
    size = 1 if flexible else 0
    for field in struct.FIELDS.values():
        if field.in_version(version) and field.tag is None:
            size += _minimum_field_size(field, version, flexible)
    return size


def _minimum_field_size(field: Field, version: int, flexible: bool) -> int:
    if field.kind in FIXED_FORMATS:
        return FIXED_FORMATS[field.kind][1]
    if field.kind is Kind.STRUCT:
        assert field.struct is not None
        return 1 if field.is_nullable(version) else minimum_size(field.struct, version, flexible)
    if flexible:
        return 1
    return 2 if field.kind is Kind.STRING else 4


class _DecoderSource:
    """Writes lines that read fields at `p` in `view`; a run of fixed-size reads is pending until flushed."""

    def __init__(self, source: Source, version: int, flexible: bool, is_bounded: bool) -> None:
        self._source = source
        self._version = version
        self._flexible = flexible
        self._is_bounded = is_bounded
        self._run: list[tuple[str, str]] = []
        self._after_run: list[str] = []

    def flush(self) -> None:
        """Write the pending run as one unpack."""
        if not self._run:
            return
        source = self._source
        layout = ">" + "".join(code for code, _ in self._run)
        targets = ", ".join(target for _, target in self._run)
        if layout == ">B":
            source.line(f"{targets} = view[p]")
        else:
            unpack = source.constant(layout, packing.Struct(layout).unpack_from)
            source.line(f"{targets}, = {unpack}(view, p)")
        source.line(f"p += {packing.calcsize(layout)}")
        for line in self._after_run:
            source.line(line)
        self._run.clear()
        self._after_run.clear()

    def read_struct(self, struct: type[Struct]) -> str:
        """Write the lines that read a struct; returns the name of the local variable with it."""
        source = self._source
        name = source.fresh("o")
        source.line(f"{name} = new({source.constant(struct, struct)})")
        tagged: dict[str, Field] = {}
        for key, field in struct.FIELDS.items():
            present = field.in_version(self._version)
            if not present or field.tag is not None:
                source.line(f"{name}.{key} = {self._default(field)}")
            if present and field.tag is None:
                self._read_field(field, f"{name}.{key}")
            elif present:
                tagged[f"{name}.{key}"] = field
        if self._flexible:
            self._read_tagged(tagged)
        return name

    def _default(self, field: Field) -> str:
        if not field.default_is_built:
            return self._source.literal(field.default)
        return "[]" if field.default is list else f"{self._source.constant(field.default, field.default)}()"

    def _read_field(self, field: Field, target: str) -> None:
        nullable = field.is_nullable(self._version)
        if field.kind is Kind.ARRAY:
            self._read_array(field, target, nullable)
        elif field.kind is Kind.STRUCT:
            self._read_nested(field, target, nullable)
        else:
            self._read_value(field.kind, target, nullable)

    def _read_value(self, kind: Kind, target: str, nullable: bool) -> None:
        if kind is Kind.UUID:
            raw = self._source.fresh("u")
            self._run.append(("16s", raw))
            self._after_run.append(f"{target} = uuid_from_bytes({raw})")
        elif kind in FIXED_FORMATS:
            self._run.append((FIXED_FORMATS[kind][0], target))
        else:
            self._read_bytes(kind, target, nullable)

    def _read_length(self, code: str) -> str:
        """Write the lines that read a length, with the pending run; 0 is null in a flexible version, otherwise -1."""
        length = self._source.fresh("n")
        self._run.append(("B" if self._flexible else code, length))
        self.flush()
        if self._flexible:
            self._source.line(f"if {length} > 127: {length}, p = finish_uvarint(view, p, {length})")
        return length

    def _read_bytes(self, kind: Kind, target: str, nullable: bool) -> None:
        source = self._source
        length = self._read_length("h" if kind is Kind.STRING else "i")
        stop = f"q = p + {length}" + (" - 1" if self._flexible else "")
        value = 'str(view[p:q], "utf-8")' if kind is Kind.STRING else "view[p:q]"
        if nullable:
            with source.block(f"if {length} == {0 if self._flexible else -1}:"):
                source.line(f"{target} = None")
            with source.block("else:"):
                self._read_span(stop, target, value)
        else:
            self._read_span(stop, target, value)

    def _read_span(self, stop: str, target: str, value: str) -> None:
        self._source.line(stop)
        self._source.line(f"if not p <= q <= end: {_BAD_LENGTH}")
        self._source.line(f"{target} = {value}")
        self._source.line("p = q")

    def _read_array(self, field: Field, target: str, nullable: bool) -> None:
        source = self._source
        length = self._read_length("i")
        if self._flexible:
            source.line(f"{length} -= 1")
        if nullable:
            with source.block(f"if {length} == -1:"):
                source.line(f"{target} = None")
            with source.block("else:"):
                self._read_elements(field, target, length)
        else:
            self._read_elements(field, target, length)

    def _read_elements(self, field: Field, target: str, length: str) -> None:
        source = self._source
        if field.struct is not None:
            # An element without fields still counts as a byte, so that the count alone cannot cause an allocation.
            size = max(1, minimum_size(field.struct, self._version, self._flexible))
        else:
            assert field.element is not None
            size = _minimum_field_size(Field(field.element), self._version, self._flexible)
        source.line(f"if not 0 <= {length} * {size} <= end - p: {_BAD_LENGTH}")
        if self._is_bounded:
            source.line(f"left -= {length}")
            source.line("if left < 0: raise too_many_elements()")
        if field.element in FIXED_FORMATS and field.element is not Kind.UUID:
            code = FIXED_FORMATS[field.element][0]
            source.line(f'{target} = list(unpack_from(f">{{{length}}}{code}", view, p))')
            source.line(f"p += {length} * {size}")
            return
        items = source.fresh("a")
        source.line(f"{target} = {items} = []")
        with source.block(f"for _ in range({length}):"):
            if field.struct is not None:
                item = self.read_struct(field.struct)
            else:
                item = source.fresh("v")
                self._read_value(field.element or Kind.STRING, item, nullable=False)
            self.flush()
            source.line(f"{items}.append({item})")

    def _read_nested(self, field: Field, target: str, nullable: bool) -> None:
        source = self._source
        assert field.struct is not None
        if not nullable:
            source.line(f"{target} = {self.read_struct(field.struct)}")
            return
        marker = source.fresh("m")
        if field.tag is not None:
            self._read_tagged_nested(field.struct, target, marker)
            return
        self._run.append(("b", marker))
        self.flush()
        with source.block(f"if {marker} == -1:"):
            source.line(f"{target} = None")
        with source.block(f"elif {marker} == 1:"):
            name = self.read_struct(field.struct)
            self.flush()
            source.line(f"{target} = {name}")
        with source.block("else:"):
            source.line('raise WireError("a nullable struct is neither null nor present")')

    def _read_tagged_nested(self, struct: type[Struct], target: str, marker: str) -> None:
        """Write the lines that read a nullable struct in a tagged field, which is preceded by a varint marker."""
        source = self._source
        source.line(f"{marker} = view[p]")
        source.line("p += 1")
        with source.block(f"if {marker} > 1:"):
            source.line('raise WireError("a nullable struct is neither null nor present")')
        with source.block(f"if {marker}:"):
            name = self.read_struct(struct)
            self.flush()
            source.line(f"{target} = {name}")
        with source.block("else:"):
            source.line(f"{target} = None")

    def _read_tagged(self, tagged: dict[str, Field]) -> None:
        source = self._source
        count = source.fresh("t")
        self._run.append(("B", count))
        self.flush()
        if not tagged:
            source.line(f"if {count}: p = skip_tagged_fields(view, p, {count})")
            return
        with source.block(f"if {count}:"):
            source.line(f"if {count} > 127: {count}, p = tag_count(view, p, {count})")
            with source.block(f"for _ in range({count}):"):
                tag, size, stop = source.fresh("g"), source.fresh("z"), source.fresh("e")
                for number in (tag, size):
                    source.line(f"{number} = view[p]")
                    source.line("p += 1")
                    source.line(f"if {number} > 127: {number}, p = finish_uvarint(view, p, {number})")
                source.line(f"{stop} = p + {size}")
                source.line(f"if {stop} > end: {_BAD_LENGTH}")
                word = "if"
                for target, field in tagged.items():
                    with source.block(f"{word} {tag} == {field.tag}:"):
                        self._read_field(field, target)
                        self.flush()
                        source.line(f'if p != {stop}: raise WireError("a tagged field has the wrong size")')
                    word = "elif"
                with source.block("else:"):
                    source.line(f"p = {stop}")
