//! The time file: which rows and columns of the core file are of which stage.
//!
//! Must not know what is random.

use super::core::{Core, Kind};
use super::error::{Cause, Notes, Problem, shown};
use super::lines::{Form, Line, Reader, drive};

const SECTIONS: &str = "TIME, PERIODS, ROWS, COLUMNS and ENDATA";

/// The stages of a core file's rows and columns: 0 and 1.
#[derive(Debug)]
pub(super) struct Periods<'a> {
    pub name: &'a str,
    pub names: [&'a str; 2],
    pub rows: Vec<u8>,
    pub columns: Vec<u8>,
}

impl<'a> Periods<'a> {
    pub fn read(text: &'a str, core: &Core<'_>, notes: &mut Notes) -> Result<Self, Problem> {
        let mut reader = TimeReader {
            core,
            name: "",
            section: None,
            explicit: false,
            periods: Vec::new(),
            rows: vec![None; core.rows.len()],
            columns: vec![None; core.columns.len()],
        };
        drive(text, notes, &mut reader)?;
        let [first, second] = reader.periods[..] else {
            return Err(Cause::Periods { found: reader.periods.len() }.at(None));
        };
        let names = [first.name, second.name];
        let (rows, columns) = match reader.explicit {
            true => reader.listed()?,
            false => (
                split("row", core.rows.len(), [first, second].map(|p| (p.row, p.line)), |row| {
                    let row = &core.rows[row];
                    (row.kind != Kind::None, row.name)
                })?,
                split(
                    "column",
                    core.columns.len(),
                    [first, second].map(|p| (p.column, p.line)),
                    |column| (true, core.columns[column].name),
                )?,
            ),
        };
        Ok(Self { name: reader.name, names, rows, columns })
    }
}

/// Stages of rows or columns by where the two begin. `about` tells which matter, and their names.
fn split<'c>(
    kind: &'static str,
    count: usize,
    [first, second]: [(usize, usize); 2],
    about: impl Fn(usize) -> (bool, &'c str),
) -> Result<Vec<u8>, Problem> {
    let order =
        |at: usize, line: usize| Cause::Order { kind, name: about(at).1.to_owned() }.at(line);
    if second.0 < first.0 {
        return Err(order(second.0, second.1));
    }
    if let Some(before) = (0..first.0).find(|at| about(*at).0) {
        return Err(order(before, first.1));
    }
    Ok((0..count).map(|at| u8::from(at >= second.0)).collect())
}

#[derive(Clone, Copy)]
struct Period<'a> {
    name: &'a str,
    line: usize,
    /// First row and column, unless these are listed.
    row: usize,
    column: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Section {
    Time,
    Periods,
    Rows,
    Columns,
}

/// The stage of a row or column, and the line that tells it.
type Listed = Option<(u8, usize)>;

struct TimeReader<'a, 'c> {
    core: &'c Core<'c>,
    name: &'a str,
    section: Option<Section>,
    explicit: bool,
    periods: Vec<Period<'a>>,
    rows: Vec<Listed>,
    columns: Vec<Listed>,
}

impl<'a> Reader<'a> for TimeReader<'a, '_> {
    fn header(&mut self, name: &'a str, line: Line<'a>) -> Result<(), Problem> {
        let section = match name.to_ascii_uppercase().as_str() {
            // Some have NAME here as in a core file.
            "TIME" | "NAME" => Section::Time,
            "PERIODS" => Section::Periods,
            "ROWS" => Section::Rows,
            "COLUMNS" => Section::Columns,
            _ => {
                let name = name.to_owned();
                return Err(Cause::UnknownSection { name, known: SECTIONS }.at(line.number));
            }
        };
        match section {
            Section::Time => self.name = line.rest(),
            Section::Periods => {
                self.explicit = match line.rest().to_ascii_uppercase().as_str() {
                    "" | "LP" | "IMPLICIT" => false,
                    "EXPLICIT" => true,
                    _ => {
                        let word = shown(line.rest());
                        let reason =
                            format!("PERIODS {word} is not known, only LP, IMPLICIT and EXPLICIT");
                        return Err(Cause::Unsupported(reason).at(line.number));
                    }
                }
            }
            Section::Rows | Section::Columns if !self.explicit => {
                let reason = "rows and columns are listed only behind PERIODS EXPLICIT".to_owned();
                return Err(Cause::Unsupported(reason).at(line.number));
            }
            Section::Rows | Section::Columns => line.alone()?,
        }
        self.section = Some(section);
        Ok(())
    }

    fn data(&mut self, line: Line<'a>) -> Result<(), Problem> {
        match self.section {
            None | Some(Section::Time) => {
                Err(Cause::NoSection { first: "PERIODS" }.at(line.number))
            }
            Some(Section::Periods) => self.period(line),
            Some(Section::Rows) => {
                let at = self.listed_as(line, "row", |core, name| core.row(name))?;
                list(&mut self.rows, at, "row", line)
            }
            Some(Section::Columns) => {
                let at = self.listed_as(line, "column", |core, name| core.column(name))?;
                list(&mut self.columns, at, "column", line)
            }
        }
    }
}

/// Rows or columns have their stage once.
fn list(
    all: &mut [Listed],
    (at, stage): (usize, u8),
    kind: &str,
    line: Line<'_>,
) -> Result<(), Problem> {
    match all[at].replace((stage, line.number)) {
        None => Ok(()),
        Some((_, first)) => {
            let what = format!("the period of this {kind}");
            Err(Cause::Twice { what, first }.at(line.number))
        }
    }
}

impl<'a> TimeReader<'a, '_> {
    fn form(&self) -> Form {
        self.core.form
    }

    fn period(&mut self, line: Line<'a>) -> Result<(), Problem> {
        let (counts, expected): (&[usize], _) = match self.explicit {
            true => (&[1, 3], "1: period"),
            false => (&[3], "3: first column, first row and period"),
        };
        let fields = line.exactly(self.form(), counts, expected)?;
        let name = fields[fields.len() - 1];
        if let Some(before) = self.periods.iter().find(|period| period.name == name) {
            let (what, first) = (format!("period {}", shown(name)), before.line);
            return Err(Cause::Twice { what, first }.at(line.number));
        }
        let (mut row, mut column) = (0, 0);
        if !self.explicit {
            let unknown = |kind, name| Cause::unknown(kind, name).at(line.number);
            column = self.core.column(fields[0]).ok_or_else(|| unknown("column", fields[0]))?;
            row = self.core.row(fields[1]).ok_or_else(|| unknown("row", fields[1]))?;
        }
        self.periods.push(Period { name, line: line.number, row, column });
        match self.periods.len() {
            3 => Err(Cause::Periods { found: 3 }.at(line.number)),
            _ => Ok(()),
        }
    }

    fn listed_as(
        &self,
        line: Line<'a>,
        kind: &'static str,
        named: impl Fn(&Core<'_>, &str) -> Option<usize>,
    ) -> Result<(usize, u8), Problem> {
        let fields = line.exactly(self.form(), &[2], "2: name and period")?;
        let unknown = |kind, name| Cause::unknown(kind, name).at(line.number);
        let at = named(self.core, fields[0]).ok_or_else(|| unknown(kind, fields[0]))?;
        let stage = self.periods.iter().position(|period| period.name == fields[1]);
        let stage = stage.ok_or_else(|| unknown("period", fields[1]))?;
        Ok((at, stage as u8))
    }

    /// Stages of rows and columns that are listed, each of which must be.
    fn listed(&self) -> Result<(Vec<u8>, Vec<u8>), Problem> {
        let missing = |kind, name: &str| Cause::NoPeriod { kind, name: name.to_owned() }.at(None);
        let rows = self.core.rows.iter().zip(&self.rows).map(|(row, stage)| match stage {
            Some((stage, _)) => Ok(*stage),
            None if row.kind == Kind::None => Ok(0),
            None => Err(missing("row", row.name)),
        });
        let columns =
            self.core.columns.iter().zip(&self.columns).map(|(column, stage)| match stage {
                Some((stage, _)) => Ok(*stage),
                None => Err(missing("column", column.name)),
            });
        Ok((rows.collect::<Result<_, _>>()?, columns.collect::<Result<_, _>>()?))
    }
}
