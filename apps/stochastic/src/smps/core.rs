//! The core file: a linear program in MPS form.
//!
//! Must not know of periods, nor of what is random.

use std::collections::{HashMap, HashSet};

use super::error::{Cause, Notes, Problem, shown};
use super::lines::{Fields, Form, Line, Reader, drive, number};

/// A bound of this size or more is none, as solvers have it.
const INFINITE: f64 = 1e20;

const SECTIONS: &str = "NAME, OBJSENSE, ROWS, COLUMNS, RHS, RANGES, BOUNDS and ENDATA";

/// A row's type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The objective, or a row without effect.
    None,
    Equal,
    Less,
    Greater,
}

/// A value and the line that gives it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Given {
    pub value: f64,
    pub line: usize,
}

#[derive(Debug)]
pub(super) struct Row<'a> {
    pub name: &'a str,
    pub kind: Kind,
    line: usize,
    rhs: Option<Given>,
    range: Option<Given>,
}

impl Row<'_> {
    pub fn rhs(&self) -> f64 {
        self.rhs.map_or(0.0, |rhs| rhs.value)
    }

    /// How far the row may lie below and above its right-hand side.
    pub fn slack(&self) -> (f64, f64) {
        let range = self.range.map(|range| range.value);
        match (self.kind, range) {
            (Kind::None, _) => (f64::INFINITY, f64::INFINITY),
            (Kind::Less, range) => (range.map_or(f64::INFINITY, f64::abs), 0.0),
            (Kind::Greater, range) => (0.0, range.map_or(f64::INFINITY, f64::abs)),
            // The sign of an equation's range tells to which side it goes.
            (Kind::Equal, Some(range)) if range < 0.0 => (-range, 0.0),
            (Kind::Equal, range) => (0.0, range.unwrap_or(0.0)),
        }
    }
}

#[derive(Debug)]
pub(super) struct Column<'a> {
    pub name: &'a str,
    lower: Option<Given>,
    upper: Option<Given>,
}

impl Column<'_> {
    /// A negative upper bound alone leaves none below, as MPS has it since its beginnings.
    pub fn bounds(&self) -> (f64, f64) {
        let upper = self.upper.map_or(f64::INFINITY, |upper| upper.value);
        let least = if upper < 0.0 { f64::NEG_INFINITY } else { 0.0 };
        (self.lower.map_or(least, |lower| lower.value), upper)
    }
}

/// A core file's program. Rows of type N are among its rows.
#[derive(Debug)]
pub(super) struct Core<'a> {
    pub name: &'a str,
    pub form: Form,
    pub maximise: bool,
    /// Which row.
    pub objective: usize,
    pub rows: Vec<Row<'a>>,
    pub columns: Vec<Column<'a>>,
    /// Coefficients by row and column, those of the objective too.
    pub entries: HashMap<(u32, u32), Given>,
    row_named: HashMap<&'a str, usize>,
    column_named: HashMap<&'a str, usize>,
    rhs_sets: HashSet<&'a str>,
    range_sets: HashSet<&'a str>,
}

impl<'a> Core<'a> {
    pub fn row(&self, name: &str) -> Option<usize> {
        self.row_named.get(name).copied()
    }

    pub fn column(&self, name: &str) -> Option<usize> {
        self.column_named.get(name).copied()
    }

    /// A coefficient, which is 0 if there is none.
    pub fn entry(&self, row: usize, column: usize) -> f64 {
        self.entries.get(&(row as u32, column as u32)).map_or(0.0, |given| given.value)
    }

    /// Whether this stands for right-hand sides in the place of a column.
    pub fn names_rhs(&self, name: &str) -> bool {
        let upper = name.to_ascii_uppercase();
        // RHS and RHS1 are as good: not all stochastic files have the name that the core file has.
        let usual =
            upper == "RIGHT" || upper.trim_end_matches(|c: char| c.is_ascii_digit()) == "RHS";
        self.rhs_sets.contains(name) || (usual && self.column(name).is_none())
    }

    /// Whether this stands for ranges in the place of a column.
    pub fn names_ranges(&self, name: &str) -> bool {
        self.column(name).is_none() && self.range_sets.contains(name)
    }

    pub fn read(text: &'a str, notes: &mut Notes) -> Result<Self, Problem> {
        let core = Self {
            name: "",
            form: Form::of(text),
            maximise: false,
            objective: 0,
            rows: Vec::new(),
            columns: Vec::new(),
            entries: HashMap::new(),
            row_named: HashMap::new(),
            column_named: HashMap::new(),
            rhs_sets: HashSet::new(),
            range_sets: HashSet::new(),
        };
        let mut reader = CoreReader { core, section: None, objective: None, notes: Notes::new() };
        drive(text, notes, &mut reader)?;
        notes.append(reader.notes);
        let mut core = reader.core;
        core.objective = reader.objective.ok_or_else(|| Cause::NoObjective.at(None))?;
        for column in &core.columns {
            let (lower, upper) = column.bounds();
            let line = column.upper.or(column.lower).map(|given| given.line);
            if lower > upper {
                let column = column.name.to_owned();
                return Err(Cause::Bounds { column, lower, upper }.at(line));
            }
            if column.lower.is_none() && upper < 0.0 {
                notes.add(line, || {
                    format!(
                        "column {} has a negative upper bound and no lower one: it has none below",
                        shown(column.name)
                    )
                });
            }
        }
        Ok(core)
    }
}

#[derive(Clone, Copy)]
enum Section {
    Name,
    Sense,
    Rows,
    Columns,
    Rhs,
    Ranges,
    Bounds,
}

struct CoreReader<'a> {
    core: Core<'a>,
    section: Option<Section>,
    objective: Option<usize>,
    notes: Notes,
}

impl<'a> Reader<'a> for CoreReader<'a> {
    fn header(&mut self, name: &'a str, line: Line<'a>) -> Result<(), Problem> {
        let section = match name.to_ascii_uppercase().as_str() {
            "NAME" => Section::Name,
            "OBJSENSE" => Section::Sense,
            "ROWS" => Section::Rows,
            "COLUMNS" => Section::Columns,
            "RHS" => Section::Rhs,
            "RANGES" => Section::Ranges,
            "BOUNDS" => Section::Bounds,
            _ => {
                let name = name.to_owned();
                return Err(Cause::UnknownSection { name, known: SECTIONS }.at(line.number));
            }
        };
        match section {
            Section::Name => self.core.name = line.rest(),
            Section::Sense if !line.rest().is_empty() => self.sense(line.rest(), line.number)?,
            _ => line.alone()?,
        }
        self.section = Some(section);
        Ok(())
    }

    fn data(&mut self, line: Line<'a>) -> Result<(), Problem> {
        match self.section {
            None => Err(Cause::NoSection { first: "NAME" }.at(line.number)),
            Some(Section::Name) => Err(Cause::Fields {
                found: line.fields(Form::Free).len(),
                expected: "none behind NAME",
            }
            .at(line.number)),
            Some(Section::Sense) => self.sense(line.text.trim(), line.number),
            Some(Section::Rows) => self.row(line),
            Some(Section::Columns) => self.column(line),
            Some(Section::Rhs) => self.rhs(line),
            Some(Section::Ranges) => self.range(line),
            Some(Section::Bounds) => self.bound(line),
        }
    }
}

impl<'a> CoreReader<'a> {
    fn sense(&mut self, word: &str, line: usize) -> Result<(), Problem> {
        self.core.maximise = match word.to_ascii_uppercase().as_str() {
            "MAX" | "MAXIMIZE" | "MAXIMISE" => true,
            "MIN" | "MINIMIZE" | "MINIMISE" => false,
            _ => {
                let reason = format!("the sense {} is not known, only MIN and MAX", shown(word));
                return Err(Cause::Unsupported(reason).at(line));
            }
        };
        if self.core.maximise {
            self.notes.add(line, || {
                "is to be maximised: it is minimised with the sign of its objective changed"
                    .to_owned()
            });
        }
        Ok(())
    }

    fn row(&mut self, line: Line<'a>) -> Result<(), Problem> {
        let fields = line.exactly(self.core.form, &[2], "2: type and row")?;
        let (kind, name) = (fields[0], fields[1]);
        let kind = match kind.to_ascii_uppercase().as_str() {
            "N" => Kind::None,
            "E" => Kind::Equal,
            "L" => Kind::Less,
            "G" => Kind::Greater,
            _ => {
                let reason =
                    format!("the type {} of a row is not known, only N, E, L and G", shown(kind));
                return Err(Cause::Unsupported(reason).at(line.number));
            }
        };
        let row = self.core.rows.len();
        if let Some(before) = self.core.row_named.insert(name, row) {
            let (what, first) = (format!("row {}", shown(name)), self.core.rows[before].line);
            return Err(Cause::Twice { what, first }.at(line.number));
        }
        match (kind, self.objective) {
            (Kind::None, None) => self.objective = Some(row),
            (Kind::None, Some(objective)) => {
                let objective = self.core.rows[objective].name;
                self.notes.add(line.number, || {
                    format!(
                        "row {} is left out, for {} is the objective",
                        shown(name),
                        shown(objective)
                    )
                });
            }
            _ => {}
        }
        self.core.rows.push(Row { name, kind, line: line.number, rhs: None, range: None });
        Ok(())
    }

    fn known_row(&self, name: &str, line: usize) -> Result<usize, Problem> {
        self.core.row(name).ok_or_else(|| Cause::unknown("row", name).at(line))
    }

    fn column(&mut self, line: Line<'a>) -> Result<(), Problem> {
        const EXPECTED: &str = "3 or 5: column, row, value, and perhaps another row and value";
        let fields = line.fields(self.core.form);
        if fields
            .get(1)
            .is_some_and(|field| field.trim_matches('\'').eq_ignore_ascii_case("MARKER"))
        {
            return Err(Cause::Integer("the MARKER lines").at(line.number));
        }
        if ![3, 5].contains(&fields.len()) {
            return Err(Cause::Fields { found: fields.len(), expected: EXPECTED }.at(line.number));
        }
        let name = fields[0];
        let column = match self.core.column(name) {
            Some(column) => column,
            None => {
                let column = self.core.columns.len();
                self.core.columns.push(Column { name, lower: None, upper: None });
                self.core.column_named.insert(name, column);
                column
            }
        };
        for pair in fields[1..].chunks_exact(2) {
            let row = self.known_row(pair[0], line.number)?;
            let given = Given { value: number(pair[1], line.number)?, line: line.number };
            // What is in rows without effect has none.
            if self.core.rows[row].kind == Kind::None && Some(row) != self.objective {
                continue;
            }
            if let Some(before) = self.core.entries.insert((row as u32, column as u32), given) {
                let what = format!("row {} of column {}", shown(pair[0]), shown(name));
                return Err(Cause::Twice { what, first: before.line }.at(line.number));
            }
        }
        Ok(())
    }

    /// Pairs of row and value behind the name of a set, which may lack.
    fn pairs<'f>(
        fields: &'f Fields<'a>,
        line: usize,
    ) -> Result<(Option<&'a str>, &'f [&'a str]), Problem> {
        match fields.len() {
            2 | 4 => Ok((None, fields)),
            3 | 5 => Ok((Some(fields[0]), &fields[1..])),
            found => {
                let expected = "3 or 5: set, row, value, and perhaps another row and value";
                Err(Cause::Fields { found, expected }.at(line))
            }
        }
    }

    fn rhs(&mut self, line: Line<'a>) -> Result<(), Problem> {
        let fields = line.fields(self.core.form);
        let (set, pairs) = Self::pairs(&fields, line.number)?;
        self.core.rhs_sets.extend(set);
        for pair in pairs.chunks_exact(2) {
            let row = self.known_row(pair[0], line.number)?;
            let given = Given { value: number(pair[1], line.number)?, line: line.number };
            if let Some(before) = self.core.rows[row].rhs.replace(given) {
                let what = format!("the right-hand side of row {}", shown(pair[0]));
                return Err(Cause::Twice { what, first: before.line }.at(line.number));
            }
        }
        Ok(())
    }

    fn range(&mut self, line: Line<'a>) -> Result<(), Problem> {
        let fields = line.fields(self.core.form);
        let (set, pairs) = Self::pairs(&fields, line.number)?;
        self.core.range_sets.extend(set);
        for pair in pairs.chunks_exact(2) {
            let row = self.known_row(pair[0], line.number)?;
            let given = Given { value: number(pair[1], line.number)?, line: line.number };
            if Some(row) == self.objective {
                let reason = "the objective has a range: take it out".to_owned();
                return Err(Cause::Unsupported(reason).at(line.number));
            }
            if let Some(before) = self.core.rows[row].range.replace(given) {
                let what = format!("the range of row {}", shown(pair[0]));
                return Err(Cause::Twice { what, first: before.line }.at(line.number));
            }
        }
        Ok(())
    }

    fn bound(&mut self, line: Line<'a>) -> Result<(), Problem> {
        const EXPECTED: &str = "type, set, column and value (no value for FR, MI and PL)";
        let fields = line.fields(self.core.form);
        let wrong = || Cause::Fields { found: fields.len(), expected: EXPECTED }.at(line.number);
        let kind = fields.first().copied().unwrap_or_default().to_ascii_uppercase();
        let (name, value) = match kind.as_str() {
            "UP" | "LO" | "FX" => match fields[1..] {
                [_, name, value] | [name, value] => (name, bound(value, line.number)?),
                _ => return Err(wrong()),
            },
            // Some write a value, which means nothing.
            "FR" | "MI" | "PL" => match fields[1..] {
                [name] => (name, 0.0),
                [name, other] if self.core.column(other).is_none() => (name, 0.0),
                [_, name] | [_, name, _] => (name, 0.0),
                _ => return Err(wrong()),
            },
            "BV" | "LI" | "UI" => {
                return Err(Cause::Integer("bounds BV, LI and UI").at(line.number));
            }
            "SC" => {
                let reason =
                    "semi-continuous variables are not supported: give bounds UP and LO".to_owned();
                return Err(Cause::Unsupported(reason).at(line.number));
            }
            _ => {
                let known = "UP, LO, FX, FR, MI and PL";
                let reason =
                    format!("the type {} of a bound is not known, only {known}", shown(fields[0]));
                return Err(Cause::Unsupported(reason).at(line.number));
            }
        };
        let column =
            self.core.column(name).ok_or_else(|| Cause::unknown("column", name).at(line.number))?;
        let (lower, upper) = match kind.as_str() {
            "UP" => (None, Some(value)),
            "LO" => (Some(value), None),
            "FX" => (Some(value), Some(value)),
            "FR" => (Some(f64::NEG_INFINITY), Some(f64::INFINITY)),
            "MI" => (Some(f64::NEG_INFINITY), None),
            _ => (None, Some(f64::INFINITY)),
        };
        if lower == Some(f64::INFINITY) || upper == Some(f64::NEG_INFINITY) {
            return Err(Cause::Number(fields[fields.len() - 1].to_owned()).at(line.number));
        }
        let column = &mut self.core.columns[column];
        for (place, value, side) in
            [(&mut column.lower, lower, "lower"), (&mut column.upper, upper, "upper")]
        {
            let Some(value) = value else { continue };
            if let Some(before) = place.replace(Given { value, line: line.number }) {
                let what = format!("the {side} bound of column {}", shown(name));
                return Err(Cause::Twice { what, first: before.line }.at(line.number));
            }
        }
        Ok(())
    }
}

/// A bound's value, which may be infinite.
fn bound(text: &str, line: usize) -> Result<f64, Problem> {
    let value = match text.parse::<f64>() {
        Ok(value) if value.is_infinite() => value,
        _ => number(text, line)?,
    };
    Ok(match value.abs() >= INFINITE {
        true => f64::INFINITY.copysign(value),
        false => value,
    })
}
