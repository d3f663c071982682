//! The dashboard: a page that shows a running grid and its decisions, and the same numbers for
//! programs.
//!
//! ```text
//! head's thread       gather: polls scheduler, coordinators, sub-coordinators  --GridSnapshot-->
//! dashboard's thread  model: state of the grid; serve: HTTP, ticks, events    --bytes-->
//!                     browsers, `top`, Prometheus
//! ```
//!
//! It must never slow the grid. It polls only while clients watch, and else every few seconds for
//! the history. A tick is made once for all clients, slow clients skip ticks, and the HTTP server
//! has a thread of its own. The dashboard is read-only: instead of actions it shows commands.

// Tests may write files directly.
#![cfg_attr(test, allow(clippy::disallowed_methods))]

pub mod changes;
mod compared;
mod connections;
#[cfg(all(test, target_os = "linux"))]
mod cost;
mod course;
mod figures;
mod gather;
mod guard;
mod metrics;
mod model;
mod page;
mod replay;
pub mod report;
mod reserved;
pub mod runlog;
mod serve;
pub mod top;
pub mod trace;
pub mod why;

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use springtide_actors::head::Head;
use springtide_cli::exit::{Failed, cannot};
use springtide_cli::outdir::write_file;
use springtide_runtime::config::DashboardSection;
use springtide_runtime::event::Record;
use springtide_runtime::private;
use tokio::sync::mpsc;

use self::guard::Guard;
use self::serve::DashboardState;

/// Maximum number of queued records; more are dropped and counted.
const RECORDS_MAX: usize = 4096;

/// A running dashboard. Dropping it ends it.
pub struct Dashboard {
    file: PathBuf,
    url: String,
    shared: Arc<DashboardState>,
    records: mpsc::Sender<Record>,
    server: Option<(actix_web::dev::ServerHandle, std::thread::JoinHandle<()>)>,
    gathering: actix_rt::task::JoinHandle<()>,
}

/// A dashboard that can be started: its address is bound, and its access is restricted.
pub struct PreparedDashboard {
    listener: TcpListener,
    shared: Arc<DashboardState>,
    url: String,
}

impl PreparedDashboard {
    /// Prepares the dashboard of a grid's config, if it has one. To be called before anything
    /// starts that a failure would have to end.
    ///
    /// # Errors
    /// Its address is in use, its token cannot be read, or everybody could read it.
    pub fn of(grid: &str, config: &DashboardSection) -> Result<Option<Self>, Failed> {
        if !config.on {
            return Ok(None);
        }
        let token = config.token_file.as_deref().map(read_token).transpose()?;
        let name = config.name.as_deref();
        let guard = |at| Guard::new(at, token.as_deref(), name).map_err(Failed::usage);
        // Before binding, because the port has no influence on access.
        guard(config.bind)?;
        let listener = listen(config.bind)?;
        // With the port that was bound.
        let at = listener.local_addr().map_err(Failed::failure)?;
        let guard = guard(at)?;
        let host = match (name, at.ip().is_unspecified()) {
            (Some(name), _) => format!("{name}:{}", at.port()),
            (None, true) => format!("localhost:{}", at.port()),
            (None, false) => at.to_string(),
        };
        let shared = Arc::new(DashboardState::new(grid, guard));
        Ok(Some(Self { listener, shared, url: format!("http://{host}/") }))
    }

    /// Starts the dashboard and writes its address into the grid's directory. It polls the head's
    /// actors from this arbiter.
    ///
    /// # Errors
    /// No thread can be created, or the directory is not writable.
    pub fn start(self, head: &Head, dir: &Path) -> Result<Dashboard, Failed> {
        let Self { listener, shared, url } = self;
        let url_file = UrlFile { schema: 1, url: url.clone() };
        let text = serde_json::to_string(&url_file).map_err(Failed::failure)?;
        let (sender, receiver) = mpsc::channel(1);
        let server = serve::start(listener, shared.clone(), receiver).map_err(Failed::failure)?;
        let (records, queued_records) = mpsc::channel(RECORDS_MAX);
        let (scheduler, hub) = (head.scheduler.clone(), head.endpoint.hub.clone());
        let looking = gather::gather(hub, scheduler, shared.clone(), queued_records, sender);
        let dashboard = Dashboard {
            file: UrlFile::path(dir),
            url,
            shared,
            records,
            server: Some(server),
            gathering: actix_rt::spawn(looking),
        };
        write_file(&dashboard.file, text.as_bytes())?;
        Ok(dashboard)
    }
}

impl Dashboard {
    /// The URL of the dashboard.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Adds records of the head.
    pub fn records(&self, records: &[Record]) {
        let dropped_records =
            records.iter().filter(|record| self.records.try_send((*record).clone()).is_err());
        self.shared.dropped_records(dropped_records.count() as u64);
    }
}

impl Drop for Dashboard {
    fn drop(&mut self) {
        self.gathering.abort();
        // The file says that a dashboard runs; the next start replaces it.
        let _ = fs::remove_file(&self.file);
        let Some((server, thread)) = self.server.take() else { return };
        // Streams never end by themselves, so that they are not awaited.
        drop(server.stop(false));
        self.shared.close();
        let _ = thread.join();
    }
}

/// Another grid may use the default port: then any port is taken, if the address is this host's
/// own.
fn listen(bind: SocketAddr) -> Result<TcpListener, Failed> {
    let bound = TcpListener::bind(bind).or_else(|error| match error.kind() {
        io::ErrorKind::AddrInUse if bind.ip().is_loopback() => {
            TcpListener::bind(SocketAddr::new(bind.ip(), 0))
        }
        _ => Err(error),
    });
    bound.map_err(|error| {
        Failed::failure(format!(
            "the dashboard cannot listen on {bind}: {error}; set dashboard.bind, or dashboard.on = \
            false"
        ))
    })
}

/// The address of a running grid's dashboard: `dashboard.json` in the grid's directory.
#[derive(Debug, Serialize, Deserialize)]
pub struct UrlFile {
    schema: u32,
    url: String,
}

impl UrlFile {
    fn path(dir: &Path) -> PathBuf {
        dir.join("dashboard.json")
    }

    /// Reads the address of a dashboard.
    ///
    /// # Errors
    /// No grid is up, or it has no dashboard.
    pub fn read(dir: &Path) -> Result<String, Failed> {
        let file = Self::path(dir);
        let nothing = |why: String| {
            let shown = file.display();
            Failed::failure(format!(
                "{shown}: {why}: no grid is up there, or its dashboard is off (dashboard.on)"
            ))
        };
        let text = fs::read_to_string(&file).map_err(|error| nothing(error.to_string()))?;
        let found: Self =
            serde_json::from_str(&text).map_err(|error| nothing(error.to_string()))?;
        Ok(found.url)
    }
}

/// Reads the token from a file that only its owner can read.
///
/// # Errors
/// It cannot be read, or others can read it.
pub fn read_token(file: &Path) -> Result<String, Failed> {
    let text = fs::read_to_string(file).map_err(|error| cannot("read", file, &error))?;
    private::check_file(file).map_err(Failed::usage)?;
    Ok(text.trim().to_owned())
}

/// A reason with a full stop at its end.
fn sentence(text: &str) -> String {
    if text.ends_with(['.', '!', '?', ':']) { text.to_owned() } else { format!("{text}.") }
}
