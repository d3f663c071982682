//! System calls: namespaces, TUN devices, addresses, precise waiting, priorities and shared memory.
//!
//! This is the only module of the crate with `unsafe`: each block is a system call on values that
//! live through it. It does not depend on its callers.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString};
use std::fs::{File, OpenOptions};
use std::io;
use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use libc::c_int;

/// A kind of namespace that a thread or process can have of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Namespace {
    /// Network interfaces, addresses and routes.
    Net,
    /// Users: inside the namespace an unprivileged user is root.
    User,
    /// Mounted file systems.
    Mount,
}

impl Namespace {
    fn flag(self) -> c_int {
        match self {
            Self::Net => libc::CLONE_NEWNET,
            Self::User => libc::CLONE_NEWUSER,
            Self::Mount => libc::CLONE_NEWNS,
        }
    }
}

fn done(result: c_int) -> io::Result<()> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Gives the calling thread a new namespace. [`Namespace::User`] applies to the process, which must
/// have no other thread.
///
/// # Errors
/// The system does not allow it.
pub fn unshare(space: Namespace) -> io::Result<()> {
    // SAFETY: takes a number, and touches no memory.
    done(unsafe { libc::unshare(space.flag()) })
}

/// Moves the calling thread (for [`Namespace::User`] the process) into a namespace.
///
/// # Errors
/// The system does not allow it.
pub fn enter(file: BorrowedFd<'_>, space: Namespace) -> io::Result<()> {
    // SAFETY: takes two numbers; the file is open while it is borrowed.
    done(unsafe { libc::setns(file.as_raw_fd(), space.flag()) })
}

/// Opens the network namespace of the calling thread, for others to enter.
///
/// # Errors
/// `/proc` is not mounted.
pub fn own_net() -> io::Result<OwnedFd> {
    File::open("/proc/thread-self/ns/net").map(OwnedFd::from)
}

/// The effective user and group numbers of the process.
pub fn ids() -> (u32, u32) {
    // SAFETY: these take nothing, touch no memory and do not fail.
    unsafe { (libc::geteuid(), libc::getegid()) }
}

/// Makes this process root in a user namespace of its own, if it is not root. Returns whether that
/// was necessary.
///
/// The process must have no other thread.
///
/// # Errors
/// The system does not allow it.
/// Linux does not allow it.
pub fn become_root() -> io::Result<bool> {
    let (user, group) = ids();
    if user == 0 {
        return Ok(false);
    }
    unshare(Namespace::User)?;
    // The first entry keeps the process from dropping groups that deny access.
    for (file, map) in [
        ("setgroups", "deny".to_owned()),
        ("uid_map", format!("0 {user} 1")),
        ("gid_map", format!("0 {group} 1")),
    ] {
        std::fs::write(format!("/proc/self/{file}"), map)?;
    }
    Ok(true)
}

/// A request about an interface; `name` has 1 to 15 bytes.
fn request(name: &str) -> io::Result<libc::ifreq> {
    // SAFETY: plain numbers, arrays and pointers, for which zero is a value.
    let mut request: libc::ifreq = unsafe { MaybeUninit::zeroed().assume_init() };
    if name.is_empty() || name.len() >= request.ifr_name.len() {
        let reason = format!("an interface's name has 1 to 15 bytes, found {name:?}");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    Ok(request)
}

fn ask(file: RawFd, what: libc::Ioctl, request: &mut libc::ifreq) -> io::Result<()> {
    // SAFETY: each `what` of this module accesses one `ifreq`, which lives through the call.
    done(unsafe { libc::ioctl(file, what, request as *mut libc::ifreq) })
}

/// Creates a TUN device of this name in the calling thread's network namespace.
///
/// Writes to the file become IP packets from the interface, and packets to the interface can be
/// read without blocking.
///
/// # Errors
/// There is no `/dev/net/tun`, or the system does not allow it.
/// No /dev/net/tun, or not allowed.
pub fn open_tun(name: &str) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let file =
        options.read(true).write(true).custom_flags(libc::O_NONBLOCK).open("/dev/net/tun")?;
    let mut request = request(name)?;
    // Both fit 16 bits.
    request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as libc::c_short;
    ask(file.as_raw_fd(), libc::TUNSETIFF, &mut request)?;
    Ok(file)
}

/// Configures interfaces of the network namespace in which it was created.
pub struct Interfaces(UdpSocket);

fn socket_address(address: Ipv4Addr) -> libc::sockaddr {
    let mut data = [0; 14];
    // The address follows two bytes of port.
    for (to, from) in data[2..6].iter_mut().zip(address.octets()) {
        *to = from as libc::c_char;
    }
    libc::sockaddr { sa_family: libc::AF_INET as libc::sa_family_t, sa_data: data }
}

impl Interfaces {
    /// Opens the interfaces of the calling thread's network namespace.
    ///
    /// # Errors
    /// The system gives no socket.
    pub fn here() -> io::Result<Self> {
        // Any socket suffices for these requests.
        UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).map(Self)
    }

    /// Sets the address of an interface (or of an alias such as `lo:1`), and a route to its network
    /// with a prefix of `bits`.
    ///
    /// # Errors
    /// There is no such interface, or the system does not allow it.
    pub fn set_address(&self, name: &str, address: Ipv4Addr, bits: u32) -> io::Result<()> {
        let mut one = request(name)?;
        one.ifr_ifru.ifru_addr = socket_address(address);
        ask(self.0.as_raw_fd(), libc::SIOCSIFADDR as libc::Ioctl, &mut one)?;
        let mask = u32::MAX.checked_shl(32 - bits.min(32)).unwrap_or(0);
        let mut other = request(name)?;
        other.ifr_ifru.ifru_netmask = socket_address(Ipv4Addr::from(mask));
        ask(self.0.as_raw_fd(), libc::SIOCSIFNETMASK as libc::Ioctl, &mut other)
    }

    /// Sets an interface up, so that it carries packets.
    ///
    /// # Errors
    /// As of [`set_address`](Self::set_address).
    pub fn set_up(&self, name: &str) -> io::Result<()> {
        let mut request = request(name)?;
        ask(self.0.as_raw_fd(), libc::SIOCGIFFLAGS as libc::Ioctl, &mut request)?;
        // SAFETY: SIOCGIFFLAGS has written this member of the union.
        let flags = unsafe { request.ifr_ifru.ifru_flags };
        request.ifr_ifru.ifru_flags = flags | libc::IFF_UP as libc::c_short;
        ask(self.0.as_raw_fd(), libc::SIOCSIFFLAGS as libc::Ioctl, &mut request)
    }

    /// Sets the number of packets that may wait to be read from a TUN device.
    ///
    /// # Errors
    /// As of [`set_address`](Self::set_address).
    pub fn set_queue(&self, name: &str, packets: u16) -> io::Result<()> {
        let mut request = request(name)?;
        request.ifr_ifru.ifru_metric = c_int::from(packets);
        ask(self.0.as_raw_fd(), libc::SIOCSIFTXQLEN as libc::Ioctl, &mut request)
    }
}

/// Waits for readable files, with a resolution of microseconds.
pub struct Poll {
    epoll: OwnedFd,
    events: Vec<libc::epoll_event>,
}

impl Poll {
    /// Creates a poll for this number of files.
    ///
    /// # Errors
    /// The system gives none.
    pub fn new(files: usize) -> io::Result<Self> {
        // SAFETY: takes a number.
        let epoll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        done(epoll)?;
        // SAFETY: the file was just opened, and nothing else owns it.
        let epoll = unsafe { OwnedFd::from_raw_fd(epoll) };
        Ok(Self { epoll, events: vec![libc::epoll_event { events: 0, u64: 0 }; files.max(1)] })
    }

    /// Reports this file under this number whenever it is readable, as long as it is open.
    ///
    /// # Errors
    /// The file does not support polling.
    pub fn add(&self, file: BorrowedFd<'_>, number: u64) -> io::Result<()> {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: number };
        let (epoll, file) = (self.epoll.as_raw_fd(), file.as_raw_fd());
        // SAFETY: both are open; the event is read during the call.
        done(unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, file, &raw mut event) })
    }

    /// Stops the reports of this file.
    pub fn remove(&self, file: BorrowedFd<'_>) {
        let (epoll, file) = (self.epoll.as_raw_fd(), file.as_raw_fd());
        // SAFETY: both are open; this operation reads no event. It fails for an unknown file, which
        // is harmless.
        let _ = unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_DEL, file, std::ptr::null_mut()) };
    }

    /// Waits until files are readable or the time is over, and returns the numbers of readable
    /// files.
    ///
    /// # Errors
    /// The kernel is older than 5.11.
    pub fn wait(&mut self, within: Duration) -> io::Result<impl Iterator<Item = u64>> {
        let time = libc::timespec {
            tv_sec: libc::time_t::try_from(within.as_secs()).unwrap_or(libc::time_t::MAX),
            // Below a billion.
            tv_nsec: within.subsec_nanos() as libc::c_long,
        };
        let most = c_int::try_from(self.events.len()).unwrap_or(c_int::MAX);
        let events = self.events.as_mut_ptr();
        // SAFETY: there is room for `most` events, and the time lives through the call; there is no
        // mask of signals.
        let ready = unsafe {
            libc::epoll_pwait2(
                self.epoll.as_raw_fd(),
                events,
                most,
                &raw const time,
                std::ptr::null(),
            )
        };
        let ready = match ready {
            -1 => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => 0,
                error => return Err(error),
            },
            // Not negative.
            ready => ready as usize,
        };
        Ok(self.events[..ready].iter().map(|event| event.u64))
    }
}

/// Reduces the timer slack of the calling thread from 50 us to a nanosecond.
///
/// # Errors
/// No error is known.
pub fn wake_precisely() -> io::Result<()> {
    // SAFETY: takes numbers.
    done(unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1, 0, 0, 0) })
}

/// Nanoseconds since the start of this machine (`CLOCK_MONOTONIC`): one clock for all processes,
/// which cannot be set.
pub fn now_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the time is written during the call. It cannot fail: the clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    // Neither is negative.
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The first words of a file, in memory that all processes share that map it.
pub struct SharedWords {
    start: NonNull<AtomicU64>,
    len: usize,
}

// SAFETY: the memory belongs to no thread, and all reads and writes are atomic operations.
unsafe impl Send for SharedWords {}
// SAFETY: as above: shared references give atomics, which are made to be shared.
unsafe impl Sync for SharedWords {}

impl SharedWords {
    /// Maps this number of words. If the file is shortened later, readers of the lost part are
    /// killed by a signal.
    ///
    /// # Errors
    /// The file is shorter, may not be read and written, or the system has no room.
    pub fn map(file: &File, len: usize) -> io::Result<Self> {
        let bytes = len.checked_mul(size_of::<AtomicU64>()).filter(|bytes| *bytes > 0);
        let bytes = bytes.ok_or(io::ErrorKind::InvalidInput)?;
        if file.metadata()?.len() < bytes as u64 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        // SAFETY: Linux chooses an unused place; the file is open during the call, and need not be
        // after it.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        match NonNull::new(start.cast()) {
            Some(start) => Ok(Self { start, len }),
            None => Err(io::ErrorKind::AddrNotAvailable.into()),
        }
    }
}

impl std::ops::Deref for SharedWords {
    type Target = [AtomicU64];

    fn deref(&self) -> &[AtomicU64] {
        // SAFETY: this number of words was mapped there, page-aligned, readable and writable, until
        // this value is dropped. All bit patterns are valid, and this program accesses them by
        // atomic operations alone.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl Drop for SharedWords {
    fn drop(&mut self) {
        // SAFETY: the memory was mapped there with this length, and no reference into it is left,
        // for all borrow this value.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len * size_of::<AtomicU64>()) };
    }
}

/// Gives the calling thread real-time priority (`SCHED_FIFO`).
///
/// # Errors
/// The system does not allow it: not root, or in a control group without a share of real time.
pub fn set_realtime_priority(priority: i32) -> io::Result<()> {
    let priority = libc::sched_param { sched_priority: priority };
    // SAFETY: 0 is the calling thread; the parameter is read during the call.
    done(unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const priority) })
}

/// The processors that the calling thread may run on.
///
/// # Errors
/// The system does not report them.
pub fn processors() -> io::Result<Vec<usize>> {
    // SAFETY: plain numbers, for which zero is a value.
    let mut set: libc::cpu_set_t = unsafe { MaybeUninit::zeroed().assume_init() };
    // SAFETY: 0 is the calling thread; the set is written to a value of this frame, of this size.
    done(unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set) })?;
    let most = 8 * size_of::<libc::cpu_set_t>();
    // SAFETY: the set is a value of this frame, and has this number of places.
    Ok((0..most).filter(|&cpu| unsafe { libc::CPU_ISSET(cpu, &set) }).collect())
}

/// Pins the calling thread to a processor, with the lowest priority (`SCHED_IDLE`).
///
/// # Errors
/// There is no such processor.
pub fn set_idle_priority(cpu: usize) -> io::Result<()> {
    if cpu >= 8 * size_of::<libc::cpu_set_t>() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: plain numbers, for which zero is a value.
    let mut set: libc::cpu_set_t = unsafe { MaybeUninit::zeroed().assume_init() };
    // SAFETY: the set is a value of this frame and has this place.
    unsafe { libc::CPU_SET(cpu, &mut set) };
    // SAFETY: 0 is the calling thread; the set is read during the call, and has this size.
    done(unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set) })?;
    let none = libc::sched_param { sched_priority: 0 };
    // SAFETY: 0 is the calling thread; the parameter is read during the call.
    done(unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const none) })
}

/// Shows the calling process another file as `/etc/hosts`, in a mount namespace of its own.
///
/// # Errors
/// The system does not allow it, or there is no such file.
fn replace_hosts(file: &CStr) -> io::Result<()> {
    unshare(Namespace::Mount)?;
    let none = std::ptr::null();
    // What the machine mounts later still appears here, and nothing of this appears there.
    let flags = libc::MS_REC | libc::MS_SLAVE;
    // SAFETY: the paths are C strings that live through the call; the other pointers may be null.
    done(unsafe { libc::mount(none, c"/".as_ptr(), none, flags, none.cast()) })?;
    let (hosts, bind) = (c"/etc/hosts".as_ptr(), libc::MS_BIND);
    // SAFETY: as above.
    done(unsafe { libc::mount(file.as_ptr(), hosts, none, bind, none.cast()) })
}

/// Whether the process ignores a signal, as `nohup` makes it ignore `SIGHUP`.
pub fn is_ignored(signal: c_int) -> bool {
    // SAFETY: plain numbers and pointers, for which zero is a value.
    let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    // SAFETY: no new action is given; the old one is written to a value of this frame.
    let result = unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut action) };
    result == 0 && action.sa_sigaction == libc::SIG_IGN
}

/// Runs a command in these namespaces; it dies with the thread that starts it. `hosts` is a file
/// that the command sees as `/etc/hosts`, where the system allows that.
pub fn run_in_namespaces(
    command: &mut Command,
    spaces: Vec<(OwnedFd, Namespace)>,
    hosts: Option<CString>,
) {
    let parent = std::process::id();
    let before = move || {
        for (file, space) in &spaces {
            enter(file.as_fd(), *space)?;
        }
        if let Some(hosts) = &hosts {
            // Without the names, programs can still use addresses.
            let _ = replace_hosts(hosts);
        }
        die_with_parent()?;
        // The parent may have ended before the request; then the program would outlive its command.
        // SAFETY: takes nothing.
        let now = unsafe { libc::getppid() };
        if u32::try_from(now) == Ok(parent) {
            Ok(())
        } else {
            Err(io::Error::from_raw_os_error(libc::ESRCH))
        }
    };
    // SAFETY: after a fork there is one thread; `before` makes only system calls, and allocates
    // nothing.
    unsafe { command.pre_exec(before) };
}

/// Kills the calling process when its parent ends.
///
/// # Errors
/// No error is known.
pub fn die_with_parent() -> io::Result<()> {
    // SAFETY: takes numbers.
    done(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0) })
}

/// Moves the calling process to a new session, so that the end of the terminal does not end it.
///
/// # Errors
/// It leads a session already.
pub fn leave_session() -> io::Result<()> {
    // SAFETY: takes nothing.
    done(unsafe { libc::setsid() })
}

/// The inode number of a namespace, which identifies it.
///
/// # Errors
/// The file is no longer open.
pub fn inode_of(space: &OwnedFd) -> io::Result<u64> {
    use std::os::unix::fs::MetadataExt;
    Ok(File::from(space.try_clone()?).metadata()?.ino())
}

/// Stops a process until it is killed or continued. A process that has ended is ignored.
pub fn stop(pid: i32) {
    // SAFETY: takes two numbers.
    unsafe { libc::kill(pid, libc::SIGSTOP) };
}

/// Terminates or kills a process. A process that has ended is ignored.
pub fn end(pid: i32, kill: bool) {
    let signal = if kill { libc::SIGKILL } else { libc::SIGTERM };
    // SAFETY: takes two numbers.
    unsafe { libc::kill(pid, signal) };
}
