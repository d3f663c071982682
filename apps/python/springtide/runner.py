"""The runner: a process that a node starts for each compute thread, to run tasks.

Started as ``python3 -m springtide.runner``.
"""

from __future__ import annotations

import os
import runpy
import sys
import threading
import types
from typing import Any, Dict, List, NoReturn, Optional, Tuple

from . import _calls
from ._calls import Call, Task
from ._errors import exception_of, failure_of
from ._frames import VERSION, Frame, read_frame, write_frame
from ._pickles import dumps, loads, unpack


# The function that calls one of its arguments.
_CALL_FUNCTION = "springtide._calls:call_function"


class TaskCancelled(BaseException):
    """The node has no use for the task any more."""


class _Entry:
    """A task that has begun."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.children = 0


class Runner:
    """The process's side of the protocol."""

    def __init__(self, source: int, target: int) -> None:
        self._source = os.fdopen(source, "rb")
        self._target = target
        self._stack: List[_Entry] = []
        self._functions: Dict[Tuple[Optional[int], str], Any] = {}
        self._values: Dict[int, Any] = {}
        self._thread = threading.get_ident()
        self._lock = threading.Lock()

    # --- the protocol ---

    def send(self, kind: str, fields: Dict[str, Any]) -> None:
        """Sends a frame to the node, from any thread."""
        with self._lock:
            write_frame(self._target, kind, fields)

    def _read(self) -> Frame:
        frame = read_frame(self._source)
        if frame is None or frame[0] == "end":
            _end()
        return frame

    def serve(self) -> NoReturn:
        """Runs tasks until the node ends this process."""
        self.send("hello", {"version": VERSION, "tasks": None})
        kind, fields = self._read()
        if kind != "welcome" or fields["version"] != VERSION:
            sys.exit(f"the node answers with {kind}, version {fields.get('version')}")
        while True:
            kind, fields = self._read()
            if kind == "task":
                self._run(fields)

    def _wait(self, entry: _Entry, answer: str) -> Dict[str, Any]:
        """Waits for an answer, and runs other tasks meanwhile."""
        while True:
            kind, fields = self._read()
            if kind == "task":
                self._run(fields)
            elif kind == "cancel" and fields["task"] == entry.number:
                raise TaskCancelled
            elif kind == answer and fields["task"] == entry.number:
                return fields

    # --- tasks ---

    def _run(self, fields: Dict[str, Any]) -> None:
        entry, call = _Entry(fields["task"]), fields["call"]
        self._stack.append(entry)
        try:
            value, buffers = self._call(call)
            # What a task prints reaches the client before its value.
            sys.stdout.flush()
            self.send("result", {"task": entry.number, "value": value, "buffers": buffers})
        except BaseException as error:
            failure = failure_of(error)
            self.send("failure", {"task": entry.number, "failure": failure})
        finally:
            self._stack.pop()

    def _call(self, call: Dict[str, Any]) -> Tuple[Any, List[Any]]:
        name = call["function"]["name"]
        if name in _CHECKS:
            return _CHECKS[name](self, call)
        function = self.function(call["function"])
        args, kwargs = loads(call["arguments"], call.get("buffers", ()))
        value, buffers, objects = dumps(function(*args, **kwargs))
        if objects:
            raise ValueError("a task cannot return a shared object: return its value")
        return value, buffers

    def function(self, reference: Dict[str, Any]) -> Any:
        """The function of a reference."""
        number, name = reference.get("object"), reference["name"]
        known = self._functions.get((number, name))
        if known is not None:
            return known
        if number is None:
            found = _calls.import_name(name)
            if isinstance(found, Task):
                found.reference = {"object": None, "name": name}
            self._functions[number, name] = found
            return found
        data = self._object(number)
        value, tasks = _calls.loading_tasks(lambda: loads(data))
        for loaded in tasks:
            loaded.reference = {"object": number, "name": loaded.name}
            self._functions[number, loaded.name] = loaded
        self._functions.setdefault((number, name), value)
        return self._functions[number, name]

    def _last(self) -> _Entry:
        """The task that runs. Its own thread alone speaks for it."""
        if threading.get_ident() != self._thread:
            raise RuntimeError("only the thread of a task may spawn, join and read shared objects")
        return self._stack[-1]

    def _object(self, number: int) -> Any:
        entry = self._last()
        self.send("get", {"task": entry.number, "object": number})
        data = self._wait(entry, "object")["data"]
        if data is None:
            raise LookupError(f"shared object {number} is not among those of the task")
        return data

    # --- for tasks ---

    def spawn(self, call: Call) -> Tuple[int, int]:
        """Creates a child of the task that runs. Returns the numbers of both."""
        fields = self._call_fields(call)
        return self._spawn(fields)

    def _spawn(self, fields: Dict[str, Any]) -> Tuple[int, int]:
        entry = self._last()
        number, entry.children = entry.children, entry.children + 1
        self.send("spawn", {"task": entry.number, "child": number, "call": fields})
        return entry.number, number

    def _call_fields(self, call: Call) -> Dict[str, Any]:
        function, arguments = call.task, (call.args, call.kwargs)
        reference = getattr(function, "reference", None)
        if reference is None:
            name = _calls.name_of(function)
            if name is None:
                # It came with the arguments of this task, and is sent on with those of the child.
                name, arguments = _CALL_FUNCTION, ((function, *arguments), {})
            reference = {"object": None, "name": name}
        pickled, buffers, objects = dumps(arguments)
        return {
            "function": reference,
            "arguments": pickled,
            "buffers": buffers,
            "objects": objects,
        }

    def join(self, numbers: Tuple[int, int]) -> Any:
        """Waits for a child of the task that runs."""
        outcome = self._join(numbers)
        if "failure" in outcome:
            raise exception_of(outcome["failure"])
        result = outcome["result"]
        return loads(result["value"], result.get("buffers", ()))

    def _join(self, numbers: Tuple[int, int]) -> Dict[str, Any]:
        entry = self._last()
        if numbers[0] != entry.number:
            raise RuntimeError("a task joins its own children alone")
        self.send("join", {"task": entry.number, "child": numbers[1]})
        outcome: Dict[str, Any] = self._wait(entry, "joined")["outcome"]
        return outcome

    def get(self, number: int) -> Any:
        """The value of a shared object, which this process loads once."""
        if number not in self._values:
            data = self._object(number)
            self._values[number] = unpack(data)
        return self._values[number]


# --- the functions of the conformance test, whose arguments are plain bytes ---


def _echo(_: Runner, call: Dict[str, Any]) -> Tuple[Any, List[Any]]:
    return call["arguments"], call["buffers"]


def _fail(_: Runner, call: Dict[str, Any]) -> Tuple[Any, List[Any]]:
    class Refused(Exception):
        pass

    Refused.__qualname__ = "Refused"
    raise Refused(str(call["arguments"], "utf-8"))


def _spawn_two(runner: Runner, call: Dict[str, Any]) -> Tuple[Any, List[Any]]:
    child = {**call, "function": {"object": None, "name": "check:echo"}}
    children = [runner._spawn(child), runner._spawn(child)]
    value = None
    for numbers in reversed(children):
        outcome = runner._join(numbers)
        if "failure" in outcome:
            raise exception_of(outcome["failure"])
        value = outcome["result"]["value"]
    return value, []


def _get_first(runner: Runner, call: Dict[str, Any]) -> Tuple[Any, List[Any]]:
    return runner._object(call["objects"][0]), []


def _print(_: Runner, call: Dict[str, Any]) -> Tuple[Any, List[Any]]:
    print(str(call["arguments"], "utf-8"))
    os.write(1, b"and by the descriptor\n")
    return call["arguments"], []


_CHECKS = {
    "check:echo": _echo,
    "check:fail": _fail,
    "check:spawn": _spawn_two,
    "check:get": _get_first,
    "check:print": _print,
}


def _end() -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    # Without the end of threads that tasks left running.
    os._exit(0)


def _load_main(script: str) -> None:
    """Imports the client's script under another name, so that its functions are found by name."""
    module = types.ModuleType("__mp_main__")
    if os.path.isabs(script):
        found = runpy.run_path(script, run_name="__mp_main__")
    else:
        found = runpy.run_module(script, run_name="__mp_main__", alter_sys=True)
    module.__dict__.update(found)
    sys.modules["__main__"] = sys.modules["__mp_main__"] = module


def main() -> NoReturn:
    """Runs this process as a runner."""
    # What tasks print goes to the log, and what they read is empty.
    source, target = os.dup(0), os.dup(1)
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    os.dup2(2, 1)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    runner = Runner(source, target)
    _calls._runner = runner
    # Each level of nested tasks needs several frames of the interpreter.
    sys.setrecursionlimit(max(sys.getrecursionlimit(), 10_000))
    script = os.environ.get("SPRINGTIDE_MAIN")
    if script is not None:
        _calls.main_file = script
        _load_main(script)
    runner.serve()


if __name__ == "__main__":
    # Tasks and this module must be the same to pickles.
    from springtide import runner as itself

    itself.main()
