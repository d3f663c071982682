//! The copies of programs of this host on another machine: the nodes' own, and those of users.
//!
//! The name of a copy contains its digest, so that programs of several versions and grids share a
//! directory. A copy gets this name only when it is whole. The next copy removes those of users'
//! programs that no node was started with for some time.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use ring::digest::{Context, SHA256};
use tokio::sync::OnceCell;

use super::{ProviderError, SharedState, ShippedFile, SshMachine};
use crate::words::quote;

/// Time limit of a copy. A lost connection ends it earlier.
const COPY_TIMEOUT: Duration = Duration::from_secs(600);
/// Exit code of [`looks_for`] if the program is not there.
const MISSING: &str = "exit status: 3";
/// Exit code of [`looks_for`] if the host is another kind of machine.
const OTHER_MACHINE: &str = "exit status: 4";
/// Days for which a user's program stays that no node is started with.
const UNUSED_DAYS: u32 = 14;

/// Reads a program of the size `$3` and the digest `$2` from standard input into the file `$1`.
/// Removes users' programs that are unused for `$4` days.
const COPY: &str = r#"set -e
umask 077
mkdir -p "${1%/*}"
part="$1.$$.part"
trap 'rm -f "$part"' EXIT
cat > "$part"
if command -v sha256sum > /dev/null; then found=$(sha256sum < "$part")
elif command -v shasum > /dev/null; then found=$(shasum -a 256 < "$part")
elif command -v openssl > /dev/null; then found=$(openssl dgst -sha256 -r < "$part")
else found=$2
fi
if test "${found%% *}" != "$2" || test "$(wc -c < "$part")" -ne "$3"; then
    echo "the copied program differs from that of this host" >&2
    exit 1
fi
chmod 700 "$part"
mv -f "$part" "$1"
find "${1%/*}" -name 'user-*' -mtime "+$4" -exec rm -f {} + 2> /dev/null || true
"#;

/// A program of this host.
pub(super) struct LocalProgram {
    path: PathBuf,
    /// Digest in hexadecimal digits and size in bytes, once read.
    contents: OnceCell<(String, u64)>,
}

impl LocalProgram {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path, contents: OnceCell::new() }
    }

    async fn contents(&self) -> io::Result<&(String, u64)> {
        let path = self.path.clone();
        let read = || async {
            let read = tokio::task::spawn_blocking(move || digest(File::open(path)?)).await;
            read.map_err(io::Error::other)?
        };
        self.contents.get_or_try_init(read).await
    }
}

/// The digest and the size of a file.
fn digest(mut file: File) -> io::Result<(String, u64)> {
    let (mut context, mut size) = (Context::new(&SHA256), 0);
    let mut buffer = vec![0; 1 << 16];
    loop {
        match file.read(&mut buffer)? {
            0 => break,
            read => {
                context.update(&buffer[..read]);
                size += read as u64;
            }
        }
    }
    let digest = context.finish();
    Ok((digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect(), size))
}

/// The system and the kind of processor of this host, as `uname -s` and `uname -m` print them.
fn system() -> (&'static str, &'static str) {
    use std::env::consts::{ARCH, OS};
    let system = match OS {
        "linux" => "Linux",
        "macos" => "Darwin",
        "freebsd" => "FreeBSD",
        other => other,
    };
    let machine = match (OS, ARCH) {
        ("macos", "aarch64") => "arm64",
        ("freebsd", "x86_64") => "amd64",
        (_, other) => other,
    };
    (system, machine)
}

/// The script that looks for a program at `path`. It ends with 0 if the program is there, and with
/// 3 if it can be copied there. 4 means another kind of machine.
fn looks_for(path: &str, size: u64, (system, machine): (&str, &str)) -> String {
    let path = quote(path);
    format!(
        r#"{{
if test -x {path} && test "$(wc -c < {path})" -eq {size}; then touch -c {path}; exit 0; fi
system=$(uname -s) machine=$(uname -m)
if test "$system $machine" = "{system} {machine}"; then exit 3; fi
echo "the host runs $system $machine, and the program of this host is for {system} {machine}:" \
    "install one there, and set \`program\` of the cluster" >&2
exit 4
}}
"#
    )
}

impl SharedState {
    /// The path of this host's program on a machine, which gets it if it is not there.
    pub(super) async fn copy<'a>(
        &self,
        machine: &'a SshMachine,
        program: &LocalProgram,
    ) -> Result<&'a str, ProviderError> {
        let copy = || async {
            let cannot = |source| ProviderError::Start { program: program.path.clone(), source };
            let (digest, size) = program.contents().await.map_err(cannot)?;
            let path = format!("{}/programs/springtide-{digest}", self.dir);
            self.provide(machine, &program.path, (digest, *size), &path, system()).await?;
            Ok(path)
        };
        machine.copied.get_or_try_init(copy).await.map(String::as_str)
    }

    /// The path of a user's program on a machine, which gets it if it is not there.
    pub(super) async fn copy_shipped(
        &self,
        machine: &SshMachine,
        program: &Path,
        shipped: &ShippedFile,
    ) -> Result<String, ProviderError> {
        let ShippedFile { digest, bytes, machine: needs } = shipped;
        let path = format!("{}/programs/user-{digest}", self.dir);
        let (system, own) = system();
        let kind = (system, needs.as_deref().unwrap_or(own));
        let _alone = machine.copying.lock().await;
        let provided = self.provide(machine, program, (digest, *bytes), &path, kind).await;
        match provided {
            Err(ProviderError::Failed { how, said, .. }) if how == OTHER_MACHINE => {
                let ran = said.split_once(", and").map_or("another system", |(ran, _)| ran);
                let has = ran.strip_prefix("the host runs ").unwrap_or(ran).to_owned();
                let (host, needs) = (machine.host.name.clone(), format!("{} {}", kind.0, kind.1));
                Err(ProviderError::OtherMachine { host, has, needs })
            }
            provided => provided.map(|()| path),
        }
    }

    /// Copies a file of this host to `path` on a machine, unless it is there.
    async fn provide(
        &self,
        machine: &SshMachine,
        file: &Path,
        (digest, size): (&str, u64),
        path: &str,
        kind: (&str, &str),
    ) -> Result<(), ProviderError> {
        let cannot = |source| ProviderError::Start { program: file.to_owned(), source };
        match self.run_script(&machine.host, looks_for(path, size, kind)).await {
            Ok(()) => return Ok(()),
            Err(ProviderError::Failed { how, .. }) if how == MISSING => {}
            Err(error) => return Err(error),
        }
        let (size, days) = (size.to_string(), UNUSED_DAYS.to_string());
        let words = [COPY, "springtide", path, digest, &size, &days].map(quote);
        let mut command = self.ssh(&machine.host, &format!("exec sh -c {}", words.join(" ")));
        command.stdin(Stdio::from(File::open(file).map_err(cannot)?));
        let shown = self.shown(&machine.host, &format!("cat > {path}"));
        self.run(command, shown, String::new(), COPY_TIMEOUT).await?;
        tracing::info!("the program is copied to {}: {path}", machine.host.name);
        Ok(())
    }
}
