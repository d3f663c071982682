#!/usr/bin/env bash
# A laboratory of small, real and independent Slurm clusters on this machine, for tests and experiments.
# Needs root, slurm-wlm and munge (Debian's packages; their services need not run). All files are in
# DIR, all ports on 127.0.0.1, and the system's own Slurm stays untouched. The processors are pretended,
# so jobs should sleep.
#
#   lab.sh start DIR NAME=PROCESSORS...   start clusters of one machine and one partition ("batch")
#   lab.sh env DIR NAME                   print lines to `eval` before sinfo, sbatch, squeue, scancel
#   lab.sh stop DIR                       end all daemons and jobs
#
# With LAB_PARENT=PID, the lab stops when that process ends. Exits with 3 and one line if this machine
# lacks a requirement.
set -uo pipefail
export LC_ALL=C

usage() { sed -n '2,12s/^# \{0,1\}//p' "$0" >&2; exit 2; }
lacks() { echo "$*" >&2; exit 3; }
die() { echo "lab.sh: $*" >&2; exit 1; }

# The start time of a process, which together with its number is unique.
began() { sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | cut -d' ' -f20; }
alive() { [ -n "$2" ] && [ "$(began "$1")" = "$2" ] && ! grep -qs '^State:.[ZX]' "/proc/$1/status"; }

# Starts a daemon in its own session, and records it for `stop`.
daemon() { # log command...
    local log=$1
    shift
    setsid "$@" </dev/null >>"$log" 2>&1 &
    echo "$! $(began $!)" >>"$dir/pids"
    disown
}

# Waits until a command succeeds, for a time in tenths of a second.
until_ok() { # tenths command...
    local i
    for ((i = 0; i < $1; i++)); do
        "${@:2}" >/dev/null 2>&1 && return 0
        sleep 0.1
    done
    return 1
}

# A free port below the system's range of ephemeral ports.
free_port() {
    local port hex
    for _ in {1..200}; do
        port=$((20000 + (RANDOM * 32768 + RANDOM) % 12000))
        hex=$(printf ':%04X ' "$port")
        case " ${taken[*]-} " in *" $port "*) continue ;; esac
        grep -qsi "^ *[0-9]*: [0-9A-F]*$hex" /proc/net/tcp /proc/net/tcp6 && continue
        taken+=("$port")
        return 0
    done
    die "no free port between 20000 and 32000"
}

configure() { # name processors
    local at=$dir/$1 host control machine
    host=$(hostname -s)
    free_port && control=${taken[-1]}
    free_port && machine=${taken[-1]}
    mkdir -p "$at/state" "$at/spool"
    cat >"$at/slurm.conf" <<CONF
# One cluster of a laboratory; see lab.sh.
ClusterName=$1
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$control
SlurmUser=root
SlurmdUser=root
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
AuthType=auth/munge
AuthInfo=socket=$dir/munge/socket
CredType=cred/munge
# All files are in this directory.
StateSaveLocation=$at/state
SlurmdSpoolDir=$at/spool
SlurmctldPidFile=$at/slurmctld.pid
SlurmdPidFile=$at/slurmd.pid
SlurmctldLogFile=$at/slurmctld.log
SlurmdLogFile=$at/slurmd.log
# No control groups, accounts or MPI, because not every machine has them.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
MpiDefault=none
# Jobs get single processors, without delay.
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0,bf_interval=1
KillWait=2
ReturnToService=2
# The configured size of the machine counts, not its real one.
SlurmdParameters=config_overrides
NodeName=${1}1 NodeHostname=$host NodeAddr=127.0.0.1 Port=$machine CPUs=$2 Boards=1 SocketsPerBoard=1 CoresPerSocket=$2 ThreadsPerCore=1 RealMemory=100000 State=UNKNOWN
PartitionName=batch Nodes=${1}1 Default=YES MaxTime=INFINITE State=UP
CONF
}

works() { # name
    [ "$(SLURM_CONF=$dir/$1/slurm.conf timeout 5 sinfo --noheader --Node --format=%T)" = idle ]
}

start() {
    local pair name i
    [ "$(id -u)" = 0 ] || lacks "a Slurm laboratory needs root"
    for tool in munged slurmctld slurmd sbatch setsid; do
        command -v "$tool" >/dev/null || lacks "a Slurm laboratory needs $tool (Debian: apt-get install slurm-wlm munge)"
    done
    [ $# -gt 0 ] || usage
    for pair; do
        [[ $pair =~ ^[a-z][a-z0-9-]*=[1-9][0-9]*$ ]] || usage
    done
    [ ! -e "$dir/pids" ] || die "there is a laboratory in $dir: lab.sh stop $dir"
    mkdir -p "$dir/munge"
    chmod 755 "$dir" "$dir/munge"
    dir=$(cd "$dir" && pwd -P)
    : >"$dir/pids"
    : >"$dir/clusters"
    head -c 256 /dev/urandom >"$dir/munge/key"
    chmod 400 "$dir/munge/key"
    daemon "$dir/munge/out" munged --foreground --socket="$dir/munge/socket" --key-file="$dir/munge/key" \
        --pid-file="$dir/munge/pid" --log-file="$dir/munge/log" --seed-file="$dir/munge/seed" --num-threads=2
    until_ok 100 test -S "$dir/munge/socket" || { stop; die "munged did not start: $(tail -n3 "$dir/munge/out" "$dir/munge/log" 2>&1)"; }
    for pair; do
        name=${pair%%=*}
        configure "$name" "${pair#*=}"
        daemon "$dir/$name/out" slurmctld -D -c -f "$dir/$name/slurm.conf"
        daemon "$dir/$name/out" slurmd -D -N "${name}1" -f "$dir/$name/slurm.conf"
        echo "$name" >>"$dir/clusters"
    done
    for pair; do
        name=${pair%%=*}
        until_ok 200 works "$name" || {
            tail -n5 "$dir/$name/"{out,slurmctld.log,slurmd.log} >&2
            stop
            die "cluster $name did not start"
        }
    done
    if [ -n "${LAB_PARENT:-}" ]; then
        # `stop` does not end this process: it ends when all daemons have ended.
        setsid "$0" watch "$dir" "$LAB_PARENT" "$(began "$LAB_PARENT")" </dev/null >/dev/null 2>&1 &
        disown
    fi
}

watch() { # pid when-it-began
    while [ -e "$dir/pids" ]; do
        alive "$1" "$2" || { stop; rm -rf "$dir"; return; }
        sleep 1
    done
}

# Processes of jobs. They have their own sessions; the spool directory identifies them.
of_jobs() {
    local at
    for at in /proc/[0-9]*; do
        if tr '\0' '\n' <"$at/environ" | grep -qsxF "SLURM_CONF=$conf" && tr '\0' '\n' <"$at/environ" | grep -qs '^SLURMD_NODENAME=\|^SLURM_JOB_ID='; then
            echo "${at#/proc/}"
        elif [ "$(cat "$at/comm")" = slurmstepd ] && ls -l "$at/cwd" "$at/fd" "$at/exe" | grep -qsF "$dir/"; then
            echo "${at#/proc/}"
        fi
    done 2>/dev/null
}

stop() {
    [ -e "$dir/pids" ] || return 0
    local name pid when conf
    # First in order: jobs, then daemons in reverse order of their start.
    while read -r name; do
        SLURM_CONF=$dir/$name/slurm.conf timeout 5 scancel --user=root
    done 2>/dev/null <"$dir/clusters"
    while read -r name; do
        until_ok 30 empty "$name"
    done <"$dir/clusters"
    tac "$dir/pids" | while read -r pid when; do
        alive "$pid" "$when" && kill -TERM "$pid" 2>/dev/null
    done
    until_ok 50 all_over || tac "$dir/pids" | while read -r pid when; do
        alive "$pid" "$when" && kill -KILL -- "-$pid" 2>/dev/null
    done
    while read -r name; do
        conf=$dir/$name/slurm.conf
        for pid in $(of_jobs); do
            kill -KILL "$pid" 2>/dev/null
        done
    done <"$dir/clusters"
    rm -f "$dir/pids"
}

empty() { [ -z "$(SLURM_CONF=$dir/$1/slurm.conf timeout 5 squeue --noheader)" ]; }
all_over() {
    local pid when
    while read -r pid when; do
        alive "$pid" "$when" && return 1
    done <"$dir/pids"
    return 0
}

[ $# -ge 2 ] || usage
taken=()
action=$1 dir=$2
shift 2
[ ! -d "$dir" ] || dir=$(cd "$dir" && pwd -P)
case $action in
start) start "$@" ;;
stop) stop ;;
watch) watch "$@" ;;
env)
    [ -e "$dir/${1:?which cluster}/slurm.conf" ] || die "there is no cluster $1 in $dir"
    printf 'export SLURM_CONF=%q\n' "$dir/$1/slurm.conf"
    ;;
*) usage ;;
esac
