"""Frames: a length in four bytes, and a MessagePack map from a kind to its fields.

Only the types that frames contain are encoded. Byte strings are decoded as views of the frame, so
that large buffers are not copied.
"""

from __future__ import annotations

import os
import struct
from typing import IO, Any, Dict, List, Optional, Tuple, Union

Frame = Tuple[str, Dict[str, Any]]

#: The version of the protocol.
VERSION = 1
#: The most bytes of a frame.
FRAME_MAX = 512 << 20
# Longer byte strings are written from where they are.
_INLINE = 16 << 10
# The most pieces of one system call.
_PIECES = 512
# The deepest nesting of maps and lists.
_DEPTH = 64


class FrameError(Exception):
    """Bytes are no frame, or a value makes none."""


class _Encoder:
    def __init__(self) -> None:
        self.pieces: List[Union[bytearray, memoryview]] = [bytearray()]

    def _head(self, length: int, short: int, limit: int, codes: Tuple[int, ...]) -> None:
        out = self.pieces[-1]
        assert isinstance(out, bytearray)
        if length < limit:
            out.append(short | length)
        elif len(codes) == 3 and length < 1 << 8:
            out += struct.pack(">BB", codes[0], length)
        elif length < 1 << 16:
            out += struct.pack(">BH", codes[-2], length)
        elif length < 1 << 32:
            out += struct.pack(">BI", codes[-1], length)
        else:
            raise FrameError(f"a value of {length} elements is too long for a frame")

    def add(self, value: Any) -> None:
        out = self.pieces[-1]
        assert isinstance(out, bytearray)
        if value is None:
            out.append(0xC0)
        elif value is True or value is False:
            out.append(0xC3 if value else 0xC2)
        elif isinstance(value, int):
            if 0 <= value < 128:
                out.append(value)
            elif value >= 0:
                out += struct.pack(">BQ", 0xCF, value)
            else:
                out += struct.pack(">Bq", 0xD3, value)
        elif isinstance(value, float):
            out += struct.pack(">Bd", 0xCB, value)
        elif isinstance(value, str):
            text = value.encode("utf-8", "surrogatepass").decode("utf-8", "replace").encode()
            self._head(len(text), 0xA0, 32, (0xD9, 0xDA, 0xDB))
            out += text
        elif isinstance(value, (bytes, bytearray, memoryview)):
            view = memoryview(value)
            view = view if view.format == "B" and view.ndim == 1 else view.cast("B")
            self._head(view.nbytes, 0, 0, (0xC4, 0xC5, 0xC6))
            if view.nbytes <= _INLINE:
                out += view
            else:
                self.pieces += [view, bytearray()]
        elif isinstance(value, (list, tuple)):
            self._head(len(value), 0x90, 16, (0xDC, 0xDD))
            for item in value:
                self.add(item)
        elif isinstance(value, dict):
            self._head(len(value), 0x80, 16, (0xDE, 0xDF))
            for key, item in value.items():
                self.add(key)
                self.add(item)
        else:
            raise FrameError(f"a frame has no {type(value).__name__}")


class _Decoder:
    def __init__(self, data: memoryview) -> None:
        self.data = data
        self.at = 0

    def _take(self, length: int) -> memoryview:
        if self.at + length > len(self.data):
            raise FrameError("a frame ends early")
        self.at += length
        return self.data[self.at - length : self.at]

    def _number(self, form: str) -> Any:
        return struct.unpack(form, self._take(struct.calcsize(form)))[0]

    def next(self, depth: int = 0) -> Any:
        if depth > _DEPTH:
            raise FrameError("a frame is nested too deeply")
        code = self._take(1)[0]
        if code < 0x80:
            return code
        if code >= 0xE0:
            return code - 256
        if code < 0x90:
            return self._map(code & 15, depth)
        if code < 0xA0:
            return [self.next(depth + 1) for _ in range(code & 15)]
        if code < 0xC0:
            return self._text(code & 31)
        simple = {0xC0: None, 0xC2: False, 0xC3: True}
        if code in simple:
            return simple[code]
        numbers = {
            0xCA: ">f", 0xCB: ">d", 0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q",
            0xD0: ">b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q",
        }  # fmt: skip
        if code in numbers:
            return self._number(numbers[code])
        if 0xC4 <= code <= 0xC6:
            return self._take(self._number((">B", ">H", ">I")[code - 0xC4]))
        if 0xD9 <= code <= 0xDB:
            return self._text(self._number((">B", ">H", ">I")[code - 0xD9]))
        if code in (0xDC, 0xDD):
            count = self._number((">H", ">I")[code - 0xDC])
            return [self.next(depth + 1) for _ in range(count)]
        if code in (0xDE, 0xDF):
            return self._map(self._number((">H", ">I")[code - 0xDE]), depth)
        raise FrameError(f"byte {code:#x} begins no value of a frame")

    def _text(self, length: int) -> str:
        return str(self._take(length), "utf-8")

    def _map(self, count: int, depth: int) -> Dict[Any, Any]:
        entries = {}
        for _ in range(count):
            key = self.next(depth + 1)
            entries[key] = self.next(depth + 1)
        return entries


def encode(kind: str, fields: Dict[str, Any]) -> List[memoryview]:
    """The bytes of a frame, in pieces."""
    encoder = _Encoder()
    encoder.add({kind: fields})
    length = sum(len(piece) for piece in encoder.pieces)
    if length > FRAME_MAX:
        raise FrameError(f"a frame of {length} bytes is over the limit of {FRAME_MAX} bytes")
    pieces = [memoryview(struct.pack(">I", length))]
    return pieces + [memoryview(piece) for piece in encoder.pieces if len(piece)]


def decode(data: Union[bytes, bytearray]) -> Frame:
    """The kind and the fields of a frame without its length."""
    decoder = _Decoder(memoryview(data))
    value = decoder.next()
    if decoder.at != len(data):
        raise FrameError("bytes follow the end of a frame")
    if not isinstance(value, dict) or len(value) != 1:
        raise FrameError("a frame is a map of one entry")
    ((kind, fields),) = value.items()
    if not isinstance(fields, dict):
        raise FrameError("the value of a frame is a map of fields")
    return kind, fields


def write_frame(fd: int, kind: str, fields: Dict[str, Any]) -> None:
    """Writes a frame to a descriptor."""
    pieces = encode(kind, fields)
    while pieces:
        count = os.writev(fd, pieces[:_PIECES])
        while pieces and count >= len(pieces[0]):
            count -= len(pieces.pop(0))
        if count:
            pieces[0] = pieces[0][count:]


def read_frame(stream: IO[bytes]) -> Optional[Frame]:
    """The next frame of a stream; None at its end."""
    head = stream.read(4)
    if len(head) < 4:
        return None
    (length,) = struct.unpack(">I", head)
    if length > FRAME_MAX:
        raise FrameError(f"a frame of {length} bytes is over the limit of {FRAME_MAX} bytes")
    data = bytearray(length)
    view, at = memoryview(data), 0
    while at < length:
        count = stream.readinto(view[at:])  # type: ignore[attr-defined]
        if not count:
            return None
        at += count
    return decode(data)
