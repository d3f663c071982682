"""A scheduler of dask: its graphs run as tasks of a grid.

    from springtide.dask import scheduler

    with Grid.start("3x2") as grid:
        collection.compute(scheduler=scheduler(grid))
"""

from __future__ import annotations

import os
from typing import Any, Callable

import cloudpickle
from dask.local import get_async
from dask.multiprocessing import pack_exception, reraise  # type: ignore[attr-defined]

from ._grid import Grid


def scheduler(grid: Grid) -> Callable[..., Any]:
    """The function ``get`` of dask for a grid. Values of tasks pass through the client."""

    def get(graph: Any, keys: Any, **options: Any) -> Any:
        options.pop("num_workers", None)
        options.pop("pool", None)
        return get_async(  # type: ignore[no-untyped-call]
            grid.submit,
            # The next tasks are there when a processor becomes idle.
            2 * max(1, grid.processors),
            graph,
            keys,
            get_id=os.getpid,
            dumps=cloudpickle.dumps,
            loads=cloudpickle.loads,
            pack_exception=pack_exception,
            raise_exception=reraise,
            **options,
        )

    return get
