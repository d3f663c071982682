//! Messages of a command on standard error while it works: notes and progress.
//!
//! Progress is a bar on a terminal, and periodic lines elsewhere. This module does not know jobs.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tokio::time::Instant;

use crate::format::{number, seconds};

/// Interval between lines of progress without a terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(5);

/// The printer of notes and progress.
pub struct Talk {
    quiet: bool,
    bar: Option<ProgressBar>,
    began: Instant,
    last_line: Instant,
    last: LastMessage,
    /// Facts about the job at the end of a line of progress.
    facts: String,
    /// Whether the facts have an estimate, in place of the bar's own.
    has_estimate: bool,
}

/// The last message about progress.
enum LastMessage {
    Waiting(String),
    Done(u64, u64, String),
}

impl Talk {
    /// Prints everything; with `quiet`, only errors.
    pub fn new(quiet: bool) -> Self {
        let terminal = std::io::stderr().is_terminal();
        let bar = (terminal && !quiet).then(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
            bar.set_style(waiting());
            bar
        });
        let now = Instant::now();
        let last = LastMessage::Waiting("running".to_owned());
        Self {
            quiet,
            bar,
            began: now,
            last_line: now,
            last,
            facts: String::new(),
            has_estimate: false,
        }
    }

    /// Prints one line of text.
    pub fn say(&self, line: &str) {
        if self.quiet {
            return;
        }
        match &self.bar {
            Some(bar) => bar.suspend(|| print_err(line)),
            None => print_err(line),
        }
    }

    /// Shows what the command waits for.
    pub fn wait_for(&mut self, what: &str) {
        self.last = LastMessage::Waiting(what.to_owned());
        if let Some(bar) = &self.bar {
            bar.set_message(clean(what));
            bar.tick();
        }
    }

    /// Shows the progress of the job.
    pub fn progress(&mut self, done: u64, total: u64, what: &str) {
        if let Some(bar) = &self.bar {
            if bar.length() != Some(total) {
                bar.set_style(if total > 0 { counting(self.has_estimate) } else { waiting() });
                bar.set_length(total);
            }
            bar.set_position(done);
            bar.set_message(clean(what));
            return;
        }
        self.last = LastMessage::Done(done, total, what.to_owned());
        self.tick();
    }

    /// Sets facts about the job, which lines of progress show from now on: for example its nodes.
    pub fn set_facts(&mut self, facts: &str) {
        self.facts = format!(", {}", clean(facts));
        if let Some(bar) = &self.bar {
            bar.set_prefix(self.facts.clone());
        }
    }

    /// Bars show no estimate of the remaining time from now on: the facts have a better one.
    pub fn omit_estimate(&mut self) {
        self.has_estimate = true;
    }

    /// Updates the bar, or prints a line when it is due. To be called often.
    pub fn tick(&mut self) {
        if let Some(bar) = &self.bar {
            bar.tick();
            return;
        }
        if self.quiet || self.last_line.elapsed() < LINE_INTERVAL {
            return;
        }
        self.last_line = Instant::now();
        let after = seconds(self.began.elapsed().as_secs_f64());
        match &self.last {
            LastMessage::Done(done, total, what) => {
                print_err(&progress_line(*done, *total, what, &self.facts, &after));
            }
            LastMessage::Waiting(what) => {
                print_err(&format!("{what}{}, after {after}", self.facts));
            }
        }
    }

    /// Removes the bar from the terminal.
    pub fn done(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

impl Drop for Talk {
    fn drop(&mut self) {
        self.done();
    }
}

/// Prints an error, even if the command is quiet.
pub fn error(name: &str, message: &str) {
    if !message.is_empty() {
        print_err(&format!("{name}: {message}"));
    }
}

/// Prints a line while no bar is shown.
pub fn tell(line: &str) {
    print_err(line);
}

fn print_err(line: &str) {
    // No reader is left, and none to report the failure to.
    let _ = writeln!(std::io::stderr(), "{}", clean(line));
}

fn progress_line(done: u64, total: u64, what: &str, facts: &str, after: &str) -> String {
    let (shown, what) = (number(done), clean(what));
    if total == 0 {
        return format!("{what} {shown}{facts}, after {after}");
    }
    let percent = done as f64 / total as f64 * 100.0;
    format!("{what} {shown} of {} ({percent:.0} %){facts}, after {after}", number(total))
}

/// Removes control characters: text from other hosts or files must not control the terminal.
pub fn clean(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\n' && c != '\t' { ' ' } else { c }).collect()
}

/// The templates of bars; the prefix has the facts.
const WAITING: &str = "{spinner} {msg}{prefix}, {elapsed}";
const COUNTING: &str =
    "{msg} [{wide_bar}] {human_pos} of {human_len}{prefix}, {elapsed}, about {eta} left";
const COUNTING_ONLY: &str = "{msg} [{wide_bar}] {human_pos} of {human_len}{prefix}, {elapsed}";

fn waiting() -> ProgressStyle {
    style(WAITING)
}

fn counting(has_estimate: bool) -> ProgressStyle {
    style(if has_estimate { COUNTING_ONLY } else { COUNTING }).progress_chars("=> ")
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template)
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .tick_chars("-\\|/ ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_progress() {
        let line = progress_line(1234, 5000, "steps", "", "5.00 s");
        assert_eq!(line, "steps 1'234 of 5'000 (25 %), after 5.00 s");
        let line = progress_line(7, 0, "tasks", ", 3 nodes", "5.00 s");
        assert_eq!(line, "tasks 7, 3 nodes, after 5.00 s");
    }

    #[test]
    fn control_characters_are_removed() {
        assert_eq!(clean("a\x1b[2Jb\rc\nd\u{9b}1m"), "a [2Jb c\nd 1m");
    }

    #[test]
    fn the_bar_templates_are_valid() {
        for template in [WAITING, COUNTING, COUNTING_ONLY] {
            assert!(ProgressStyle::with_template(template).is_ok());
        }
    }
}
