"""Show: each impairment of `wan set`, asked for and measured by datagrams between two hosts.

    sudo python3 tests/shows/wan.py target/debug/springtide [--packets 4000]

Sends numbered datagrams from a-1 to b-1 and looks at what arrives. Needs python3 alone. Every
network is its own, in namespaces, and ends with its measurement.
"""

import argparse
import json
import subprocess
import sys
import tempfile

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("program")
parser.add_argument("--packets", type=int, default=4000)
args = parser.parse_args()
NAME = "show-wan"

RECEIVER = """
import json, socket, sys, time
link = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 23)
link.bind(("b-1", 7000))
link.settimeout(3)
print("ready", flush=True)
got = []
try:
    while True:
        data = link.recv(4096)
        number, sent = data[:24].split(b" ")[:2]
        now = time.monotonic()
        got.append((int(number), now - float(sent), now))
except socket.timeout:
    pass
wrong = [line.split() for line in open("/proc/self/net/snmp") if line.startswith("Udp:")]
wrong = dict(zip(wrong[0], wrong[1]))["InCsumErrors"]
print(json.dumps([got, int(wrong)]))
"""

SENDER = """
import socket, sys, time
count, gap, size = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
link = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
start = time.monotonic()
for number in range(count):
    time.sleep(max(0, start + number * gap - time.monotonic()))
    head = b"%d %.6f " % (number, time.monotonic())
    link.sendto(head.ljust(size, b"."), ("b-1", 7000))
"""


def wan(*words):
    done = subprocess.run([args.program, "wan", *words], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"wan {' '.join(words)}: {done.stderr}")
    return done.stdout


def measure(words, count=args.packets, gap=0.001, size=200):
    wan("up", "pair", "--name", NAME, "--for", "3m", "--set", "a,b jitter=0ms loss=0 bandwidth=none delay=10ms")
    try:
        wan("set", "--wan", NAME, "a>b", *words)
        on = lambda node, *command: [args.program, "wan", "exec", "--wan", NAME, node, "--", *command]
        receiver = subprocess.Popen(on("b-1", "python3", "-c", RECEIVER), stdout=subprocess.PIPE, text=True)
        receiver.stdout.readline()
        subprocess.run(on("a-1", "python3", "-c", SENDER, str(count), str(gap), str(size)), check=True)
        got, wrong = json.loads(receiver.communicate()[0])
        status = json.loads(wan("status", "--wan", NAME, "--json"))
        line = next(line for line in status["lines"] if (line["from"], line["to"]) == ("a", "b"))
        return got, wrong, line["counts"], count
    finally:
        wan("down", NAME)


def bursts(got, count):
    """The lengths of runs of lost numbers."""
    seen = {number for number, *_ in got}
    lengths, run = [], 0
    for number in range(count):
        if number in seen:
            lengths += [run] if run else []
            run = 0
        else:
            run += 1
    return lengths


def row(what, asked, measured):
    print(f"{what:34} {asked:>16} {measured:>16}", flush=True)


def percent(share):
    return f"{100 * share:.2f} %"


row("impairment", "asked", "measured")
got, _, _, n = measure(["delay=40ms"])
delays = sorted(delay for _, delay, _ in got)
# Programs on a busy machine read late: the least delay is that of the network.
row("delay=40ms: least, one way", "40.00 ms", f"{1e3 * delays[0]:.2f} ms")
row("delay=40ms: median", "40.00 ms", f"{1e3 * delays[len(delays) // 2]:.2f} ms")
got, _, _, n = measure(["loss=2%"])
row("loss=2%", "2.00 %", percent(1 - len(got) / n))
got, _, counts, n = measure(["burst=2%/25%"])
lengths = bursts(got, n)
row("burst=2%/25%: lost", percent(2 / 27), percent(1 - len(got) / n))
row("burst=2%/25%: mean length", "4.00", f"{sum(lengths) / len(lengths):.2f}")
got, _, counts, n = measure(["duplicate=3%"])
row("duplicate=3%", "3.00 %", percent(len(got) / n - 1))
got, wrong, counts, n = measure(["corrupt=2%"])
row("corrupt=2%: wrong checksums", "2.00 %", percent(wrong / n))
got, _, counts, n = measure(["reorder=5%/20ms"])
latest, late = -1, []
for number, delay, _ in got:
    if number < latest:
        late.append(delay)
    latest = max(latest, number)
row("reorder=5%/20ms: overtaken", "5.00 %", percent(len(late) / n))
row("reorder=5%/20ms: least delay", "30.00 ms", f"{1e3 * min(late):.2f} ms")


def rate(got, size):
    """Bytes with IP and UDP headers a second, between the first and the last arrival."""
    arrivals = sorted(now for *_, now in got)
    return (len(arrivals) - 1) * (size + 28) / (arrivals[-1] - arrivals[0]), arrivals


got, *_ = measure(["bandwidth=4Mbit/s"], size=1000)
row("bandwidth=4Mbit/s", "500 kB/s", f"{rate(got, 1000)[0] / 1e3:.0f} kB/s")
got, *_ = measure(["schedule=500kB/s:1s,200kB/s:1s"], size=1000)
row("schedule=500kB/s:1s,200kB/s:1s", "350 kB/s", f"{rate(got, 1000)[0] / 1e3:.0f} kB/s")
with tempfile.NamedTemporaryFile("w", suffix=".trace") as trace:
    # 300 kB/s for a second, in pairs, then nothing for half of one.
    trace.write("".join(f"{at}\n{at}\n" for at in range(10, 1000, 10)) + "1500\n")
    trace.flush()
    got, *_ = measure([f"trace={trace.name}"], size=1000)
    row("trace: mean rate", f"{199 * 1.5 / 1.5:.0f} kB/s", f"{rate(got, 1000)[0] / 1e3:.0f} kB/s")
    arrivals = rate(got, 1000)[1]
    pause = max(b - a for a, b in zip(arrivals, arrivals[1:]))
    row("trace: longest pause", "510 ms", f"{1e3 * pause:.0f} ms")


ECHO = """
import socket, sys
link = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
link.bind((sys.argv[1], 7000))
print("ready", flush=True)
while True:
    data, end = link.recvfrom(100)
    link.sendto(repr(end).encode(), end)
"""
ASK = """
import socket, sys
link = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
link.settimeout(1)
link.bind((sys.argv[1], 5000))
for host in sys.argv[2:]:
    link.sendto(b"?", (host, 7000))
    try:
        print(*eval(link.recv(100)))
    except socket.timeout:
        print("none")
"""


def seen(words, asker, *hosts):
    """The address and port that each host sees of the asker, or none."""
    wan("up", "pair", "--name", NAME, "--for", "3m", "--set", "a,b jitter=0ms loss=0")
    on = lambda node, *command: [args.program, "wan", "exec", "--wan", NAME, node, "--", *command]
    try:
        for change in words:
            wan("set", "--wan", NAME, *change.split())
        echoes = [subprocess.Popen(on(host, "python3", "-c", ECHO, host), stdout=subprocess.PIPE) for host in hosts]
        for echo in echoes:
            echo.stdout.readline()
        asked = subprocess.run(on(asker, "python3", "-c", ASK, asker, *hosts), capture_output=True, text=True)
        return asked.stdout.split("\n")[:-1]
    finally:
        wan("down", NAME)


got = seen(["b firewall=on"], "a-1", "b-1")
row("b firewall=on: a asks b", "none", got[0])
got = seen(["b firewall=on"], "b-1", "a-1")
row("b firewall=on: b asks a, seen as", "10.77.2.1 5000", got[0])
got = seen(["a nat=endpoint-independent"], "a-1", "b-1", "b-2")
row("nat=endpoint-independent", "one port", "one port" if got[0] == got[1] else "two ports")
row("nat=endpoint-independent: seen as", "10.77.1.253", got[0].split()[0])
got = seen(["a nat=endpoint-dependent"], "a-1", "b-1", "b-2")
row("nat=endpoint-dependent", "two ports", "one port" if got[0] == got[1] else "two ports")
