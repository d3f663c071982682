//! A unit of systemd for the user's own service manager, which starts a grid.
//!
//! Independent of the grid's work.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use springtide_cli::exit::{Failed, cannot};
use springtide_cli::outdir::{make_dir, write_file};

use super::grid_files::{absolute, program_name, this_program};
use super::standby;
use super::up;

/// The first line of a unit that this program wrote and may overwrite.
const HEADER: &str = "# Written by `up --install-unit`, which replaces it.";

/// Writes the unit of a grid into the user's directory of units. Returns what to do with it. The
/// unit starts a second head if `is_second`.
///
/// # Errors
/// The config is wrong, the user's directory is unknown, or the unit belongs to another program.
pub async fn install(file: &Path, is_second: bool) -> Result<String, Failed> {
    let config = up::checked(file).await?.value;
    if is_second {
        standby::check_second(file, &config)?;
    }
    let dir = units_dir(std::env::var_os("XDG_CONFIG_HOME"), std::env::var_os("HOME"))
        .ok_or_else(|| Failed::usage("neither XDG_CONFIG_HOME nor HOME names the user's files"))?;
    let name = format!("{}-{}.service", program_name(), config.grid);
    let path = dir.join(&name);
    let is_ours = match std::fs::read(&path) {
        Ok(bytes) => bytes.starts_with(HEADER.as_bytes()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => true,
        Err(error) => return Err(cannot("read", &path, &error)),
    };
    if !is_ours {
        let path = path.display();
        return Err(Failed::failure(format!("{path} was not written by this command: remove it")));
    }
    let config_file = absolute(file)?;
    let text = unit(config.grid.as_str(), &this_program()?, &config_file, is_second)?;
    make_dir(&dir)?;
    write_file(&path, text.as_bytes())?;
    Ok(format!(
        "the unit is {}\nstart the grid with: systemctl --user daemon-reload && systemctl --user \
        enable --now {name}\nkeep it after a logout with: loginctl enable-linger",
        path.display()
    ))
}

/// The directory of a user's units.
fn units_dir(config: Option<OsString>, home: Option<OsString>) -> Option<PathBuf> {
    let set = |value: Option<OsString>| value.filter(|value| !value.is_empty()).map(PathBuf::from);
    let config = set(config).filter(|dir| dir.is_absolute());
    let config = config.or_else(|| Some(set(home)?.join(".config")))?;
    Some(config.join("systemd/user"))
}

/// The text of the unit. A path with a newline cannot be written.
fn unit(grid: &str, program: &Path, config: &Path, is_second: bool) -> Result<String, Failed> {
    let dir = config.parent().unwrap_or_else(|| Path::new("/"));
    let [program, file, dir] =
        [(program, true), (config, true), (dir, false)].map(|(path, is_word)| word(path, is_word));
    let (program, file, dir) = (program?, file?, dir?);
    let up = if is_second { "up --standby" } else { "up" };
    Ok(format!(
        "{HEADER}
[Unit]
Description=Springtide grid {grid}

[Service]
Type=notify
ExecStart={program} {up} {file}
WorkingDirectory={dir}
# The unit is ready when each node that the head starts itself is up or has failed.
TimeoutStartSec=300s
WatchdogSec=30s
TimeoutStopSec=30s
Restart=on-failure
RestartSec=2s
# A wrong config or certificate stays wrong.
RestartPreventExitStatus=2 5

[Install]
WantedBy=default.target
"
    ))
}

/// A path in a unit, where `%` begins a placeholder. As a word of a command it is quoted, and `$`
/// begins a variable.
fn word(path: &Path, is_word: bool) -> Result<String, Failed> {
    let text = path.to_str().filter(|text| !text.contains(char::is_control));
    let text = text.ok_or_else(|| {
        Failed::usage(format!("{} has characters that no unit can have", path.display()))
    })?;
    let text = text.replace('%', "%%");
    if !is_word {
        return Ok(text);
    }
    let text = text.replace('\\', "\\\\").replace('"', "\\\"").replace('$', "$$");
    Ok(format!("\"{text}\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_quoted_for_systemd() {
        let words = |path: &str| [true, false].map(|is_word| word(Path::new(path), is_word));
        assert_eq!(words("/a b/$x%\"").map(Result::unwrap), ["\"/a b/$$x%%\\\"\"", "/a b/$x%%\""]);
        assert!(words("/a\nb").iter().all(Result::is_err));
        let home = || Some("/home/me".into());
        let dirs = [units_dir(None, home()), units_dir(Some("x".into()), home())];
        let default = Path::new("/home/me/.config/systemd/user");
        assert!(dirs.iter().all(|dir| dir.as_deref() == Some(default)), "{dirs:?}");
        assert_eq!(units_dir(Some("/c".into()), home()), Some("/c/systemd/user".into()));
        assert_eq!(units_dir(None, None), None);
    }

    #[test]
    fn the_unit_is_one_of_systemd() {
        let program = std::env::current_exe().unwrap();
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("a b%");
        std::fs::create_dir(&dir).unwrap();
        let config = dir.join("grid.toml");
        let text = unit("campus", &program, &config, false).unwrap();
        let second = unit("campus", &program, &config, true).unwrap();
        assert!(text.contains("\" up \"/") && second.contains("\" up --standby \"/"), "{second}");
        let file = temp.path().join("springtide-campus.service");
        std::fs::write(&file, second).unwrap();
        let mut verify = std::process::Command::new("systemd-analyze");
        verify.args(["verify", "--user", "--man=no"]).arg(&file);
        match verify.env("XDG_RUNTIME_DIR", temp.path()).output() {
            Err(error) => println!("skipped: no systemd-analyze here: {error}"),
            Ok(ended) => {
                let said = String::from_utf8_lossy(&ended.stderr);
                assert!(ended.status.success() && !said.contains("springtide-"), "{said}");
            }
        }
    }
}
