//! Two-stage programs from SMPS files: a core file (a linear program in MPS form), a time file (its
//! periods) and a stochastic file (its random elements).
//!
//! Format: Birge, Dempster, Gassmann, Gunn, King, Wallace: A standard input format for multiperiod
//! stochastic linear programs (COAL Newsletter 17, 1987). The reader also accepts the deviations of
//! published files and reports them as [`ReadNote`]s. It is independent of the solver and of
//! sampling.

mod core;
mod error;
mod lines;
mod stoch;
#[cfg(test)]
mod tests;
mod time;

use std::borrow::Cow;
use std::ffi::OsStr;
use std::io::Read;
use std::path::{Path, PathBuf};

pub use self::error::{ReadNote, SmpsError, SmpsErrorKind};

use self::core::{CoreFile, RowType};
use self::error::{LineError, Notes, quote};
use self::time::TimeFile;
use crate::model::{Columns, Stage, TwoStage};

/// Largest file that is read, in bytes: 512 MiB.
pub const TEXT_MAX: u64 = 512 << 20;

/// Paths of the three files of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Files {
    /// The core file: the linear program.
    pub core: PathBuf,
    /// The time file: the periods.
    pub time: PathBuf,
    /// The stochastic file: the random elements.
    pub stoch: PathBuf,
}

/// Kind, endings in lower case, and endings in messages.
const KINDS: [(&str, &[&str], &str); 3] = [
    ("core", &["cor", "core", "mps"], ".cor, .core or .mps"),
    ("time", &["tim", "time"], ".tim or .time"),
    ("stochastic", &["sto", "stoch"], ".sto or .stoch"),
];

impl Files {
    /// Names each file by itself. The names may have any ending.
    pub fn new(
        core: impl Into<PathBuf>,
        time: impl Into<PathBuf>,
        stoch: impl Into<PathBuf>,
    ) -> Self {
        Self { core: core.into(), time: time.into(), stoch: stoch.into() }
    }

    /// Finds the files in a directory, by their common path without endings, or by the path of one
    /// of them. Endings may have any case.
    ///
    /// # Errors
    /// A file is missing, there are several of one kind, or the directory cannot be read.
    pub fn find(path: &Path) -> Result<Self, SmpsError> {
        let fail = |cause: SmpsErrorKind| cause.at(None).in_file(path);
        let kind_of = |file: &Path| {
            let ending = file.extension().and_then(OsStr::to_str)?.to_lowercase();
            KINDS.iter().position(|kind| kind.1.contains(&&*ending))
        };
        let (directory, stem) = if path.is_dir() {
            (path, None)
        } else {
            let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
            let is_one = path.is_file() && kind_of(path).is_some();
            let stem = if is_one { path.file_stem() } else { path.file_name() };
            (directory.unwrap_or(Path::new(".")), stem)
        };
        let mut found: [Option<PathBuf>; 3] = [const { None }; 3];
        let entries =
            std::fs::read_dir(directory).map_err(|error| fail(SmpsErrorKind::Unreadable(error)))?;
        for entry in entries {
            let file = entry.map_err(|error| fail(SmpsErrorKind::Unreadable(error)))?.path();
            let Some(kind) = kind_of(&file) else { continue };
            if stem.is_some_and(|stem| file.file_stem() != Some(stem)) {
                continue;
            }
            if let Some(other) = &found[kind] {
                let name =
                    |file: &Path| file.file_name().unwrap_or_default().to_string_lossy().into();
                // Directories list their files in any order.
                let mut names: [String; 2] = [name(other), name(&file)];
                names.sort();
                let [first, second] = names;
                return Err(fail(SmpsErrorKind::SeveralFiles {
                    kind: KINDS[kind].0,
                    first,
                    second,
                }));
            }
            found[kind] = Some(file);
        }
        let [core, time, stoch] = found;
        let required = |file: Option<PathBuf>, (kind, _, endings): (_, _, &'static str)| {
            file.ok_or_else(|| fail(SmpsErrorKind::NoFile { kind, endings }))
        };
        Ok(Self {
            core: required(core, KINDS[0])?,
            time: required(time, KINDS[1])?,
            stoch: required(stoch, KINDS[2])?,
        })
    }
}

/// Reads a program and notes on its files.
///
/// # Errors
/// A file cannot be read, exceeds [`TEXT_MAX`], violates the format, or describes no two-stage
/// linear program with continuous variables and discrete distributions.
pub fn read(files: &Files) -> Result<(TwoStage, Vec<ReadNote>), SmpsError> {
    let (core, time, stoch) = (load(&files.core)?, load(&files.time)?, load(&files.stoch)?);
    read_bytes([&core, &time, &stoch], files)
}

/// Reads a program from the contents of its core, time and stochastic file. `files` names them in
/// messages. Contents that are not UTF-8 are decoded as Latin-1.
///
/// # Errors
/// As for [`read`], without those of file access.
pub fn read_bytes(
    contents: [&[u8]; 3],
    files: &Files,
) -> Result<(TwoStage, Vec<ReadNote>), SmpsError> {
    let texts = contents.map(decode);
    let mut all_notes = contents.map(|_| Notes::default());
    for (text, notes) in texts.iter().zip(&mut all_notes) {
        if let Cow::Owned(_) = text {
            notes.add(None, || "is not UTF-8: it is read as Latin-1".to_owned());
        }
    }
    let [core_text, time_text, stoch_text] = &texts;
    let [core_notes, time_notes, stoch_notes] = &mut all_notes;
    let core = CoreFile::read(core_text, core_notes).map_err(|error| error.in_file(&files.core))?;
    let in_time_file = |error: LineError| error.in_file(&files.time);
    let time = TimeFile::read(time_text, &core, time_notes).map_err(in_time_file)?;
    let index = StageIndex::new(&core, &time).map_err(in_time_file)?;
    let mut program = index.program(&core, &time).map_err(|error| error.in_file(&files.core))?;
    let (name, random) = stoch::read(stoch_text, &core, &time, &index, stoch_notes)
        .map_err(|error| error.in_file(&files.stoch))?;
    program.random = random;
    for (notes, name) in [(time_notes, time.name), (stoch_notes, name)] {
        if !name.is_empty() && !core.name.is_empty() && !is_same_name(name, core.name) {
            notes.add(None, || {
                let (own, core) = (quote(name), quote(core.name));
                format!("has the name {own}, but the core file has the name {core}")
            });
        }
    }
    let paths = [&files.core, &files.time, &files.stoch];
    let notes = all_notes.into_iter().zip(paths).flat_map(|(notes, path)| notes.in_file(path));
    Ok((program, notes.collect()))
}

/// Whether names of programs agree. Fixed format has eight characters of a name.
fn is_same_name(one: &str, other: &str) -> bool {
    let start = |name: &str| name.chars().take(8).collect::<String>().to_lowercase();
    start(one) == start(other)
}

/// The contents of a file.
fn load(file: &Path) -> Result<Vec<u8>, SmpsError> {
    let unreadable = |error| SmpsErrorKind::Unreadable(error).at(None).in_file(file);
    let too_large = || SmpsErrorKind::TooLarge { limit: TEXT_MAX }.at(None).in_file(file);
    let open = std::fs::File::open(file).map_err(unreadable)?;
    if open.metadata().map_err(unreadable)?.len() > TEXT_MAX {
        return Err(too_large());
    }
    let mut bytes = Vec::new();
    // The metadata of pipes and devices has no length.
    open.take(TEXT_MAX + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > TEXT_MAX { Err(too_large()) } else { Ok(bytes) }
}

/// Decodes UTF-8 or else Latin-1, in which every byte is a character.
fn decode(bytes: &[u8]) -> Cow<'_, str> {
    match std::str::from_utf8(bytes) {
        Ok(text) => Cow::Borrowed(text),
        Err(_) => Cow::Owned(bytes.iter().map(|byte| char::from(*byte)).collect()),
    }
}

/// Positions of the core file's rows and columns in the two stages.
struct StageIndex {
    /// Index of each row of the core file in its stage; meaningless for rows of type N.
    rows: Vec<usize>,
    /// Index of each column in its stage.
    columns: Vec<usize>,
    /// Rows of each stage in the core file.
    stage_rows: [Vec<usize>; 2],
    /// Columns of each stage in the core file.
    stage_columns: [Vec<usize>; 2],
}

impl StageIndex {
    fn new(core: &CoreFile<'_>, time: &TimeFile<'_>) -> Result<Self, LineError> {
        fn index(stages: &[u8], counts: impl Fn(usize) -> bool) -> (Vec<usize>, [Vec<usize>; 2]) {
            let mut members = [Vec::new(), Vec::new()];
            let index = |(item, stage): (usize, &u8)| {
                let members = &mut members[usize::from(*stage)];
                if counts(item) {
                    members.push(item);
                }
                members.len().saturating_sub(1)
            };
            let indices = stages.iter().enumerate().map(index).collect();
            (indices, members)
        }
        let (rows, stage_rows) = index(&time.rows, |row| core.rows[row].row_type != RowType::Free);
        let (columns, stage_columns) = index(&time.columns, |_| true);
        let empty = |stage, what| Err(SmpsErrorKind::EmptyStage { stage, what }.at(None));
        // A first stage without rows is valid.
        match (&stage_columns, &stage_rows) {
            ([first, _], _) if first.is_empty() => empty("first", "columns"),
            ([_, second], _) if second.is_empty() => empty("second", "columns"),
            (_, [_, second]) if second.is_empty() => empty("second", "rows"),
            _ => Ok(Self { rows, columns, stage_rows, stage_columns }),
        }
    }

    /// The program without random elements.
    fn program(&self, core: &CoreFile<'_>, time: &TimeFile<'_>) -> Result<TwoStage, LineError> {
        let minimised = |value: f64| if core.maximise { -value } else { value };
        let mut stages = [0, 1].map(|stage| self.stage(core, stage));
        let mut matrices = [const { Vec::new() }; 3];
        let mut error: Option<(usize, u32, u32)> = None;
        for ((row, column), entry) in &core.entries {
            let (core_row, core_column) = (*row as usize, *column as usize);
            let (stage_row, stage_column) = (self.rows[core_row], self.columns[core_column]);
            let stage = usize::from(time.columns[core_column]);
            if core_row == core.objective {
                stages[stage].cost[stage_column] = minimised(entry.value);
                continue;
            }
            let matrix = match (time.rows[core_row], stage) {
                (0, 0) => 0,
                (1, 1) => 1,
                (1, _) => 2,
                _ if entry.value == 0.0 => continue,
                _ => {
                    // The map has no order; the message names the first in the file.
                    let this = (entry.line, *row, *column);
                    error = Some(error.map_or(this, |error| error.min(this)));
                    continue;
                }
            };
            matrices[matrix].push((stage_row, stage_column, entry.value));
        }
        if let Some((line, row, column)) = error {
            let row = core.rows[row as usize].name.to_owned();
            let column = core.columns[column as usize].name.to_owned();
            return Err(SmpsErrorKind::Staircase { row, column }.at(line));
        }
        let [mut first, mut second] = stages;
        let [first_matrix, second_matrix, technology] = matrices;
        first.matrix = Columns::of(first.rows.len(), first.columns.len(), first_matrix);
        second.matrix = Columns::of(second.rows.len(), second.columns.len(), second_matrix);
        let technology = Columns::of(second.rows.len(), first.columns.len(), technology);
        // The objective is its row less its right-hand side. Without one the constant is not -0.
        let offset = match core.rows[core.objective].rhs() {
            0.0 => 0.0,
            rhs => minimised(-rhs),
        };
        let (name, maximise) = (core.name.to_owned(), core.maximise);
        Ok(TwoStage { name, maximise, offset, first, second, technology, random: Vec::new() })
    }

    /// Columns and rows of a stage, without costs and matrix.
    fn stage(&self, core: &CoreFile<'_>, stage: usize) -> Stage {
        let columns = || self.stage_columns[stage].iter().map(|column| &core.columns[*column]);
        let rows = || self.stage_rows[stage].iter().map(|row| &core.rows[*row]);
        let (lower, upper) = columns().map(|column| column.bounds()).unzip();
        let (below, above) = rows().map(|row| row.slack()).unzip();
        Stage {
            columns: columns().map(|column| column.name.to_owned()).collect(),
            cost: vec![0.0; columns().len()],
            lower,
            upper,
            rows: rows().map(|row| row.name.to_owned()).collect(),
            rhs: rows().map(|row| row.rhs()).collect(),
            below,
            above,
            matrix: Columns::default(),
        }
    }
}
