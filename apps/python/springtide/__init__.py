"""Tasks of Python programs on the nodes of a Springtide grid."""

from typing import TYPE_CHECKING, Any

from ._calls import Call, Child, Shared, Task, join, log, progress, spawn, task
from ._errors import GridClosed, GridError, RemoteError, RemoteTraceback, RunnerDied

if TYPE_CHECKING:
    from ._grid import Grid

__all__ = [
    "Call",
    "Child",
    "Grid",
    "GridClosed",
    "GridError",
    "RemoteError",
    "RemoteTraceback",
    "RunnerDied",
    "Shared",
    "Task",
    "join",
    "log",
    "progress",
    "spawn",
    "task",
]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    # Runners need no grid, and start sooner without it.
    if name == "Grid":
        from ._grid import Grid

        return Grid
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
