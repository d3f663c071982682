"""Grids as clients see them: tasks go to a bridge process, and their ends come back."""

from __future__ import annotations

import asyncio
import concurrent.futures
import itertools
import os
import shutil
import subprocess
import sys
import threading
import time
import types
import weakref
from pathlib import Path
from typing import Any, AsyncIterator, Callable, Dict, Iterable, Iterator, List, Mapping, Optional
from typing import Sequence, Tuple, Union

from . import _calls, _pickles
from ._calls import Call, Reference, Shared, Task
from ._errors import GridClosed, exception_of
from ._frames import read_frame, write_frame
from ._pickles import dumps, loads, pack

# A map has this number of chunks for each processor, so that a slow one delays little.
_CHUNKS = 16
_CHUNK_MAX = 4096
# The time in which a bridge must end its grid.
_END_TIMEOUT_S = 60.0
_open_grids: "weakref.WeakSet[Grid]" = weakref.WeakSet()


def _binary() -> str:
    named = os.environ.get("SPRINGTIDE_BINARY")
    found = named if named else shutil.which("springtide")
    if not found:
        raise GridClosed(
            "the program springtide was not found: put it in the PATH, or name it by the variable "
            "SPRINGTIDE_BINARY"
        )
    if not os.access(found, os.X_OK):
        raise GridClosed(f"{found} is no program: see the variable SPRINGTIDE_BINARY")
    return found


def _main_script() -> Optional[str]:
    """The script or module of this process, which runners import as `multiprocessing` does."""
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        # The main module of a package starts a program, and defines no tasks.
        name = str(spec.name)
        return None if name.rpartition(".")[2] == "__main__" else name
    path = getattr(main, "__file__", None)
    return os.path.abspath(path) if path is not None and os.path.isfile(path) else None


def _environment(extra: Optional[Mapping[str, str]]) -> Dict[str, str]:
    """The variables of runners: they find the modules that this process finds."""
    package = str(Path(__file__).resolve().parent.parent)
    paths = [package] + [os.path.abspath(path) for path in sys.path]
    if _pickles.cloudpickle is None:
        _calls.main_file = _main_script()
    threads = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    return {
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)),
        # A task that runs again creates the same children.
        "PYTHONHASHSEED": "0",
        **({} if _calls.main_file is None else {"SPRINGTIDE_MAIN": _calls.main_file}),
        # A runner has one processor.
        **{name: os.environ.get(name, "1") for name in threads},
        **(extra or {}),
    }


def print_line(line: str) -> None:
    """Writes a line of a task to standard error, which a notebook shows below the cell."""
    print(line, file=sys.stderr, flush=True)


class Grid(concurrent.futures.Executor):
    """The nodes of a grid, as an executor of tasks.

    :meth:`start` starts a grid of local processes, and :meth:`connect` uses one that is up.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        python: Union[str, Sequence[str], None] = None,
        env: Optional[Mapping[str, str]] = None,
        output: Optional[Callable[[str], Any]] = print_line,
    ) -> None:
        command = [_binary(), "--quiet", "runner", "client", *arguments, "--chdir", os.getcwd()]
        # Other users of the host see the arguments of a process, and not its environment.
        variables = _environment(env)
        for name in variables:
            command += ["--env", name]
        interpreter = [sys.executable] if python is None else python
        interpreter = [interpreter] if isinstance(interpreter, str) else list(interpreter)
        command += ["--", *interpreter, "-m", "springtide.runner"]
        #: The process that uses the grid. A process that is forked from it cannot.
        self.process = os.getpid()
        # Ctrl-C is for this process, which ends the bridge.
        self._bridge = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            env={**os.environ, **variables},
        )
        assert self._bridge.stdin is not None and self._bridge.stdout is not None
        self._input = self._bridge.stdin.fileno()
        self._output = self._bridge.stdout
        self._print = output
        self._lock = threading.Lock()
        self._write_lock = threading.Lock()
        self._ready = threading.Event()
        self._processors, self._root = 0, ""
        self._closed: Optional[str] = None
        self._is_shut = False
        self._futures: Dict[int, concurrent.futures.Future[Any]] = {}
        self._numbers = itertools.count(1)
        self._objects = itertools.count(1)
        # The reference of each function, and the objects that it refers to. The function is kept,
        # so that no other one gets its identity.
        self._functions: Dict[int, Tuple[Any, Dict[str, Any], List[int]]] = {}
        self._reader = threading.Thread(target=self._read, name="springtide", daemon=True)
        self._reader.start()
        _open_grids.add(self)

    @classmethod
    def start(cls, shape: str = "3x2", **options: Any) -> "Grid":
        """Starts a grid of local processes: clusters x nodes, and threads as in ``"3x2@4"``.

        Options: ``python``, the command of the interpreter of tasks, by default this one;
        ``env``, variables of the tasks' environment; and ``output``, which gets each line that
        tasks print, log or report as progress, with the node before it. By default it is written
        to standard error; None drops it.
        """
        return cls(["--clusters", shape], **options)._when_ready()

    @classmethod
    def connect(
        cls,
        config: Union[str, "os.PathLike[str]"],
        *,
        min: int = 1,
        max: Optional[int] = None,
        **options: Any,
    ) -> "Grid":
        """Uses the running grid of a config. Other options as for :meth:`start`.

        The job starts with the free processors, at least ``min`` and at most ``max``, by default
        all. It shrinks when other jobs need processors, and grows when some become free.
        """
        arguments = ["--config", os.fspath(config), "--min", str(min)]
        arguments += [] if max is None else ["--max", str(max)]
        return cls(arguments, **options)._when_ready()

    def _when_ready(self) -> "Grid":
        try:
            self._ready.wait()
            if self._closed is not None:
                raise GridClosed(self._closed)
        except BaseException:
            self.shutdown(wait=True, cancel_futures=True)
            raise
        return self

    @property
    def processors(self) -> int:
        """The processors that the job has now."""
        return self._processors

    @property
    def root(self) -> str:
        """The node that serves this client, which changes when it is lost."""
        return self._root

    # --- tasks ---

    def submit(
        self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> "concurrent.futures.Future[Any]":
        """Runs a function on the grid. Functions that call :func:`springtide.join` are tasks.

        ``cancel`` of the future also ends a task that has started.
        """
        if not _has_name(fn):
            # Methods and objects that are called are arguments.
            args, kwargs, fn = (fn, args, kwargs), {}, _calls.call_function
        if self.process != os.getpid():
            raise RuntimeError("a forked process cannot use the grid of its parent")
        reference, objects = self._reference(fn)
        arguments, buffers, more = dumps((args, kwargs))
        call = {
            "function": reference,
            "arguments": arguments,
            "buffers": buffers,
            "objects": sorted({*objects, *more}),
        }
        future: "concurrent.futures.Future[Any]" = concurrent.futures.Future()
        number = next(self._numbers)
        with self._lock:
            if self._is_shut:
                raise RuntimeError("cannot schedule new futures after shutdown")
            if self._closed is not None:
                raise GridClosed(self._closed)
            self._futures[number] = future
        try:
            self._send("submit", {"task": number, "call": call})
        except BaseException:
            self._futures.pop(number, None)
            raise
        future.add_done_callback(lambda done: self._forget(number) if done.cancelled() else None)
        return future

    def run(self, call: Call) -> Any:
        """Runs a call of a task and waits for its value."""
        return self.submit(call.task, *call.args, **call.kwargs).result()

    def map(
        self,
        fn: Callable[..., Any],
        *iterables: Iterable[Any],
        timeout: Optional[float] = None,
        chunksize: Optional[int] = None,
    ) -> Iterator[Any]:
        """Calls a function with elements of iterables. Yields the values in order.

        Several elements are one task: ``chunksize``, or by default so that each processor gets
        about 16 tasks. The failure of an element is raised in place of its chunk.
        """
        chunks = [
            self.submit(_calls.run_chunk, self._argument(fn), chunk)
            for chunk in self._chunks(list(zip(*iterables)), chunksize)
        ]
        return self._results(chunks, timeout)

    def _chunks(self, items: List[Any], size: Optional[int]) -> Iterator[List[Any]]:
        if size is None:
            size = min(max(1, len(items) // (max(1, self._processors) * _CHUNKS)), _CHUNK_MAX)
        if size < 1:
            raise ValueError("chunksize must be at least 1")
        return (items[at : at + size] for at in range(0, len(items), size))

    @staticmethod
    def _results(
        chunks: "List[concurrent.futures.Future[Any]]", timeout: Optional[float]
    ) -> Iterator[Any]:
        until = None if timeout is None else time.monotonic() + timeout
        chunks.reverse()
        try:
            while chunks:
                left = None if until is None else max(0.0, until - time.monotonic())
                yield from chunks.pop().result(left)
        finally:
            for chunk in chunks:
                chunk.cancel()

    async def asubmit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Runs a function on the grid and awaits its value."""
        return await asyncio.wrap_future(self.submit(fn, *args, **kwargs))

    async def amap(
        self,
        fn: Callable[..., Any],
        *iterables: Iterable[Any],
        chunksize: Optional[int] = None,
    ) -> AsyncIterator[Any]:
        """As :meth:`map`, for ``async for``."""
        chunks = [
            self.submit(_calls.run_chunk, self._argument(fn), chunk)
            for chunk in self._chunks(list(zip(*iterables)), chunksize)
        ]
        for chunk in chunks:
            for value in await asyncio.wrap_future(chunk):
                yield value

    def put(self, value: Any) -> Shared:
        """Sends a value to all nodes once. Tasks read it as ``Shared.value`` of an argument."""
        data, objects = pack(value)
        if objects:
            raise ValueError("a shared object cannot refer to another one")
        number = next(self._objects)
        self._send("put", {"object": number, "data": data})
        return Shared(number, value, known=True)

    def _reference(self, fn: Any) -> Tuple[Dict[str, Any], List[int]]:
        """How frames name a function. One by value is sent once, and named from then on."""
        with self._lock:
            known = self._functions.get(id(fn))
            if known is not None:
                return known[1], known[2]
        name = _calls.name_of(fn)
        if name is not None:
            reference: Dict[str, Any] = {"object": None, "name": name}
            objects: List[int] = []
        else:
            wrapped = fn if isinstance(fn, Task) else Task(fn)
            data, objects = pack_function(wrapped)
            number = next(self._objects)
            self._send("put", {"object": number, "data": data})
            reference, objects = {"object": number, "name": wrapped.name}, [number, *objects]
        with self._lock:
            self._functions[id(fn)] = (fn, reference, objects)
        return reference, objects

    def _argument(self, fn: Callable[..., Any]) -> Any:
        """A function as an argument: by its name, or as a reference to its object."""
        if not _has_name(fn):
            return fn
        reference, _ = self._reference(fn)
        number = reference["object"]
        return fn if number is None else Reference(number, reference["name"])

    # --- the bridge ---

    def _send(self, kind: str, fields: Dict[str, Any]) -> None:
        with self._write_lock:
            try:
                write_frame(self._input, kind, fields)
            except (OSError, ValueError) as error:
                raise GridClosed(self._closed or f"the grid has ended: {error}") from None

    def _forget(self, number: int) -> None:
        with self._lock:
            if self._futures.pop(number, None) is None:
                return
        try:
            self._send("cancel", {"task": number})
        except GridClosed:
            pass

    def _read(self) -> None:
        reason = "the program springtide has ended"
        try:
            while True:
                frame = read_frame(self._output)
                if frame is None:
                    break
                kind, fields = frame
                if kind == "ready":
                    self._processors, self._root = fields["processors"], fields["node"]
                    self._ready.set()
                elif kind == "done":
                    self._done(fields)
                elif kind == "processors":
                    self._processors = fields["processors"]
                elif kind in ("output", "log", "progress"):
                    self._report(kind, fields)
                elif kind == "closed":
                    reason = fields["reason"] or "the grid was shut down"
                    break
        except Exception as error:
            reason = f"a frame of the grid is damaged: {error}"
        with self._lock:
            self._closed = reason
            futures, self._futures = list(self._futures.values()), {}
        for future in futures:
            if future.set_running_or_notify_cancel():
                future.set_exception(GridClosed(reason))
        self._ready.set()

    def _report(self, kind: str, fields: Dict[str, Any]) -> None:
        """Passes on what a task has printed, logged or reported."""
        if self._print is None:
            return
        if kind == "progress":
            text = f"{fields['done']} of {fields['total']} {fields['what']}"
        else:
            text = fields["text"]
        level = f"{fields['level']}: " if kind == "log" else ""
        try:
            for line in text.split("\n"):
                self._print(f"{fields['node']}: {level}{line}")
        except Exception:
            # A closed stream must not end the thread that reads results.
            self._print = None

    def _done(self, fields: Dict[str, Any]) -> None:
        with self._lock:
            future = self._futures.pop(fields["task"], None)
        if future is None or not future.set_running_or_notify_cancel():
            return
        outcome = fields["outcome"]
        try:
            if "failure" in outcome:
                future.set_exception(exception_of(outcome["failure"]))
                return
            result = outcome["result"]
            value = loads(result["value"], result.get("buffers", ()))
        except Exception as error:
            future.set_exception(error)
            return
        future.set_result(value)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Ends the use of the grid, and a grid of its own. Waits for the tasks that have begun."""
        with self._lock:
            self._is_shut = True
            futures = list(self._futures.values())
        if cancel_futures:
            for future in futures:
                future.cancel()
        if not wait and not cancel_futures and futures:
            # The last of them ends the grid.
            threading.Thread(target=self.shutdown, name="springtide-end", daemon=True).start()
            return
        if not cancel_futures:
            concurrent.futures.wait(futures)
        with self._write_lock:
            if self._bridge.stdin is not None and not self._bridge.stdin.closed:
                self._bridge.stdin.close()
        if not wait:
            return
        self._reader.join(_END_TIMEOUT_S)
        try:
            self._bridge.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._bridge.kill()
            self._bridge.wait()
        self._output.close()


def _has_name(fn: Any) -> bool:
    """Whether a function is sent once, by its name or by value, and not with each call."""
    if isinstance(fn, types.BuiltinFunctionType):
        # Methods of built-in types have this type, too.
        return isinstance(fn.__self__, types.ModuleType)
    return isinstance(fn, (Task, type, types.FunctionType))


def pack_function(wrapped: Task) -> Tuple[bytes, List[int]]:
    """A function by value, and the shared objects that it refers to."""
    if _pickles.cloudpickle is None:
        raise TypeError(
            f"{wrapped.name} cannot be sent by name: install cloudpickle, or define it at the top "
            "of a module that the nodes can import"
        )
    return _calls.collecting_objects(lambda: _pickles.cloudpickle.dumps(wrapped, protocol=5))
