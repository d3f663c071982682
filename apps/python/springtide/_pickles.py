"""Values as bytes: pickles with large buffers apart, and functions by value where possible."""

from __future__ import annotations

import io
import pickle
import types
from typing import Any, List, Tuple, Union

from . import _calls
from ._calls import collecting_objects

try:
    import cloudpickle as _cloudpickle
except ImportError:
    _cloudpickle = None
cloudpickle: Any = _cloudpickle

Buffer = Union[bytes, bytearray, memoryview]
# Shorter buffers are part of the pickle.
_BUFFER_MIN = 32 << 10


class _ByValue(Exception):
    """The value contains a function or class that no runner can import."""


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, (types.FunctionType, type)):
            name = getattr(value, "__qualname__", "")
            in_main = value.__module__ == "__main__" and _calls.main_file is None
            if in_main or "<" in name:
                raise _ByValue(name)
        return NotImplemented


def dumps(value: Any) -> Tuple[bytes, List[memoryview], List[int]]:
    """A pickle, its large buffers, and the shared objects that it refers to."""
    buffers: List[memoryview] = []

    def keep(buffer: pickle.PickleBuffer) -> bool:
        try:
            view = buffer.raw()
        except BufferError:
            return True
        if view.nbytes < _BUFFER_MIN:
            return True
        buffers.append(view)
        return False

    def dump() -> bytes:
        out = io.BytesIO()
        try:
            _Pickler(out, protocol=5, buffer_callback=keep).dump(value)
        except (_ByValue, AttributeError, pickle.PicklingError) as error:
            if cloudpickle is None:
                raise pickle.PicklingError(
                    f"{error} cannot be sent by name: install cloudpickle, or define it at the top "
                    "of a module that the nodes can import"
                ) from None
            buffers.clear()
            by_value: bytes = cloudpickle.dumps(value, protocol=5, buffer_callback=keep)
            return by_value
        return out.getvalue()

    data, objects = collecting_objects(dump)
    return data, buffers, objects


def loads(data: Buffer, buffers: Any = ()) -> Any:
    """The value of a pickle and its buffers."""
    return pickle.loads(data, buffers=buffers)


def pack(value: Any) -> Tuple[bytes, List[int]]:
    """A value and its buffers as the bytes of a shared object, and the objects it refers to."""
    pickled, buffers, objects = dumps(value)
    parts: List[Buffer] = [pickled, *buffers]
    sizes = [len(parts)] + [memoryview(part).nbytes for part in parts]
    head = b"".join(size.to_bytes(8, "big") for size in sizes)
    return b"".join([head, *parts]), objects


def unpack(data: Buffer) -> Any:
    """The value of a shared object. Its buffers are views of the bytes, and cannot be changed."""
    view = memoryview(data)

    def word(at: int) -> int:
        return int.from_bytes(view[at * 8 : at * 8 + 8], "big")

    sizes = [word(at) for at in range(1, 1 + word(0))]
    at, parts = 8 * (1 + len(sizes)), []
    for size in sizes:
        parts.append(view[at : at + size].toreadonly())
        at += size
    return loads(parts[0], parts[1:])
