"""Tests of the package on a grid of local processes. Without cloudpickle or numpy some are skipped."""

import asyncio
import concurrent.futures
import functools
import os
import signal
import subprocess
import tempfile
import time
import unittest
from pathlib import Path
from unittest import mock

import workload
from springtide import Grid, GridClosed, RemoteError, RemoteTraceback, RunnerDied, join
from springtide._frames import FrameError, decode, encode

try:
    import cloudpickle
except ImportError:
    cloudpickle = None
try:
    import dask
except ImportError:
    dask = None
try:
    import joblib
except ImportError:
    joblib = None
try:
    import numpy
except ImportError:
    numpy = None

GOLDEN = Path(__file__).parents[3] / "runtime" / "work" / "golden" / "runner"


class Frames(unittest.TestCase):
    def test_the_golden_frames_are_read(self):
        files = sorted(GOLDEN.glob("*.hex"))
        self.assertGreater(len(files), 15)
        for file in files:
            data = bytes.fromhex(file.read_text())
            self.assertEqual(int.from_bytes(data[:4], "big"), len(data) - 4)
            kind, fields = decode(data[4:])
            self.assertEqual(kind, file.name.split(".")[1].replace("-failed", ""))
            again = b"".join(encode(kind, fields))
            self.assertEqual(decode(again[4:]), (kind, fields))

    def test_damaged_frames_are_errors(self):
        whole = b"".join(encode("result", {"task": 1, "value": b"x" * 100, "buffers": []}))[4:]
        for end in range(len(whole)):
            with self.assertRaises((FrameError, UnicodeDecodeError)):
                decode(whole[:end])
        with self.assertRaises(FrameError):
            decode(whole + b"\xc0")
        with self.assertRaises(FrameError):
            encode("result", {"task": object()})


class WithoutGrid(unittest.TestCase):
    def test_tasks_are_functions(self):
        self.assertEqual(workload.fib(10), 55)
        self.assertEqual(workload.total(0, 100), sum(range(100)))
        self.assertEqual(join(), ())

    def test_a_missing_program_has_a_reason(self):
        before = os.environ.get("SPRINGTIDE_BINARY")
        os.environ["SPRINGTIDE_BINARY"] = "/no/such/program"
        try:
            with self.assertRaisesRegex(GridClosed, "/no/such/program is no program"):
                Grid.start("1x1")
        finally:
            del os.environ["SPRINGTIDE_BINARY"]
            os.environ.update({} if before is None else {"SPRINGTIDE_BINARY": before})

    def test_a_missing_grid_has_a_reason(self):
        with self.assertRaisesRegex(GridClosed, "nowhere.toml"):
            Grid.connect("/nowhere.toml")


class OnGrid(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.grid = Grid.start("2x2")

    @classmethod
    def tearDownClass(cls):
        cls.grid.shutdown()

    def test_nested_tasks_have_the_sequential_result(self):
        self.assertEqual(self.grid.submit(workload.fib, 12).result(60), 144)
        self.assertEqual(self.grid.run(workload.total.call(0, 200)), sum(range(200)))

    def test_map_is_in_order(self):
        expected = [x * x for x in range(1000)]
        self.assertEqual(list(self.grid.map(workload.square, range(1000))), expected)
        self.assertEqual(list(self.grid.map(pow, [2, 3], [5, 2], chunksize=1)), [32, 9])
        self.assertEqual(list(self.grid.map(workload.square, [])), [])
        method, part = "a-b".split, functools.partial(pow, 2)
        self.assertEqual(self.grid.submit(method, "-").result(60), ["a", "b"])
        self.assertEqual(list(self.grid.map(part, range(4))), [1, 2, 4, 8])

    def test_futures_work_as_those_of_other_executors(self):
        futures = [self.grid.submit(workload.slow, x, 0.01) for x in range(8)]
        done = concurrent.futures.as_completed(futures, timeout=60)
        self.assertEqual(sorted(future.result() for future in done), list(range(8)))

    def test_tasks_wait_together_and_can_be_cancelled(self):
        self.assertEqual(self.grid.processors, 4)
        slow = [self.grid.submit(workload.slow, x, 0.2) for x in range(3)]
        futures = [self.grid.submit(workload.slow, x, 0.2) for x in range(40)]
        cancelled = sum(future.cancel() for future in futures)
        self.assertGreater(cancelled, 0)
        self.assertEqual([future.result(60) for future in slow], [0, 1, 2])

    def test_a_task_that_has_started_can_be_cancelled(self):
        with tempfile.TemporaryDirectory() as directory:
            markers = [os.path.join(directory, str(at)) for at in range(4)]
            futures = [self.grid.submit(workload.waits_forever, marker) for marker in markers[:2]]
            futures.append(self.grid.submit(workload.waits_below, markers[2:]))
            # Each of the three other processors runs one, so that the last waits for its children.
            wait_until(lambda: sum(map(os.path.exists, markers)) >= 3)
            self.assertTrue(all(future.cancel() for future in futures))
            # Their processors are free, though no task has ended by itself.
            values = [self.grid.submit(workload.slow, x, 0.1) for x in range(6)]
            self.assertEqual([value.result(60) for value in values], list(range(6)))
            for marker in filter(os.path.exists, markers):
                process = int(Path(marker).read_text())
                wait_until(lambda: not is_alive(process))

    def test_exceptions_arrive_with_their_traceback(self):
        error = self.grid.submit(workload.fail, "a reason").exception(60)
        self.assertIsInstance(error, ValueError)
        self.assertEqual(str(error), "a reason")
        self.assertIsInstance(error.__cause__, RemoteTraceback)
        self.assertIn("in fail", str(error.__cause__))
        error = self.grid.submit(workload.fail_below, 3).exception(60)
        self.assertIsInstance(error, KeyError)
        # The end of a task's interpreter is not that of the client's.
        error = self.grid.submit(workload.exits).exception(60)
        self.assertIsInstance(error, RemoteError)
        self.assertEqual(str(error), "SystemExit: 4")
        errors = self.grid.submit(workload.spawns_in_a_thread).result(60)
        self.assertIn("only the thread of a task", errors[0])

    def test_output_of_tasks_reaches_the_client_and_is_not_in_the_way(self):
        lines = []
        with mock.patch.object(self.grid, "_print", lines.append):
            self.assertEqual(list(self.grid.map(workload.loud, range(6))), list(range(6)))
            self.assertEqual(self.grid.submit(workload.reports, 3).result(60), 3)
            texts = lambda: [line.partition(": ")[2] for line in lines]
            expected = ["a line of a program", "warn: a record", "3 of 4 files", "no end of line"]
            wait_until(lambda: all(text in texts() for text in expected))
        self.assertEqual(texts().count("a line of a program"), 6)
        nodes = {line.partition(": ")[0] for line in lines}
        self.assertLessEqual(nodes, {"ams-1", "ams-2", "del-1", "del-2"})

    def test_variables_are_not_among_the_arguments_of_the_program(self):
        with Grid.start("1x1", env={"SECRET_OF_THE_TEST": "a-secret-value"}) as grid:
            value = grid.submit(os.getenv, "SECRET_OF_THE_TEST").result(60)
            self.assertEqual(value, "a-secret-value")
            for entry in Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    self.assertNotIn(b"a-secret-value", entry.read_bytes())
                except OSError:
                    continue

    def test_asyncio(self):
        async def main():
            loop = asyncio.get_running_loop()
            values = await asyncio.gather(
                self.grid.asubmit(workload.square, 3),
                loop.run_in_executor(self.grid, workload.square, 4),
            )
            return values, [x async for x in self.grid.amap(workload.square, range(5))]

        self.assertEqual(asyncio.run(main()), ([9, 16], [0, 1, 4, 9, 16]))

    def test_shared_objects(self):
        shared = self.grid.put(list(range(1000)))
        lengths = list(self.grid.map(workload.length, [shared] * 20, chunksize=1))
        self.assertEqual({length for length, _ in lengths}, {1000})

    def test_a_runner_that_dies_costs_its_task_alone(self):
        with tempfile.TemporaryDirectory() as directory:
            marker = os.path.join(directory, "marker")
            self.assertEqual(self.grid.submit(workload.dies_once, marker, 7).result(60), 49)
            self.assertTrue(os.path.exists(marker))
        with self.assertRaisesRegex(RunnerDied, "was ended by signal 9"):
            self.grid.submit(workload.dies).result(60)
        self.assertEqual(self.grid.submit(workload.square, 5).result(60), 25)

    @unittest.skipUnless(cloudpickle, "skipped: cloudpickle is not installed")
    def test_functions_by_value(self):
        factor = 3
        values = self.grid.map(lambda x: factor * x, range(10))
        self.assertEqual(list(values), [3 * x for x in range(10)])

        from springtide import task

        @task
        def power(n):
            return 1 if n == 0 else sum(join(power.call(n - 1), power.call(n - 1)))

        self.assertEqual(self.grid.submit(power, 6).result(60), 64)

    @unittest.skipIf(cloudpickle, "skipped: cloudpickle is installed")
    def test_functions_by_value_need_cloudpickle(self):
        with self.assertRaisesRegex(TypeError, "install cloudpickle"):
            self.grid.submit(lambda: 1)

    @unittest.skipUnless(numpy, "skipped: numpy is not installed")
    def test_arrays(self):
        array = numpy.arange(300_000, dtype=float)
        self.assertEqual(self.grid.submit(numpy.sum, array).result(60), array.sum())
        doubled = self.grid.submit(numpy.multiply, array, 2.0).result(60)
        self.assertTrue((doubled == 2 * array).all() and doubled.flags.writeable)
        shared = self.grid.put(array + 1)
        self.assertEqual(self.grid.submit(workload.first_of_shared, shared, 4).result(60), 16)


    @unittest.skipUnless(joblib, "skipped: joblib is not installed")
    def test_joblib(self):
        from springtide.joblib import parallel_config

        with parallel_config(self.grid):
            squares = joblib.Parallel()(joblib.delayed(workload.square)(x) for x in range(50))
            with self.assertRaisesRegex(ValueError, "a reason"):
                joblib.Parallel()([joblib.delayed(workload.fail)("a reason")])
        self.assertEqual(squares, [x * x for x in range(50)])

    @unittest.skipUnless(dask, "skipped: dask is not installed")
    def test_dask(self):
        from springtide.dask import scheduler

        squares = [dask.delayed(workload.square)(x) for x in range(30)]
        total = dask.delayed(sum)(squares).compute(scheduler=scheduler(self.grid))
        self.assertEqual(total, sum(x * x for x in range(30)))
        with self.assertRaisesRegex(ValueError, "a reason"):
            dask.delayed(workload.fail)("a reason").compute(scheduler=scheduler(self.grid))


class Failures(unittest.TestCase):
    def test_nodes_that_die_cost_no_answer(self):
        with Grid.start("2x2") as grid:
            nodes = children(grid._bridge.pid)
            self.assertEqual(len(nodes), 4)
            busy = grid.submit(workload.fib, 9, 0.02)
            flat = [grid.submit(workload.slow, x, 0.02) for x in range(60)]
            node, runner = grid.submit(workload.processes, 0.05).result(60)
            self.assertIn(node, nodes)
            os.kill(node, signal.SIGKILL)
            self.assertEqual([future.result(120) for future in flat], list(range(60)))
            self.assertEqual(busy.result(120), 34)
            wait_until(lambda: not is_alive(runner))

    def test_the_root_s_node_may_die(self):
        with Grid.start("2x2") as grid:
            nodes = set(children(grid._bridge.pid))
            futures = [grid.submit(workload.slow, x, 0.05) for x in range(100)]
            done, _ = concurrent.futures.wait(
                futures, timeout=60, return_when=concurrent.futures.FIRST_COMPLETED
            )
            self.assertTrue(done)
            # The root's thread waits for its client, so no task runs there.
            until = time.monotonic() + 60
            while len(nodes) > 1 and time.monotonic() < until:
                probes = [grid.submit(workload.processes, 0.05) for _ in range(6)]
                nodes -= {probe.result(120)[0] for probe in probes}
            more = [grid.submit(workload.slow, x, 0.05) for x in range(100)]
            self.assertEqual(len(nodes), 1)
            os.kill(nodes.pop(), signal.SIGKILL)
            self.assertEqual([future.result(120) for future in futures], list(range(100)))
            self.assertEqual([future.result(120) for future in more], list(range(100)))

    def test_a_job_on_a_running_grid_grows_and_survives_its_root(self):
        with tempfile.TemporaryDirectory() as directory:
            clusters = "".join(f'[[cluster]]\nname = "{name}"\nnodes = 2\n' for name in "ab")
            config = Path(directory) / "grid.toml"
            config.write_text(f'grid = "python"\n[dashboard]\non = false\n{clusters}')
            binary = os.environ["SPRINGTIDE_BINARY"]
            command = lambda *words: subprocess.run(
                [binary, "-q", *words], cwd=directory, check=True, stdout=subprocess.DEVNULL
            )
            command("up", "--detach")
            try:
                with Grid.connect(config) as grid:
                    # It starts in one cluster, and asks for more nodes as it has tasks for them.
                    futures = []
                    while grid.processors < 4:
                        futures += [grid.submit(workload.slow, x, 0.05) for x in range(20)]
                        self.assertLess(len(futures), 4000, "the job does not grow")
                        futures[-1].result(60)
                    root = grid.root
                    futures += [grid.submit(workload.slow, x, 0.05) for x in range(100)]
                    os.kill(node_process(directory, root), signal.SIGKILL)
                    expected = [x for _ in range(len(futures) // 20) for x in range(20)]
                    values = [future.result(120) for future in futures]
                    self.assertEqual(values[:-100], expected[: len(futures) - 100])
                    self.assertEqual(values[-100:], list(range(100)))
            finally:
                command("down")

    def test_an_interpreter_that_is_not_there_has_a_reason(self):
        with Grid.start("1x1", python="no-such-python") as grid:
            with self.assertRaisesRegex(RunnerDied, "could not be started .no-such-python"):
                grid.submit(workload.square, 1).result(60)

    def test_a_bridge_that_dies_fails_its_futures(self):
        grid = Grid.start("1x1")
        future = grid.submit(workload.slow, 1, 60)
        grid._bridge.kill()
        with self.assertRaises(GridClosed):
            future.result(60)
        grid.shutdown()


def wait_until(condition):
    """Waits for a condition, for at most a minute."""
    until = time.monotonic() + 60
    while not condition():
        if time.monotonic() > until:
            raise AssertionError("it does not come about")
        time.sleep(0.01)


def is_alive(process):
    """Whether a process has not ended. One that is not collected has ended."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def node_process(directory, name):
    """The process of a node of the grid in a directory."""
    for entry in Path("/proc").iterdir():
        try:
            line = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if os.fsencode(f"{directory}/.springtide/python/node/{name}/node.toml") in line:
            return int(entry.name)
    raise AssertionError(f"there is no node {name}")


def children(process):
    """The processes that a process has started as nodes."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            stat = (entry / "stat").read_text()
            line = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if int(stat.rpartition(")")[2].split()[1]) == process and b"node\0run" in line:
            found.append(int(entry.name))
    return found


if __name__ == "__main__":
    unittest.main(verbosity=2)
