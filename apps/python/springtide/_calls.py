"""Tasks as functions: their names, their calls, and what a running task may do."""

from __future__ import annotations

import functools
import importlib
import itertools
import threading
from typing import Any, Callable, Dict, List, Optional, Tuple

# What the process of a runner does with spawns, joins and objects; absent on a client.
_runner: Optional[Any] = None
# The script or module of this process, if runners load it and so find its functions by name.
main_file: Optional[str] = None
_numbers = itertools.count(1)
# Lists of shared objects that a pickle refers to, and of tasks that are being loaded.
_local = threading.local()


class Task:
    """A function whose calls may run on any node. Called as a function, it runs here."""

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        name = getattr(function, "__qualname__", type(function).__qualname__)
        module = getattr(function, "__module__", None) or "builtins"
        # Functions in functions may have equal names.
        mark = f"#{next(_numbers)}" if "<" in name else ""
        self.name = f"{module}:{name}{mark}"
        #: How frames name the function, on a runner that loaded it.
        self.reference: Optional[Dict[str, Any]] = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def call(self, *args: Any, **kwargs: Any) -> "Call":
        """A call of the function that has not begun."""
        return Call(self, args, kwargs)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __getstate__(self) -> Dict[str, Any]:
        return {**self.__dict__, "reference": None}

    def __setstate__(self, state: Dict[str, Any]) -> None:
        self.__dict__.update(state)
        loading = getattr(_local, "loading", None)
        if loading is not None:
            loading.append(self)

    def __reduce_ex__(self, protocol: Any) -> Any:
        if _is_importable(self.name, self):
            return _import_task, (self.name,)
        return _new_task, (), self.__getstate__()

    def __repr__(self) -> str:
        return f"<task {self.name}>"


def _new_task() -> Task:
    return Task.__new__(Task)


def _import_task(name: str) -> Any:
    return import_name(name)


def task(function: Callable[..., Any]) -> Task:
    """Makes a function a task: its calls may run on any node, and it may call :func:`join`."""
    return Task(function)


class Call:
    """A call of a task that has not begun."""

    def __init__(self, of: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> None:
        self.task, self.args, self.kwargs = of, args, kwargs

    def run(self) -> Any:
        """Runs the call here, at once."""
        return self.task(*self.args, **self.kwargs)


class Child:
    """A call that was spawned. :meth:`join` waits for its end."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._number: Optional[Tuple[int, int]] = None
        self._ended = False
        self._value: Any = None
        if _runner is not None:
            self._number = _runner.spawn(call)

    def join(self) -> Any:
        """Waits for the call and returns its value, or raises its exception."""
        if not self._ended:
            if self._number is None:
                self._value = self._call.run()
            else:
                self._value = _runner.join(self._number)  # type: ignore[union-attr]
            self._ended = True
        return self._value


def spawn(of: Any, *args: Any, **kwargs: Any) -> Child:
    """Spawns a call of a task, which may run anywhere. Outside of a runner it runs when joined."""
    return Child(Call(of, args, kwargs))


def join(*calls: Call) -> Tuple[Any, ...]:
    """Runs calls of tasks, in parallel if there are idle processors. Returns their values in order.

    The first call runs here. If one fails, the others have ended or are of no use when this raises.
    """
    if not calls:
        return ()
    children = [Child(call) for call in calls[1:]]
    values = [calls[0].run()]
    # The last one first, for it is the one that others take last.
    for child in reversed(children):
        child.join()
    return tuple(values + [child.join() for child in children])


def progress(done: int, total: int, what: str) -> None:
    """Reports the progress of a task to the client, and to the log of its node."""
    if _runner is not None:
        _runner.send("progress", {"done": done, "total": total, "what": what})


def log(text: str, level: str = "info") -> None:
    """Writes a line to the client's output and to the log of the task's node.

    Levels: error, warn, info, debug.
    """
    if _runner is not None:
        _runner.send("log", {"level": level, "text": text})


class Shared:
    """A value that each node holds once, however many tasks read it. Made by :meth:`Grid.put`."""

    def __init__(self, number: int, value: Any = None, known: bool = False) -> None:
        self.number = number
        self._value, self._known = value, known

    @property
    def value(self) -> Any:
        """The value. Tasks must not change it."""
        if not self._known:
            if _runner is None:
                raise RuntimeError(f"shared object {self.number} belongs to another grid")
            self._value, self._known = _runner.get(self.number), True
        return self._value

    def __reduce__(self) -> Any:
        collected = getattr(_local, "collected", None)
        if collected is not None:
            collected.append(self.number)
        return _load_shared, (self.number,)


def _load_shared(number: int) -> Shared:
    return Shared(number)


class Reference:
    """A function of a shared object, in the arguments of another call."""

    def __init__(self, number: int, name: str) -> None:
        self.number, self.name = number, name

    def __reduce__(self) -> Any:
        collected = getattr(_local, "collected", None)
        if collected is not None:
            collected.append(self.number)
        return _load_reference, (self.number, self.name)


def _load_reference(number: int, name: str) -> Any:
    if _runner is None:
        raise RuntimeError(f"function {name} belongs to the runners of a grid")
    return _runner.function({"object": number, "name": name})


def import_name(name: str) -> Any:
    """The object with a name such as ``package.module:Class.function``."""
    module, _, path = name.partition(":")
    found: Any = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    return found


def _is_importable(name: str, expected: Any) -> bool:
    if "<" in name or (name.startswith("__main__:") and main_file is None):
        return False
    try:
        found = import_name(name)
    except Exception:
        return False
    function = expected.function
    return found is expected or found is function or getattr(found, "function", None) is function


def name_of(function: Any) -> Optional[str]:
    """The name by which a runner can import a function; None if there is none."""
    wrapped = function if isinstance(function, Task) else Task(function)
    return wrapped.name if _is_importable(wrapped.name, wrapped) else None


def loading_tasks(load: Callable[[], Any]) -> Tuple[Any, List[Task]]:
    """Loads a pickle. Returns its value, and the tasks that it contains by value."""
    outer = getattr(_local, "loading", None)
    loaded: List[Task] = []
    _local.loading = loaded
    try:
        return load(), loaded
    finally:
        _local.loading = outer


def collecting_objects(dump: Callable[[], Any]) -> Tuple[Any, List[int]]:
    """Makes a pickle. Returns it, and the numbers of the shared objects that it refers to."""
    outer = getattr(_local, "collected", None)
    collected: List[int] = []
    _local.collected = collected
    try:
        return dump(), sorted(set(collected))
    finally:
        _local.collected = outer


def run_chunk(function: Callable[..., Any], chunk: List[Tuple[Any, ...]]) -> List[Any]:
    """Calls a function with each of several lists of arguments."""
    return [function(*args) for args in chunk]


def call_function(
    function: Callable[..., Any], args: Tuple[Any, ...], kwargs: Dict[str, Any]
) -> Any:
    """Calls a function that is sent with its arguments."""
    return function(*args, **kwargs)
