"""Show: the requested properties of links, compared with those that programs measure: ping, iperf3 and a
QUIC transfer through named profiles.

    sudo python3 tests/shows/profiles.py target/release/springtide target/release/examples/transfer
        [PROFILE...] [--network router] [--seconds 5]

Needs ping and iperf3 (apt-get install iputils-ping iperf3) and the example `transfer` (cargo build
--release -p springtide-wan --example transfer). Each profile is the link between two clusters of one
node, in its own network.
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("program")
parser.add_argument("transfer")
parser.add_argument("profiles", nargs="*", default=["das2", "wan-50", "congested-uplink-100KBps"])
parser.add_argument("--network", default="router")
parser.add_argument("--seconds", type=int, default=5)
args = parser.parse_args()
NAME = "show"


def wan(*words, **more):
    return subprocess.run([args.program, "wan", *words], capture_output=True, text=True, **more)


def on(node, *command):
    return [args.program, "wan", "exec", "--wan", NAME, node, "--", *command]


def run(node, *command):
    done = subprocess.run(on(node, *command), capture_output=True, text=True, timeout=180)
    if done.returncode not in (0, 1):
        sys.exit(f"{' '.join(command)}: {done.stderr or done.stdout}")
    return done.stdout


def iperf(*more):
    """Received bytes per second, and the share of packets lost (UDP only)."""
    server = subprocess.Popen(on("b-1", "iperf3", "-s", "-1", "-B", "10.77.2.1"), stdout=subprocess.DEVNULL)
    try:
        for _ in range(50):
            told = run("a-1", "iperf3", "-c", "10.77.2.1", "-B", "10.77.1.1", "-t", str(args.seconds), "-J", *more)
            told = json.loads(told)
            if "refused" not in told.get("error", ""):
                break
        end = told["end"]
        got = end.get("sum_received") or end["sum"]
        return got["bits_per_second"] / 8, got.get("lost_percent")
    finally:
        # The server ends after one client, a little later than the client.
        try:
            server.wait(timeout=5)
        except subprocess.TimeoutExpired:
            server.terminate()
            server.wait()


print(f"{'profile':26} {'what':16} {'asked':>22} {'measured':>34}")
for profile in args.profiles:
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        file = folder / "show.toml"
        file.write_text(f'name = "show"\n[wide]\nprofile = "{profile}"\n[[cluster]]\nname = "a"\n[[cluster]]\nname = "b"\n')
        up = wan("up", str(file), "--name", NAME, "--network", args.network, "--for", "10m")
        if up.returncode != 0:
            sys.exit(up.stderr)
        try:
            status = json.loads(wan("status", NAME, "--json").stdout)
            line = next(l["profile"] for l in status["lines"] if (l["from"], l["to"]) == ("a", "b"))
            rtt, rate, loss = 2e-3 * line["delay_us"], line["rate"], line["loss"]
            row = lambda what, asked, found: print(f"{profile:26} {what:16} {asked:>22} {found:>34}", flush=True)
            told = run("a-1", "ping", "-c", "100", "-i", "0.05", "-I", "10.77.1.1", "10.77.2.1")
            lost = re.search(r"([\d.]+)% packet loss", told).group(1)
            least, mean, most, dev = re.search(r"= ([\d.]+)/([\d.]+)/([\d.]+)/([\d.]+)", told).groups()
            jitter = 1e-3 * line["jitter_us"]
            row("ping", f"{rtt:g} ms, jitter {jitter:g} ms", f"{mean} ms ({least} to {most}), {lost} % lost")
            asked = f"{rate / 1e3:g} kB/s" if rate else "no limit"
            got, _ = iperf()
            row("iperf3, TCP", asked, f"{got / 1e3:.1f} kB/s")
            if rate:
                # 1400 bytes of payload and 28 bytes of headers.
                got, lost = iperf("-u", "-l", "1400", "-b", str(int(1.2 * 8 * rate)))
                row("iperf3, UDP 1.2x", f"{asked} with headers", f"{got * 1428 / 1400 / 1e3:.1f} kB/s with headers")
                got, lost = iperf("-u", "-l", "1400", "-b", str(int(0.5 * 8 * rate)))
                row("iperf3, UDP 0.5x", f"{100 * loss:.2f} % lost", f"{lost:.2f} % lost")
            size = int(min(max((rate or 20e6) * args.seconds, 1e5), 5e7))
            keys = folder / "keys"
            keys.mkdir()
            server = subprocess.Popen(on("b-1", args.transfer, "serve", str(keys)))
            row("QUIC transfer", asked, run("a-1", args.transfer, "send", str(keys), str(size)).strip())
            server.wait(timeout=30)
        finally:
            wan("down", NAME)
