//! Makes a video from a job's frames, with `ffmpeg` if it is on the PATH.
//!
//! Frames are files of a job with names such as `frame-000000.png`, `frame-000001.png`. This module
//! does not know the jobs that write them.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::process::Command;

/// The file name of the video, next to its frames.
const VIDEO_FILE: &str = "film.mp4";
/// Frames per second.
const FRAMES_PER_SECOND: &str = "25";

/// The frames of a run.
pub struct Frames {
    dir: PathBuf,
    count: usize,
}

/// The result of making a video.
pub enum Video {
    /// The path of the video.
    Made(PathBuf),
    /// The program is missing; the text contains the command to run later.
    NotMade(String),
    /// The reason why the program failed.
    Failed(String),
}

/// The frames among these files, if at least two have consecutive numbers from 0.
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
    /// A line that names the frames.
    pub fn line(&self) -> String {
        let last = self.count - 1;
        let file = |number| format!("frame-{number:06}.png");
        format!("wrote {} to {}", self.dir.join(file(0)).display(), file(last))
    }

    /// The arguments of the program, which runs in the frames' directory.
    fn arguments() -> [&'static str; 13] {
        // Players of this pixel format need even numbers of pixels.
        let even = "scale=trunc(iw/2)*2:trunc(ih/2)*2";
        let quiet = ["-nostdin", "-loglevel", "error", "-y", "-framerate", FRAMES_PER_SECOND];
        let [a, b, c, d, e, f] = quiet;
        [a, b, c, d, e, f, "-i", "frame-%06d.png", "-vf", even, "-pix_fmt", "yuv420p", VIDEO_FILE]
    }

    /// Makes the video. Dropping the future before its end kills the program.
    pub async fn video(&self, program: &OsStr) -> Video {
        let by_hand = || {
            let arguments = Self::arguments().map(|word| {
                if word.contains(['(', '%']) { format!("'{word}'") } else { word.to_owned() }
            });
            format!("cd {} && ffmpeg {}", self.dir.display(), arguments.join(" "))
        };
        let mut command = Command::new(program);
        command.args(Self::arguments()).current_dir(&self.dir).kill_on_drop(true);
        let output = command.stdin(Stdio::null()).output().await;
        match output {
            Ok(output) if output.status.success() => Video::Made(self.dir.join(VIDEO_FILE)),
            Ok(output) => {
                // A truncated video is useless. A failed removal changes nothing.
                let _ = std::fs::remove_file(self.dir.join(VIDEO_FILE));
                let said = String::from_utf8_lossy(&output.stderr);
                let line = said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
                Video::Failed(format!("no video: ffmpeg ended with {}: {line}", output.status))
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let why = "no video: ffmpeg is not on the PATH";
                Video::NotMade(format!("{why}; once it is there: {}", by_hand()))
            }
            Err(error) => Video::Failed(format!("no video: ffmpeg cannot be started: {error}")),
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
    fn frames_have_consecutive_numbers_from_the_first() {
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
    async fn a_video_is_made_or_the_command_is_given() {
        use std::os::unix::fs::PermissionsExt;
        let temp = tempfile::tempdir().unwrap();
        let frames = Frames { dir: temp.path().to_owned(), count: 2 };
        let stand_in = |text: &str| {
            let path = temp.path().join("ffmpeg");
            std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
            std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
            path
        };
        let video = temp.path().join(VIDEO_FILE);
        // The last argument is the file name.
        let good = stand_in("for last; do :; done; echo \"$@\" > \"$last\"");
        let Video::Made(path) = frames.video(good.as_os_str()).await else { panic!("no video") };
        assert_eq!(path, video);
        let arguments = std::fs::read_to_string(&path).unwrap();
        assert!(arguments.contains("-framerate 25 -i frame-%06d.png"), "{arguments}");

        let bad = stand_in("echo cut > film.mp4; echo unknown encoder >&2; exit 3");
        let Video::Failed(why) = frames.video(bad.as_os_str()).await else { panic!("a video") };
        assert_eq!(why, "no video: ffmpeg ended with exit status: 3: unknown encoder");
        assert!(!video.exists());
        let none = temp.path().join("not-there");
        let Video::NotMade(why) = frames.video(none.as_os_str()).await else { panic!("a video") };
        let expected = format!(
            "no video: ffmpeg is not on the PATH; once it is there: cd {} && ffmpeg -nostdin \
            -loglevel error -y -framerate 25 -i 'frame-%06d.png' -vf \
            'scale=trunc(iw/2)*2:trunc(ih/2)*2' -pix_fmt yuv420p film.mp4",
            temp.path().display()
        );
        assert_eq!(why, expected);
    }
}
