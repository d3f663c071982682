//! Readers of workflow files: the common part. Each format has a module that parses a text into a
//! draft.

mod dax;
mod dot;
mod own;
mod pegasus;
mod profiles;
mod wfformat;

use std::io::Read;
use std::path::Path;

use crate::arguments::has_variable;
use crate::draft::Draft;
pub use crate::draft::EDGES_MAX;
use crate::error::{Cause, ReadError, WorkflowProblem};
use crate::foreign::ForeignFormat;
use crate::format::{BOM, Format};
use crate::model::{Position, Workflow, WorkflowWarning};
use crate::overrides::Overrides;
use crate::text::Text;

/// The maximum size of a file, in bytes: 512 MiB.
pub const TEXT_MAX: u64 = 512 << 20;

impl Workflow {
    /// Reads a file, in the format that its name and content determine.
    ///
    /// # Errors
    /// The file cannot be read, or is larger than [`TEXT_MAX`]. It has no known format, is in a
    /// language that is not read, or is not a valid workflow. Or a task has no runtime, and
    /// `overrides` give it none. The error has the place.
    pub fn read(file: &Path, overrides: &Overrides) -> Result<Self, ReadError> {
        let read = || {
            let text = bytes(file)?;
            let read = match Format::guess(file, &text) {
                Some(format) => draft(&text, format),
                None if text.trim_ascii().is_empty() => Err(Cause::Empty.at(None)),
                None => Err(Cause::UnknownFormat.at(None)),
            };
            // The name of a file that can be read does not matter.
            let draft = read.map_err(|problem| match ForeignFormat::guess(file, &text) {
                Some(foreign) => Cause::ForeignFormat(foreign).at(None),
                None => problem,
            })?;
            draft.named(file).finish(overrides)
        };
        read().map_err(|problem: WorkflowProblem| problem.of(file))
    }

    /// Parses a text in a format; errors name `file`.
    ///
    /// # Errors
    /// The text is larger than [`TEXT_MAX`] or is not a valid workflow. Or a task has no runtime
    /// and `overrides` give it none.
    pub fn parse(
        file: &Path,
        text: &[u8],
        format: Format,
        overrides: &Overrides,
    ) -> Result<Self, ReadError> {
        let read = draft(text, format).and_then(|draft| draft.named(file).finish(overrides));
        read.map_err(|problem| problem.of(file))
    }

    /// Writes the workflow in Springtide's own format. Reading it gives the same workflow, without
    /// positions and warnings.
    pub fn to_toml(&self) -> String {
        own::write(self)
    }
}

impl Draft {
    fn named(mut self, file: &Path) -> Self {
        if self.name.is_empty()
            && let Some(stem) = file.file_stem()
        {
            self.name = stem.to_string_lossy().into_owned();
        }
        self
    }
}

/// The content of a file.
pub(crate) fn bytes(file: &Path) -> Result<Vec<u8>, WorkflowProblem> {
    let unreadable = |source| Cause::Unreadable(source).at(None);
    let about = std::fs::metadata(file).map_err(unreadable)?;
    if about.is_dir() {
        return Err(Cause::Directory.at(None));
    }
    if about.len() > TEXT_MAX {
        return Err(Cause::TooLarge { limit: TEXT_MAX }.at(None));
    }
    let mut bytes = Vec::new();
    // The length of a file that is not regular is unknown before reading.
    let file = std::fs::File::open(file).map_err(unreadable)?;
    file.take(TEXT_MAX + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    Ok(bytes)
}

fn draft(text: &[u8], format: Format) -> Result<Draft, WorkflowProblem> {
    if text.len() as u64 > TEXT_MAX {
        return Err(Cause::TooLarge { limit: TEXT_MAX }.at(None));
    }
    let text = text.strip_prefix(&BOM).unwrap_or(text);
    let text = std::str::from_utf8(text).map_err(|error| {
        let valid = text.get(..error.valid_up_to()).unwrap_or_default();
        let valid = std::str::from_utf8(valid).unwrap_or_default();
        Cause::NotUtf8.at(Text::new(valid).end())
    })?;
    if text.trim().is_empty() {
        return Err(Cause::Empty.at(None));
    }
    let text = Text::new(text);
    match format {
        Format::WfFormat => wfformat::read(&text),
        Format::Dax => dax::read(&text),
        Format::Pegasus => pegasus::read(&text),
        Format::Dot => dot::read(&text),
        Format::Own => own::read(&text),
    }
}

fn syntax(
    format: Format,
    reason: impl Into<String>,
    at: impl Into<Option<Position>>,
) -> WorkflowProblem {
    Cause::Syntax { format, reason: reason.into() }.at(at)
}

/// Adds the position to the error of a value.
fn with_position<T>(value: Result<T, String>, at: Option<Position>) -> Result<T, WorkflowProblem> {
    value.map_err(|reason| WorkflowProblem::value(reason, at))
}

/// Warns of arguments that Pegasus changes before a program gets them.
fn check_arguments(draft: &mut Draft, arguments: &[String], id: &str, at: Option<Position>) {
    if arguments.iter().any(|argument| has_variable(argument)) {
        draft.warn(WorkflowWarning::Variable, id, at);
    }
}
