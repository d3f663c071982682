"""Show: the dashboard of a grid with an adaptive job and a reservation, `top`, and the report of the run,
alone and compared with a static run. Also grids of 400 and 2,000 simulated workers, and the time in
which the page draws an update. Screenshots are 360, 390, 1280 and 1920 points wide, in both themes;
`top` has 60, 80 and 160 columns.

    python3 tests/shows/dashboard.py target/release/springtide DIR

The show creates DIR, takes four minutes, and needs chromium, chromedriver and tmux. Look at the
screenshots.

The second form measures how much 20 open dashboards slow a job down, in pairs of runs with and without
them. Two pairs take a minute:

    python3 tests/shows/dashboard.py target/release/springtide DIR --watched 15
"""

import base64
import html
import json
import os
import re
import statistics
import subprocess
import sys
import threading
import time
import urllib.request

WIDTHS = (360, 390, 1280, 1920)
COLUMNS = (60, 80, 160)

FEED = """
const n = %d, c = 4;
const make = (seq) => ({ v: 1, seq, at: seq, grid: "big", replay: false, more_jobs: 0, event: 0, dropped: 0,
  jobs: [{ id: 1, name: "barnes-hut", state: "running", nodes: n, root: "c0-1", epoch: 1, elapsed: seq, mode: "adaptive", period: 10,
    band: [0.3, 0.5], eff: 0.4 + 0.1 * Math.sin(seq / 9), progress: [seq, 1000, "steps"], iter: [seq, 1], steals: [], lat: {}, links: [], thought: [],
    clusters: Object.fromEntries(Array.from({ length: c }, (_, i) => ["c" + i, { n: n / c, t: [60, 20, 10, 5, 5], tasks: 1000, wide: 1 }])) }],
  clusters: Array.from({ length: c }, (_, i) => ({ name: "c" + i, names: "1-" + n / c,
    w: Array.from({ length: n / c }, () => [50 + Math.floor(Math.random() * 40), 5, 3, 1, 80, 1, 1]) })) });
const times = [];
window.springtide.take(make(0));
for (let s = 1; s <= 60; s++) { window.springtide.take(make(s)); times.push(Number(document.body.dataset.drawn)); }
times.sort((a, b) => a - b);
document.getElementById("pause").click();
return { workers: n, median_ms: times[30], p90_ms: times[54], most_ms: times[59], bytes: JSON.stringify(make(60)).length };
"""


class Browser:
    """A page in a browser, driven through chromedriver."""

    def __init__(self, port=9517):
        self.at = f"http://127.0.0.1:{port}"
        self.driver = subprocess.Popen(["chromedriver", f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(100):
            try:
                self.call("GET", "/status")
                break
            except OSError:
                time.sleep(0.1)
        args = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        wanted = {"capabilities": {"alwaysMatch": {"goog:chromeOptions": {"args": args}, "goog:loggingPrefs": {"browser": "ALL"}}}}
        self.session = "/session/" + self.call("POST", "/session", wanted)["sessionId"]

    def call(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        asked = urllib.request.Request(self.at + path, method=method, data=data, headers={"content-type": "application/json"})
        return json.load(urllib.request.urlopen(asked, timeout=120))["value"]

    def cdp(self, command, **params):
        return self.call("POST", self.session + "/goog/cdp/execute", {"cmd": command, "params": params})

    def open(self, url, width, height, dark=False):
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.cdp("Emulation.setEmulatedMedia", features=features)
        self.cdp("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("POST", self.session + "/url", {"url": url})
        for _ in range(100):
            if self.js("return document.body.dataset.ready ?? null"):
                break
            time.sleep(0.1)

    def js(self, script):
        return self.call("POST", self.session + "/execute/sync", {"script": script, "args": []})

    def shot(self, file):
        time.sleep(1.5)
        with open(file, "wb") as out:
            out.write(base64.b64decode(self.cdp("Page.captureScreenshot", captureBeyondViewport=True)["data"]))
        for line in self.call("POST", self.session + "/se/log", {"type": "browser"}):
            print(f"{file}: {line['level']} {line['message']}")

    def close(self):
        self.call("DELETE", self.session)
        self.driver.terminate()
        self.driver.wait()


def terminal(binary, url, file, columns):
    """A screenshot of `top`, as a page."""
    tmux = ["tmux", "-L", f"springtide-show-{os.getpid()}"]
    subprocess.run([*tmux, "-f", "/dev/null", "new-session", "-d", "-x", str(columns), "-y", "40", f"{binary} top {url}"], check=True)
    time.sleep(3)
    text = subprocess.run([*tmux, "capture-pane", "-e", "-p"], capture_output=True, text=True, check=True).stdout
    subprocess.run([*tmux, "kill-server"], check=False)
    basic = ["#000", "#c33", "#3a3", "#a70", "#46c", "#a3a", "#399", "#bbb", "#666", "#f66", "#6d6", "#fc5", "#79f", "#f7f", "#6dd", "#fff"]
    page, colour, bold = "", None, False
    for part in re.split(r"(\x1b\[[0-9;]*m)", text):
        codes = re.fullmatch(r"\x1b\[([0-9;]*)m", part)
        if not codes:
            style = (f"color:{colour};" if colour else "") + ("font-weight:bold" if bold else "")
            page += f'<span style="{style}">{html.escape(part)}</span>'
            continue
        codes = [int(code or 0) for code in codes.group(1).split(";")]
        while codes:
            code = codes.pop(0)
            if code == 0:
                colour, bold = None, False
            elif code == 1:
                bold = True
            elif code == 39:
                colour = None
            elif 30 <= code <= 37 or 90 <= code <= 97:
                colour = basic[code - 30 if code < 90 else code - 82]
            elif code == 38 and codes[:1] == [2]:
                colour, codes = "rgb(%d,%d,%d)" % tuple(codes[1:4]), codes[4:]
            elif code == 38 and codes[:1] == [5]:
                colour, codes = basic[codes[1] % 16], codes[2:]
    with open(file, "w") as out:
        out.write(f'<!doctype html><meta charset="utf-8"><body style="background:#111;color:#ddd" data-ready="1"><pre>{page}</pre>')


def shots(browser, url, directory, name):
    """Screenshots of a page at each width and in each theme."""
    for width in WIDTHS:
        for theme in ("light", "dark"):
            browser.open(url, width, 900, theme == "dark")
            browser.shot(os.path.join(directory, f"{name}-{width}-{theme}.png"))


def start(binary, directory, clusters):
    grid = os.path.join(directory, "grid")
    log = open(os.path.join(directory, "dev.log"), "w+")
    dev = subprocess.Popen([binary, "dev", "--clusters", clusters, "--dir", grid], stderr=log)
    found = None
    while not found and dev.poll() is None:
        time.sleep(0.2)
        log.seek(0)
        found = re.search(r"http://\S+/", log.read())
    return dev, found.group(0), os.path.join(grid, "grid.toml")


def watched(binary, directory, pairs):
    """The ratio of a job's time with 20 readers of the stream to its time without them."""
    os.makedirs(directory)
    dev, url, config = start(binary, directory, "2x2@1")
    stop = threading.Event()

    def read():
        with urllib.request.urlopen(url + "api/v1/stream", timeout=60) as stream:
            while not stop.is_set():
                stream.readline()

    def run():
        line = ["run", "barnes-hut", "--bodies", "8000", "--steps", "300", "--config", config, "--json"]
        result = json.loads(subprocess.run([binary, *line], capture_output=True, text=True, check=True).stdout)
        return sum(result["iterations"])

    try:
        run()
        ratios = []
        for pair in range(pairs):
            times = {}
            for with_readers in (pair % 2 == 0, pair % 2 == 1):
                stop.clear()
                readers = [threading.Thread(target=read, daemon=True) for _ in range(20 if with_readers else 0)]
                for reader in readers:
                    reader.start()
                time.sleep(0.5)
                times[with_readers] = run()
                stop.set()
                for reader in readers:
                    reader.join()
            ratios.append(times[True] / times[False])
        ratios.sort()
        mean, error = statistics.mean(ratios), statistics.stdev(ratios) / len(ratios) ** 0.5
        print(json.dumps({"pairs": pairs, "mean": mean, "95%": [mean - 2 * error, mean + 2 * error], "median": statistics.median(ratios)}))
    finally:
        dev.terminate()
        dev.wait()


def main(binary, directory):
    os.makedirs(directory)
    dev, url, config = start(binary, directory, "3x4@1")
    browser = job = None
    try:
        out, fixed = os.path.join(directory, "adaptive"), os.path.join(directory, "static")
        line = ["run", "barnes-hut", "--bodies", "8000", "--steps", "2500", "--config", config]
        quiet = {"stderr": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
        subprocess.run([binary, *line, "--mode", "static", "--out", fixed], check=True, **quiet)
        for name, after in (("a lecture", "10m"), ("maintenance", "40m")):
            book = ["reserve", "--config", config, "--on", "del", "--processors", "3", "--in", after, "--for", "20m", "--name", name]
            subprocess.run([binary, *book], check=False, **quiet)
        job = subprocess.Popen([binary, *line, "--mode", "adaptive", "--period", "1s", "--out", out], **quiet)
        browser = Browser()
        time.sleep(15)
        for columns in COLUMNS:
            terminal(binary, url, os.path.join(directory, f"top-{columns}.html"), columns)
        shots(browser, url, directory, "live")
        for workers in (400, 2000):
            browser.open(url, 1280, 900)
            print(json.dumps(browser.js(FEED % workers)))
            browser.shot(os.path.join(directory, f"fed-{workers}.png"))
        job.wait()
        both = ["--compare", fixed, out, "--out", os.path.join(directory, "compared.html")]
        for name, runs in (("report", [out]), ("compared", both)):
            told = subprocess.run([binary, "report", *runs], capture_output=True, text=True, check=True).stdout.strip()
            print(f"{told}: {os.path.getsize(told)} bytes")
            shots(browser, "file://" + os.path.abspath(told), directory, name)
        for columns in COLUMNS:
            page = os.path.join(directory, f"top-{columns}")
            browser.open("file://" + os.path.abspath(page + ".html"), 9 * columns, 700)
            browser.shot(page + ".png")
        print(subprocess.run([binary, "trace", out], capture_output=True, text=True, check=True).stdout.strip())
    finally:
        if browser:
            browser.close()
        for process in (job, dev):
            if process and process.poll() is None:
                process.terminate()
                process.wait()


if __name__ == "__main__":
    if sys.argv[3:4] == ["--watched"]:
        watched(sys.argv[1], sys.argv[2], int(sys.argv[4]))
    else:
        main(*sys.argv[1:3])
