"""Errors of tasks and grids, and their form in frames."""

from __future__ import annotations

import concurrent.futures
import pickle
import traceback
from typing import Any, Dict, Optional


class GridError(Exception):
    """An error of the grid, and not of a task's own code."""


class GridClosed(GridError):
    """The grid has ended, or could not be used. The text is the reason."""


class RunnerDied(GridError):
    """The processes that ran a task ended, each time that it was tried."""


class RemoteError(Exception):
    """An error of a task whose own exception could not be sent."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(kind, message)
        self.kind = kind
        self.message = message

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"


class RemoteTraceback(Exception):
    """The cause of an exception of a task: the place of the error, as text."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f'\n"""\n{self.text}"""'


def failure_of(error: BaseException) -> Dict[str, Any]:
    """The fields of a failure frame for an exception."""
    # Frames of this package at the start say nothing about the task.
    tb = error.__traceback__
    package = __name__.rpartition(".")[0]
    while tb is not None and tb.tb_frame.f_globals.get("__package__") == package:
        tb = tb.tb_next
    text = "".join(traceback.format_exception(type(error), error, tb))
    try:
        if not isinstance(error, (Exception, KeyboardInterrupt)):
            raise TypeError("an exit of the runner is none of the client")
        # The traceback is sent as text.
        pickled = pickle.dumps(error, protocol=5)
        pickle.loads(pickled)
        value: Optional[bytes] = pickled
    except Exception:
        value = None
    return {
        "type": type(error).__qualname__,
        "message": str(error),
        "traceback": text,
        "value": value,
    }


def exception_of(failure: Dict[str, Any]) -> BaseException:
    """The exception for the fields of a failure."""
    kind, message = str(failure["type"]), str(failure["message"])
    error: Optional[BaseException] = None
    if kind == "springtide.RunnerDied":
        error = RunnerDied(message)
    elif kind == "springtide.Cancelled":
        error = concurrent.futures.CancelledError(message)
    elif kind.startswith("springtide."):
        error = GridError(message)
    elif failure.get("value") is not None:
        try:
            loaded = pickle.loads(failure["value"])
            error = loaded if isinstance(loaded, BaseException) else None
        except Exception:
            error = None
    if error is None:
        error = RemoteError(kind, message)
    if failure.get("traceback"):
        error.__cause__ = RemoteTraceback(str(failure["traceback"]))
    return error
