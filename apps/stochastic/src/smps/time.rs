//! The time file: the stage of each row and column of the core file. This module does not know
//! random elements.

use super::core::{CoreFile, RowType, program_name};
use super::error::{LineError, Notes, SmpsErrorKind, quote};
use super::lines::{DataLine, Format, SectionReader, is_number, read_sections};

/// Largest number of periods that is read, to count and name them in an error.
const PERIODS_MAX: usize = 100;

/// The stages of a core file's rows and columns: 0 or 1.
#[derive(Debug)]
pub(super) struct TimeFile<'a> {
    pub name: &'a str,
    /// Names of the two periods.
    pub periods: [&'a str; 2],
    pub rows: Vec<u8>,
    pub columns: Vec<u8>,
}

impl<'a> TimeFile<'a> {
    pub fn read(text: &'a str, core: &CoreFile<'_>, notes: &mut Notes) -> Result<Self, LineError> {
        let mut reader = TimeReader {
            core,
            notes,
            name: "",
            section: None,
            is_explicit: false,
            periods: Vec::new(),
            rows: vec![None; core.rows.len()],
            columns: vec![None; core.columns.len()],
        };
        read_sections(text, &mut reader)?;
        let [first, second] = reader.periods[..] else {
            let line = reader.periods.get(2).map(|third| third.line);
            let names = reader.periods.iter().map(|period| period.name.to_owned()).collect();
            return Err(SmpsErrorKind::Periods { names }.at(line));
        };
        let (rows, columns) = if reader.is_explicit {
            reader.listed_stages()?
        } else {
            (
                split("row", core.rows.len(), [first, second].map(|p| (p.row, p.line)), |row| {
                    let row = &core.rows[row];
                    (row.row_type != RowType::Free, row.name)
                })?,
                split(
                    "column",
                    core.columns.len(),
                    [first, second].map(|p| (p.column, p.line)),
                    |column| (true, core.columns[column].name),
                )?,
            )
        };
        Ok(Self { name: reader.name, periods: [first.name, second.name], rows, columns })
    }
}

/// Stages of rows or columns, from index and line of the first of each stage. `describe` says
/// whether one must have a stage, and its name.
fn split<'c>(
    kind: &'static str,
    count: usize,
    [first, second]: [(usize, usize); 2],
    describe: impl Fn(usize) -> (bool, &'c str),
) -> Result<Vec<u8>, LineError> {
    let out_of_order = |index: usize, line: usize| {
        SmpsErrorKind::Order { kind, name: describe(index).1.to_owned() }.at(line)
    };
    if second.0 < first.0 {
        return Err(out_of_order(second.0, second.1));
    }
    if let Some(earlier) = (0..first.0).find(|index| describe(*index).0) {
        return Err(out_of_order(earlier, first.1));
    }
    Ok((0..count).map(|index| u8::from(index >= second.0)).collect())
}

#[derive(Clone, Copy)]
struct Period<'a> {
    name: &'a str,
    line: usize,
    /// First row and column, unless the file is explicit.
    row: usize,
    column: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum TimeSection {
    Time,
    Periods,
    Rows,
    Columns,
}

/// The stage of a listed row or column, and its line.
type ListedStage = Option<(u8, usize)>;

struct TimeReader<'a, 'c> {
    core: &'c CoreFile<'c>,
    notes: &'c mut Notes,
    name: &'a str,
    section: Option<TimeSection>,
    is_explicit: bool,
    periods: Vec<Period<'a>>,
    rows: Vec<ListedStage>,
    columns: Vec<ListedStage>,
}

impl<'a> SectionReader<'a> for TimeReader<'a, '_> {
    // Some files begin with NAME, as a core file does.
    const OPENINGS: &'static [&'static str] = &["TIME", "NAME"];
    const SECTIONS: &'static [&'static str] = &["PERIODS", "ROWS", "COLUMNS"];

    fn notes(&mut self) -> &mut Notes {
        self.notes
    }

    fn header(&mut self, keyword: &str, line: DataLine<'a>) -> Result<(), LineError> {
        let unsupported = |reason: String| Err(SmpsErrorKind::Unsupported(reason).at(line.number));
        let section = match keyword {
            "TIME" | "NAME" => {
                self.name = program_name(line);
                TimeSection::Time
            }
            "PERIODS" => {
                self.is_explicit = match line.rest().to_ascii_uppercase().as_str() {
                    "" | "LP" | "IMPLICIT" => false,
                    "EXPLICIT" => true,
                    count if is_number(count) => {
                        let text = format!("the number {count} after PERIODS is ignored");
                        self.notes.add(line.number, || text);
                        false
                    }
                    _ => {
                        let word = quote(line.rest());
                        return unsupported(format!(
                            "PERIODS {word} is not supported, only LP, IMPLICIT and EXPLICIT"
                        ));
                    }
                };
                TimeSection::Periods
            }
            "ROWS" | "COLUMNS" if !self.is_explicit => {
                return unsupported(format!("section {keyword} must follow PERIODS EXPLICIT"));
            }
            "ROWS" => TimeSection::Rows,
            "COLUMNS" => TimeSection::Columns,
            _ => return Err(Self::unknown_section(line)),
        };
        if matches!(section, TimeSection::Rows | TimeSection::Columns) {
            line.check_header(0)?;
        }
        self.section = Some(section);
        Ok(())
    }

    fn data(&mut self, line: DataLine<'a>) -> Result<(), LineError> {
        match self.section {
            None | Some(TimeSection::Time) => {
                Err(SmpsErrorKind::NoSection { expected: "the PERIODS line" }.at(line.number))
            }
            Some(TimeSection::Periods) => self.period(line),
            Some(TimeSection::Rows) => {
                let (name, stage) = self.listed(line)?;
                let row = self.core.row(name);
                let row = row.ok_or_else(|| SmpsErrorKind::unknown("row", name).at(line.number))?;
                set_stage(&mut self.rows[row], stage, ("row", name), line, self.notes)
            }
            Some(TimeSection::Columns) => {
                let (name, stage) = self.listed(line)?;
                let column = self.core.column(name);
                let column =
                    column.ok_or_else(|| SmpsErrorKind::unknown("column", name).at(line.number))?;
                set_stage(&mut self.columns[column], stage, ("column", name), line, self.notes)
            }
        }
    }
}

/// Sets the stage of a listed row or column.
///
/// # Errors
/// It has another stage.
fn set_stage(
    listed: &mut ListedStage,
    stage: u8,
    (kind, name): (&str, &str),
    line: DataLine<'_>,
    notes: &mut Notes,
) -> Result<(), LineError> {
    let what = || format!("the period of {kind} {}", quote(name));
    match *listed {
        None => *listed = Some((stage, line.number)),
        Some((known, first)) if known == stage => {
            notes.add(line.number, || format!("{} repeats line {first}", what()));
        }
        Some((_, first)) => {
            return Err(SmpsErrorKind::Duplicate { what: what(), first }.at(line.number));
        }
    }
    Ok(())
}

impl<'a> TimeReader<'a, '_> {
    fn format(&self) -> Format {
        self.core.format
    }

    fn period(&mut self, line: DataLine<'a>) -> Result<(), LineError> {
        let (counts, expected): (&[usize], _) = if self.is_explicit {
            (&[1, 3], "1: period")
        } else {
            (&[3], "3: first column, first row and period")
        };
        let fields = line.exact_fields(self.format(), counts, expected)?;
        if self.periods.len() == PERIODS_MAX {
            let (what, limit) = ("periods", PERIODS_MAX);
            return Err(SmpsErrorKind::TooMany { what, limit }.at(line.number));
        }
        let name = fields[fields.len() - 1];
        if let Some(known) = self.periods.iter().find(|period| period.name == name) {
            let (what, first) = (format!("period {}", quote(name)), known.line);
            return Err(SmpsErrorKind::Duplicate { what, first }.at(line.number));
        }
        let (mut row, mut column) = (0, 0);
        if !self.is_explicit {
            let core = self.core;
            let find = |[one, other]: [&str; 2]| (core.column(one), core.row(other));
            (column, row) = match (find([fields[0], fields[1]]), find([fields[1], fields[0]])) {
                ((Some(column), Some(row)), _) => (column, row),
                (_, (Some(column), Some(row))) => {
                    self.notes.add(line.number, || "the row precedes the column".to_owned());
                    (column, row)
                }
                ((None, _), _) => {
                    return Err(SmpsErrorKind::unknown("column", fields[0]).at(line.number));
                }
                _ => return Err(SmpsErrorKind::unknown("row", fields[1]).at(line.number)),
            };
        }
        self.periods.push(Period { name, line: line.number, row, column });
        Ok(())
    }

    /// Name and stage of a row or column in an explicit file.
    fn listed(&self, line: DataLine<'a>) -> Result<(&'a str, u8), LineError> {
        let fields = line.exact_fields(self.format(), &[2], "2: name and period")?;
        match self.periods.iter().position(|period| period.name == fields[1]) {
            // A file with more periods is refused at its end.
            Some(stage) => Ok((fields[0], stage.min(1) as u8)),
            None => Err(SmpsErrorKind::unknown("period", fields[1]).at(line.number)),
        }
    }

    /// Stages of all rows and columns of an explicit file.
    fn listed_stages(&self) -> Result<(Vec<u8>, Vec<u8>), LineError> {
        let missing = |kind, section, name: &str| {
            SmpsErrorKind::NoPeriod { kind, name: name.to_owned(), section }.at(None)
        };
        let rows = self.core.rows.iter().zip(&self.rows).map(|(row, listed)| match listed {
            Some((stage, _)) => Ok(*stage),
            None if row.row_type == RowType::Free => Ok(0),
            None => Err(missing("row", "ROWS", row.name)),
        });
        let columns = self.core.columns.iter().zip(&self.columns);
        let columns = columns.map(|(column, listed)| match listed {
            Some((stage, _)) => Ok(*stage),
            None => Err(missing("column", "COLUMNS", column.name)),
        });
        Ok((rows.collect::<Result<_, _>>()?, columns.collect::<Result<_, _>>()?))
    }
}
