#!/bin/sh
# The kernel back end of an emulated WAN: namespaces, veth pairs and tc. Needs a plain sh, iproute2,
# awk, nsenter and root.
#
# kernel.sh up NAME < table            create the network
# kernel.sh set NAME < lines           change its uplink, downlink and link lines: all of them or none
# kernel.sh exec NAME CLUSTER CMD...   run a command in a cluster (or in `core`)
# kernel.sh status NAME                print the present table and the traffic of each link
# kernel.sh down NAME                  remove the network
# kernel.sh can                        print what this kernel supports
#
# The table (`springtide wan table TOPOLOGY` prints one; # begins a comment):
#   net 10.77                          first two numbers of all addresses: node N of cluster C is 10.77.C.N
#   cluster NAME INDEX NODES           INDEX is the C
#   uplink NAME RATE QUEUE             all outgoing traffic: bytes per second (- for no limit), bytes
#                                      that may wait
#   downlink NAME RATE QUEUE           all incoming traffic
#   link FROM TO DELAY_US JITTER_US LOSS RATE QUEUE REORDER
#                                      one direction; RATE 0 or LOSS 1 carries nothing
# Each two clusters need a link line for each direction, without a default. A cluster without a line
# for its inside (FROM equal to TO) has a delay of 50 us there. Without uplink or downlink, a cluster
# has no limit.
#
# Environment:
#   NS_<name>, PID_<name>   for each cluster and for `core` (- becomes _): a file that is its namespace,
#                           such as /proc/123/fd/7, and optionally a process or thread in it. Set all or
#                           none. The script neither creates nor removes such namespaces. Without them
#                           the namespaces are stw-NAME-CLUSTER.
#   STATE                   the file with the present table [default: one below /run/springtide-wan]
#
# Exit codes: 0 done, 1 failure, 2 wrong options or table, 3 a requirement is missing.
#
# Layout: one namespace per cluster, and `core`, which forwards. In a cluster, a prefix on lo makes all
# addresses of its nodes local, and `wan` leads to `c<INDEX>` in core. Outgoing traffic passes the
# uplink on `wan`. Traffic to cluster D passes link and downlink on D's end in core: an htb class for
# each sending cluster, below one class with D's downlink rate. The veth pairs are created inside the
# namespaces, so no real interface changes.

set -eu
export LC_ALL=C
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin
umask 077

say() { printf 'kernel.sh: %s\n' "$*" >&2; }
fail() { say "$*"; exit 1; }
wrong() { say "$*"; exit 2; }
missing() { say "$*"; exit 3; }

usage() {
    sed -n '/^# kernel\.sh /s/^# //p' "$0" >&2
    exit 2
}

# The full path of a tool. Not `command -v`: a busybox shell prefers its own ip, which knows no namespaces.
find_tool() { # NAME [what its -V must say]
    rest=$PATH
    while [ -n "$rest" ]; do
        dir=${rest%%:*}
        case $rest in *:*) rest=${rest#*:} ;; *) rest= ;; esac
        if [ -z "$dir" ] || [ ! -f "$dir/$1" ] || [ ! -x "$dir/$1" ]; then continue; fi
        if [ $# -gt 1 ]; then
            case $("$dir/$1" -V 2>&1 </dev/null) in *"$2"*) ;; *) continue ;; esac
        fi
        printf '%s\n' "$dir/$1"
        return 0
    done
    return 1
}

need_tools() {
    [ "$(id -u)" = 0 ] || missing "this needs root: it makes network namespaces"
    IP=$(find_tool ip iproute2) || missing "ip is not here: install iproute2 (the ip of busybox knows no namespaces)"
    TC=$(find_tool tc iproute2) || missing "tc is not here: install iproute2"
    NSENTER=$(find_tool nsenter) || missing "nsenter is not here: install util-linux"
    UNSHARE=$(find_tool unshare) || missing "unshare is not here: install util-linux"
    NFT=$(find_tool nft) || NFT=
}

# --- what this kernel can do -----------------------------------------------------------------------------------------

# Each thing is tried on lo of a namespace that ends with the shell in it.
# shellcheck disable=SC2016  # the inner shell is to expand it
PROBE='
try() {
    what=$1
    shift
    if said=$("$@" 2>&1); then
        echo "$what yes"
    else
        said=$(printf "%s" "$said" | tr "\n" " ")
        said=${said#Error: }
        echo "$what no: ${said:-no reason was given}"
    fi
}
with_class() {
    "$tc" qdisc replace dev lo root handle 3: htb default 0 &&
        "$tc" class add dev lo parent 3: classid 3:1 htb rate 1mbit burst 3200
}
with_filter() {
    "$tc" filter add dev lo parent 3: protocol ip prio 1 u32 match ip src 10.0.0.0/24 flowid 3:1
}
with_nft() {
    [ -n "$nft" ] || { echo "nft is not here"; return 1; }
    echo "table inet t { chain f { type filter hook forward priority 0; numgen random mod 100 < 1 drop; }; }" | "$nft" -f -
}
with_veth() {
    "$ip" link add name t1 type veth peer name t2
}
tc=$1
nft=$2
ip=$3
try netem "$tc" qdisc replace dev lo root handle 1: netem delay 1ms
try tbf "$tc" qdisc replace dev lo root handle 2: tbf rate 1mbit burst 3200 limit 10000
try htb with_class
try u32 with_filter
try veth with_veth
try nft with_nft
'

can() {
    if said=$("$UNSHARE" -n sh -c "$PROBE" sh "$TC" "$NFT" "$IP" 2>&1 </dev/null); then
        printf '%s\n' "$said"
    else
        said=$(printf '%s' "$said" | tr '\n' ' ')
        for what in netem tbf htb u32 veth nft; do
            printf '%s no: cannot make a namespace to try it in: %s\n' "$what" "$said"
        done
    fi
}

# --- the table -------------------------------------------------------------------------------------------------------

# Reads a table; prints it in a fixed order with nothing left out, or every mistake in it. With -v known=N, the first N lines
# are the table in force, and what follows changes it.
# shellcheck disable=SC2016
CHECK='
BEGIN {
    arity["net"] = 2; arity["cluster"] = 4; arity["uplink"] = 4; arity["downlink"] = 4; arity["link"] = 9
    form["net"] = "net 10.77"; form["cluster"] = "cluster NAME INDEX NODES"
    form["uplink"] = "uplink NAME RATE QUEUE"; form["downlink"] = "downlink NAME RATE QUEUE"
    form["link"] = "link FROM TO DELAY_US JITTER_US LOSS RATE QUEUE REORDER"
}
function bad(reason) { mistakes++; told[NR] = told[NR] "line " (NR - known) ": " reason "\n" }
function whole(text, least, most) { return text ~ /^[0-9]+$/ && length(text) <= 15 && text + 0 >= least && text + 0 <= most }
function share(text) { return text ~ /^([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?$/ && text + 0 <= 1 }
function rate(text) { return text == "-" || whole(text, 0, 1000000000000) }
function is_a_rate(text) {
    if (!rate(text)) bad("RATE " text " is neither - nor a whole number of bytes a second")
}
function is_a_queue(text) {
    if (!whole(text, 1, 4000000000)) bad("QUEUE " text " is no whole number of bytes from 1 to 4000000000")
}
function once(key, what) {
    if (key in seen && seen[key] > known) bad(what " is given on line " (seen[key] - known) " already")
    seen[key] = NR
}
{ sub(/#.*/, "") }
NF == 0 { next }
!($1 in arity) { bad("unknown word " $1 ": it must be net, cluster, uplink, downlink or link"); next }
NF != arity[$1] { bad("it must have the form: " form[$1]); next }
NR > known && known && ($1 == "net" || $1 == "cluster") { bad($1 " cannot change while it runs"); next }
$1 == "net" {
    once("net", "net")
    if ($2 !~ /^[0-9]+\.[0-9]+$/ || split($2, part, ".") != 2 || part[1] > 223 || part[1] < 1 || part[1] == 127 || part[2] > 255)
        bad("net " $2 " is not the first two numbers of addresses, such as 10.77")
    net = $2
}
$1 == "cluster" {
    if ($2 !~ /^[A-Za-z0-9][A-Za-z0-9-]*$/ || length($2) > 64) {
        bad("name " $2 ": a name has letters, digits and -, at most 64, and does not begin with -")
        next
    }
    if ($2 == "core") { bad("core is the name of what joins the clusters; no cluster can have it"); next }
    once("cluster " $2, "cluster " $2)
    if (!whole($3, 1, 254)) bad("INDEX " $3 " is no whole number from 1 to 254")
    else once("index " $3 + 0, "INDEX " $3)
    if (!whole($4, 1, 254)) bad("NODES " $4 " is no whole number from 1 to 254")
    name[++clusters] = $2
    index_of[$2] = $3 + 0
    nodes[$2] = $4 + 0
}
$1 == "uplink" || $1 == "downlink" {
    used[NR] = $2
    once($1 " " $2, $1 " " $2)
    is_a_rate($3)
    is_a_queue($4)
    at[$1, $2] = $3 " " $4
}
$1 == "link" {
    used[NR] = $2 " " $3
    once("link " $2 " " $3, "link " $2 " " $3)
    if (!whole($4, 0, 60000000)) bad("DELAY_US " $4 " is no whole number from 0 to 60000000")
    if (!whole($5, 0, 60000000)) bad("JITTER_US " $5 " is no whole number from 0 to 60000000")
    if (!share($6)) bad("LOSS " $6 " is no share from 0 to 1")
    is_a_rate($7)
    is_a_queue($8)
    if ($9 != "0" && $9 != "1") bad("REORDER " $9 " is neither 0 nor 1")
    if (!(("link", $2, $3) in at)) link[++links] = $2 SUBSEP $3
    at["link", $2, $3] = $4 " " $5 " " $6 " " $7 " " $8 " " $9
}
END {
    # Names are looked up last, so that lines may come in any order.
    for (NR_ = 1; NR_ <= NR; NR_++) if (NR_ in used) {
        n = split(used[NR_], of, " ")
        for (i = 1; i <= n; i++) if (!(("cluster " of[i]) in seen) && !(i == 2 && of[1] == of[2])) {
            mistakes++
            told[NR_] = told[NR_] "line " (NR_ - known) ": there is no cluster " of[i] "\n"
        }
    }
    if (!("net" in seen)) { mistakes++; whole_table = whole_table "table: there is no net line\n" }
    if (!clusters) { mistakes++; whole_table = whole_table "table: there is no cluster line\n" }
    # After any other mistake this might only follow from it.
    if (!mistakes) for (i = 1; i <= clusters; i++) for (j = 1; j <= clusters; j++)
        if (i != j && !(("link", name[i], name[j]) in at)) {
            missing++
            whole_table = whole_table "table: nothing says what goes from " name[i] " to " name[j] \
                ": add `link " name[i] " " name[j] " DELAY_US JITTER_US LOSS RATE QUEUE REORDER`\n"
        }
    mistakes += missing
    if (mistakes) {
        for (i = 1; i <= NR; i++) printf "%s", told[i]
        printf "%s", whole_table
        exit 1
    }
    print "net " net
    for (i = 1; i <= clusters; i++) print "cluster " name[i] " " index_of[name[i]] " " nodes[name[i]]
    for (i = 1; i <= clusters; i++) {
        print "uplink " name[i] " " (("uplink", name[i]) in at ? at["uplink", name[i]] : "- 100000")
        print "downlink " name[i] " " (("downlink", name[i]) in at ? at["downlink", name[i]] : "- 100000")
    }
    for (i = 1; i <= clusters; i++)
        if (!(("link", name[i], name[i]) in at)) print "link " name[i] " " name[i] " 50 0 0 - 100000 0"
    for (i = 1; i <= links; i++) {
        split(link[i], of, SUBSEP)
        print "link " of[1] " " of[2] " " at["link", of[1], of[2]]
    }
}'

# Reads a checked table, its paths to namespaces (`at NAME FILE-OR-PID`) and, to change one, the lines that changed
# (`now ...`); prints the lines for one call of ip, tc or nft, as -v plan= says, in the cluster -v here=NAME.
# shellcheck disable=SC2016
PLAN='
$1 == "at" { where[$2] = $3; next }
$1 == "net" { net = $2 }
$1 == "cluster" { name[++clusters] = $2; index_of[$2] = $3 + 0 }
$1 == "uplink" || $1 == "downlink" { rate[$1, $2] = $3; queue[$1, $2] = $4 }
$1 == "link" {
    links[++count] = $2 SUBSEP $3
    delay[$2, $3] = $4 + 0
    jitter[$2, $3] = ($5 + 0 > $4 + 0 ? $4 : $5) + 0
    loss[$2, $3] = $6 + 0
    rate[$2, $3] = $7
    queue[$2, $3] = $8
    reorder[$2, $3] = $9 + 0
}
$1 == "now" { changes = 1; if ($2 == "link") changed["link", $3, $4] = 1; else changed[$2, $3] = 1 }

function number(x) { return sprintf("%.0f", x) }
function most(a, b) { return a + 0 > b + 0 ? a + 0 : b + 0 }
function mac(i, end) { return sprintf("02:77:00:00:%02x:%02x", i, end) }
function limited(r) { return r != "-" && r != "" }
function bits(r) { return limited(r) && r + 0 > 0 ? number(r * 8) "bit" : "100gbit" }
# So many bytes may go at once: 5 ms of the rate, and two packets at least. With less, a timer that is late costs rate.
function burst(r) { return limited(r) && r + 0 > 0 ? number(most(3200, r / 200)) : "1000000" }
# A queue that holds no two packets would carry nothing.
function bytes(q) { return number(most(3028, q)) }
function nothing_passes(s, d) {
    return loss[s, d] >= 1 || (limited(rate[s, d]) && rate[s, d] + 0 == 0) ||
        (s != d && limited(rate["downlink", d]) && rate["downlink", d] + 0 == 0)
}
function netem(packets, s, d, narrow) {
    # Netem sends packets by their own times, so that jitter changes their order, unless it has a rate: then each waits for
    # the one before. The rate given here takes no time; 0 takes it away again.
    return "netem limit " packets " delay " delay[s, d] "us" (jitter[s, d] > 0 ? " " jitter[s, d] "us" : "") \
        " loss " (nothing_passes(s, d) ? "100%" : sprintf("%.7f%%", loss[s, d] * 100)) " rate " narrow
}
# The rate that a link really has, with its downlink; "-" for none. `waiting` becomes the queue in front of it.
function narrowest(s, d,    own, down) {
    own = rate[s, d]
    down = s == d ? "-" : rate["downlink", d]
    waiting = queue[s, d]
    if (limited(down) && down + 0 > 0 && (!limited(own) || down + 0 <= own + 0)) { waiting = queue["downlink", d]; return down }
    return limited(own) && own + 0 > 0 ? own : "-"
}
# What netem may hold, packets: those under way, and those that wait.
function held(r, q, s, d) {
    if (!limited(r)) return "100000"
    return number(int((most(3028, q) + r * (delay[s, d] + jitter[s, d]) / 1000000) / 1500) + 1)
}
function leaf(s, d,    r) {
    r = narrowest(s, d)
    if (has_netem) return netem(held(r, waiting, s, d), s, d, reorder[s, d] ? "0bit" : "100gbit")
    return "bfifo limit " (nothing_passes(s, d) ? 0 : limited(r) ? bytes(waiting) : "10000000")
}
function class(r) { return "htb rate 1kbit ceil " bits(r) " burst 1600 cburst " burst(r) " quantum 1514" }
function down_class(r) { return "htb rate " bits(r) " ceil " bits(r) " burst " burst(r) " cburst " burst(r) " quantum 1514" }
function handle(i) { return sprintf("%x", 256 + i) }
# A device whose one queue takes all. Kinds have handles of their own: a qdisc cannot change its kind under one.
function all_of(dev, r, q, least) {
    if (!limited(r)) return "qdisc replace dev " dev " root handle 4: pfifo limit 10000"
    if (r + 0 == 0) return "qdisc replace dev " dev " root handle 3: bfifo limit 0"
    return "qdisc replace dev " dev " root handle 2: tbf rate " bits(r) " burst " number(most(least, burst(r))) " limit " bytes(q)
}
# Inside a cluster all goes over lo. It takes some 50 us by itself, so that half a millisecond is the least worth adding.
function plain(c) { return delay[c, c] < 500 && jitter[c, c] == 0 && loss[c, c] == 0 && !limited(rate[c, c]) }
function inside(c) {
    if (nothing_passes(c, c)) return all_of("lo", 0)
    if (has_netem && !plain(c))
        return "qdisc replace dev lo root handle 1: " netem(held(rate[c, c], queue[c, c], c, c), c, c, \
            limited(rate[c, c]) ? bits(rate[c, c]) : reorder[c, c] ? "0bit" : "100gbit")
    # Packets on lo have up to 64 KiB.
    return all_of("lo", rate[c, c], most(queue[c, c], 140000), 70000)
}

END {
    core = net ".0.254"
    if (plan == "core ip") {
        print "link set lo up"
        print "address replace " core "/32 dev lo"
        for (i = 1; i <= clusters; i++) {
            c = index_of[name[i]]
            # Fixed link addresses and neighbours: no ARP, which would meet delay and loss and add to both.
            print "link add name c" c " address " mac(c, 2) " type veth peer name wan address " mac(c, 1) " netns " where[name[i]]
            print "link set dev c" c " addrgenmode none"
            print "link set dev c" c " gso_max_segs 1"
            print "link set dev c" c " up"
            print "neighbour replace " net "." c ".1 lladdr " mac(c, 1) " dev c" c " nud permanent"
            print "route replace " net "." c ".0/24 via " net "." c ".1 dev c" c " onlink"
        }
    } else if (plan == "cluster ip") {
        c = index_of[here]
        # As on an Ethernet, so that programs find the same packet size everywhere.
        print "link set lo mtu 1500 up"
        print "address replace " net "." c ".1/24 dev lo"
        print "link set dev wan addrgenmode none"
        # No packet of many segments: loss and queues must see the packets that a wire would.
        print "link set dev wan gso_max_segs 1"
        print "link set dev wan up"
        print "neighbour replace " core " lladdr " mac(c, 2) " dev wan nud permanent"
        print "route replace " net ".0.0/16 via " core " dev wan onlink src " net "." c ".1"
    } else if (plan == "core tc") {
        for (i = 1; i <= clusters; i++) {
            d = name[i]
            dev = "c" index_of[d]
            if (!changes) print "qdisc add dev " dev " root handle 1: htb default 0"
            if (!changes || ("downlink", d) in changed)
                print "class " (changes ? "change" : "add") " dev " dev " parent 1: classid 1:1 " down_class(rate["downlink", d])
            for (j = 1; j <= clusters; j++) if (i != j) {
                s = name[j]
                h = handle(index_of[s])
                if (changes && !(("downlink", d) in changed) && !(("link", s, d) in changed)) continue
                # All of what it sends is borrowed from the class above, whose rate so holds for all together.
                print "class " (changes ? "change" : "add") " dev " dev " parent 1:1 classid 1:" h " " class(rate[s, d])
                print "qdisc " (changes ? "change" : "add") " dev " dev " parent 1:" h " handle " h ": " leaf(s, d)
                if (!changes) print "filter add dev " dev " parent 1: protocol ip prio 1 u32 match ip src " \
                    net "." index_of[s] ".0/24 flowid 1:" h
            }
        }
    } else if (plan == "cluster tc") {
        if (changes ? (("uplink", here) in changed) : limited(rate["uplink", here]))
            print all_of("wan", rate["uplink", here], queue["uplink", here], 3200)
        if (changes ? (("link", here, here) in changed) : !plain(here)) print inside(here)
    } else if (plan == "nft") {
        # Declared before it is deleted, so that it need not be there; all of it is one change.
        print "table inet springtide-wan"
        print "delete table inet springtide-wan"
        print "table inet springtide-wan {"
        print "chain lose {"
        print "type filter hook forward priority 0;"
        for (i = 1; i <= count; i++) {
            split(links[i], of, SUBSEP)
            s = of[1]; d = of[2]
            n = number(loss[s, d] * 1000000)
            if (s != d && loss[s, d] < 1 && n > 0)
                print "ip saddr " net "." index_of[s] ".0/24 ip daddr " net "." index_of[d] ".0/24 " \
                    "numgen random mod 1000000 < " n " drop"
        }
        print "}"
        print "}"
    } else if (plan == "warn") {
        for (i = 1; i <= count; i++) {
            split(links[i], of, SUBSEP)
            s = of[1]; d = of[2]
            if (changes && !(("link", s, d) in changed)) continue
            lacks = ""
            if (delay[s, d] >= (s == d ? 500 : 1)) lacks = lacks ", delay " delay[s, d] " us"
            if (jitter[s, d] > 0) lacks = lacks ", jitter " jitter[s, d] " us"
            if (loss[s, d] > 0 && loss[s, d] < 1 && (s == d || !has_nft)) lacks = lacks ", loss " loss[s, d]
            if (lacks != "") print "warning: link " s " " d ": not modelled, for this kernel has no netem: " substr(lacks, 3)
        }
    } else if (plan == "wants") {
        for (i = 1; i <= count; i++) {
            split(links[i], of, SUBSEP)
            if (of[1] != of[2] && loss[of[1], of[2]] > 0 && loss[of[1], of[2]] < 1) wants = 1
        }
        print wants ? "nft" : ""
    }
}'

clusters_of() { # TABLE: the names, one a line
    printf '%s\n' "$1" | awk '$1 == "cluster" { print $2 }'
}

plan() { # PLAN [CLUSTER]: of $table, with $places and $changes
    printf '%s\n%s\n%s\n' "$places" "$table" "$changes" |
        awk -v plan="$1" -v here="${2-}" -v has_netem="$has_netem" -v has_nft="$has_nft" "$PLAN"
}

# --- namespaces ------------------------------------------------------------------------------------------------------

check_name() {
    case $1 in
    '' | -* | *[!A-Za-z0-9-]*) wrong "name '$1': a name has letters, digits and -, and does not begin with -" ;;
    esac
    [ ${#1} -le 64 ] || wrong "name '$1' is longer than 64"
}

# A variable of the environment by its name, without eval: names come from a table.
variable() { awk 'BEGIN { print ENVIRON[ARGV[1]] }' "$(printf '%s' "$1" | tr - _)"; }

# Where iproute2 keeps the namespaces that have names.
named() {
    if [ -e /run/netns ] || [ ! -e /var/run/netns ]; then
        printf '/run/netns/stw-%s-%s\n' "$net_name" "$1"
    else
        printf '/var/run/netns/stw-%s-%s\n' "$net_name" "$1"
    fi
}

file_of() { # NAME: the file that is its namespace
    if [ "$given" = 1 ]; then variable "NS_$1"; else named "$1"; fi
}

# Says whether namespaces are given by the caller, and where the table in force is kept.
begin() {
    net_name=$1
    check_name "$net_name"
    if [ -n "$(variable NS_core)" ]; then given=1; else given=0; fi
    if [ -n "${STATE-}" ]; then
        state=$STATE
    elif [ "$given" = 1 ]; then
        state=/run/springtide-wan/$net_name.given
    else
        state=/run/springtide-wan/$net_name.table
    fi
    places=
    changes=
    force=
}

# All are given, or none; what is given is there.
check_given() { # NAMES
    for one in core $1; do
        file=$(variable "NS_$one")
        if [ "$given" = 0 ]; then
            [ -z "$file" ] || wrong "NS_$one is set and NS_core is not: give the namespaces of all clusters and of core, or none"
            continue
        fi
        [ -n "$file" ] || wrong "NS_core is set and NS_$one is not: give the namespaces of all clusters and of core, or none"
        case $file in *[!A-Za-z0-9/._-]* | [!/]*) wrong "NS_$one is no plain absolute path: $file" ;; esac
        [ -e "$file" ] || fail "NS_$one: there is no $file"
        pid=$(variable "PID_$one")
        case $pid in *[!0-9]*) wrong "PID_$one is no number: $pid" ;; esac
    done
}

in_ns() { # FILE CMD...
    ns=$1
    shift
    "$NSENTER" --net="$ns" "$@"
}

# Lines for one tool in one namespace, all in one call. Says the line that failed; with $force set, the others are done all the same.
batch() { # CLUSTER TOOL LINES
    [ -n "$3" ] || return 0
    said=$(printf '%s\n' "$3" | in_ns "$(file_of "$1")" "$2" ${force:+"$force"} -batch - 2>&1) && return 0
    line=$(printf '%s\n' "$said" | sed -n 's/^Command failed .*:\([0-9][0-9]*\)$/\1/p' | head -n 1)
    said=$(printf '%s\n' "$said" | sed '/^Command failed /d' | tr '\n' ' ')
    [ -z "$line" ] || line=$(printf '%s\n' "$3" | sed -n "${line}p")
    say "in $1: ${2##*/}${line:+ $line}: ${said:-it failed}"
    return 1
}

set_losses() {
    said=$(plan nft | in_ns "$(file_of core)" "$NFT" -f - 2>&1) && return 0
    say "in core: nft: $said"
    return 1
}

# Lines of the state: a comment that says how it was made, then the table.
write_state() {
    mkdir -p "${state%/*}" && printf '# netem=%s nft=%s\n%s\n' "$has_netem" "$has_nft" "$table" >"$state.new" && mv "$state.new" "$state"
}

read_state() {
    [ -f "$state" ] || fail "$net_name is not up (there is no $state)"
    table=$(sed 1d "$state")
    case $(sed -n 1p "$state") in
    '# netem=1 nft=0') has_netem=1 has_nft=0 ;;
    '# netem=0 nft=1') has_netem=0 has_nft=1 ;;
    '# netem=0 nft=0') has_netem=0 has_nft=0 ;;
    *) fail "$state is not a state of kernel.sh" ;;
    esac
}

drop_state() {
    rm -f "$state" "$state.new"
    # Ours alone, and only when empty.
    if [ -z "${STATE-}" ]; then rmdir /run/springtide-wan 2>/dev/null || :; fi
}

# Takes away what `up` made, or as much of it as there is.
remove() {
    core=$(file_of core)
    net=$(printf '%s\n' "$table" | awk '$1 == "net" { print $2 }')
    # One end of a veth takes the other with it, and by name: programs that still run in a cluster keep its namespace alive.
    if [ -e "$core" ]; then
        printf '%s\n' "$table" | awk '$1 == "cluster" { print "link delete dev c" $3 }' |
            in_ns "$core" "$IP" -force -batch - >/dev/null 2>&1 || :
    fi
    if [ "$given" = 1 ]; then
        if [ -e "$core" ]; then
            in_ns "$core" "$IP" address delete "$net.0.254/32" dev lo >/dev/null 2>&1 || :
            [ -z "$NFT" ] || in_ns "$core" "$NFT" delete table inet springtide-wan >/dev/null 2>&1 || :
        fi
        printf '%s\n' "$table" | awk '$1 == "cluster" { print $2, $3 }' | while read -r one number; do
            file=$(file_of "$one")
            [ -e "$file" ] || continue
            in_ns "$file" "$IP" address delete "$net.$number.1/24" dev lo >/dev/null 2>&1 || :
            in_ns "$file" "$TC" qdisc delete dev lo root >/dev/null 2>&1 || :
        done
    else
        for one in $(clusters_of "$table") core; do
            [ -e "$(named "$one")" ] || continue
            left=$("$IP" netns pids "stw-$net_name-$one" 2>/dev/null | tr '\n' ' ') || left=
            [ -z "$left" ] || say "still running in stw-$net_name-$one: ${left% }; the namespace ends with them"
            "$IP" netns delete "stw-$net_name-$one" || say "could not delete the namespace stw-$net_name-$one"
        done
    fi
    drop_state
}

# --- commands --------------------------------------------------------------------------------------------------------

read_table() { # KNOWN-LINES: standard input after them, checked
    if [ -n "$1" ]; then
        known=$(printf '%s\n' "$1" | wc -l)
        input=$(printf '%s\n' "$1" && cat)
    else
        known=0
        input=$(cat)
    fi
    checked=$(printf '%s\n' "$input" | awk -v known="$((known))" "$CHECK") || {
        printf '%s\n' "$checked" >&2
        exit 2
    }
}

undo() {
    trap '' INT TERM HUP
    trap - EXIT
    [ "$undoing" = 1 ] || return 0
    say "$net_name: what was made is removed again"
    remove
}

up() {
    begin "$1"
    read_table ''
    table=$checked
    names=$(clusters_of "$table")
    check_given "$names"
    abilities=$(can)
    for what in htb tbf u32 veth; do
        case $abilities in *"$what yes"*) ;; *)
            fail "this kernel cannot be a network: $(printf '%s\n' "$abilities" | sed -n "/^$what /p")" ;;
        esac
    done
    has_nft=0
    case $abilities in *"netem yes"*) has_netem=1 ;; *)
        has_netem=0
        case $abilities in *"nft yes"*) has_nft=1 ;; esac ;;
    esac
    # What is there already is somebody else's, or ours and up.
    for one in core $names; do
        if [ "$given" = 0 ]; then
            [ ! -e "$(named "$one")" ] || fail "there is a namespace stw-$net_name-$one: take $net_name down first, or choose another name"
            continue
        fi
        there=$(in_ns "$(file_of "$one")" "$IP" -o link show 2>&1) || fail "NS_$one is no namespace that can be entered: $there"
        case $there in *" wan@"* | *" wan:"* | *" c"[0-9]*@*) fail "NS_$one has interfaces of such a network already: take $net_name down first" ;; esac
    done

    # Written first, so that `down` finds all of it after a `kill -9` at any point.
    write_state || fail "cannot write $state"
    undoing=1
    trap undo EXIT
    trap 'exit 1' INT TERM HUP
    for one in core $names; do
        if [ "$given" = 0 ]; then
            "$IP" netns add "stw-$net_name-$one" || fail "cannot make the namespace stw-$net_name-$one"
        fi
        pid=
        [ "$given" = 0 ] || pid=$(variable "PID_$one")
        places="$places
at $one ${pid:-$(file_of "$one")}"
    done
    # The file /proc/sys/net/... is that of the namespace of who opens it.
    said=$(in_ns "$(file_of core)" sh -c 'echo 1 >/proc/sys/net/ipv4/ip_forward' 2>&1) || fail "in core: cannot switch forwarding on: $said"
    batch core "$IP" "$(plan 'core ip')" || exit 1
    for one in $names; do
        batch "$one" "$IP" "$(plan 'cluster ip' "$one")" || exit 1
        batch "$one" "$TC" "$(plan 'cluster tc' "$one")" || exit 1
    done
    batch core "$TC" "$(plan 'core tc')" || exit 1
    if [ "$has_nft" = 1 ] && [ -n "$(plan wants)" ]; then set_losses || exit 1; fi
    undoing=0
    warn
}

warn() {
    [ "$has_netem" = 0 ] || return 0
    plan warn | while read -r line; do say "$line"; done
}

# The lines of NEW that OLD has not, as `plan` takes them.
news() { # OLD NEW
    { printf '%s\n' "$1"; echo; printf '%s\n' "$2"; } |
        awk '$0 == "" { new = 1; next } !new { had[$0] = 1; next } !($0 in had) { print "now " $0 }'
}

# Puts in force what $changes names, as $table has it, up to the first that fails; with $force set, all that can be.
apply() {
    broken=0
    batch core "$TC" "$(plan 'core tc')" || broken=1
    for one in $(clusters_of "$table"); do
        [ "$broken" = 0 ] || [ -n "$force" ] || return 1
        batch "$one" "$TC" "$(plan 'cluster tc' "$one")" || broken=1
    done
    [ "$broken" = 0 ] || [ -n "$force" ] || return 1
    if [ "$has_nft" = 1 ]; then set_losses || broken=1; fi
    return "$broken"
}

change() {
    begin "$1"
    read_state
    check_given "$(clusters_of "$table")"
    before=$table
    read_table "$table"
    table=$checked
    changes=$(news "$before" "$table")
    [ -n "$changes" ] || return 0
    # Half of it must not stay.
    trap '' INT TERM HUP
    if apply; then
        if write_state; then
            warn
            return 0
        fi
        say "cannot write $state"
    fi
    changes=$(news "$table" "$before")
    table=$before
    force=-force
    apply || fail "$net_name: what was changed could not all be taken back: take it down, and up again"
    fail "$net_name: nothing is changed"
}

enter() {
    begin "$1"
    check_name "$2"
    file=$(file_of "$2")
    if [ -z "$file" ] || [ ! -e "$file" ]; then fail "there is no cluster $2 in $net_name, or $net_name is not up"; fi
    shift 2
    exec "$NSENTER" --net="$file" "$@"
}

# Counters of one device, as `bytes packets dropped waiting`, a line for each handle.
# shellcheck disable=SC2016
COUNT='
$1 == "qdisc" { handle = $3 }
$1 == "Sent" { sent[handle] = $2 " bytes, " $4 " packets, "; gsub(/,/, "", $7); sent[handle] = sent[handle] $7 " dropped" }
$1 == "backlog" { print handle, sent[handle] ", " $2 " waiting" }'

status() {
    begin "$1"
    read_state
    names=$(clusters_of "$table")
    check_given "$names"
    for one in core $names; do
        [ -e "$(file_of "$one")" ] || fail "$net_name is not up: the namespace of $one is gone (remove the rest with: kernel.sh down $net_name)"
    done
    if [ "$given" = 1 ]; then how="namespaces of the caller"; else how="namespaces stw-$net_name-CLUSTER and stw-$net_name-core"; fi
    if [ "$has_netem" = 1 ]; then by="delay, jitter and loss by netem"
    elif [ "$has_nft" = 1 ]; then by="no delay or jitter: this kernel has no netem; loss by nft"
    else by="no delay, jitter or loss: this kernel has no netem"; fi
    printf '# %s: %s; %s\n%s\n' "$net_name" "$how" "$by" "$table"
    echo "# carried since it is up"
    for one in $names; do
        in_ns "$(file_of "$one")" "$TC" -s qdisc show dev wan | awk "$COUNT" | while read -r handle count; do
            case $handle in [1-4]:) printf '# uplink %s: %s\n' "$one" "$count" ;; esac
        done
    done
    for to in $names; do
        number=$(printf '%s\n' "$table" | awk -v name="$to" '$1 == "cluster" && $2 == name { print $3 }')
        in_ns "$(file_of core)" "$TC" -s qdisc show dev "c$number" | awk "$COUNT" | while read -r handle count; do
            from=$(printf '%s\n' "$table" | awk -v handle="$handle" \
                '$1 == "cluster" && sprintf("%x:", 256 + $3) == handle { print $2 }')
            [ -z "$from" ] || printf '# link %s %s: %s\n' "$from" "$to" "$count"
        done
    done
}

down() {
    begin "$1"
    if [ ! -f "$state" ]; then
        [ "$given" = 1 ] || [ ! -e "$(named core)" ] || fail "there is a namespace stw-$net_name-core, but no $state that says what else there is: remove by hand with: ip netns delete"
        say "$net_name is not up"
        return 0
    fi
    read_state
    remove
}

[ $# -ge 1 ] || usage
command=$1
shift
case $command in
can) [ $# -eq 0 ] || usage ;;
up | set | status | down) [ $# -eq 1 ] || usage ;;
exec) [ $# -ge 3 ] || usage ;;
*) usage ;;
esac
need_tools
case $command in
can) can ;;
up) up "$1" ;;
set) change "$1" ;;
status) status "$1" ;;
down) down "$1" ;;
exec) enter "$@" ;;
esac
