//! External inputs: files that tasks read and no task writes, and how they come to this host.
//!
//! A file is looked for in the directory or below the URL of `--inputs`, and then at the place that
//! the workflow names. Files of URLs and packed directories are in the run's directory. This
//! module does not know how files reach the clusters.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use springtide_actors::files::FileEntry;
use springtide_cli::exit::{Failed, cannot};
use springtide_cli::outdir::{make_dir, write_file};
use springtide_cli::talk::Talk;
use springtide_workflow::{FileSource, Workflow};
use tokio::time::sleep;
use ureq::http::StatusCode;
use ureq::tls::{Certificate, RootCerts, TlsConfig, TlsProvider};

use super::staging::{pack_directory, path_below};
use springtide_operations::inputs::{on_thread, summed};

/// The name of the directory of downloads and packed directories in a run's directory.
const DIRECTORY: &str = "inputs";
/// The number of attempts to download a file, and the pause between them.
const DOWNLOADS_MAX: u32 = 4;
const DOWNLOAD_INTERVAL: Duration = Duration::from_secs(1);
/// The longest wait for a connection, and for the next bytes of an answer.
const SERVER_TIMEOUT: Duration = Duration::from_secs(60);

/// Where `--inputs` looks for files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InputsPlace {
    /// In a directory.
    Directory(PathBuf),
    /// Below a URL.
    Url(String),
}

impl std::str::FromStr for InputsPlace {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match FileSource::parse(text) {
            Some(FileSource::Url(url)) => Ok(Self::Url(url)),
            _ if text.contains("://") => {
                Err("give a directory, or a URL with http or https".to_owned())
            }
            _ => Ok(Self::Directory(text.into())),
        }
    }
}

/// A file that tasks read and no task writes.
#[derive(Clone, Debug)]
pub struct ExternalInput {
    /// Its path on this host.
    pub path: PathBuf,
    /// The entry of its content.
    pub entry: FileEntry,
}

/// Finds external inputs by their indices, and brings those that are elsewhere to a run's
/// directory.
///
/// # Errors
/// A file is missing, cannot be read, or cannot be downloaded.
pub async fn find_external_inputs(
    workflow: &Workflow,
    files: &[usize],
    inputs: Option<&InputsPlace>,
    run: &Path,
    talk: &mut Talk,
) -> Result<BTreeMap<usize, ExternalInput>, Failed> {
    let mut found = BTreeMap::new();
    let directory = run.join(DIRECTORY);
    let places: Vec<(usize, ExternalInputPlace)> = files
        .iter()
        .map(|&file| Ok((file, place_of(workflow, file, inputs, files.len())?)))
        .collect::<Result<_, Failed>>()?;
    for (file, place) in places {
        let own = &workflow.files[file];
        let name = &own.name;
        let path = match place {
            ExternalInputPlace::Url(url) => {
                make_dir(&directory)?;
                let path = directory.join(file.to_string());
                talk.wait_for(&format!("downloading {url}"));
                download_repeatedly(&url, &path).await?;
                path
            }
            ExternalInputPlace::Path(path) if own.is_directory() => {
                make_dir(&directory)?;
                let archive = directory.join(format!("{file}.tar"));
                talk.wait_for(&format!("packing {}", path.display()));
                pack_directory(&path, &archive).await?;
                archive
            }
            ExternalInputPlace::Path(path) => path,
        };
        talk.wait_for(&format!("reading {}", path.display()));
        let entry = summed(&path, name).await?;
        found.insert(file, ExternalInput { path, entry });
    }
    Ok(found)
}

/// The place of a file outside of the grid.
enum ExternalInputPlace {
    Path(PathBuf),
    Url(String),
}

/// The place of a file. A place that is a path exists.
fn place_of(
    workflow: &Workflow,
    file: usize,
    inputs: Option<&InputsPlace>,
    count: usize,
) -> Result<ExternalInputPlace, Failed> {
    let file = &workflow.files[file];
    let name = file.name.as_str();
    let mut missing = None;
    if let Some(InputsPlace::Directory(directory)) = inputs {
        let path = path_below(directory, name);
        if path.exists() {
            return check_kind(path, file.is_directory());
        }
        missing = Some(path);
    }
    match (&file.source, inputs) {
        (Some(FileSource::Path(path)), _) => {
            let path = PathBuf::from(path);
            if path.exists() {
                return check_kind(path, file.is_directory());
            }
            missing.get_or_insert(path);
        }
        (Some(FileSource::Url(_)), _) if file.is_directory() => {}
        (Some(FileSource::Url(url)), _) => return Ok(ExternalInputPlace::Url(url.clone())),
        (None, Some(InputsPlace::Url(base))) if !file.is_directory() => {
            return Ok(ExternalInputPlace::Url(format!(
                "{}/{}",
                base.trim_end_matches('/'),
                name.trim_start_matches('/')
            )));
        }
        (None, _) => {}
    }
    Err(Failed::usage(match missing {
        Some(path) => format!("{} does not exist, and tasks read it", path.display()),
        None if file.is_directory() && (inputs.is_some() || file.source.is_some()) => format!(
            "tasks read the directory {name}, and a URL gives files only: name the directory that \
             has it with --inputs DIR"
        ),
        None => format!(
            "tasks read {count} files that none writes, such as {name}: name the directory or the \
             URL that has them with --inputs, or run placeholders with --pretend 0.01"
        ),
    }))
}

fn check_kind(path: PathBuf, is_directory: bool) -> Result<ExternalInputPlace, Failed> {
    let shown = path.display();
    if is_directory && !path.is_dir() {
        return Err(Failed::usage(format!(
            "{shown} is not a directory: the name of a file of a workflow ends without a slash"
        )));
    }
    if !is_directory && path.is_dir() {
        return Err(Failed::usage(format!(
            "{shown} is a directory: a workflow's name of one ends with a slash"
        )));
    }
    if !is_directory && !path.is_file() {
        return Err(Failed::usage(format!("{shown} is not a regular file")));
    }
    Ok(ExternalInputPlace::Path(path))
}

/// What a server said of a file that was downloaded.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct DownloadRecord {
    url: String,
    etag: Option<String>,
    last_modified: Option<String>,
}

/// A failure of a download.
enum DownloadError {
    /// Another attempt may succeed.
    Transient(String),
    /// The server refuses, or a file cannot be written.
    Final(String),
}

/// Downloads a file, unless an earlier process of the run has the server's present version.
async fn download_repeatedly(url: &str, path: &Path) -> Result<(), Failed> {
    let mut attempt = 1;
    loop {
        let (from, to) = (url.to_owned(), path.to_owned());
        let done = on_thread("download", move || download(&from, &to)).await;
        match done.map_err(|error| cannot("download", path, &error))? {
            Ok(()) => return Ok(()),
            Err(DownloadError::Transient(_)) if attempt < DOWNLOADS_MAX => {}
            Err(DownloadError::Transient(reason) | DownloadError::Final(reason)) => {
                return Err(Failed::failure(format!("cannot download {url}: {reason}")));
            }
        }
        attempt += 1;
        sleep(DOWNLOAD_INTERVAL).await;
    }
}

fn download(url: &str, path: &Path) -> Result<(), DownloadError> {
    let record_path = path.with_extension("http");
    let known: Option<DownloadRecord> = fs::read(&record_path)
        .ok()
        .and_then(|text| serde_json::from_slice(&text).ok())
        .filter(|known: &DownloadRecord| known.url == url && path.is_file());
    let mut request = agent().get(url);
    if let Some(known) = &known {
        if let Some(etag) = &known.etag {
            request = request.header("If-None-Match", etag);
        }
        if let Some(time) = &known.last_modified {
            request = request.header("If-Modified-Since", time);
        }
    }
    let mut response = request.call().map_err(|error| match error {
        ureq::Error::BadUri(_) | ureq::Error::Http(_) => DownloadError::Final(error.to_string()),
        _ => DownloadError::Transient(error.to_string()),
    })?;
    let status = response.status();
    if status == StatusCode::NOT_MODIFIED && known.is_some() {
        return Ok(());
    }
    if !status.is_success() {
        let reason = format!("the server answers {status}");
        let may_recover = status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS;
        let kind = if may_recover { DownloadError::Transient } else { DownloadError::Final };
        return Err(kind(reason));
    }
    let header = |name: &str| Some(response.headers().get(name)?.to_str().ok()?.to_owned());
    let record = DownloadRecord {
        url: url.to_owned(),
        etag: header("etag"),
        last_modified: header("last-modified"),
    };
    let part = path.with_extension("part");
    // A body that is shorter than its announced length is an error of the reader.
    write_part(&mut response.body_mut().as_reader(), &part).map_err(|error| {
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::PermissionDenied => {
                DownloadError::Final(format!("{}: {error}", part.display()))
            }
            _ => DownloadError::Transient(error.to_string()),
        }
    })?;
    let failed = |error: &dyn std::fmt::Display| DownloadError::Final(error.to_string());
    let text = serde_json::to_vec(&record).map_err(|error| failed(&error))?;
    // The record of the earlier version must not describe the new file.
    let _ = fs::remove_file(&record_path);
    fs::rename(&part, path).map_err(|error| failed(&error))?;
    write_file(&record_path, &text).map_err(|error| failed(&error.message))
}

#[allow(clippy::disallowed_methods)] // the caller reports the error
fn write_part(body: &mut impl io::Read, part: &Path) -> io::Result<()> {
    let mut file = File::create(part)?;
    io::copy(body, &mut file)?;
    file.flush()?;
    file.sync_all()
}

/// The client of all downloads. It trusts the certificates of this host, or those of
/// `SSL_CERT_FILE` and `SSL_CERT_DIR`.
fn agent() -> ureq::Agent {
    let found = rustls_native_certs::load_native_certs();
    let certificates: Vec<Certificate<'static>> =
        found.certs.iter().map(|one| Certificate::from_der(one).to_owned()).collect();
    let tls = TlsConfig::builder()
        .provider(TlsProvider::Rustls)
        .root_certs(RootCerts::Specific(Arc::new(certificates)))
        .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .build();
    let config = ureq::Agent::config_builder()
        .tls_config(tls)
        .http_status_as_error(false)
        .timeout_connect(Some(SERVER_TIMEOUT))
        .timeout_per_read(Some(SERVER_TIMEOUT))
        .user_agent(concat!("springtide/", env!("CARGO_PKG_VERSION")))
        .build();
    config.new_agent()
}
