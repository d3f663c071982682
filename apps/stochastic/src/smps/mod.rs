//! Two-stage programs from SMPS files: a core file (the program in MPS form), a time file (its periods) and a stochastic file (what is
//! random). Birge, Dempster, Gassmann, Gunn, King, Wallace: A standard input format for multiperiod stochastic linear programs
//! (COAL Newsletter 17, 1987), with what files in use have besides.
//!
//! Must not know how a program is solved, nor how scenarios are chosen.

mod core;
mod error;
mod lines;
mod stoch;
#[cfg(test)]
mod tests;
mod time;

use std::ffi::OsStr;
use std::io::Read;
use std::path::{Path, PathBuf};

pub use self::error::{Cause, Note, SmpsError};

use self::core::{Core, Kind};
use self::error::{Notes, Problem, shown};
use self::time::Periods;
use crate::model::{Columns, Stage, TwoStage};

/// Largest file that is read, in bytes: 512 MiB.
pub const TEXT_MAX: u64 = 512 << 20;

/// The three files of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Files {
    /// The linear program.
    pub core: PathBuf,
    /// Its periods.
    pub time: PathBuf,
    /// What is random.
    pub stoch: PathBuf,
}

/// What endings the files have, in any case.
const KINDS: [(&str, &[&str], &str); 3] = [
    ("core", &["cor", "core", "mps"], ".cor, .core or .mps"),
    ("time", &["tim", "time"], ".tim or .time"),
    ("stochastic", &["sto", "stoch"], ".sto or .stoch"),
];

impl Files {
    /// The files in a directory, or those of which `path` is the name up to the endings, or of which it is one.
    ///
    /// # Errors
    /// A file is missing, there are several of a kind, or the directory cannot be read.
    pub fn find(path: &Path) -> Result<Self, SmpsError> {
        let fail = |cause: Cause| cause.at(None).of(path);
        let ending = path.extension().and_then(OsStr::to_str).unwrap_or_default().to_lowercase();
        let is_one = path.is_file() && KINDS.iter().any(|kind| kind.1.contains(&&*ending));
        let (directory, stem) = match path.is_dir() {
            true => (path, None),
            false => {
                let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
                let stem = if is_one { path.file_stem() } else { path.file_name() };
                (directory.unwrap_or(Path::new(".")), stem)
            }
        };
        let mut found: [Option<PathBuf>; 3] = [const { None }; 3];
        let entries =
            std::fs::read_dir(directory).map_err(|error| fail(Cause::Unreadable(error)))?;
        for entry in entries {
            let file = entry.map_err(|error| fail(Cause::Unreadable(error)))?.path();
            let Some(ending) = file.extension().and_then(OsStr::to_str) else { continue };
            let ending = ending.to_lowercase();
            let kind = KINDS.iter().position(|kind| kind.1.contains(&&*ending));
            let Some(kind) =
                kind.filter(|_| stem.is_none_or(|stem| file.file_stem() == Some(stem)))
            else {
                continue;
            };
            if let Some(other) = &found[kind] {
                let name = |file: &Path| {
                    file.file_name().unwrap_or_default().to_string_lossy().into_owned()
                };
                // The system lists a directory in any order.
                let (one, two) = (name(other), name(&file));
                let (first, second) = if one < two { (one, two) } else { (two, one) };
                return Err(fail(Cause::SeveralFiles { kind: KINDS[kind].0, first, second }));
            }
            found[kind] = Some(file);
        }
        let [core, time, stoch] = found;
        let or_none = |file: Option<PathBuf>, (kind, _, endings): (_, _, &'static str)| {
            file.ok_or_else(|| fail(Cause::NoFile { kind, endings }))
        };
        Ok(Self {
            core: or_none(core, KINDS[0])?,
            time: or_none(time, KINDS[1])?,
            stoch: or_none(stoch, KINDS[2])?,
        })
    }
}

/// In which line of a core file a row is named, for messages; none if it is not, or the file cannot be read.
pub fn line_of_row(core: &Path, row: &str) -> Option<usize> {
    let text = std::fs::read_to_string(core).ok()?;
    let lines = (1..).zip(text.lines());
    let mut rows =
        lines.skip_while(|(_, line)| !line.trim_end().eq_ignore_ascii_case("ROWS")).skip(1);
    // The next section begins in the first column.
    let inside =
        rows.by_ref().take_while(|(_, line)| line.starts_with([' ', '\t', '*']) || line.is_empty());
    inside.filter(|(_, line)| !line.starts_with('*')).find_map(|(at, line)| {
        let name = line.trim().split_once([' ', '\t'])?.1.trim();
        (name == row).then_some(at)
    })
}

/// Reads a program, with what is worth a note in its files.
///
/// # Errors
/// A file cannot be read, is larger than [`TEXT_MAX`], breaks the rules of its format, or describes what is not a two-stage linear
/// program with fixed recourse and discrete distributions; with the line.
pub fn read(files: &Files) -> Result<(TwoStage, Vec<Note>), SmpsError> {
    let core = text(&files.core)?;
    let time = text(&files.time)?;
    let stoch = text(&files.stoch)?;
    read_texts(&core, &time, &stoch, files)
}

/// Reads a program from the texts of its files, which `names` names in messages.
///
/// # Errors
/// As [`read`], but for those of files.
pub fn read_texts(
    core: &str,
    time: &str,
    stoch: &str,
    names: &Files,
) -> Result<(TwoStage, Vec<Note>), SmpsError> {
    let [mut of_core, mut of_time, mut of_stoch] = [Notes::new(), Notes::new(), Notes::new()];
    let core = Core::read(core, &mut of_core).map_err(|problem| problem.of(&names.core))?;
    let periods =
        Periods::read(time, &core, &mut of_time).map_err(|problem| problem.of(&names.time))?;
    let stages = Stages::of(&core, &periods).map_err(|problem| problem.of(&names.time))?;
    let mut program = stages.program(&core, &periods).map_err(|problem| problem.of(&names.core))?;
    let (name, random) = stoch::read(stoch, &core, &periods, &stages, &mut of_stoch)
        .map_err(|problem| problem.of(&names.stoch))?;
    program.random = random;
    for (notes, name) in [(&mut of_time, periods.name), (&mut of_stoch, name)] {
        if !name.is_empty() && !core.name.is_empty() && name != core.name {
            notes.add(None, || {
                format!("is of {}, and the core file of {}", shown(name), shown(core.name))
            });
        }
    }
    let notes =
        of_core.of(&names.core).chain(of_time.of(&names.time)).chain(of_stoch.of(&names.stoch));
    Ok((program, notes.collect()))
}

/// A file's text.
fn text(file: &Path) -> Result<String, SmpsError> {
    let fail = |cause: Cause, line| cause.at(line).of(file);
    let unreadable = |error| fail(Cause::Unreadable(error), None);
    let too_large = || fail(Cause::TooLarge { limit: TEXT_MAX }, None);
    let open = std::fs::File::open(file).map_err(unreadable)?;
    if open.metadata().map_err(unreadable)?.len() > TEXT_MAX {
        return Err(too_large());
    }
    let mut bytes = Vec::new();
    // What is no regular file says nothing of its length before.
    open.take(TEXT_MAX + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > TEXT_MAX {
        return Err(too_large());
    }
    String::from_utf8(bytes).map_err(|error| {
        let valid = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = valid.iter().filter(|byte| **byte == b'\n').count() + 1;
        fail(Cause::NotUtf8, Some(line))
    })
}

/// Where rows and columns of the core file are in their stages.
struct Stages {
    /// Of each row of the core file, its index in its stage; that of a row of type N means nothing.
    rows: Vec<usize>,
    /// Of each column.
    columns: Vec<usize>,
    /// Rows of each stage in the core file.
    stage_rows: [Vec<usize>; 2],
    /// Columns of each stage.
    stage_columns: [Vec<usize>; 2],
}

impl Stages {
    fn of(core: &Core<'_>, periods: &Periods<'_>) -> Result<Self, Problem> {
        fn place(stages: &[u8], matters: impl Fn(usize) -> bool) -> (Vec<usize>, [Vec<usize>; 2]) {
            let mut members = [Vec::new(), Vec::new()];
            let place = |(at, stage): (usize, &u8)| {
                let members = &mut members[usize::from(*stage)];
                if matters(at) {
                    members.push(at);
                }
                members.len().saturating_sub(1)
            };
            let places = stages.iter().enumerate().map(place).collect();
            (places, members)
        }
        let (rows, stage_rows) = place(&periods.rows, |row| core.rows[row].kind != Kind::None);
        let (columns, stage_columns) = place(&periods.columns, |_| true);
        let empty = |stage, what| Err(Cause::EmptyStage { stage, what }.at(None));
        // A first stage may do without rows.
        match (&stage_columns, &stage_rows) {
            ([first, _], _) if first.is_empty() => empty("first", "columns"),
            ([_, second], _) if second.is_empty() => empty("second", "columns"),
            (_, [_, second]) if second.is_empty() => empty("second", "rows"),
            _ => Ok(Self { rows, columns, stage_rows, stage_columns }),
        }
    }

    /// The program without what is random.
    fn program(&self, core: &Core<'_>, periods: &Periods<'_>) -> Result<TwoStage, Problem> {
        let sign = if core.maximise { -1.0 } else { 1.0 };
        let mut stages = [0, 1].map(|stage| self.stage(core, stage));
        let mut matrices = [const { Vec::new() }; 3];
        let mut wrong: Option<(usize, u32, u32)> = None;
        for ((row, column), given) in &core.entries {
            let (at_row, at_column) = (*row as usize, *column as usize);
            let (place_row, place_column) = (self.rows[at_row], self.columns[at_column]);
            let second_column = periods.columns[at_column] == 1;
            if at_row == core.objective {
                stages[usize::from(second_column)].cost[place_column] = sign * given.value;
                continue;
            }
            let matrix = match (periods.rows[at_row] == 1, second_column) {
                (false, false) => 0,
                (true, true) => 1,
                (true, false) => 2,
                (false, true) if given.value == 0.0 => continue,
                (false, true) => {
                    // Of several the first in the file is told, in whatever order the map has them.
                    let this = (given.line, *row, *column);
                    wrong = Some(wrong.map_or(this, |wrong| wrong.min(this)));
                    continue;
                }
            };
            matrices[matrix].push((place_row, place_column, given.value));
        }
        if let Some((line, row, column)) = wrong {
            let row = core.rows[row as usize].name.to_owned();
            let column = core.columns[column as usize].name.to_owned();
            return Err(Cause::Staircase { row, column }.at(line));
        }
        let [mut first, mut second] = stages;
        let [own_first, own_second, technology] = matrices;
        first.matrix = Columns::of(first.rows.len(), first.columns.len(), own_first);
        second.matrix = Columns::of(second.rows.len(), second.columns.len(), own_second);
        let technology = Columns::of(second.rows.len(), first.columns.len(), technology);
        // A right-hand side of the objective is what its row is short of it; without one no -0.
        let offset = match core.rows[core.objective].rhs() {
            0.0 => 0.0,
            rhs => -sign * rhs,
        };
        let name = core.name.to_owned();
        let maximise = core.maximise;
        Ok(TwoStage { name, maximise, offset, first, second, technology, random: Vec::new() })
    }

    /// A stage's columns and rows, without its costs and its matrix.
    fn stage(&self, core: &Core<'_>, stage: usize) -> Stage {
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
