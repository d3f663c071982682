//! Lines of MPS-like files: headers, data and their fields, in free and in fixed form.
//!
//! Must not know what any section means.

use super::error::{Cause, Notes, Problem};

/// A line that says something: neither blank nor a comment.
#[derive(Clone, Copy)]
pub(super) struct Line<'a> {
    /// From 1.
    pub number: usize,
    pub text: &'a str,
}

impl<'a> Line<'a> {
    /// A header begins in the first column, and data behind it.
    fn is_header(self) -> bool {
        !self.text.starts_with(char::is_whitespace)
    }

    /// What stands behind the first word.
    pub fn rest(self) -> &'a str {
        let text = self.text.trim();
        text.split_once(char::is_whitespace).map_or("", |(_, rest)| rest.trim())
    }

    /// A header with nothing behind it. Else it may be data that stands in the first column, and would be lost.
    pub fn alone(self) -> Result<(), Problem> {
        match self.rest().is_empty() {
            true => Ok(()),
            false => {
                let name = self.text.split_whitespace().next().unwrap_or_default();
                let reason = format!(
                    "{name} stands in the first column with something behind it: a line of data begins with a blank"
                );
                Err(Cause::Unsupported(reason).at(self.number))
            }
        }
    }

    pub fn fields(self, form: Form) -> Fields<'a> {
        match form {
            Form::Free => Fields::free(self.text),
            // Not all lines of such a file need keep to the columns.
            Form::Fixed => Fields::fixed(self.text).unwrap_or_else(|| Fields::free(self.text)),
        }
    }

    /// As many fields as one of `counts`.
    pub fn exactly(
        self,
        form: Form,
        counts: &[usize],
        expected: &'static str,
    ) -> Result<Fields<'a>, Problem> {
        let fields = self.fields(form);
        match counts.contains(&fields.len()) {
            true => Ok(fields),
            false => Err(Cause::Fields { found: fields.len(), expected }.at(self.number)),
        }
    }
}

/// Lines of a text that say something. Comments have a `*` in the first column.
fn lines(text: &str) -> impl Iterator<Item = Line<'_>> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let all = text.lines().enumerate().map(|(at, text)| Line { number: at + 1, text });
    all.filter(|line| !line.text.starts_with('*') && !line.text.trim().is_empty())
}

/// Who takes the lines of a file.
pub(super) trait Reader<'a> {
    fn header(&mut self, name: &'a str, line: Line<'a>) -> Result<(), Problem>;
    fn data(&mut self, line: Line<'a>) -> Result<(), Problem>;
}

/// Gives a reader every line before ENDATA.
///
/// # Errors
/// Those of the reader, or there is no ENDATA.
pub(super) fn drive<'a>(
    text: &'a str,
    notes: &mut Notes,
    reader: &mut impl Reader<'a>,
) -> Result<(), Problem> {
    let mut last = None;
    let mut lines = lines(text);
    for line in lines.by_ref() {
        last = Some(line.number);
        if !line.is_header() {
            reader.data(line)?;
            continue;
        }
        let name = line.text.split_whitespace().next().unwrap_or_default();
        if name.eq_ignore_ascii_case("ENDATA") {
            if let Some(after) = lines.next() {
                notes.add(after.number, || "what stands behind ENDATA is passed over".to_owned());
            }
            return Ok(());
        }
        reader.header(name, line)?;
    }
    Err(Cause::Cut.at(last))
}

/// How fields are told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// By blanks.
    Free,
    /// By columns, so that names may have blanks.
    Fixed,
}

impl Form {
    /// The form of a core file. Most fixed files can be read as free ones, and many that call themselves fixed keep to no columns; so
    /// only the first line of ROWS or COLUMNS that makes no sense as free form decides, if it does as fixed form.
    pub fn of(core: &str) -> Self {
        let mut section = "";
        for line in lines(core) {
            if line.is_header() {
                section = line.text.split_whitespace().next().unwrap_or_default();
                continue;
            }
            let fits = |fields: &[&str]| match section {
                name if name.eq_ignore_ascii_case("ROWS") => fields.len() == 2,
                name if name.eq_ignore_ascii_case("COLUMNS") => match fields {
                    [_, "'MARKER'", _] => true,
                    [_, _, value] => number(value, line.number).is_ok(),
                    [_, _, one, _, two] => {
                        number(one, line.number).is_ok() && number(two, line.number).is_ok()
                    }
                    _ => false,
                },
                _ => true,
            };
            if !fits(&Fields::free(line.text)) {
                let fixed = Fields::fixed(line.text).is_some_and(|fields| fits(&fields));
                return if fixed { Self::Fixed } else { Self::Free };
            }
        }
        Self::Free
    }
}

/// So many fields are told apart: one more than a line can have.
const FIELDS_MAX: usize = 7;

/// Where fields of fixed form are, in bytes from 0: type, two names, number, name, number.
const FIXED: [(usize, usize); 6] = [(1, 3), (4, 12), (14, 22), (24, 36), (39, 47), (49, 61)];

/// The fields of a line that are not empty.
pub(super) struct Fields<'a> {
    fields: [&'a str; FIELDS_MAX],
    count: usize,
}

impl<'a> Fields<'a> {
    fn of(all: impl Iterator<Item = &'a str>) -> Self {
        let mut fields = [""; FIELDS_MAX];
        let mut count = 0;
        for (place, field) in fields.iter_mut().zip(all) {
            *place = field;
            count += 1;
        }
        Self { fields, count }
    }

    fn free(text: &'a str) -> Self {
        Self::of(text.split_whitespace())
    }

    /// None if something stands where no field is.
    fn fixed(text: &'a str) -> Option<Self> {
        if text.contains('\t') {
            return None;
        }
        let piece = |from: usize, to: usize| {
            text.get(from.min(text.len())..to.min(text.len())).map(str::trim)
        };
        let mut end = 0;
        let mut fields = [""; FIXED.len()];
        for (field, (from, to)) in fields.iter_mut().zip(FIXED) {
            if !piece(end, from)?.is_empty() {
                return None;
            }
            *field = piece(from, to)?;
            end = to;
        }
        if !piece(end, usize::MAX)?.is_empty() {
            return None;
        }
        Some(Self::of(fields.into_iter().filter(|field| !field.is_empty())))
    }
}

impl<'a> std::ops::Deref for Fields<'a> {
    type Target = [&'a str];

    fn deref(&self) -> &[&'a str] {
        &self.fields[..self.count]
    }
}

/// A finite number; an exponent may be written as Fortran does, with a D.
pub(super) fn number(text: &str, line: usize) -> Result<f64, Problem> {
    let value = text.parse().or_else(|_| text.replace(['D', 'd'], "e").parse::<f64>());
    match value {
        Ok(value) if value.is_finite() => Ok(value),
        _ => Err(Cause::Number(text.to_owned()).at(line)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(text: &str, form: Form) -> Vec<&str> {
        Line { number: 1, text }.fields(form).to_vec()
    }

    #[test]
    fn fields_in_free_and_fixed_form() {
        let line = "    MY COL    ROW 1              1.5   ROW 2             -2.5";
        assert_eq!(fields(line, Form::Fixed), ["MY COL", "ROW 1", "1.5", "ROW 2", "-2.5"]);
        assert_eq!(fields(line, Form::Free).len(), FIELDS_MAX);
        let short = " UP BND       X            4";
        assert_eq!(fields(short, Form::Fixed), ["UP", "BND", "X", "4"]);
        assert_eq!(fields("\tX\tR\t1", Form::Fixed), ["X", "R", "1"]);
        // A character of two bytes over an edge of fields.
        assert_eq!(fields("    COLUMN\u{e9}\u{e9}\u{e9}  R  1", Form::Fixed).len(), 3);
    }

    #[test]
    fn blanks_in_names_tell_fixed_form() {
        let core =
            |rows: &str, columns: &str| Form::of(&format!("ROWS\n{rows}\nCOLUMNS\n{columns}\n"));
        let plain = "    X         COST             1.0";
        assert_eq!(core(" N  COST", plain), Form::Free);
        assert_eq!(core(" N  THE COST", plain), Form::Fixed);
        assert_eq!(core(" N COST and more", plain), Form::Free);
        assert_eq!(core(" N  COST", "    MY X      COST             1.0"), Form::Fixed);
        assert_eq!(core(" N  COST", "    A B C     COST             1.0"), Form::Fixed);
        assert_eq!(core(" N  COST", "  A COST 1 2"), Form::Free);
        assert_eq!(core(" N  COST", " M1 'MARKER' 'INTORG'"), Form::Free);
    }

    #[test]
    fn numbers() {
        for (text, value) in [(".475000E+00", 0.475), ("5.", 5.0), ("-1.5D+01", -15.0), ("+2", 2.0)]
        {
            assert_eq!(number(text, 1).unwrap(), value);
        }
        for text in ["", "x", "inf", "NaN", "1e999", "1 2", "0x10"] {
            assert!(number(text, 1).is_err(), "{text}");
        }
    }
}
