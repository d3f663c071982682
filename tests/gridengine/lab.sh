#!/usr/bin/env bash
# A laboratory of one small, real Grid Engine cell on this machine, for tests and experiments.
# Needs root and Debian's gridengine-master, gridengine-exec and gridengine-client (their services
# need not run). The cell runs in namespaces of its own, for its daemons insist on a host name that
# is not 127.0.0.1, and on their directories. So the system's own Grid Engine stays untouched, and
# jobs reach no network. The slots are pretended, so jobs should sleep.
#
#   lab.sh start DIR SLOTS   start a cell with queue "all.q" and parallel environment "smp"
#   lab.sh stop DIR          end all daemons and jobs
#
# DIR/bin has qsub, qstat, qdel and others, which run in the cell, as does `in-cell COMMAND`. With
# LAB_PARENT=PID, the lab stops when that process ends. Exits with 3 and one line if this machine
# lacks a requirement.
set -uo pipefail
export LC_ALL=C

usage() { sed -n '2,14s/^# \{0,1\}//p' "$0" >&2; exit 2; }
lacks() { echo "$*" >&2; exit 3; }
die() { echo "lab.sh: $*" >&2; exit 1; }

# The start time of a process, which together with its number is unique.
began() { sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | cut -d' ' -f20; }
alive() {
    [ -n "$2" ] && [ "$(began "$1")" = "$2" ] && ! grep -qs '^State:.[ZX]' "/proc/$1/status"
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

start() { # slots
    [ "$(id -u)" = 0 ] || lacks "a Grid Engine laboratory needs root"
    [[ ${1-} =~ ^[1-9][0-9]*$ ]] || usage
    local tool
    for tool in sge_qmaster sge_execd qconf qsub unshare nsenter ip hostname su; do
        command -v "$tool" >/dev/null || lacks "a Grid Engine laboratory needs $tool (Debian:" \
            "apt-get install gridengine-master gridengine-exec gridengine-client)"
    done
    unshare --net --uts --mount --pid --fork --mount-proc true 2>/dev/null ||
        lacks "a Grid Engine laboratory needs namespaces, which this machine does not allow"
    [ ! -e "$dir/pid" ] || die "there is a laboratory in $dir: lab.sh stop $dir"
    mkdir -p "$dir/bin" || die "cannot make $dir"
    chmod 755 "$dir"
    dir=$(cd "$dir" && pwd -P)
    setsid unshare --net --uts --mount --pid --fork --mount-proc --kill-child \
        bash "$0" inside "$dir" "$1" </dev/null >"$dir/out" 2>&1 &
    local outer=$! init=
    disown
    echo "$outer $(began "$outer")" >"$dir/pid"
    first_child() {
        init=$(cut -d' ' -f1 "/proc/$outer/task/$outer/children") && [ -n "$init" ]
    }
    until_ok 50 first_child || { stop; die "no namespace: $(tail -n 3 "$dir/out")"; }
    cat >"$dir/bin/in-cell" <<WRAPPER
#!/bin/sh
export SGE_ROOT=/var/lib/gridengine SGE_CELL=default
exec nsenter --target $init --net --uts --mount --pid --wd=/ -- "\$@"
WRAPPER
    chmod 755 "$dir/bin/in-cell"
    for tool in qsub qstat qdel qhost qconf qacct; do
        printf '#!/bin/sh\nexec "${0%%/*}/in-cell" %s "$@"\n' "$tool" >"$dir/bin/$tool"
        chmod 755 "$dir/bin/$tool"
    done
    ready_or_over() { [ -e "$dir/ready" ] || ! alive "$outer" "$(began "$outer")"; }
    until_ok 600 ready_or_over && [ -e "$dir/ready" ] || {
        tail -n 20 "$dir/out" >&2
        stop
        die "the cell did not start"
    }
    if [ -n "${LAB_PARENT:-}" ]; then
        setsid "$0" watch "$dir" "$LAB_PARENT" "$(began "$LAB_PARENT")" </dev/null >/dev/null 2>&1 &
        disown
    fi
}

# Process 1 of the namespaces. All processes of the cell end with it.
inside() { # slots
    local root=/var/lib/gridengine
    hostname sgehost && ip link set lo up && ip addr add 10.9.0.1/32 dev lo || exit 1
    printf '127.0.0.1 localhost\n10.9.0.1 sgehost\n' >"$dir/hosts"
    mkdir -p "$dir/spool/spooldb" "$dir/spool/qmaster/job_scripts" "$dir/spool/execd"
    cp -a "$root" "$dir/root" || exit 1
    chown -R sgeadmin "$dir/root" "$dir/spool"
    mount --bind "$dir/hosts" /etc/hosts && mount --bind "$dir/root" "$root" &&
        mount --bind "$dir/spool" /var/spool/gridengine || exit 1
    export SGE_ROOT=$root SGE_CELL=default
    echo sgehost >"$root/default/common/act_qmaster"
    as_admin() { su sgeadmin -s /bin/bash -c "SGE_ROOT=$root SGE_CELL=default EDITOR=true $*"; }
    as_admin /usr/share/gridengine/scripts/init_cluster "$root" default \
        /var/spool/gridengine/spooldb sgeadmin
    as_admin /usr/sbin/sge_qmaster
    until_ok 100 qconf -sh || exit 1
    as_admin qconf -as sgehost
    as_admin qconf -am root
    # qconf edits by an editor. This one substitutes.
    edit() {
        printf "#!/bin/sh\nsed -i '%s' \"\$1\"\n" "$1" >"$dir/editor"
        chmod 755 "$dir/editor"
        EDITOR=$dir/editor "${@:2}"
    }
    edit 's/^min_uid.*/min_uid 0/; s/^min_gid.*/min_gid 0/' qconf -mconf global
    edit 's/^slots .*/slots 999/; s/^allocation_rule.*/allocation_rule $pe_slots/' qconf -ap smp
    /usr/sbin/sge_execd
    edit "s/^hostlist.*/hostlist sgehost/; s/^slots .*/slots $1/; s/^pe_list.*/pe_list smp/;
        s,^shell .*,shell /bin/sh," qconf -aq all.q
    # Neither load nor the interval of the scheduler is to delay jobs.
    edit 's/^load_thresholds.*/load_thresholds NONE/' qconf -mq all.q
    edit 's/^schedule_interval.*/schedule_interval 0:0:1/;
        s/^flush_submit_sec.*/flush_submit_sec 1/;
        s/^flush_finish_sec.*/flush_finish_sec 1/' qconf -msconf
    takes_jobs() { qstat -f | grep -q '^all.q@sgehost.*lx-[a-z0-9]* *$'; }
    until_ok 300 takes_jobs || { qstat -f; exit 1; }
    touch "$dir/ready"
    sleep infinity &
    wait
}

watch() { # pid when-it-began
    while [ -e "$dir/pid" ]; do
        alive "$1" "$2" || { stop; rm -rf "$dir"; return; }
        sleep 1
    done
}

stop() {
    local outer when
    read -r outer when 2>/dev/null <"$dir/pid" || return 0
    # Process 1 of the namespaces ends with `unshare`, which ignores other signals, and the kernel
    # ends all others.
    alive "$outer" "$when" && kill -KILL "$outer" 2>/dev/null
    over() { ! alive "$outer" "$when"; }
    until_ok 50 over
    rm -f "$dir/pid"
}

[ $# -ge 2 ] || usage
action=$1 dir=$2
shift 2
[ ! -d "$dir" ] || dir=$(cd "$dir" && pwd -P)
case $action in
start) start "$@" ;;
stop) stop ;;
watch) watch "$@" ;;
inside) inside "$@" ;;
*) usage ;;
esac
