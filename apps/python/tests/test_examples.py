"""Runs the examples as programs, and the notebook by its kernel where `nbclient` is installed."""

import os
import re
import subprocess
import sys
import unittest
from pathlib import Path

try:
    import nbclient
    import nbformat
    import cloudpickle
    import ipykernel
except ImportError as error:
    nbclient, lacking = None, str(error)
else:
    lacking = ""

EXAMPLES = Path(__file__).parents[1] / "examples"


class Examples(unittest.TestCase):
    def run_example(self, name):
        """The output of an example, which must succeed."""
        command = [sys.executable, "-B", str(EXAMPLES / name)]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=300)
        self.assertEqual(ended.returncode, 0, ended.stdout + ended.stderr)
        return ended.stdout

    def test_divide_and_conquer(self):
        # As the example in Rust.
        expected = "230631 has the longest sequence, of 443 numbers\n"
        self.assertEqual(self.run_example("divide_and_conquer.py"), expected)

    def test_master_worker(self):
        self.assertEqual(self.run_example("master_worker.py"), "17984 primes in 100 ranges\n")

    def test_heat(self):
        sys.path.insert(0, str(EXAMPLES))
        import heat

        class Here:
            map = staticmethod(map)

        rod = heat.heat(Here)
        middle, total = rod[heat.CELLS // 2], sum(rod)
        expected = f"the middle of the rod has {middle:.6f}, all cells {total:.6f}\n"
        self.assertEqual(self.run_example("heat.py"), expected)
        # No heat is lost, and the middle is between both halves.
        self.assertAlmostEqual(total, heat.CELLS / 2, places=6)
        self.assertTrue(0.4 < middle < 0.5)

    def test_shared_object(self):
        sys.path.insert(0, str(EXAMPLES))
        import shared_object as example
        from types import SimpleNamespace

        points = SimpleNamespace(value=example.spread(1200))
        distance, a, b = example.closest(points, 0, 1199)
        expected = f"points {a} and {b} are the closest, with the squared distance {distance}\n"
        self.assertEqual(self.run_example("shared_object.py"), expected)

    @unittest.skipUnless(nbclient, f"skipped: {lacking}")
    def test_notebook(self):
        notebook = nbformat.read(EXAMPLES / "notebook.ipynb", as_version=4)
        client = nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3")
        client.execute()
        texts = []
        for cell in notebook.cells:
            for output in cell.get("outputs", ()):
                texts.append(output.get("text") or output.get("data", {}).get("text/plain", ""))
        text = "\n".join(texts)
        for expected in ("4", "2584", "[0, 3, 6, 9, 12]", "a line of a task", "2 of 2 parts"):
            self.assertIn(expected, text)
        self.assertRegex(text, re.compile(r"^(ams|del)-[12]: a line of a task$", re.MULTILINE))


if __name__ == "__main__":
    unittest.main(verbosity=2)
