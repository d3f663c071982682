//! The dashboard: a page on which one sees what a grid does and why, while it does it, and the same numbers for programs.
//!
//! ```text
//! head's thread       gather: asks scheduler, coordinators, cluster coordinators        --Seen-->
//! dashboard's thread  model: one state of the grid; serve: HTTP, ticks and events       --bytes--> browsers, top, Prometheus
//! ```
//!
//! It must never slow the grid: it asks only while somebody watches (else every few seconds, for the history), a tick is made once for
//! all who look, who reads slowly skips ticks, and its HTTP server has a thread of its own. It is read-only: where something can be
//! done, it shows the command.

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
mod report;
mod reserved;
mod serve;

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use springtide_actors::head::Head;
use springtide_runtime::config::DashboardSection;
use springtide_runtime::event::Record;
use springtide_runtime::private;
use tokio::sync::mpsc;

pub use self::report::{leave, report};

use self::guard::Guard;
use self::serve::Board;
use crate::exit::Failed;
use crate::outdir::write_file;

/// Records that wait for the dashboard at most; beyond that it misses some, and says so.
const RECORDS_MAX: usize = 4096;

/// A dashboard that runs. Dropped, it ends.
pub struct Dashboard {
    file: PathBuf,
    url: String,
    board: Arc<Board>,
    records: mpsc::Sender<Record>,
    server: Option<(actix_web::dev::ServerHandle, std::thread::JoinHandle<()>)>,
    gathering: actix_rt::task::JoinHandle<()>,
}

/// A dashboard that may be started: it has its address, and is not open to everybody.
pub struct Prepared {
    listener: TcpListener,
    board: Arc<Board>,
    url: String,
}

impl Prepared {
    /// As the config of a grid wants it, if it wants one. To be done before anything is started that would have to be ended again.
    ///
    /// # Errors
    /// Its address is taken, its token cannot be read, or it would be open to everybody.
    pub fn of(grid: &str, config: &DashboardSection) -> Result<Option<Self>, Failed> {
        if !config.on {
            return Ok(None);
        }
        let token = config.token_file.as_deref().map(read_token).transpose()?;
        let name = config.name.as_deref();
        let guard = |at| Guard::new(at, token.as_deref(), name).map_err(Failed::usage);
        // Before it listens anywhere: whether the port is free says nothing of who may read.
        guard(config.bind)?;
        let listener = listen(config.bind)?;
        // By the port that it got.
        let at = listener.local_addr().map_err(Failed::failure)?;
        let guard = guard(at)?;
        let host = match (name, at.ip().is_unspecified()) {
            (Some(name), _) => format!("{name}:{}", at.port()),
            (None, true) => format!("localhost:{}", at.port()),
            (None, false) => at.to_string(),
        };
        let board = Arc::new(Board::new(grid, guard));
        Ok(Some(Self { listener, board, url: format!("http://{host}/") }))
    }

    /// Starts it, and says where it is in the grid's directory. It asks the head's actors from this arbiter.
    ///
    /// # Errors
    /// The system gives no thread, or the directory cannot be written.
    pub fn start(self, head: &Head, dir: &Path) -> Result<Dashboard, Failed> {
        let Self { listener, board, url } = self;
        let told = UrlFile { schema: 1, url: url.clone() };
        let text = serde_json::to_string(&told).map_err(Failed::failure)?;
        let (show, seen) = mpsc::channel(1);
        let server = serve::start(listener, board.clone(), seen).map_err(Failed::failure)?;
        let (records, heard) = mpsc::channel(RECORDS_MAX);
        let (scheduler, hub) = (head.scheduler.clone(), head.endpoint.hub.clone());
        let looking = gather::gather(hub, scheduler, board.clone(), heard, show);
        let dashboard = Dashboard {
            file: UrlFile::path(dir),
            url,
            board,
            records,
            server: Some(server),
            gathering: actix_rt::spawn(looking),
        };
        write_file(&dashboard.file, text.as_bytes())?;
        Ok(dashboard)
    }
}

impl Dashboard {
    /// Where it is.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// What the head has recorded.
    pub fn records(&self, records: &[Record]) {
        let left_out =
            records.iter().filter(|record| self.records.try_send((*record).clone()).is_err());
        self.board.left_out(left_out.count() as u64);
    }
}

impl Drop for Dashboard {
    fn drop(&mut self) {
        self.gathering.abort();
        // It says that there is one; another start replaces it.
        let _ = fs::remove_file(&self.file);
        let Some((server, thread)) = self.server.take() else { return };
        // Streams have no end of their own: they are not waited for.
        drop(server.stop(false));
        self.board.close();
        let _ = thread.join();
    }
}

/// Its usual port may be another grid's: then any is taken, as long as it is this machine's own.
fn listen(bind: SocketAddr) -> Result<TcpListener, Failed> {
    let bound = TcpListener::bind(bind).or_else(|error| match error.kind() {
        io::ErrorKind::AddrInUse if bind.ip().is_loopback() => {
            TcpListener::bind(SocketAddr::new(bind.ip(), 0))
        }
        _ => Err(error),
    });
    bound.map_err(|error| {
        Failed::failure(format!(
            "the dashboard cannot listen on {bind}: {error}; set dashboard.bind, or dashboard.on = false"
        ))
    })
}

/// Where the dashboard of a grid that is up is: `dashboard.json` in the grid's directory.
#[derive(Debug, Serialize, Deserialize)]
pub struct UrlFile {
    schema: u32,
    url: String,
}

impl UrlFile {
    fn path(dir: &Path) -> PathBuf {
        dir.join("dashboard.json")
    }

    /// The address.
    ///
    /// # Errors
    /// No grid is up there, or it has no dashboard.
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

/// The token in a file that its owner alone can read.
///
/// # Errors
/// It cannot be read, or others can read it.
pub fn read_token(file: &Path) -> Result<String, Failed> {
    let cannot = |error| crate::grid::cannot("read", file, &error);
    let text = fs::read_to_string(file).map_err(cannot)?;
    private::check_file(file).map_err(Failed::usage)?;
    Ok(text.trim().to_owned())
}
