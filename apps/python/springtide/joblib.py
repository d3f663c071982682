"""A backend of joblib: ``n_jobs`` of scikit-learn and others then counts processors of a grid.

    from springtide.joblib import parallel_config

    with Grid.start("3x2") as grid, parallel_config(grid):
        joblib.Parallel()(joblib.delayed(f)(x) for x in xs)
"""

from __future__ import annotations

import concurrent.futures
from typing import Any, Callable, Optional

import joblib
from joblib._parallel_backends import AutoBatchingMixin, ParallelBackendBase

from ._calls import call_function
from ._grid import Grid

NAME = "springtide"


class SpringtideBackend(AutoBatchingMixin, ParallelBackendBase):  # type: ignore[misc]
    """Runs batches of calls as tasks of a grid."""

    supports_retrieve_callback = True
    supports_inner_max_num_threads = False
    default_n_jobs = -1

    def __init__(self, grid: Optional[Grid] = None, **options: Any) -> None:
        if grid is None:
            raise ValueError("give the grid: parallel_config('springtide', grid=grid)")
        super().__init__(**options)
        self._grid = grid
        self._futures: "set[concurrent.futures.Future[Any]]" = set()

    def __reduce__(self) -> Any:
        raise TypeError("a grid cannot be used within its own tasks")

    def get_nested_backend(self) -> Any:
        from joblib._parallel_backends import SequentialBackend

        return SequentialBackend(nesting_level=(self.nesting_level or 0) + 1), None

    def effective_n_jobs(self, n_jobs: Optional[int]) -> int:
        if n_jobs == 0:
            raise ValueError("n_jobs == 0 in Parallel has no meaning")
        # Other jobs are no matter of this client: every batch may run anywhere.
        return max(1, self._grid.processors)

    def configure(self, n_jobs: int = 1, parallel: Any = None, **_: Any) -> int:
        self.parallel = parallel
        return self.effective_n_jobs(n_jobs)

    def submit(self, func: Callable[[], Any], callback: Any = None) -> Any:
        future = self._grid.submit(call_function, func, (), {})
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
        if ensure_ready:
            self.configure(n_jobs=self.parallel.n_jobs, parallel=self.parallel)


joblib.register_parallel_backend(NAME, SpringtideBackend)


def parallel_config(grid: Grid, n_jobs: int = -1) -> Any:
    """The context in which joblib uses a grid."""
    return joblib.parallel_config(backend=NAME, n_jobs=n_jobs, grid=grid)
