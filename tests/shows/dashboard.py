"""Show: the dashboard of a grid that runs an adaptive job, its report, and grids of 400 and 2,000 workers fed by hand: screenshots in
both themes and at the smallest width, and how long the page takes to draw a tick.

    python3 tests/shows/dashboard.py target/release/springtide DIR     # DIR is made; two minutes; chromium and chromedriver

Screenshots are to be looked at.
"""

import base64
import json
import os
import re
import subprocess
import sys
import time
import urllib.request

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


def main(binary, directory):
    os.makedirs(directory)
    grid = os.path.join(directory, "grid")
    log = open(os.path.join(directory, "dev.log"), "w+")
    dev = subprocess.Popen([binary, "dev", "--clusters", "3x4@1", "--dir", grid], stderr=log)
    browser = job = None
    try:
        found = None
        while not found and dev.poll() is None:
            time.sleep(0.2)
            log.seek(0)
            found = re.search(r"http://\S+/", log.read())
        url, out = found.group(0), os.path.join(directory, "run")
        line = ["run", "barnes-hut", "--bodies", "8000", "--steps", "2500", "--config", os.path.join(grid, "grid.toml")]
        job = subprocess.Popen([binary, *line, "--mode", "adaptive", "--period", "1s", "--out", out], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        browser = Browser()
        time.sleep(15)
        for name, width, height, dark in (("light", 1280, 900, False), ("dark", 1280, 900, True), ("narrow", 360, 800, False)):
            browser.open(url, width, height, dark)
            browser.shot(os.path.join(directory, f"live-{name}.png"))
        for workers in (400, 2000):
            browser.open(url, 1280, 900)
            print(json.dumps(browser.js(FEED % workers)))
            browser.shot(os.path.join(directory, f"fed-{workers}.png"))
        job.wait()
        told = subprocess.run([binary, "report", out], capture_output=True, text=True, check=True).stdout.strip()
        print(f"{told}: {os.path.getsize(told)} bytes")
        browser.open("file://" + os.path.abspath(told), 1280, 900)
        browser.shot(os.path.join(directory, "report.png"))
    finally:
        if browser:
            browser.close()
        for process in (job, dev):
            if process and process.poll() is None:
                process.terminate()
                process.wait()


if __name__ == "__main__":
    main(*sys.argv[1:3])
