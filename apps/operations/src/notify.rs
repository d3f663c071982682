//! Notifications to the service manager (sd_notify, systemd's protocol): the process is ready, its
//! status, its end, and that it is alive.
//!
//! Sends datagrams to the socket that the environment names, if any. This module does not know the
//! process's purpose.

use std::os::unix::net::UnixDatagram;
use std::rc::Rc;
use std::time::Duration;

use tokio::time::interval;

/// Notifies the service manager, if there is one. Cheap to clone.
#[derive(Clone, Default)]
pub struct Notifier(Option<Rc<NotifierState>>);

struct NotifierState {
    socket: UnixDatagram,
    /// The maximum interval between keep-alive messages.
    watchdog: Option<Duration>,
}

impl Notifier {
    /// The service manager that this process's environment names.
    pub fn of_env() -> Self {
        let var = |name: &str| std::env::var(name).ok();
        Self::of(var("NOTIFY_SOCKET"), var("WATCHDOG_USEC"), var("WATCHDOG_PID"))
    }

    fn of(path: Option<String>, watchdog: Option<String>, owner: Option<String>) -> Self {
        let Some(socket) = path.and_then(|path| connect(&path)) else { return Self::default() };
        // The variable may have been set for the parent process.
        let ours = owner.is_none_or(|pid| pid.parse() == Ok(std::process::id()));
        let watchdog = watchdog.filter(|_| ours).and_then(|us| us.parse().ok());
        let watchdog = watchdog.filter(|us| *us > 0).map(Duration::from_micros);
        Self(Some(Rc::new(NotifierState { socket, watchdog })))
    }

    /// Reports that the process is ready.
    pub fn ready(&self, status: &str) {
        self.send(&format!("READY=1\nSTATUS={}", line(status)));
    }

    /// Reports the status in one line for people.
    pub fn status(&self, status: &str) {
        self.send(&format!("STATUS={}", line(status)));
    }

    /// Reports that the process ends.
    pub fn stopping(&self) {
        self.send("STOPPING=1");
    }

    /// Sends keep-alive messages twice in each interval of the manager, from a task of this
    /// arbiter. A blocked arbiter sends none.
    pub fn keep_alive(&self) {
        let Some(every) = self.0.as_ref().and_then(|inner| inner.watchdog) else { return };
        let notifier = self.clone();
        actix_rt::spawn(async move {
            let mut ticks = interval(every / 2);
            ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                notifier.send("WATCHDOG=1");
            }
        });
    }

    fn send(&self, what: &str) {
        let Some(inner) = &self.0 else { return };
        // A manager that does not read must not stop the process.
        if let Err(error) = inner.socket.send(what.as_bytes()) {
            tracing::debug!("the service manager was not notified: {error}");
        }
    }
}

/// The first line, because a second one would be another message.
fn line(text: &str) -> String {
    text.replace(['\n', '\r'], " ")
}

fn connect(path: &str) -> Option<UnixDatagram> {
    let socket = UnixDatagram::unbound().ok()?;
    socket.set_nonblocking(true).ok()?;
    let connected = match path.strip_prefix('@') {
        #[cfg(target_os = "linux")]
        Some(name) => {
            use std::os::linux::net::SocketAddrExt as _;
            std::os::unix::net::SocketAddr::from_abstract_name(name)
                .and_then(|address| socket.connect_addr(&address))
        }
        #[cfg(not(target_os = "linux"))]
        Some(_) => return None,
        None => socket.connect(path),
    };
    match connected {
        Ok(()) => Some(socket),
        Err(error) => {
            tracing::warn!("the service manager's socket {path} cannot be used: {error}");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Manager(UnixDatagram, tempfile::TempDir);

    impl Manager {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let socket = UnixDatagram::bind(dir.path().join("notify")).unwrap();
            socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
            Self(socket, dir)
        }

        fn path(&self) -> Option<String> {
            self.1.path().join("notify").to_str().map(str::to_owned)
        }

        fn receive(&self) -> String {
            let mut bytes = [0; 512];
            let len = self.0.recv(&mut bytes).unwrap();
            String::from_utf8(bytes[..len].to_vec()).unwrap()
        }
    }

    #[actix_rt::test]
    async fn a_manager_receives_each_notification() {
        let manager = Manager::new();
        let notifier = Notifier::of(manager.path(), None, None);
        notifier.ready("3 nodes");
        notifier.status("a\nREADY=1");
        notifier.stopping();
        assert_eq!(manager.receive(), "READY=1\nSTATUS=3 nodes");
        assert_eq!(manager.receive(), "STATUS=a READY=1");
        assert_eq!(manager.receive(), "STOPPING=1");
        notifier.keep_alive(); // the manager has no watchdog
        tokio::time::sleep(Duration::from_millis(50)).await;
        notifier.stopping();
        assert_eq!(manager.receive(), "STOPPING=1");
    }

    #[actix_rt::test]
    async fn keep_alive_stops_when_the_arbiter_is_blocked() {
        let manager = Manager::new();
        let us = |ms: u64| Some((1000 * ms).to_string());
        let other = Notifier::of(manager.path(), us(20), Some("1".to_owned()));
        other.keep_alive();
        let own = Some(std::process::id().to_string());
        let notifier = Notifier::of(manager.path(), us(200), own);
        notifier.keep_alive();
        for _ in 0..3 {
            tokio::time::sleep(Duration::from_millis(110)).await;
            assert_eq!(manager.receive(), "WATCHDOG=1");
        }
        // Reads all messages so far; then the arbiter is blocked.
        manager.0.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
        let mut bytes = [0; 64];
        let mut still = 0;
        while manager.0.recv(&mut bytes).is_ok() {
            still += 1;
        }
        assert!(still <= 1, "{still}");
    }

    #[test]
    fn without_a_manager_nothing_is_sent() {
        assert!(Notifier::of(None, None, None).0.is_none());
        assert!(Notifier::of(Some("/nowhere/at/all".to_owned()), None, None).0.is_none());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn abstract_sockets_are_known() {
        use std::os::linux::net::SocketAddrExt as _;
        let name = format!("springtide-test-{}", std::process::id());
        let address = std::os::unix::net::SocketAddr::from_abstract_name(&name).unwrap();
        let socket = UnixDatagram::bind_addr(&address).unwrap();
        Notifier::of(Some(format!("@{name}")), None, None).stopping();
        let mut bytes = [0; 64];
        assert_eq!(socket.recv(&mut bytes).unwrap(), 10);
    }
}
