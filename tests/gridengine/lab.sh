#!/usr/bin/env bash
# A laboratory of one small, real Grid Engine cell on this machine, for tests and experiments.
# Needs root and Debian's gridengine-master, gridengine-exec and gridengine-client (their services
# need not run). The cell runs in namespaces of its own, for its daemons insist on a host name that
# is not 127.0.0.1, and on their directories. So the system's own Grid Engine stays untouched, and
# jobs reach no network. The slots are pretended, so jobs should sleep.
#
#   lab.sh start DIR SLOTS   start a cell with queue "all.q" and parallel environment "smp"
#   lab.sh kill DIR DAEMON   kill a daemon: sge_qmaster or sge_execd
#   lab.sh revive DIR DAEMON start it again
#   lab.sh stop DIR          end all daemons and jobs
#
# DIR/bin has qsub, qstat, qdel and others, which run in the cell, as does `in-cell COMMAND`. With
# LAB_PARENT=PID, the lab stops when that process ends. Exits with 3 and one line if this machine
# lacks a requirement.
. "$(dirname "$0")/../lab.sh"

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
    follow_parent "$dir/pid"
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

# Ends a daemon as a failure does. Its jobs continue.
kill_daemon() { # daemon
    local pid file=spool/qmaster/qmaster.pid
    [ "${1-}" = sge_qmaster ] || file=spool/execd/sgehost/execd.pid
    pid=$(cat "$dir/$file") && "$dir/bin/in-cell" kill -KILL "$pid" || die "${1-} does not run"
    until_ok 50 eval "! '$dir/bin/in-cell' kill -0 $pid" || die "$1 does not end"
}

revive() { # daemon
    case ${1-} in
    sge_qmaster) "$dir/bin/in-cell" su sgeadmin -s /bin/bash -c \
        "SGE_ROOT=/var/lib/gridengine SGE_CELL=default /usr/sbin/sge_qmaster" ;;
    sge_execd) "$dir/bin/in-cell" /usr/sbin/sge_execd ;;
    *) usage ;;
    esac
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
kill) kill_daemon "$@" ;;
revive) revive "$@" ;;
stop) stop ;;
watch) watch "$@" ;;
inside) inside "$@" ;;
*) usage ;;
esac
