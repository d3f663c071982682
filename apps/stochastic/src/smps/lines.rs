//! Lines of MPS-like files: section headers, lines of data and their fields, in free and in fixed
//! format. This module does not know what the sections mean.

use super::error::{LineError, Notes, SmpsErrorKind, quote};

/// A line that is neither blank nor a comment.
#[derive(Clone, Copy)]
pub(super) struct DataLine<'a> {
    /// Number of the line, from 1.
    pub number: usize,
    pub text: &'a str,
}

impl<'a> DataLine<'a> {
    fn is_indented(self) -> bool {
        self.text.starts_with(char::is_whitespace)
    }

    pub fn first_word(self) -> &'a str {
        self.text.split_whitespace().next().unwrap_or_default()
    }

    /// The text after the first word, without blanks around it.
    pub fn rest(self) -> &'a str {
        let text = self.text.trim();
        text.split_once(char::is_whitespace).map_or("", |(_, rest)| rest.trim())
    }

    /// Checks that a header has at most `max` words after the keyword. More of them are probably
    /// data in the first column, which would be lost.
    pub fn check_header(self, max: usize) -> Result<(), LineError> {
        if self.rest().split_whitespace().count() <= max {
            return Ok(());
        }
        let reason = format!(
            "the section name {} has text after it: indent lines of data by a blank",
            quote(self.first_word())
        );
        Err(SmpsErrorKind::Unsupported(reason).at(self.number))
    }

    pub fn fields(self, format: Format) -> Fields<'a> {
        match format {
            Format::Free => Fields::free(self.text),
            // Single lines of a fixed file may ignore the columns.
            Format::Fixed => Fields::fixed(self.text).unwrap_or_else(|| Fields::free(self.text)),
        }
    }

    /// The fields, if their number is one of `counts`.
    pub fn exact_fields(
        self,
        format: Format,
        counts: &[usize],
        expected: &'static str,
    ) -> Result<Fields<'a>, LineError> {
        let fields = self.fields(format);
        if counts.contains(&fields.len()) {
            Ok(fields)
        } else {
            Err(self.wrong_fields(&fields, expected))
        }
    }

    pub fn wrong_fields(self, fields: &[&str], expected: &'static str) -> LineError {
        let found = match fields.len() {
            FIELDS_MAX => self.text.split_whitespace().count(),
            found => found,
        };
        SmpsErrorKind::Fields { found, expected }.at(self.number)
    }
}

/// Lines of a text but for blank lines and comments, which have a `*` in the first column.
fn lines(text: &str) -> impl Iterator<Item = DataLine<'_>> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let all = text.lines().enumerate().map(|(index, text)| DataLine { number: index + 1, text });
    all.filter(|line| !line.text.starts_with('*') && !line.text.trim().is_empty())
}

/// Receives the lines of one file.
pub(super) trait SectionReader<'a> {
    /// Keywords of the line that opens the file.
    const OPENINGS: &'static [&'static str];
    /// Keywords of the other sections, without ENDATA.
    const SECTIONS: &'static [&'static str];

    fn notes(&mut self) -> &mut Notes;
    /// A section's header; `keyword` is its first word in upper case.
    fn header(&mut self, keyword: &str, line: DataLine<'a>) -> Result<(), LineError>;
    fn data(&mut self, line: DataLine<'a>) -> Result<(), LineError>;

    fn unknown_section(line: DataLine<'a>) -> LineError {
        let known = [&Self::OPENINGS[..1], Self::SECTIONS].concat().join(", ") + " and ENDATA";
        SmpsErrorKind::UnknownSection { name: line.first_word().to_owned(), known }.at(line.number)
    }
}

/// A line in the first column is a header. An indented one is if it has a keyword and cannot be
/// data: few words, and no number at the end.
fn is_header<'a, R: SectionReader<'a>>(line: DataLine<'a>, is_open: bool) -> bool {
    let is_one =
        |keywords: &[&str]| keywords.iter().any(|k| k.eq_ignore_ascii_case(line.first_word()));
    if !line.is_indented() {
        return true;
    }
    if is_one(R::OPENINGS) {
        return !is_open;
    }
    let rest = line.rest();
    let is_short = match rest.split_whitespace().count() {
        0 => true,
        1 => !is_number(rest),
        // Rows may be called DISCRETE, too.
        count => {
            let mut words = rest.split_whitespace();
            count == 2
                && words.next().is_some_and(|word| word.eq_ignore_ascii_case("DISCRETE"))
                && words.next().is_some_and(|word| !is_number(word))
        }
    };
    is_short && (is_one(R::SECTIONS) || is_one(&["ENDATA"]))
}

/// Passes every line before ENDATA to a reader.
///
/// # Errors
/// Those of the reader, the text has no section, or it ends inside a line.
pub(super) fn read_sections<'a, R: SectionReader<'a>>(
    text: &'a str,
    reader: &mut R,
) -> Result<(), LineError> {
    let (mut is_open, mut last) = (false, None);
    let mut lines = lines(text);
    while let Some(line) = lines.next() {
        last = Some(line.number);
        if !is_header::<R>(line, is_open) {
            reader.data(line)?;
            continue;
        }
        let keyword = line.first_word().to_ascii_uppercase();
        if line.is_indented() {
            reader.notes().add(line.number, || format!("the section name {keyword} is indented"));
        }
        if keyword == "ENDATA" {
            if let Some(line) = lines.next() {
                reader.notes().add(line.number, || "text after ENDATA is ignored".to_owned());
            }
            return Ok(());
        }
        is_open = true;
        reader.header(&keyword, line)?;
    }
    if !is_open {
        return Err(SmpsErrorKind::Empty { first: R::OPENINGS[0] }.at(last));
    }
    if !text.ends_with(['\n', '\r']) {
        return Err(SmpsErrorKind::Truncated.at(last));
    }
    reader.notes().add(last, || "has no ENDATA: check that the file is complete".to_owned());
    Ok(())
}

/// How fields are separated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// By blanks.
    Free,
    /// By columns, so that names may have blanks.
    Fixed,
}

impl Format {
    /// The format of a core file. Most fixed files can be read as free ones, and many that call
    /// themselves fixed ignore the columns. So a file is fixed if its first line of ROWS or COLUMNS
    /// that makes no sense in free format does in fixed format.
    pub fn of(core: &str) -> Self {
        let mut section = "";
        for line in lines(core) {
            if !line.is_indented() || line.rest().is_empty() {
                section = line.first_word();
                continue;
            }
            let fits = |fields: &[&str]| match section {
                name if name.eq_ignore_ascii_case("ROWS") => fields.len() == 2,
                name if name.eq_ignore_ascii_case("COLUMNS") => match fields {
                    [_, "'MARKER'", _] => true,
                    [_, _, value] => is_number(value),
                    [_, _, one, _, two] => is_number(one) && is_number(two),
                    _ => false,
                },
                _ => true,
            };
            if !fits(&Fields::free(line.text)) {
                let is_fixed = Fields::fixed(line.text).is_some_and(|fields| fits(&fields));
                return if is_fixed { Self::Fixed } else { Self::Free };
            }
        }
        Self::Free
    }
}

/// Number of fields that are kept: one more than a line may have.
const FIELDS_MAX: usize = 7;

/// Columns of the fields in fixed format, from 0: type, two names, number, name, number.
const FIXED: [(usize, usize); 6] = [(1, 3), (4, 12), (14, 22), (24, 36), (39, 47), (49, 61)];

/// The fields of a line that are not empty.
pub(super) struct Fields<'a> {
    fields: [&'a str; FIELDS_MAX],
    count: usize,
}

impl<'a> Fields<'a> {
    fn collect(all: impl Iterator<Item = &'a str>) -> Self {
        let mut fields = [""; FIELDS_MAX];
        let mut count = 0;
        for (slot, field) in fields.iter_mut().zip(all) {
            *slot = field;
            count += 1;
        }
        Self { fields, count }
    }

    fn free(text: &'a str) -> Self {
        Self::collect(text.split_whitespace())
    }

    /// None if the line has text outside the columns.
    fn fixed(text: &'a str) -> Option<Self> {
        if text.contains('\t') {
            return None;
        }
        let offset = |column: usize| {
            if text.is_ascii() {
                column.min(text.len())
            } else {
                text.char_indices().nth(column).map_or(text.len(), |(offset, _)| offset)
            }
        };
        let mut end = 0;
        let mut fields = [""; FIXED.len()];
        for (field, (from, to)) in fields.iter_mut().zip(FIXED) {
            let (from, to) = (offset(from), offset(to));
            if !text[end..from].trim().is_empty() {
                return None;
            }
            *field = text[from..to].trim();
            end = to;
        }
        let fits = text[end..].trim().is_empty();
        fits.then(|| Self::collect(fields.into_iter().filter(|field| !field.is_empty())))
    }
}

impl<'a> std::ops::Deref for Fields<'a> {
    type Target = [&'a str];

    fn deref(&self) -> &[&'a str] {
        &self.fields[..self.count]
    }
}

/// A finite number. The exponent may have a D, as Fortran writes it.
pub(super) fn number(text: &str, line: usize) -> Result<f64, LineError> {
    let value = text.parse().or_else(|_| text.replace(['D', 'd'], "e").parse::<f64>());
    match value {
        Ok(value) if value.is_finite() => Ok(value),
        _ => Err(SmpsErrorKind::Number(text.to_owned()).at(line)),
    }
}

pub(super) fn is_number(text: &str) -> bool {
    number(text, 0).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(text: &str, format: Format) -> Vec<&str> {
        DataLine { number: 1, text }.fields(format).to_vec()
    }

    #[test]
    fn fields_in_free_and_fixed_format() {
        let line = "    MY COL    ROW 1              1.5   ROW 2             -2.5";
        assert_eq!(fields(line, Format::Fixed), ["MY COL", "ROW 1", "1.5", "ROW 2", "-2.5"]);
        assert_eq!(fields(line, Format::Free).len(), FIELDS_MAX);
        let short = " UP BND       X            4";
        assert_eq!(fields(short, Format::Fixed), ["UP", "BND", "X", "4"]);
        assert_eq!(fields("\tX\tR\t1", Format::Fixed), ["X", "R", "1"]);
        // Columns count characters, not bytes.
        let line = line.replace("MY COL", "M\u{fc} COL");
        assert_eq!(fields(&line, Format::Fixed), ["M\u{fc} COL", "ROW 1", "1.5", "ROW 2", "-2.5"]);
        // Text outside the columns.
        assert_eq!(fields("    COLUMN\u{e9}\u{e9}\u{e9}  R  1", Format::Fixed).len(), 3);
    }

    #[test]
    fn blanks_in_names_imply_fixed_format() {
        let core =
            |rows: &str, columns: &str| Format::of(&format!("ROWS\n{rows}\nCOLUMNS\n{columns}\n"));
        let plain = "    X         COST             1.0";
        assert_eq!(core(" N  COST", plain), Format::Free);
        assert_eq!(core(" N  THE COST", plain), Format::Fixed);
        assert_eq!(core(" N COST and more", plain), Format::Free);
        assert_eq!(core(" N  COST", "    MY X      COST             1.0"), Format::Fixed);
        assert_eq!(core(" N  COST", "    A B C     COST             1.0"), Format::Fixed);
        assert_eq!(core(" N  COST", "  A COST 1 2"), Format::Free);
        assert_eq!(core(" N  COST", " M1 'MARKER' 'INTORG'"), Format::Free);
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
