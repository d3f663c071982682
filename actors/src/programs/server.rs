//! A client's own program: its description, and the actor that the head reads it from.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use actix::prelude::*;
use bytes::Bytes;
use springtide_protocol::files::{CHUNK_MAX, FileError, ReadChunk};
use springtide_protocol::names::PROGRAMS;
use springtide_protocol::program::{ProgramError, ProgramImage};
use springtide_runtime::net::tls::Role;
use springtide_runtime::remote::Hub;

use super::elf::{ElfHeader, read_header};
use crate::files::entry_of;
use crate::files::fetch::blocking;

/// Why a process cannot describe its own program.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// Its file cannot be read.
    #[error("this program's file cannot be read: {0}")]
    File(#[from] io::Error),
    /// Its file cannot be sent.
    #[error(transparent)]
    Program(Box<ProgramError>),
}

/// The file that this process was started from, even if its path has another one since.
fn own_file() -> io::Result<PathBuf> {
    let own = PathBuf::from("/proc/self/exe");
    if own.exists() { Ok(own) } else { std::env::current_exe() }
}

/// Describes the program of this process. It reads the whole file, so call it on a thread that may
/// block.
///
/// # Errors
/// [`ImageError`] if the file cannot be read, or is not an ELF file.
pub fn own_image() -> Result<ProgramImage, ImageError> {
    let file = own_file()?;
    let path = std::env::current_exe()?;
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
    let name = name.strip_suffix(" (deleted)").map(str::to_owned).unwrap_or(name);
    image_of(&file, name)
}

/// Describes the program in a file.
pub(super) fn image_of(file: &Path, name: String) -> Result<ProgramImage, ImageError> {
    let ElfHeader { target, interpreter } = read_header(file)
        .map_err(|reason| ProgramError::NotExecutable { name: name.clone(), reason })
        .map_err(|error| ImageError::Program(Box::new(error)))?;
    let entry = entry_of(file, &name)?;
    let digest = entry.sum.parse().map_err(|text: String| io::Error::other(text))?;
    Ok(ProgramImage { name, digest, bytes: entry.bytes, target, interpreter })
}

/// The actor that serves this process's program to the head.
pub struct ProgramServer {
    image: ProgramImage,
    file: Arc<File>,
    sent: Arc<AtomicU64>,
}

impl ProgramServer {
    /// Publishes this process's program, which [`own_image`] describes. The answer counts the
    /// bytes that the head has read.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub fn publish(image: ProgramImage, hub: &Arc<Hub>) -> io::Result<Arc<AtomicU64>> {
        Self::publish_file(image, &own_file()?, hub)
    }

    pub(super) fn publish_file(
        image: ProgramImage,
        file: &Path,
        hub: &Arc<Hub>,
    ) -> io::Result<Arc<AtomicU64>> {
        let (file, sent) = (Arc::new(File::open(file)?), Arc::new(AtomicU64::default()));
        let server = Self { image, file, sent: sent.clone() }.start();
        // Only the head reads the programs of clients.
        hub.publish(PROGRAMS, server).accepts_from::<ReadChunk>(|from, _| from.is(&[Role::Head]));
        Ok(sent)
    }
}

impl Actor for ProgramServer {
    type Context = Context<Self>;
}

impl Handler<ReadChunk> for ProgramServer {
    type Result = ResponseFuture<Result<Bytes, FileError>>;

    fn handle(&mut self, asked: ReadChunk, _: &mut Self::Context) -> Self::Result {
        let ReadChunk { name, sum, at, len } = asked;
        let is_own = sum == self.image.digest.to_string();
        let (file, bytes, sent) = (self.file.clone(), self.image.bytes, self.sent.clone());
        Box::pin(async move {
            if !is_own {
                return Err(FileError::Unknown { cluster: "client".into(), name });
            }
            let shown = name.clone();
            let read = move || {
                let len = bytes.saturating_sub(at).min(u64::from(len.min(CHUNK_MAX)));
                let mut chunk = vec![0; usize::try_from(len).unwrap_or(0)];
                let done = file.read_exact_at(&mut chunk, at);
                done.map_err(|error| FileError::Disk { name, reason: error.to_string() })?;
                sent.fetch_max(at + len, Ordering::Relaxed);
                Ok(chunk)
            };
            blocking(&shown, read).await.map(Bytes::from)
        })
    }
}
