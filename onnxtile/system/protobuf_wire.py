"""The protobuf wire format, as far as a model file is read and written piece by piece.

A message is a sequence of fields, each a tag (its number and wire type) and its content
(https://protobuf.dev/programming-guides/encoding/). The numbers of the fields are those of onnx.proto.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

GRAPH, INITIALIZER, NAME, RAW_DATA = 7, 5, 8, 9
"""ModelProto.graph, GraphProto.initializer, TensorProto.name and TensorProto.raw_data."""

_VARINT, _BYTES = 0, 2
_FIXED = {1: 8, 5: 4}
"""The bytes that fields of other wire types take."""
_MOST_SHIFTS = 63
_FIRST_TAG = 1 << 3
"""Fields are numbered from 1: zeros are none."""


class Unusual(ValueError):
    """What is broken, or in a form that no exporter writes: protobuf itself should read it."""


class WireField(NamedTuple):
    """A field of a message: its number, and where its tag, its content, and the next field begin."""

    number: int
    start: int
    content: int
    stop: int


class ByteSource(Protocol):
    """Bytes, or a file that is mapped."""

    def __getitem__(self, index: int, /) -> int: ...


def fields(data: ByteSource, start: int, stop: int) -> Iterator[WireField]:
    """Yield the fields of the message that is `data` from `start` to `stop`. Raises Unusual, or IndexError where `data` ends before."""
    while start < stop:
        tag, content = varint(data, start)
        if tag < _FIRST_TAG:
            raise Unusual("a field without a number")
        kind = tag & 7
        if kind == _BYTES:
            length, content = varint(data, content)
            end = content + length
        elif kind == _VARINT:
            _, end = varint(data, content)
        elif kind in _FIXED:
            end = content + _FIXED[kind]
        else:
            raise Unusual(f"wire type {kind}")
        if end > stop:
            raise Unusual("a field is longer than its message")
        yield WireField(tag >> 3, start, content, end)
        start = end


def varint(data: ByteSource, start: int) -> tuple[int, int]:
    """Return the varint at `start`, seven bits to a byte, the lowest first; and where it ends."""
    number = data[start]
    if number < 128:
        return number, start + 1
    number &= 127
    for shift in range(7, _MOST_SHIFTS + 1, 7):
        start += 1
        byte = data[start]
        number |= (byte & 127) << shift
        if byte < 128:
            return number, start + 1
    raise Unusual("a number of more than 64 bits")


def head(field: int, length: int) -> bytes:
    """Return the head of a field with `length` bytes of content: the tag of `field`, then the length."""
    return bytes((field << 3 | _BYTES, *_groups_of_seven(length)))


def _groups_of_seven(number: int) -> Iterator[int]:
    while number > 127:
        yield number & 127 | 128
        number >>= 7
    yield number
