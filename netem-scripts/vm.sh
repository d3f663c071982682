#!/bin/sh
# Runs kernel.sh on a kernel with netem in a virtual machine without acceleration (QEMU, TCG), and
# compares the network with the requested properties. Serves machines whose kernel has no netem, and
# tests changes of kernel.sh.
#
# vm.sh [--fetch] [--keep] [--kernel FILE.deb] [--program FILE] [DIR]
#   --fetch            if QEMU or a full busybox is missing, download it with apt-get and unpack it in
#                      DIR; nothing is installed
#   --kernel FILE.deb  a linux-image package of Debian [default: download the cloud kernel by apt-get]
#   --program FILE     a `springtide` whose kernel networks (`wan up --network kernel`) are also tested
#   --keep             keep DIR, with the log of the machine's console
#   DIR                an empty or new work directory [default: a temporary one]
#
# Needs qemu-system-x86_64, a busybox, iproute2, dash, dpkg-deb, and apt-get for downloads. Needs no
# root and no /dev/kvm. Takes about a minute of one core. Exit codes: 0 all values are within their
# bounds, 1 some are not, 2 wrong options, 3 a requirement is missing.

set -eu
export LC_ALL=C
PATH=$PATH:/usr/sbin:/sbin

say() { printf 'vm.sh: %s\n' "$*" >&2; }
missing() { say "$*"; exit 3; }
usage() { sed -n '/^# vm\.sh /,/^#$/s/^# \{0,1\}//p' "$0" >&2; exit 2; }

BOOT_AND_MEASURE_S=300

here=$(cd "$(dirname "$0")" && pwd)
fetch=0 keep=0 deb='' work='' program=''
while [ $# -gt 0 ]; do
    case $1 in
    --fetch) fetch=1 ;;
    --keep) keep=1 ;;
    --kernel) [ $# -ge 2 ] || usage; deb=$2; shift ;;
    --program) [ $# -ge 2 ] || usage; program=$2; shift ;;
    -* | '') usage ;;
    *) [ -z "$work" ] || usage; work=$1 ;;
    esac
    shift
done
[ -z "$deb" ] || [ -f "$deb" ] || { say "there is no $deb"; exit 2; }
[ -z "$program" ] || [ -x "$program" ] || { say "there is no program $program"; exit 2; }
case $deb in '' | /*) ;; *) deb=$PWD/$deb ;; esac

# --- what is needed --------------------------------------------------------------------------------------------------

for tool in ip tc dash dpkg-deb; do
    command -v "$tool" >/dev/null 2>&1 || missing "$tool is not here; on Debian: apt-get install iproute2 dash dpkg"
done

qemu=
# shellcheck disable=SC2317  # called by the trap
finish() {
    trap '' INT TERM HUP
    trap - EXIT
    [ -z "$qemu" ] || kill "$qemu" 2>/dev/null || :
    if [ "$keep" = 1 ]; then say "kept: $work"; else rm -rf "$work"; fi
}
if [ -n "$work" ]; then
    if [ -e "$work" ] && { [ ! -d "$work" ] || [ -n "$(ls -A "$work")" ]; }; then
        say "$work is there and no empty directory"
        exit 2
    fi
    mkdir -p "$work"
else
    work=$(mktemp -d "${TMPDIR:-/tmp}/springtide-vm.XXXXXX")
fi
work=$(cd "$work" && pwd)
trap finish EXIT
trap 'exit 1' INT TERM HUP

lacking() {
    command -v qemu-system-x86_64 >/dev/null 2>&1 || { echo qemu-system-x86_64; return; }
    command -v busybox >/dev/null 2>&1 || { echo busybox; return; }
    for applet in awk cpio dd insmod nc netstat nsenter ping reboot timeout unshare; do
        busybox --list | grep -qx "$applet" || { echo "a busybox with $applet"; return; }
    done
}
fetched=
lacks=$(lacking)
if [ -n "$lacks" ] && [ "$fetch" = 1 ]; then
    # Unpacked, not installed: an installation may replace and remove other packages. Apt names what is not installed of all that
    # these need; with its own archive directory and without locks it needs no root.
    mkdir -p "$work/archives/partial" "$work/tools"
    timeout 300 apt-get install -y -q --download-only --no-install-recommends -o Debug::NoLocking=1 -o Dir::Cache::archives="$work/archives" \
        qemu-system-x86 busybox-static >"$work/download.log" 2>&1 || {
        tail -n 5 "$work/download.log" | sed 's/^/    /' >&2
        missing "apt-get could not download qemu-system-x86 and busybox-static"
    }
    for package in "$work"/archives/*.deb; do
        case ${package##*/} in dpkg_* | libc6_*) ;; *) dpkg-deb -x "$package" "$work/tools" ;; esac
    done
    rm -rf "$work/archives"
    fetched=$work/tools
    PATH=$fetched/usr/bin:$fetched/bin:$PATH
    lacks=$(lacking)
fi
[ -z "$lacks" ] || missing "$lacks is not here: install qemu-system-x86 and busybox-static, or let vm.sh --fetch get them"

# QEMU with what belongs to it.
run_qemu() {
    if [ -n "$fetched" ]; then
        for lib in "$fetched"/usr/lib/*-linux-gnu; do :; done
        set -- -L "$fetched/usr/share/qemu" -L "$fetched/usr/share/seabios" "$@"
        export LD_LIBRARY_PATH="$lib:$fetched/lib/${lib##*/}" QEMU_MODULE_DIR="$lib/qemu"
    fi
    exec timeout "$BOOT_AND_MEASURE_S" qemu-system-x86_64 "$@"
}

# --- the kernel and its first file system ----------------------------------------------------------------------------

if [ -z "$deb" ]; then
    package=$(apt-cache depends linux-image-cloud-amd64 2>/dev/null | awk '/Depends: linux-image/ { print $2; exit }') || package=
    [ -n "$package" ] || missing "apt knows no linux-image-cloud-amd64: run apt-get update first, or give a kernel with --kernel"
    (cd "$work" && timeout 300 apt-get download -q "$package") >"$work/download.log" 2>&1 || {
        sed 's/^/    /' "$work/download.log" >&2
        missing "apt-get could not download $package; give a kernel with --kernel"
    }
    for deb in "$work"/linux-image*.deb; do :; done
fi
dpkg-deb -x "$deb" "$work/kernel" || missing "$deb could not be unpacked"
image=
for image in "$work"/kernel/boot/vmlinuz-*; do :; done
[ -f "$image" ] || missing "there is no kernel in $deb"

root=$work/root
mkdir -p "$root/bin" "$root/dev" "$root/proc" "$root/sys" "$root/run" "$root/tmp" "$root/var" "$root/modules"
# iproute2 looks below /var/run, nsenter is told /run.
ln -s ../run "$root/var/run"

modules='veth sch_htb sch_tbf sch_netem cls_u32'
for module in $modules; do
    # One that is not a file is built in.
    file=$(find "$work/kernel" -name "$module.ko*" | head -n 1)
    case $file in
    *.ko) cp "$file" "$root/modules/" ;;
    *.ko.xz) xz -dc "$file" >"$root/modules/$module.ko" ;;
    *.ko.zst) zstd -qdc "$file" >"$root/modules/$module.ko" ;;
    esac
done

with_libraries() { # PROGRAM NAME
    cp -L "$1" "$root/bin/$2"
    { ldd "$1" 2>/dev/null || :; } | awk '{ for (i = 1; i <= NF; i++) if ($i ~ /^\//) print $i }' | while read -r library; do
        mkdir -p "$root${library%/*}"
        cp -L "$library" "$root$library"
    done
}
with_libraries "$(command -v busybox)" busybox
for applet in $(busybox --list); do
    # Its ip knows no namespaces, its sh prefers its own ip.
    case $applet in busybox | ip | tc | sh) ;; *) ln -s busybox "$root/bin/$applet" ;; esac
done
with_libraries "$(command -v dash)" sh
with_libraries "$(command -v ip)" ip
with_libraries "$(command -v tc)" tc
[ -z "$program" ] || with_libraries "$program" springtide
cp "$here/kernel.sh" "$here/tables/das2.table" "$root/"

# Counts what comes after a first line. To read that, no program need be started, which takes a tenth of a second here.
cat >"$root/bin/receive" <<'RECEIVE'
#!/bin/sh
read -r first
read -r t0 rest </proc/uptime
bytes=$(wc -c)
read -r t1 rest </proc/uptime
awk -v n="$bytes" -v t0="$t0" -v t1="$t1" 'BEGIN { printf "%.1f\n", (t1 > t0 ? n / (t1 - t0) / 1000 : 0) }' >/tmp/got
RECEIVE

# What the machine does. A line for the host begins with `|`.
cat >"$root/init" <<'INIT'
#!/bin/sh
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mount -t tmpfs run /run
exec </dev/null >/dev/ttyS0 2>&1
for module in veth sch_htb sch_tbf sch_netem cls_u32; do
    if [ -f "/modules/$module.ko" ]; then insmod "/modules/$module.ko" || echo "| note: insmod $module failed"; fi
done
kernel() { sh /kernel.sh "$@"; }
# By their paths, ip and tc: the nsenter of busybox prefers its own. Not by `kernel exec`, which takes most of a second to begin here.
in_a() { nsenter --net=/run/netns/stw-vm-a "$@"; }
in_b() { nsenter --net=/run/netns/stw-vm-b "$@"; }
bad=0
# NAME ASKED MEASURED LEAST MOST
row() {
    verdict=$(awk -v x="$3" -v least="$4" -v most="$5" 'BEGIN { print (x != "" && x + 0 >= least && x + 0 <= most) ? "yes" : "NO" }')
    [ "$verdict" = yes ] || bad=1
    printf '| %-44s %-14s %-14s %s to %s: %s\n' "$1" "$2" "${3:-nothing}" "$4" "$5" "$verdict"
}
change() { kernel set vm || { echo "| note: kernel.sh set failed"; bad=1; }; }
# COUNT INTERVAL: average round trip, then percent lost, least, most
pings() {
    in_a timeout 60 ping -q -I 10.77.1.2 -c "$1" -i "$2" -W 2 10.77.2.2 | awk '
        / packets transmitted/ { for (i = 1; i <= NF; i++) if ($i ~ /%/) { lost = $i; sub(/%/, "", lost) } }
        /round-trip/ { split($4, t, "/"); least = t[1]; mean = t[2]; most = t[3] }
        END { print mean, lost, least, most }'
}
# Answers that came before one that was asked for earlier.
overtaken() { in_a timeout 60 ping -I 10.77.1.2 -c 300 -i 0.002 -W 2 10.77.2.2 |
    awk -F '[= ]' '/seq=/ { for (i = 1; i < NF; i++) if ($i == "seq") { if ($(i + 1) < last) n++; last = $(i + 1) } } END { print n + 0 }'; }
# kB, LEAST: kB/s of payload that a TCP stream from a to b got; the best of three, for a machine that is short of time makes a
# stream slower, but never faster.
transfer() {
    best=0
    for try in 1 2 3; do
        best=$({ echo "$best"; stream "$1"; } | sort -n | tail -n 1)
        [ "$(awk -v x="$best" -v least="$2" 'BEGIN { print (x >= least) }')" = 0 ] || break
    done
    echo "$best"
}
stream() {
    # A path remembers what it was like, and TCP would begin as slowly.
    in_a /bin/ip tcp_metrics flush >/dev/null 2>&1
    rm -f /tmp/got
    # Its standard input is the connection; nc alone would end with its own.
    in_b timeout 60 nc -l -p 5001 -e /bin/receive &
    for i in 1 2 3 4 5 6 7 8 9 10; do
        sleep 0.2
        in_b netstat -ltn | grep -q ':5001 ' && break
    done
    { sleep 1; echo; dd if=/dev/zero bs=1000 count="$1" 2>/dev/null; } | in_a timeout 60 nc 10.77.2.1 5001 >/dev/null
    wait
    cat /tmp/got
}

echo "| kernel $(uname -r)"
kernel can | sed 's/^/| can: /'
echo "| $(busybox sh /kernel.sh can | grep -c yes) of these under the shell of busybox too"
before=$(ip -o link show; ip netns list)

printf '| %-44s %-14s %-14s %s\n' what asked measured within
kernel up vm <<TABLE
net 10.77
cluster a 1 2
cluster b 2 2
link a b 10000 0 0 1000000 100000 0
link b a 10000 0 0 1000000 100000 0
TABLE
set -- $(pings 20 0.1)
# The machine's processor is slow and shared: the least of all is the network, the mean is half the machine.
row "round trip, 10 ms each way: least" "20 ms" "$3" 19.9 23
row "round trip, 10 ms each way: mean" "20 ms" "$1" 19.9 40
row "packets lost" "0 %" "$2" 0 0
row "TCP payload, link of 1 MB/s" "956 kB/s" "$(transfer 3000 860)" 860 1000

printf 'link a b 10000 0 0.02 1000000 100000 0\nlink b a 10000 0 0.02 1000000 100000 0\n' | change
# Four at a time: a thousand packets in three seconds. Four standard deviations are 2.5.
for i in 1 2 3 4; do pings 250 0.01 >"/tmp/lost$i" & done
wait
row "packets lost, 2 % each way" "3.96 %" "$(cat /tmp/lost? | awk '{ s += $2 } END { print s / NR }')" 1.5 6.5

printf 'link a b 10000 5000 0 - 100000 0\nlink b a 10000 5000 0 - 100000 0\n' | change
set -- $(pings 100 0.04)
row "round trip, jitter 5 ms: least" "10 to 14 ms" "$3" 9.9 18.5
row "round trip, jitter 5 ms: most" "26 to 30 ms" "$4" 24 60
row "packets overtaken, REORDER 0" "0" "$(overtaken)" 0 0
printf 'link a b 10000 5000 0 - 100000 1\nlink b a 10000 5000 0 - 100000 1\n' | change
row "packets overtaken, REORDER 1" "some of 300" "$(overtaken)" 20 300

printf 'link a b 10000 0 0 - 100000 0\nlink b a 10000 0 0 - 100000 0\nuplink a 200000 20000\n' | change
row "TCP payload, uplink of 200 kB/s" "191 kB/s" "$(transfer 600 172)" 172 200
printf 'uplink a - 100000\ndownlink b 300000 30000\n' | change
row "TCP payload, downlink of 300 kB/s" "287 kB/s" "$(transfer 900 258)" 258 300
printf 'downlink b - 100000\nlink a b 10000 0 1 - 100000 0\n' | change
set -- $(in_a timeout 30 ping -q -c 10 -i 0.05 -W 1 10.77.2.2 | awk '/ packets transmitted/ { for (i = 1; i <= NF; i++) if ($i ~ /%/) print $i + 0 }')
row "packets lost, LOSS 1" "100 %" "$1" 100 100
printf 'link a b 10000 0 0 - 100000 0\nlink a a 2000 0 0 - 100000 0\n' | change
row "round trip inside, 2 ms each way: least" "4 ms" "$(in_a timeout 30 ping -q -c 20 -i 0.05 10.77.1.2 | awk '/round-trip/ { split($4, t, "/"); print t[1] }')" 3.9 7
kernel status vm | sed 's/^/  /'
[ "$(kernel exec vm b /bin/ip -4 -o address show lo | grep -c 10.77.2.1/24)" = 1 ] || { echo "| note: kernel.sh exec failed"; bad=1; }
kernel down vm || bad=1

kernel up vm </das2.table || bad=1
row "links with netem, five clusters" "20" "$(for c in 1 2 3 4 5; do kernel exec vm core /bin/tc qdisc show dev "c$c"; done | grep -c 'netem.*delay 2ms')" 20 20
kernel down vm || bad=1
if [ -x /bin/springtide ]; then
    wan() { springtide wan "$@" || { echo "| note: springtide wan $1 failed"; bad=1; }; }
    echo "| $(wan up pair --network kernel --for 5m | head -n 1)"
    # Of the profile wan-50: 25 ms each way, varying by 1 ms, and half a packet in a thousand is lost.
    row "springtide wan up --network kernel: least" "48 to 52 ms" "$(wan exec a ping -q -I 10.77.1.2 -c 20 -i 0.1 10.77.2.2 | awk '/round-trip/ { split($4, t, "/"); print t[1] }')" 47.9 58
    wan set a,b rtt=10ms jitter=0ms loss=0 >/dev/null
    row "after springtide wan set a,b rtt=10ms: least" "10 ms" "$(wan exec a ping -q -I 10.77.1.2 -c 20 -i 0.1 10.77.2.2 | awk '/round-trip/ { split($4, t, "/"); print t[1] }')" 9.9 16
    wan set a,b down >/dev/null
    row "packets lost after springtide wan set a,b down" "100 %" "$(springtide wan exec a timeout 30 ping -q -c 5 -i 0.1 -W 1 10.77.2.2 | awk '/ packets transmitted/ { for (i = 1; i <= NF; i++) if ($i ~ /%/) print $i + 0 }')" 100 100
    wan status | sed 's/^/  /'
    wan down | sed 's/^/  /'
    # As a session has it: a group with this process in it, below one that hands processors on.
    groups=/sys/fs/cgroup
    mount -t cgroup2 none $groups
    mkdir -p $groups/slice/scope
    for group in $groups $groups/slice; do echo +cpu >$group/cgroup.subtree_control; done
    told=$(sh -c "echo \$\$ >$groups/slice/scope/cgroup.procs && exec springtide wan doctor" 2>&1)
    echo "$told" | sed 's/^/  /'
    row "quotas by control groups, version 2" "1" "$(echo "$told" | grep -c '^yes  processors: quotas .*version 2')" 1 1
    row "groups left" "0" "$(find $groups -name 'springtide-*' | wc -l)" 0 0
fi
after=$(ip -o link show; ip netns list)
same=0
[ "$before" = "$after" ] && [ ! -e /run/springtide-wan ] && same=1
row "interfaces and namespaces as before" "1" "$same" 1 1
[ "$bad" = 0 ] && echo "| all within" || echo "| NOT all within"
reboot -f
INIT
chmod 755 "$root/init" "$root/bin/receive"
(cd "$root" && find . | busybox cpio -o -H newc 2>/dev/null | gzip -1) >"$work/initrd"

# --- run -------------------------------------------------------------------------------------------------------------

began=$(date +%s)
run_qemu -accel tcg -m 512 -smp 1 -nodefaults -no-user-config -display none -no-reboot \
    -serial stdio -kernel "$image" -initrd "$work/initrd" -append "console=ttyS0 quiet panic=-1" \
    </dev/null >"$work/console.log" 2>&1 &
qemu=$!
status=0
wait "$qemu" || status=$?
qemu=
tr -d '\r' <"$work/console.log" | sed -n 's/^| //p'
took=$(($(date +%s) - began))
if tr -d '\r' <"$work/console.log" | grep -qx '| all within'; then
    say "all within; the machine ran $took s"
    exit 0
fi
say "not all within, or the machine did not come to its end ($took s, QEMU's exit $status); the last lines of its console:"
tail -n 25 "$work/console.log" | tr -d '\r' | sed 's/^/    /' >&2
exit 1
