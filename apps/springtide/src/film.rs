//! A film of the frames that a job has left, by `ffmpeg` where that is on the PATH.
//!
//! Frames are files of a job that are called `frame-000000.png`, `frame-000001.png` and so on. Must not know which jobs leave some.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::process::Command;

/// What the film is called; it lies beside its frames.
const FILM: &str = "film.mp4";
/// Frames a second.
const RATE: &str = "25";

/// The frames of a run.
pub struct Frames {
    dir: PathBuf,
    count: usize,
}

/// What became of the film.
pub enum Film {
    /// It is here.
    Made(PathBuf),
    /// There is no film, for the program is not there; so it is to be made.
    NotMade(String),
    /// The program could not make it.
    Failed(String),
}

/// The frames among these files, if there are two or more; they count without a gap from the first.
pub fn frames(files: &[PathBuf]) -> Option<Frames> {
    let numbered = files.iter().filter_map(|file| Some((number(file)?, file)));
    let mut numbers: Vec<_> = numbered.collect();
    numbers.sort_unstable();
    let count = numbers.iter().zip(0..).take_while(|((number, _), i)| number == i).count();
    let dir = numbers.first()?.1.parent()?.to_owned();
    (count >= 2).then_some(Frames { dir, count })
}

/// Whether a file is a frame.
pub fn is_frame(file: &Path) -> bool {
    number(file).is_some()
}

fn number(file: &Path) -> Option<u64> {
    let name = file.file_name()?.to_str()?;
    let digits = name.strip_prefix("frame-")?.strip_suffix(".png")?;
    let plain = digits.len() >= 6 && digits.bytes().all(|b| b.is_ascii_digit());
    digits.parse().ok().filter(|_| plain)
}

impl Frames {
    /// A line about them.
    pub fn line(&self) -> String {
        let last = self.count - 1;
        let file = |number| format!("frame-{number:06}.png");
        format!("wrote {} to {}", self.dir.join(file(0)).display(), file(last))
    }

    /// What makes a film of them, without the program: in their directory.
    fn arguments() -> [&'static str; 13] {
        // An even number of pixels is what players of this form of colour take.
        let even = "scale=trunc(iw/2)*2:trunc(ih/2)*2";
        let quiet = ["-nostdin", "-loglevel", "error", "-y", "-framerate", RATE];
        let [a, b, c, d, e, f] = quiet;
        [a, b, c, d, e, f, "-i", "frame-%06d.png", "-vf", even, "-pix_fmt", "yuv420p", FILM]
    }

    /// Makes the film. When this is dropped before it is done, the program is ended.
    pub async fn film(&self, program: &OsStr) -> Film {
        let by_hand = || {
            let told = Self::arguments().map(|word| match word.contains(['(', '%']) {
                true => format!("'{word}'"),
                false => word.to_owned(),
            });
            format!("cd {} && ffmpeg {}", self.dir.display(), told.join(" "))
        };
        let mut command = Command::new(program);
        command.args(Self::arguments()).current_dir(&self.dir).kill_on_drop(true);
        let output = command.stdin(Stdio::null()).output().await;
        match output {
            Ok(output) if output.status.success() => Film::Made(self.dir.join(FILM)),
            Ok(output) => {
                // A film that is cut short is none; that it cannot be removed changes nothing.
                let _ = std::fs::remove_file(self.dir.join(FILM));
                let said = String::from_utf8_lossy(&output.stderr);
                let line = said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
                Film::Failed(format!("no film: ffmpeg ended with {}: {line}", output.status))
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let why = "no film: ffmpeg is not on the PATH";
                Film::NotMade(format!("{why}; once it is there: {}", by_hand()))
            }
            Err(error) => Film::Failed(format!("no film: ffmpeg cannot be started: {error}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(names: &[&str]) -> Vec<PathBuf> {
        names.iter().map(|name| Path::new("out").join(name)).collect()
    }

    #[test]
    fn frames_are_those_that_count_on_from_the_first() {
        let count = |names: &[&str]| frames(&files(names)).map(|frames| frames.count);
        assert_eq!(count(&[]), None);
        assert_eq!(count(&["frame-000000.png"]), None);
        assert_eq!(count(&["frame-000001.png", "a.png", "frame-000000.png"]), Some(2));
        assert_eq!(count(&["frame-000001.png", "frame-000002.png"]), None);
        let gap = ["frame-000000.png", "frame-000001.png", "frame-000003.png"];
        assert_eq!(count(&gap), Some(2));
        for other in ["frame-0.png", "frame-+00001.png", "frame-000001.jpg", "xframe-000001.png"] {
            assert!(!is_frame(Path::new(other)), "{other}");
        }
        let found = frames(&files(&["frame-000000.png", "frame-000001.png"])).unwrap();
        assert_eq!(found.line(), "wrote out/frame-000000.png to frame-000001.png");
    }

    #[cfg(unix)]
    #[tokio::test]
    async fn a_film_is_made_by_the_program_or_told_how_to_make() {
        use std::os::unix::fs::PermissionsExt;
        let temp = tempfile::tempdir().unwrap();
        let frames = Frames { dir: temp.path().to_owned(), count: 2 };
        let stand_in = |text: &str| {
            let path = temp.path().join("ffmpeg");
            std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
            std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
            path
        };
        let film = temp.path().join(FILM);
        // What it is told, in its last word.
        let good = stand_in("for last; do :; done; echo \"$@\" > \"$last\"");
        let Film::Made(path) = frames.film(good.as_os_str()).await else { panic!("no film") };
        assert_eq!(path, film);
        let told = std::fs::read_to_string(&path).unwrap();
        assert!(told.contains("-framerate 25 -i frame-%06d.png"), "{told}");

        let bad = stand_in("echo cut > film.mp4; echo unknown encoder >&2; exit 3");
        let Film::Failed(why) = frames.film(bad.as_os_str()).await else { panic!("a film") };
        assert_eq!(why, "no film: ffmpeg ended with exit status: 3: unknown encoder");
        assert!(!film.exists());
        let none = temp.path().join("not-there");
        let Film::NotMade(why) = frames.film(none.as_os_str()).await else { panic!("a film") };
        let expected = format!(
            "no film: ffmpeg is not on the PATH; once it is there: cd {} && ffmpeg -nostdin -loglevel error -y -framerate 25 -i \
             'frame-%06d.png' -vf 'scale=trunc(iw/2)*2:trunc(ih/2)*2' -pix_fmt yuv420p film.mp4",
            temp.path().display()
        );
        assert_eq!(why, expected);
    }
}
