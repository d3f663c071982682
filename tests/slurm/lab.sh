#!/usr/bin/env bash
# A laboratory of small, real and independent Slurm clusters on this machine, for tests and experiments.
# Needs root, slurm-wlm and munge (Debian's packages; their services need not run). All files are in
# DIR, all ports on 127.0.0.1, and the system's own Slurm stays untouched. The processors are pretended,
# so jobs should sleep.
#
#   lab.sh start DIR [OPTION...] NAME=[HOSTSx]PROCESSORS...
#                                         start clusters of one partition ("batch"), of one host by
#                                         default: "vu=6" has 6 processors, "vu=3x2" has 3 hosts of 2
#   lab.sh env DIR NAME                   print lines to `eval` before sinfo, sbatch, squeue, scancel
#   lab.sh kill DIR NAME DAEMON           kill a daemon: slurmctld, or slurmd of the first host
#   lab.sh revive DIR NAME DAEMON         start it again
#   lab.sh stop DIR                       end all daemons and jobs
#
# Options of `start`:
#   --threads N      N hardware threads a core: Slurm allocates whole cores
#   --exclusive      a job gets whole hosts (OverSubscribe=EXCLUSIVE)
#   --memory         memory is allocated, and a job without a request gets all memory of its host
#   --qos LIMIT=N    users have this limit, such as MaxSubmitJobsPerUser=3 or MaxTRESPerUser=cpu=3;
#                    needs slurmdbd and mariadb-server
#
# With LAB_PARENT=PID, the lab stops when that process ends. Exits with 3 and one line if this machine
# lacks a requirement.
. "$(dirname "$0")/../lab.sh"

# Starts a daemon in its own session, and records it for `stop`.
daemon() { # log command...
    local log=$1
    shift
    setsid "$@" </dev/null >>"$log" 2>&1 &
    echo "$! $(began $!)" >>"$dir/pids"
    disown
}

configure() { # name hosts processors
    local at=$dir/$1 host control port n
    host=$(hostname -s)
    free_port && control=${taken[-1]}
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
SlurmdSpoolDir=$at/spool/%n
SlurmctldPidFile=$at/slurmctld.pid
SlurmdPidFile=$at/slurmd-%n.pid
SlurmctldLogFile=$at/slurmctld.log
SlurmdLogFile=$at/slurmd.log
# No control groups or MPI, because not every machine has them.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
JobCompType=jobcomp/none
MpiDefault=none
$accounting
# Jobs get single processors, without delay.
SelectType=select/cons_tres
SelectTypeParameters=$select
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0,bf_interval=1
KillWait=2
ReturnToService=2
# The configured size of the machine counts, not its real one.
SlurmdParameters=config_overrides
CONF
    for ((n = 1; n <= $2; n++)); do
        free_port && port=${taken[-1]}
        echo "NodeName=$1$n NodeHostname=$host NodeAddr=127.0.0.1 Port=$port CPUs=$3 Boards=1" \
            "SocketsPerBoard=1 CoresPerSocket=$(($3 / threads)) ThreadsPerCore=$threads" \
            "RealMemory=100000 State=UNKNOWN"
    done >>"$at/slurm.conf"
    echo "PartitionName=batch Nodes=$1[1-$2] Default=YES MaxTime=INFINITE State=UP $partition" \
        >>"$at/slurm.conf"
}

# Starts a database, slurmdbd, and a quality of service with a limit for all users.
account() { # limit
    local database=$dir/database port service
    mkdir -p "$database"
    free_port && port=${taken[-1]}
    free_port && service=${taken[-1]}
    mariadb-install-db --no-defaults --user=root --datadir="$database/data" --skip-test-db \
        --auth-root-authentication-method=normal >"$database/out" 2>&1 ||
        { stop; die "no database: $(tail -n 3 "$database/out")"; }
    daemon "$database/out" mariadbd --no-defaults --user=root --datadir="$database/data" \
        --bind-address=127.0.0.1 --port="$port" --socket="$database/socket" \
        --pid-file="$database/pid" --skip-name-resolve
    local sql=(mariadb --no-defaults --user=root "--socket=$database/socket")
    until_ok 300 "${sql[@]}" -e 'select 1' || { stop; die "the database did not start"; }
    "${sql[@]}" -e "create user slurm@'127.0.0.1' identified by 'laboratory';
        grant all on slurm.* to slurm@'127.0.0.1'"
    cat >"$dir/slurmdbd.conf" <<CONF
AuthType=auth/munge
AuthInfo=socket=$dir/munge/socket
DbdAddr=127.0.0.1
DbdHost=$(hostname -s)
DbdPort=$service
SlurmUser=root
LogFile=$dir/slurmdbd.log
PidFile=$dir/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort=$port
StorageUser=slurm
StoragePass=laboratory
StorageLoc=slurm
CONF
    chmod 600 "$dir/slurmdbd.conf"
    SLURM_CONF=$dir/slurmdbd.conf daemon "$database/out" slurmdbd -D
    accounting="AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort=$service
# Its name for the socket of munge.
AccountingStoragePass=$dir/munge/socket
AccountingStorageEnforce=associations,limits,qos"
    limit=$1
}

# Enters a cluster into the accounts, once its file exists.
enter() ( # name
    manage() { SLURM_CONF=$dir/$1/slurm.conf timeout 10 sacctmgr --immediate "${@:2}"; }
    exec >>"$dir/database/accounts" 2>&1
    until_ok 300 manage "$1" list cluster || exit 1
    manage "$1" add cluster "$1" &&
        manage "$1" modify qos normal set "$limit" &&
        manage "$1" add account lab cluster="$1" Description=lab Organization=lab &&
        manage "$1" add user root cluster="$1" account=lab
)

works() { # name
    local hosts
    hosts=$(SLURM_CONF=$dir/$1/slurm.conf timeout 5 sinfo --noheader --Node --format=%T) &&
        [ "$(sort -u <<<"$hosts")" = idle ]
}

# Starts a daemon of a cluster: slurmctld, or the slurmd of a host.
run() { # name daemon host options...
    local conf=$dir/$1/slurm.conf
    case $2 in
    slurmctld) daemon "$dir/$1/out" slurmctld -D -f "$conf" "${@:4}" ;;
    slurmd) daemon "$dir/$1/out" slurmd -D -N "$1$3" -f "$conf" ;;
    *) usage ;;
    esac
}

start() {
    local pair name size hosts n
    # The variables that `configure` uses.
    local threads=1 select=CR_Core partition="" limit="" accounting="AccountingStorageType=accounting_storage/none"
    [ "$(id -u)" = 0 ] || lacks "a Slurm laboratory needs root"
    for tool in munged slurmctld slurmd sbatch setsid; do
        command -v "$tool" >/dev/null || lacks "a Slurm laboratory needs $tool (Debian: apt-get install slurm-wlm munge)"
    done
    while [ $# -gt 0 ]; do
        case $1 in
        --threads) threads=${2:?} && shift ;;
        --exclusive) partition=OverSubscribe=EXCLUSIVE ;;
        --memory) select=CR_Core_Memory ;;
        --qos) limit=${2:?} && shift ;;
        *) break ;;
        esac
        shift
    done
    [ $# -gt 0 ] || usage
    for pair; do
        [[ $pair =~ ^[a-z][a-z0-9-]*=([1-9][0-9]*x)?[1-9][0-9]*$ ]] || usage
    done
    [ -z "$limit" ] || for tool in slurmdbd mariadbd mariadb-install-db; do
        command -v "$tool" >/dev/null || lacks "limits of users need $tool (Debian: apt-get install slurmdbd mariadb-server)"
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
    [ -z "$limit" ] || account "$limit"
    for pair; do
        name=${pair%%=*} size=${pair#*=} hosts=1
        [[ $size != *x* ]] || { hosts=${size%x*} && size=${size#*x}; }
        configure "$name" "$hosts" "$size"
        [ -z "$limit" ] || enter "$name" || { stop; die "no accounts for $name: $(tail -n 3 "$dir/database/accounts")"; }
        run "$name" slurmctld "" -c
        for ((n = 1; n <= hosts; n++)); do
            run "$name" slurmd "$n"
        done
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
    follow_parent "$dir/pids"
}

# Ends a daemon as a failure does. Its jobs continue.
kill_daemon() { # name daemon
    local pid file=$dir/$1/slurmctld.pid
    [ "$2" = slurmctld ] || file=$dir/$1/slurmd-${1}1.pid
    pid=$(cat "$file") && kill -KILL "$pid" || die "$2 of $1 does not run"
    until_ok 50 eval "! kill -0 $pid" || die "$2 of $1 does not end"
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
action=$1 dir=$2
shift 2
[ ! -d "$dir" ] || dir=$(cd "$dir" && pwd -P)
case $action in
start) start "$@" ;;
stop) stop ;;
watch) watch "$@" ;;
env | kill | revive)
    [ -e "$dir/${1:?which cluster}/slurm.conf" ] || die "there is no cluster $1 in $dir"
    case $action in
    env) printf 'export SLURM_CONF=%q\n' "$dir/$1/slurm.conf" ;;
    kill) kill_daemon "$1" "${2:?which daemon}" ;;
    revive) run "$1" "${2:?which daemon}" 1 ;;
    esac
    ;;
*) usage ;;
esac
