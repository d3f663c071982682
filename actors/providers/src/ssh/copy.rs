//! The copy of this host's program on another machine.
//!
//! The name of a copy contains its digest, so that programs of several versions and grids share a
//! directory. A copy gets this name only when it is whole.

use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use ring::digest::{Context, SHA256};
use tokio::sync::OnceCell;

use super::{ProviderError, SharedState, SshMachine};
use crate::words::quote;

/// Time limit of a copy. A lost connection ends it earlier.
const COPY_TIMEOUT: Duration = Duration::from_secs(600);
/// Exit code of [`looks_for`] if the program is not there.
const MISSING: &str = "exit status: 3";

/// Reads a program of the size `$3` and the digest `$2` from standard input into the file `$1`.
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

/// The script that ends with exit code 0 if a program is at `path`, and with 3 if it can be copied
/// there.
fn looks_for(path: &str, size: u64) -> String {
    let (system, machine) = system();
    let path = quote(path);
    format!(
        r#"{{
if test -x {path} && test "$(wc -c < {path})" -eq {size}; then exit 0; fi
system=$(uname -s) machine=$(uname -m)
if test "$system $machine" = "{system} {machine}"; then exit 3; fi
echo "the host runs $system $machine, and the program of this host is for {system} {machine}:" \
    "install one there, and set \`program\` of the cluster" >&2
exit 1
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
            match self.run_script(&machine.host, looks_for(&path, *size)).await {
                Ok(()) => return Ok(path),
                Err(ProviderError::Failed { how, .. }) if how == MISSING => {}
                Err(error) => return Err(error),
            }
            let words = [COPY, "springtide", &path, digest, &size.to_string()].map(quote);
            let mut command = self.ssh(&machine.host, &format!("exec sh -c {}", words.join(" ")));
            command.stdin(Stdio::from(File::open(&program.path).map_err(cannot)?));
            let shown = self.shown(&machine.host, &format!("cat > {path}"));
            self.run(command, shown, String::new(), COPY_TIMEOUT).await?;
            tracing::info!("the program is copied to {}: {path}", machine.host.name);
            Ok(path)
        };
        machine.copied.get_or_try_init(copy).await.map(String::as_str)
    }
}
