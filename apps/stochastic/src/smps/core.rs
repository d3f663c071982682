//! The core file: a linear program in MPS form. This module knows neither periods nor random
//! elements.

use std::collections::{HashMap, HashSet};

use super::error::{LineError, Notes, SmpsErrorKind, quote};
use super::lines::{DataLine, Fields, Format, SectionReader, number, read_sections};

/// Bounds and ranges of this magnitude or more are infinite, as in most solvers.
pub(super) const INFINITE: f64 = 1e20;

/// The type of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RowType {
    /// The objective, or a row without effect.
    Free,
    Equal,
    Less,
    Greater,
}

/// A value and the line that gives it.
#[derive(Clone, Copy, Debug)]
pub(super) struct SourcedValue {
    pub value: f64,
    pub line: usize,
}

impl SourcedValue {
    /// Whether nothing was known before. The same value again earns a note.
    ///
    /// # Errors
    /// Another value is known.
    pub fn is_new(
        self,
        known: Option<Self>,
        notes: &mut Notes,
        what: impl FnOnce() -> String,
    ) -> Result<bool, LineError> {
        match known {
            None => Ok(true),
            Some(known) if known.value == self.value => {
                notes.add(self.line, || format!("{} repeats line {}", what(), known.line));
                Ok(false)
            }
            Some(known) => {
                Err(SmpsErrorKind::Duplicate { what: what(), first: known.line }.at(self.line))
            }
        }
    }
}

#[derive(Debug)]
pub(super) struct SmpsRow<'a> {
    pub name: &'a str,
    pub row_type: RowType,
    pub line: usize,
    rhs: Option<SourcedValue>,
    range: Option<SourcedValue>,
}

impl SmpsRow<'_> {
    pub fn rhs(&self) -> f64 {
        self.rhs.map_or(0.0, |rhs| rhs.value)
    }

    pub fn range(&self) -> Option<f64> {
        self.range.map(|range| range.value)
    }

    /// How far the row may lie below and above its right-hand side.
    pub fn slack(&self) -> (f64, f64) {
        let range = self.range();
        let width = range.map_or(f64::INFINITY, f64::abs);
        match self.row_type {
            RowType::Free => (f64::INFINITY, f64::INFINITY),
            RowType::Less => (width, 0.0),
            RowType::Greater => (0.0, width),
            // An equation's range extends to the side of its sign.
            RowType::Equal => match range.unwrap_or(0.0) {
                range if range < 0.0 => (-range, 0.0),
                range => (0.0, range),
            },
        }
    }
}

#[derive(Debug)]
pub(super) struct Column<'a> {
    pub name: &'a str,
    lower: Option<SourcedValue>,
    upper: Option<SourcedValue>,
}

impl Column<'_> {
    /// Lower and upper bound. A negative upper bound alone implies no lower bound, by MPS
    /// convention.
    pub fn bounds(&self) -> (f64, f64) {
        let upper = self.upper.map_or(f64::INFINITY, |upper| upper.value);
        let default = if upper < 0.0 { f64::NEG_INFINITY } else { 0.0 };
        (self.lower.map_or(default, |lower| lower.value), upper)
    }
}

/// A line of BOUNDS.
pub(super) struct Bound<'a> {
    set: Option<&'a str>,
    pub column: usize,
    pub lower: Option<f64>,
    pub upper: Option<f64>,
}

/// The program of a core file. Its rows include all of type N.
#[derive(Debug)]
pub(super) struct CoreFile<'a> {
    pub name: &'a str,
    pub format: Format,
    pub maximise: bool,
    /// Index of the objective's row.
    pub objective: usize,
    pub rows: Vec<SmpsRow<'a>>,
    pub columns: Vec<Column<'a>>,
    /// Coefficients by row and column, including the objective's.
    pub entries: HashMap<(u32, u32), SourcedValue>,
    row_by_name: HashMap<&'a str, usize>,
    column_by_name: HashMap<&'a str, usize>,
    /// The set of each section that is read.
    rhs_set: Option<&'a str>,
    range_set: Option<&'a str>,
    bound_set: Option<&'a str>,
}

impl<'a> CoreFile<'a> {
    pub fn row(&self, name: &str) -> Option<usize> {
        self.row_by_name.get(name).copied()
    }

    pub fn column(&self, name: &str) -> Option<usize> {
        self.column_by_name.get(name).copied()
    }

    /// A coefficient; 0 if the file has none.
    pub fn coefficient(&self, row: usize, column: usize) -> f64 {
        self.entries.get(&(row as u32, column as u32)).map_or(0.0, |entry| entry.value)
    }

    /// Whether a stochastic file means right-hand sides by this name in the place of a column:
    /// the name of the set, or a usual one such as RHS, RHS1 or RIGHT.
    pub fn names_rhs(&self, name: &str) -> bool {
        let upper = name.to_ascii_uppercase();
        let is_usual =
            upper == "RIGHT" || upper.trim_end_matches(|c: char| c.is_ascii_digit()) == "RHS";
        self.is_rhs_set(name) || (is_usual && self.column(name).is_none())
    }

    /// Whether this is the name of the set of right-hand sides.
    pub fn is_rhs_set(&self, name: &str) -> bool {
        self.rhs_set == Some(name)
    }

    /// Whether a stochastic file means ranges by this name in the place of a column.
    pub fn names_ranges(&self, name: &str) -> bool {
        self.range_set == Some(name) && self.column(name).is_none()
    }

    pub fn read(text: &'a str, notes: &mut Notes) -> Result<Self, LineError> {
        let core = Self {
            name: "",
            format: Format::of(text),
            maximise: false,
            objective: 0,
            rows: Vec::new(),
            columns: Vec::new(),
            entries: HashMap::new(),
            row_by_name: HashMap::new(),
            column_by_name: HashMap::new(),
            rhs_set: None,
            range_set: None,
            bound_set: None,
        };
        let mut reader = CoreReader {
            core,
            section: None,
            objective: None,
            ignored_sets: HashSet::new(),
            notes,
        };
        read_sections(text, &mut reader)?;
        let CoreReader { mut core, objective, .. } = reader;
        core.objective = objective.ok_or_else(|| SmpsErrorKind::NoObjective.at(None))?;
        if core.maximise {
            notes.add(None, || {
                "the objective is maximised: results are in the sense of the file".to_owned()
            });
        }
        for column in &core.columns {
            let (lower, upper) = column.bounds();
            let line = column.upper.or(column.lower).map(|bound| bound.line);
            if lower > upper {
                let column = column.name.to_owned();
                return Err(SmpsErrorKind::Bounds { column, lower, upper }.at(line));
            }
            if column.lower.is_none() && upper < 0.0 {
                notes.add(line, || {
                    let name = quote(column.name);
                    format!(
                        "column {name} has a negative upper bound and no lower bound: its lower \
                         bound is minus infinity"
                    )
                });
            }
        }
        Ok(core)
    }

    /// Reads a line of BOUNDS. The name of the set is optional.
    ///
    /// # Errors
    /// The line is not a bound of a continuous column.
    pub fn bound<'t>(
        &self,
        fields: &[&'t str],
        line: DataLine<'t>,
    ) -> Result<Bound<'t>, LineError> {
        let wrong = || {
            let expected = "3 or 4: type, set, column and value (no value for FR, MI and PL)";
            line.wrong_fields(fields, expected)
        };
        let bound_type = fields.first().copied().unwrap_or_default().to_ascii_uppercase();
        let unsupported =
            |reason: &str| SmpsErrorKind::Unsupported(reason.to_owned()).at(line.number);
        let (set, name, value) = match bound_type.as_str() {
            "UP" | "LO" | "FX" => match fields[1..] {
                [set, name, value] => (Some(set), name, bound_value(value, line.number)?),
                [name, value] => (None, name, bound_value(value, line.number)?),
                _ => return Err(wrong()),
            },
            // A value has no meaning here, but some files give one.
            "FR" | "MI" | "PL" => match fields[1..] {
                [name] => (None, name, 0.0),
                [name, value] if self.column(value).is_none() && is_infinite_or_number(value) => {
                    (None, name, 0.0)
                }
                [set, name] | [set, name, _] => (Some(set), name, 0.0),
                _ => return Err(wrong()),
            },
            "BV" | "LI" | "UI" => {
                return Err(SmpsErrorKind::Integer("the bounds BV, LI and UI").at(line.number));
            }
            "SC" => {
                return Err(unsupported(
                    "semi-continuous variables are not supported: give bounds UP and LO instead",
                ));
            }
            _ => {
                let name = quote(fields.first().unwrap_or(&""));
                return Err(unsupported(&format!(
                    "the bound type {name} is not supported, only UP, LO, FX, FR, MI and PL"
                )));
            }
        };
        let (lower, upper) = match bound_type.as_str() {
            "UP" => (None, Some(value)),
            "LO" => (Some(value), None),
            "FX" => (Some(value), Some(value)),
            "FR" => (Some(f64::NEG_INFINITY), Some(f64::INFINITY)),
            "MI" => (Some(f64::NEG_INFINITY), None),
            _ => (None, Some(f64::INFINITY)),
        };
        if lower == Some(f64::INFINITY) || upper == Some(f64::NEG_INFINITY) {
            return Err(SmpsErrorKind::Number(fields[fields.len() - 1].to_owned()).at(line.number));
        }
        let column = self.column(name);
        let column =
            column.ok_or_else(|| SmpsErrorKind::unknown("column", name).at(line.number))?;
        Ok(Bound { set, column, lower, upper })
    }
}

/// Whether a field is a value of a bound.
fn is_infinite_or_number(text: &str) -> bool {
    bound_value(text, 0).is_ok()
}

/// Value of a bound or range, which may be infinite.
fn bound_value(text: &str, line: usize) -> Result<f64, LineError> {
    let value = match text.parse::<f64>() {
        Ok(value) if value.is_infinite() => value,
        _ => number(text, line)?,
    };
    Ok(if value.abs() >= INFINITE { f64::INFINITY.copysign(value) } else { value })
}

/// Notes a right-hand side of a magnitude that means infinity in bounds.
pub(super) fn note_large_rhs(
    entry: SourcedValue,
    notes: &mut Notes,
    what: impl FnOnce() -> String,
) {
    let SourcedValue { value, line } = entry;
    if value.abs() >= INFINITE {
        notes.add(line, || {
            format!("{} is {value:e}: it is read as this number, not as infinity", what())
        });
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum CoreSection {
    Name,
    Sense,
    /// OBJECT BOUND, which is ignored.
    ObjectBound,
    Rows,
    Columns,
    Rhs,
    Ranges,
    Bounds,
}

struct CoreReader<'a, 'n> {
    core: CoreFile<'a>,
    section: Option<CoreSection>,
    objective: Option<usize>,
    ignored_sets: HashSet<(CoreSection, &'a str)>,
    notes: &'n mut Notes,
}

impl<'a> SectionReader<'a> for CoreReader<'a, '_> {
    const OPENINGS: &'static [&'static str] = &["NAME"];
    const SECTIONS: &'static [&'static str] =
        &["OBJSENSE", "OBJECT", "ROWS", "COLUMNS", "RHS", "RANGES", "BOUNDS"];

    fn notes(&mut self) -> &mut Notes {
        self.notes
    }

    fn header(&mut self, keyword: &str, line: DataLine<'a>) -> Result<(), LineError> {
        let section = match keyword {
            "NAME" => {
                self.core.name = program_name(line);
                CoreSection::Name
            }
            "OBJSENSE" => {
                if !line.rest().is_empty() {
                    self.sense(line.rest(), line.number)?;
                }
                CoreSection::Sense
            }
            "OBJECT" => {
                if !line.rest().eq_ignore_ascii_case("BOUND") {
                    return Err(Self::unknown_section(line));
                }
                self.notes.add(line.number, || "section OBJECT BOUND is ignored".to_owned());
                CoreSection::ObjectBound
            }
            "ROWS" => {
                line.check_header(0)?;
                CoreSection::Rows
            }
            "COLUMNS" => {
                line.check_header(0)?;
                CoreSection::Columns
            }
            "RHS" => self.set_header(keyword, line, CoreSection::Rhs)?,
            "RANGES" => self.set_header(keyword, line, CoreSection::Ranges)?,
            "BOUNDS" => self.set_header(keyword, line, CoreSection::Bounds)?,
            // The sense itself in the first column.
            _ if self.section == Some(CoreSection::Sense) && line.rest().is_empty() => {
                return self.sense(keyword, line.number);
            }
            _ => return Err(Self::unknown_section(line)),
        };
        self.section = Some(section);
        Ok(())
    }

    fn data(&mut self, line: DataLine<'a>) -> Result<(), LineError> {
        let fields = line.fields(self.core.format);
        match self.section {
            None => Err(SmpsErrorKind::NoSection { expected: "the NAME line" }.at(line.number)),
            Some(CoreSection::Name) => {
                Err(SmpsErrorKind::NoSection { expected: "the ROWS line" }.at(line.number))
            }
            Some(CoreSection::Sense) => self.sense(line.text.trim(), line.number),
            Some(CoreSection::ObjectBound) => Ok(()),
            Some(CoreSection::Rows) => self.row(&fields, line),
            Some(CoreSection::Columns) => self.column(&fields, line),
            Some(CoreSection::Rhs) => self.rhs(&fields, line),
            Some(CoreSection::Ranges) => self.range(&fields, line),
            Some(CoreSection::Bounds) => self.bound(&fields, line),
        }
    }
}

/// The name on the first line of a file, without a word for the format.
pub(super) fn program_name(line: DataLine<'_>) -> &str {
    let rest = line.rest();
    match rest.rsplit_once(char::is_whitespace) {
        Some((name, format)) if ["FREE", "FIXED"].contains(&&*format.to_ascii_uppercase()) => {
            name.trim_end()
        }
        _ => rest,
    }
}

impl<'a> CoreReader<'a, '_> {
    fn sense(&mut self, word: &str, line: usize) -> Result<(), LineError> {
        self.core.maximise = match word.to_ascii_uppercase().as_str() {
            "MAX" | "MAXIMIZE" | "MAXIMISE" => true,
            "MIN" | "MINIMIZE" | "MINIMISE" => false,
            _ => {
                let word = quote(word);
                let reason = format!("the objective sense {word} is not known, only MIN and MAX");
                return Err(SmpsErrorKind::Unsupported(reason).at(line));
            }
        };
        Ok(())
    }

    /// The header of RHS, RANGES or BOUNDS. Some files repeat the name of the set there.
    fn set_header(
        &mut self,
        keyword: &str,
        line: DataLine<'a>,
        section: CoreSection,
    ) -> Result<CoreSection, LineError> {
        line.check_header(1)?;
        if !line.rest().is_empty() {
            let name = quote(line.rest());
            self.notes.add(line.number, || format!("the name {name} after {keyword} is ignored"));
        }
        Ok(section)
    }

    /// Whether a line of this set is read: the first set of each section is.
    fn is_first_set(
        &mut self,
        section: CoreSection,
        set: Option<&'a str>,
        line: DataLine<'a>,
    ) -> bool {
        let core = &mut self.core;
        let (known, keyword) = match section {
            CoreSection::Ranges => (&mut core.range_set, "RANGES"),
            CoreSection::Bounds => (&mut core.bound_set, "BOUNDS"),
            _ => (&mut core.rhs_set, "RHS"),
        };
        let Some(set) = set else { return true };
        let first = *known.get_or_insert(set);
        if first != set && self.ignored_sets.insert((section, set)) {
            let (set, first) = (quote(set), quote(first));
            self.notes.add(line.number, || {
                format!("the {keyword} set {set} is ignored: only the first set, {first}, is read")
            });
        }
        first == set
    }

    fn row(&mut self, fields: &Fields<'a>, line: DataLine<'a>) -> Result<(), LineError> {
        let [row_type, name] = **fields else {
            return Err(line.wrong_fields(fields, "2: type and row"));
        };
        let row_type = match row_type.to_ascii_uppercase().as_str() {
            "N" => RowType::Free,
            "E" => RowType::Equal,
            "L" => RowType::Less,
            "G" => RowType::Greater,
            _ => {
                let word = quote(row_type);
                let reason = format!("the row type {word} is not known, only N, E, L and G");
                return Err(SmpsErrorKind::Unsupported(reason).at(line.number));
            }
        };
        if let Some(known) = self.core.row(name) {
            let (what, known) = (format!("row {}", quote(name)), &self.core.rows[known]);
            if known.row_type != row_type {
                return Err(SmpsErrorKind::Duplicate { what, first: known.line }.at(line.number));
            }
            self.notes.add(line.number, || format!("{what} repeats line {}", known.line));
            return Ok(());
        }
        let row = self.core.rows.len();
        match (row_type, self.objective) {
            (RowType::Free, None) => self.objective = Some(row),
            (RowType::Free, Some(objective)) => {
                let (name, objective) = (quote(name), quote(self.core.rows[objective].name));
                self.notes.add(line.number, || {
                    format!("row {name} of type N is ignored: row {objective} is the objective")
                });
            }
            _ => {}
        }
        self.core.row_by_name.insert(name, row);
        self.core.rows.push(SmpsRow { name, row_type, line: line.number, rhs: None, range: None });
        Ok(())
    }

    fn known_row(&self, name: &str, line: DataLine<'a>) -> Result<usize, LineError> {
        self.core.row(name).ok_or_else(|| SmpsErrorKind::unknown("row", name).at(line.number))
    }

    fn column(&mut self, fields: &Fields<'a>, line: DataLine<'a>) -> Result<(), LineError> {
        // A row may be called MARKER, too.
        let is_marker = |field: &&str| {
            field.trim_matches('\'').eq_ignore_ascii_case("MARKER")
                && self.core.row(field).is_none()
        };
        if fields.get(1).is_some_and(is_marker) {
            return Err(SmpsErrorKind::Integer("the MARKER lines").at(line.number));
        }
        let (3 | 5, &[name, ref pairs @ ..]) = (fields.len(), &**fields) else {
            let expected = "3 or 5: column, row, value and optionally another row and value";
            return Err(line.wrong_fields(fields, expected));
        };
        let column = self.core.column(name).unwrap_or_else(|| {
            let column = self.core.columns.len();
            self.core.columns.push(Column { name, lower: None, upper: None });
            self.core.column_by_name.insert(name, column);
            column
        });
        for pair in pairs.chunks_exact(2) {
            let row = self.known_row(pair[0], line)?;
            let entry = SourcedValue { value: number(pair[1], line.number)?, line: line.number };
            if self.core.rows[row].row_type == RowType::Free && Some(row) != self.objective {
                continue;
            }
            let place = (row as u32, column as u32);
            let known = self.core.entries.get(&place).copied();
            let what = || format!("the entry in row {}, column {}", quote(pair[0]), quote(name));
            if entry.is_new(known, self.notes, what)? {
                self.core.entries.insert(place, entry);
            }
        }
        Ok(())
    }

    /// Pairs of row and value after the name of a set, which is optional.
    fn pairs<'f>(
        fields: &'f Fields<'a>,
        line: DataLine<'a>,
    ) -> Result<(Option<&'a str>, &'f [&'a str]), LineError> {
        match fields.len() {
            2 | 4 => Ok((None, fields)),
            3 | 5 => Ok((Some(fields[0]), &fields[1..])),
            _ => {
                let expected = "3 or 5: set, row, value and optionally another row and value";
                Err(line.wrong_fields(fields, expected))
            }
        }
    }

    fn rhs(&mut self, fields: &Fields<'a>, line: DataLine<'a>) -> Result<(), LineError> {
        let (set, pairs) = Self::pairs(fields, line)?;
        if !self.is_first_set(CoreSection::Rhs, set, line) {
            return Ok(());
        }
        for pair in pairs.chunks_exact(2) {
            let row = self.known_row(pair[0], line)?;
            let entry = SourcedValue { value: number(pair[1], line.number)?, line: line.number };
            let what = || format!("the right-hand side of row {}", quote(pair[0]));
            note_large_rhs(entry, self.notes, what);
            let rhs = &mut self.core.rows[row].rhs;
            if entry.is_new(*rhs, self.notes, what)? {
                *rhs = Some(entry);
            }
        }
        Ok(())
    }

    fn range(&mut self, fields: &Fields<'a>, line: DataLine<'a>) -> Result<(), LineError> {
        let (set, pairs) = Self::pairs(fields, line)?;
        if !self.is_first_set(CoreSection::Ranges, set, line) {
            return Ok(());
        }
        for pair in pairs.chunks_exact(2) {
            let row = self.known_row(pair[0], line)?;
            let entry =
                SourcedValue { value: bound_value(pair[1], line.number)?, line: line.number };
            let what = || format!("the range of row {}", quote(pair[0]));
            if self.core.rows[row].row_type == RowType::Free {
                self.notes.add(line.number, || format!("{} is ignored: it has type N", what()));
                continue;
            }
            let range = &mut self.core.rows[row].range;
            if entry.is_new(*range, self.notes, what)? {
                *range = Some(entry);
            }
        }
        Ok(())
    }

    fn bound(&mut self, fields: &Fields<'a>, line: DataLine<'a>) -> Result<(), LineError> {
        let Bound { set, column, lower, upper } = self.core.bound(fields, line)?;
        if !self.is_first_set(CoreSection::Bounds, set, line) {
            return Ok(());
        }
        let Column { name, lower: known_lower, upper: known_upper } =
            &mut self.core.columns[column];
        for (known, value, side) in [(known_lower, lower, "lower"), (known_upper, upper, "upper")] {
            let Some(value) = value else { continue };
            let entry = SourcedValue { value, line: line.number };
            let what = || format!("the {side} bound of column {}", quote(name));
            if entry.is_new(*known, self.notes, what)? {
                *known = Some(entry);
            }
        }
        Ok(())
    }
}
