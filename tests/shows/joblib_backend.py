"""Show: joblib's own tests of backends, with grids as one of them.

    pip install joblib cloudpickle numpy pytest
    python3 tests/shows/joblib_backend.py target/release/springtide [arguments of pytest]

Takes `test_parallel.py` of the installed joblib, adds the name `springtide` to its lists of backends that use
processes, and runs the cases of this name on a grid of 2 clusters x 2 nodes. `SKIPPED` has the cases that do not apply,
each with its reason; the script prints them.
"""

import multiprocessing
import os
import signal
import sys
import tempfile
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "apps" / "python"
NAME = "springtide"
CASE_TIMEOUT_S = 30
# A part of the name of a case, and the reason why it does not apply.
SKIPPED = {
    "test_parallel_with_interactively_defined_functions": "it starts a program of its own, which has no grid",
    "test_parallel_with_unpicklable_functions_in_args": "it starts a program of its own, which has no grid",
    "test_auto_memmap_on_arrays_from_generator": "arrays travel in frames, and not as files of one host",
    "test_memmapping_leaks": "arrays travel in frames, and not as files of one host",
}
# Tests pass proxies of `multiprocessing`, whose key the children of a process inherit.
KEY = "JOBLIB_TEST_KEY"


def marked(source):
    """The source of the tests with the further backend."""
    before = 'PROCESS_BACKENDS = ["multiprocessing", "loky"]'
    if source.count(before) != 1:
        sys.exit(f"this version of joblib has no line {before}")
    # Processes of other backends know the name, too.
    further = "import joblib\nimport springtide.joblib\nimport multiprocessing\n"
    further += f'multiprocessing.current_process().authkey = bytes.fromhex(os.environ["{KEY}"])\n'
    source = source.replace("\nimport joblib\n", "\n" + further, 1)
    return source.replace(before, f'PROCESS_BACKENDS = ["multiprocessing", "loky", "{NAME}"]')


class Plugin:
    """Starts the grid, and chooses and skips cases."""

    def __init__(self, grid):
        self.grid = grid

    def pytest_collection_modifyitems(self, config, items):
        import pytest

        ours = [item for item in items if NAME in item.name or "SpringtideBackend" in item.name]
        config.hook.pytest_deselected(items=[item for item in items if item not in ours])
        items[:] = ours
        for item in items:
            for part, reason in SKIPPED.items():
                if part in item.name:
                    item.add_marker(pytest.mark.skip(reason=reason))

    def pytest_runtest_setup(self, item):
        signal.alarm(CASE_TIMEOUT_S)

    def pytest_runtest_teardown(self, item):
        signal.alarm(0)


def too_long(*_):
    raise TimeoutError(f"the case takes more than {CASE_TIMEOUT_S} s")


def main():
    signal.signal(signal.SIGALRM, too_long)
    os.environ["SPRINGTIDE_BINARY"] = os.path.abspath(sys.argv[1])
    sys.path.insert(0, str(PACKAGE))
    with tempfile.TemporaryDirectory() as directory:
        import joblib.test
        import joblib.test.test_parallel as original

        source = Path(original.__file__)
        # Runners import the functions of the tests by the name of their module.
        (Path(directory) / "springtide_test_parallel.py").write_text(marked(source.read_text()))
        sys.path.insert(0, directory)
        import pytest
        from springtide import Grid
        import springtide.joblib as backend

        os.environ[KEY] = bytes(multiprocessing.current_process().authkey).hex()
        with Grid.start("2x2", output=None, env={KEY: os.environ[KEY]}) as grid:

            class SpringtideBackend(backend.SpringtideBackend):
                # Tests look at the identity of a pool.
                _workers = None

                def __init__(self, **options):
                    super().__init__(**{"grid": grid, **options})

                def configure(self, *args, **options):
                    count = super().configure(*args, **options)
                    self._workers = object()
                    return count

                def abort_everything(self, ensure_ready=True):
                    super().abort_everything(ensure_ready)
                    self._workers = object() if ensure_ready else None

                def terminate(self):
                    super().terminate()
                    self._workers = None

            joblib.register_parallel_backend(NAME, SpringtideBackend)
            arguments = [str(Path(directory) / "springtide_test_parallel.py"), "-p", "no:cacheprovider"]
            arguments += ["-c", os.devnull, "--rootdir", directory, "-rs", "-W", "ignore"]
            code = pytest.main(arguments + sys.argv[2:], plugins=[Plugin(grid)])
    sys.exit(code)


if __name__ == "__main__":
    main()
