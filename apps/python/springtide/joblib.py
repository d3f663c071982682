"""A backend of joblib: ``n_jobs`` of scikit-learn and others then counts processors of a grid.

    from springtide.joblib import parallel_config

    with Grid.start("3x2") as grid, parallel_config(grid):
        joblib.Parallel()(joblib.delayed(f)(x) for x in xs)
"""

from __future__ import annotations

import concurrent.futures
import itertools
import os
from typing import Any, Callable, Optional, Tuple

import joblib
from joblib._parallel_backends import (
    AutoBatchingMixin,
    FallbackToBackend,
    ParallelBackendBase,
    SequentialBackend,
)

from ._grid import Grid

NAME = "springtide"
# The number of an initializer, its function and its arguments.
Setup = Tuple[int, Callable[..., Any], Tuple[Any, ...]]
_setups = itertools.count(1)
# The initializers that have run in this process, which belongs to one client.
_setups_done: "set[int]" = set()


class SpringtideBackend(AutoBatchingMixin, ParallelBackendBase):  # type: ignore[misc]
    """Runs batches of calls as tasks of a grid.

    Within a task, and in a process that was forked from that of the grid, calls run one after the
    other in that process.
    """

    supports_retrieve_callback = True
    supports_return_generator = True
    supports_inner_max_num_threads = False
    default_n_jobs = -1

    def __init__(self, grid: Optional[Grid] = None, **options: Any) -> None:
        super().__init__(**options)
        self._grid = grid
        self._setup: Optional[Setup] = None
        self._futures: "set[concurrent.futures.Future[Any]]" = set()

    def __reduce__(self) -> Any:
        # A task has no use for the grid of its client.
        return _without_grid, (self.nesting_level,)

    def get_nested_backend(self) -> Any:
        return SequentialBackend(nesting_level=(self.nesting_level or 0) + 1), None

    def _usable_grid(self) -> Optional[Grid]:
        if self._grid is None or self._grid.process != os.getpid():
            return None
        return self._grid

    def effective_n_jobs(self, n_jobs: Optional[int]) -> int:
        if n_jobs == 0:
            raise ValueError("n_jobs == 0 in Parallel has no meaning")
        grid = self._usable_grid()
        if grid is None:
            return 1
        processors = max(1, grid.processors)
        if n_jobs is None:
            return processors
        return n_jobs if n_jobs > 0 else max(1, processors + 1 + n_jobs)

    def configure(self, n_jobs: int = 1, parallel: Any = None, **options: Any) -> int:
        if n_jobs == 1 or self._usable_grid() is None:
            if self._grid is None and not self.nesting_level:
                raise ValueError("give the grid: parallel_config('springtide', grid=grid)")
            raise FallbackToBackend(SequentialBackend(nesting_level=self.nesting_level))
        self.parallel = parallel
        options = {**self.backend_kwargs, **options}
        initializer = options.get("initializer")
        if initializer is not None:
            self._setup = (next(_setups), initializer, tuple(options.get("initargs") or ()))
        return self.effective_n_jobs(n_jobs)

    def terminate(self) -> None:
        self.reset_batch_stats()

    def submit(self, func: Callable[[], Any], callback: Any = None) -> Any:
        assert self._grid is not None
        future = self._grid.submit(run_batch, func, self._setup)
        self._futures.add(future)
        future.add_done_callback(self._futures.discard)
        if callback is not None:
            future.add_done_callback(callback)
        return future

    # The name before joblib 1.5.
    apply_async = submit

    def retrieve_result_callback(self, out: Any) -> Any:
        return out.result()

    def abort_everything(self, ensure_ready: bool = True) -> None:
        for future in list(self._futures):
            future.cancel()


def _without_grid(nesting_level: Optional[int]) -> SpringtideBackend:
    return SpringtideBackend(nesting_level=nesting_level)


def run_batch(batch: Callable[[], Any], setup: Optional[Setup]) -> Any:
    """Runs a batch in a task, after the initializer of its `Parallel` in this process.

    The import of this module makes the backend known there.
    """
    if setup is not None and setup[0] not in _setups_done:
        number, initializer, arguments = setup
        initializer(*arguments)
        _setups_done.add(number)
    return batch()


joblib.register_parallel_backend(NAME, SpringtideBackend)


def parallel_config(grid: Grid, n_jobs: int = -1) -> Any:
    """The context in which joblib uses a grid."""
    return joblib.parallel_config(backend=NAME, n_jobs=n_jobs, grid=grid)
