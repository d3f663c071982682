//! The stochastic file: random elements and their distributions. This module does not know the text
//! of the other two files.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::RangeInclusive;

use super::StageIndex;
use super::core::{CoreFile, RowType, SourcedValue, note_large_rhs, program_name};
use super::error::{LineError, Notes, SmpsErrorKind, quote};
use super::lines::{DataLine, SectionReader, is_number, number, read_sections};
use super::time::TimeFile;
use crate::model::{MatrixBlock, RandomElement, Realisation};

/// Deviations of a sum of probabilities from 1 up to this are rounding of decimals.
const SUM_ROUNDING: f64 = 1e-6;

/// Deviations up to this are accepted with a note.
const SUM_TOLERANCE: f64 = 1e-3;

/// The same for three and more equal probabilities: they stand for 1/n in few decimals.
const EQUAL_SUM_TOLERANCE: f64 = 2e-2;

/// Largest number of values in all outcomes, 1 GiB of them. A file that gives differences is
/// shorter than the values in memory.
const VALUES_MAX: usize = 1 << 27;

/// Reads the name and the blocks of random elements.
pub(super) fn read<'a>(
    text: &'a str,
    core: &CoreFile<'_>,
    time: &TimeFile<'_>,
    index: &StageIndex,
    notes: &mut Notes,
) -> Result<(&'a str, Vec<MatrixBlock>), LineError> {
    let mut reader = StochReader {
        core,
        time,
        index,
        notes,
        name: "",
        section: None,
        modifier: Modifier::Replace,
        blocks: Vec::new(),
        known: BTreeMap::new(),
        block_by_name: HashMap::new(),
        scenarios: None,
        scenario_by_name: HashMap::new(),
        current: None,
        repeated: None,
        noted_periods: HashSet::new(),
    };
    read_sections(text, &mut reader)?;
    let mut values = 0_usize;
    let mut blocks = Vec::with_capacity(reader.blocks.len());
    for block in std::mem::take(&mut reader.blocks) {
        values = values.saturating_add(block.places.len().saturating_mul(block.outcomes.len()));
        if values > VALUES_MAX {
            let (what, limit) = ("values of random elements", VALUES_MAX);
            return Err(SmpsErrorKind::TooMany { what, limit }.at(block.line));
        }
        blocks.extend(reader.finish(block)?);
    }
    let StochReader { notes, name, repeated, .. } = reader;
    if let Some(Repeated { line, element, count }) = repeated {
        notes.add(line, || {
            let others = match count {
                1 => String::new(),
                _ => format!(" (and so on, {count} times)"),
            };
            format!("{element} has the value of the core file and is not random{others}")
        });
    }
    if blocks.is_empty() {
        notes.add(None, || "nothing is random".to_owned());
    }
    Ok((name, blocks))
}

/// How a value in the file combines with the core file's value.
#[derive(Clone, Copy)]
enum Modifier {
    Replace,
    Add,
    Multiply,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum StochSection {
    Stoch,
    Indep,
    Blocks,
    Scenarios,
}

/// A block of the program under construction, with values in the file's sign.
struct PendingBlock {
    section: StochSection,
    /// Its name in messages.
    description: String,
    line: usize,
    places: Vec<RandomElement>,
    /// The core file's value for each place.
    core: Vec<f64>,
    outcomes: Vec<PendingOutcome>,
}

struct PendingOutcome {
    line: usize,
    probability: f64,
    /// The earlier outcome whose values this one changes; none: the core file's.
    parent: Option<usize>,
    /// Changed values: index of the place, and value.
    changes: Vec<(usize, f64)>,
}

impl PendingBlock {
    fn new(section: StochSection, description: String, line: usize) -> Self {
        let (places, core, outcomes) = Default::default();
        Self { section, description, line, places, core, outcomes }
    }
}

/// Sum by Neumaier's algorithm, so that a hundred times 0.01 is 1.
fn sum(values: impl Iterator<Item = f64>) -> f64 {
    let (mut sum, mut rest) = (0.0_f64, 0.0_f64);
    for value in values {
        let next = sum + value;
        rest += if sum.abs() >= value.abs() { (sum - next) + value } else { (value - next) + sum };
        sum = next;
    }
    sum + rest
}

/// Position and last value of a random element.
struct KnownPlace {
    block: usize,
    /// Among the places of the block.
    index: usize,
    /// The outcome that gives the last value.
    outcome: usize,
    last: SourcedValue,
}

/// An element of the program, with its value in the core file.
enum Element {
    /// It may be random.
    Uncertain(RandomElement, f64),
    /// It must be certain; its description.
    Certain(f64, String),
    /// It stands in a row without effect.
    Ignored,
}

/// Elements that only repeat the core file's value: the first one, and their number.
struct Repeated {
    line: usize,
    element: String,
    count: usize,
}

struct StochReader<'a, 'c> {
    core: &'c CoreFile<'c>,
    time: &'c TimeFile<'c>,
    index: &'c StageIndex,
    notes: &'c mut Notes,
    name: &'a str,
    section: Option<StochSection>,
    modifier: Modifier,
    blocks: Vec<PendingBlock>,
    known: BTreeMap<RandomElement, KnownPlace>,
    /// Indices of the blocks in BLOCKS.
    block_by_name: HashMap<&'a str, usize>,
    /// The block that SCENARIOS describes.
    scenarios: Option<usize>,
    /// Indices of its outcomes.
    scenario_by_name: HashMap<&'a str, usize>,
    /// The block whose last outcome the next lines describe.
    current: Option<usize>,
    repeated: Option<Repeated>,
    /// Periods that have a note.
    noted_periods: HashSet<&'a str>,
}

impl<'a> SectionReader<'a> for StochReader<'a, '_> {
    // Some files begin with NAME, as a core file does.
    const OPENINGS: &'static [&'static str] = &["STOCH", "NAME"];
    const SECTIONS: &'static [&'static str] = &["INDEP", "BLOCKS", "SCENARIOS"];

    fn notes(&mut self) -> &mut Notes {
        self.notes
    }

    fn header(&mut self, keyword: &str, line: DataLine<'a>) -> Result<(), LineError> {
        let unsupported =
            |reason: &str| Err(SmpsErrorKind::Unsupported(reason.to_owned()).at(line.number));
        let section = match keyword {
            "STOCH" | "NAME" => StochSection::Stoch,
            "INDEP" => StochSection::Indep,
            "BLOCKS" => StochSection::Blocks,
            "SCENARIOS" => StochSection::Scenarios,
            "CHANCE" | "ICC" => {
                let reason = "chance constraints are not supported: remove the section to read the \
                     program without them";
                return unsupported(reason);
            }
            "NODES" => {
                return unsupported("section NODES is not supported: use SCENARIOS DISCRETE");
            }
            "DISTRIB" => {
                let reason = "section DISTRIB is not supported: use INDEP, BLOCKS or SCENARIOS \
                     DISCRETE";
                return unsupported(reason);
            }
            _ => return Err(Self::unknown_section(line)),
        };
        match section {
            StochSection::Stoch => self.name = program_name(line),
            _ => self.begin_section(section, keyword, line)?,
        }
        self.section = Some(section);
        self.current = None;
        Ok(())
    }

    fn data(&mut self, line: DataLine<'a>) -> Result<(), LineError> {
        let fields = line.fields(self.core.format);
        match self.section {
            None | Some(StochSection::Stoch) => {
                let expected = "an INDEP, BLOCKS or SCENARIOS line";
                Err(SmpsErrorKind::NoSection { expected }.at(line.number))
            }
            Some(_) if self.is_bound(&fields) => self.bound(&fields, line),
            Some(StochSection::Indep) => self.independent(&fields, line),
            Some(StochSection::Blocks) => self.block_line(&fields, line),
            Some(StochSection::Scenarios) => self.scenario_line(&fields, line),
        }
    }
}

impl<'a> StochReader<'a, '_> {
    /// The header of INDEP, BLOCKS or SCENARIOS: distribution and modifier.
    fn begin_section(
        &mut self,
        section: StochSection,
        keyword: &str,
        line: DataLine<'a>,
    ) -> Result<(), LineError> {
        let unsupported = |reason: String| Err(SmpsErrorKind::Unsupported(reason).at(line.number));
        let mut words = line.rest().split_whitespace();
        let distribution = words.next().unwrap_or_default();
        if section == StochSection::Scenarios && distribution.is_empty() {
            self.notes.add(line.number, || "SCENARIOS is read as SCENARIOS DISCRETE".to_owned());
        } else if !distribution.eq_ignore_ascii_case("DISCRETE") {
            let (section, name) = (keyword.to_owned(), distribution.to_owned());
            return Err(SmpsErrorKind::Distribution { section, name }.at(line.number));
        }
        self.modifier = Modifier::Replace;
        for word in words {
            self.modifier = match word.to_ascii_uppercase().as_str() {
                "REPLACE" => Modifier::Replace,
                // Files disagree whether this refers to the core file's value or the parent's.
                "ADD" | "MULTIPLY" if section == StochSection::Scenarios => {
                    let word = quote(word);
                    return unsupported(format!(
                        "SCENARIOS DISCRETE {word} is not supported: use REPLACE"
                    ));
                }
                "ADD" => Modifier::Add,
                "MULTIPLY" => Modifier::Multiply,
                _ if self.is_period(word) => continue,
                _ => {
                    let word = quote(word);
                    return unsupported(format!(
                        "the modifier {word} is not known, only REPLACE, ADD and MULTIPLY"
                    ));
                }
            };
        }
        let is_scenarios = section == StochSection::Scenarios;
        match self.blocks.first() {
            Some(first) if is_scenarios != (first.section == StochSection::Scenarios) => {
                let reason =
                    "SCENARIOS describes all random elements: it excludes INDEP and BLOCKS";
                return unsupported(reason.to_owned());
            }
            None if is_scenarios => {
                self.scenarios = Some(0);
                let description = "the scenarios".to_owned();
                self.blocks.push(PendingBlock::new(section, description, line.number));
            }
            _ => {}
        }
        Ok(())
    }

    fn is_period(&self, name: &str) -> bool {
        self.time.periods.contains(&name)
    }

    /// The probability in one field, or in two with the period. Files have both orders; if the
    /// fields do not tell, `period_first` decides.
    fn probability(
        &mut self,
        fields: &[&'a str],
        period_first: bool,
        line: DataLine<'a>,
    ) -> Result<f64, LineError> {
        let (period, field) = match *fields {
            [one, other] => match (self.is_period(one), self.is_period(other)) {
                (true, false) => (Some(one), other),
                (false, true) => (Some(other), one),
                _ if is_number(one) && !is_number(other) => (Some(other), one),
                _ if is_number(other) && !is_number(one) => (Some(one), other),
                _ if period_first => (Some(one), other),
                _ => (Some(other), one),
            },
            _ => (None, *fields.last().unwrap_or(&"")),
        };
        let value = number(field, line.number)?;
        if let Some(period) = period.filter(|period| !self.is_period(period))
            && self.noted_periods.insert(period)
        {
            let period = quote(period);
            self.notes.add(line.number, || format!("there is no period {period}: it is ignored"));
        }
        // Scenarios name the period in which they leave their parent: the first has none.
        if let Some(first) = period.filter(|period| period_first && self.time.periods[0] == *period)
            && self.noted_periods.insert(first)
        {
            let first = quote(first);
            self.notes.add(line.number, || {
                format!("the period {first} is the first: the element is random in the second")
            });
        }
        if (0.0..=1.0).contains(&value) {
            Ok(value)
        } else {
            Err(SmpsErrorKind::Probability(value).at(line.number))
        }
    }

    /// The element of a row and a column. Without a column, or with the name of right-hand sides
    /// instead, it is the row's right-hand side.
    fn element(
        &self,
        column: Option<&str>,
        name: &str,
        line: DataLine<'a>,
    ) -> Result<Element, LineError> {
        let core = self.core;
        let row =
            core.row(name).ok_or_else(|| SmpsErrorKind::unknown("row", name).at(line.number))?;
        let is_objective = row == core.objective;
        if core.rows[row].row_type == RowType::Free && !is_objective {
            return Ok(Element::Ignored);
        }
        if let Some(name) = column.filter(|name| core.is_rhs_set(name))
            && core.column(name).is_some()
        {
            let (one, other) = ("a column", "the set of right-hand sides");
            return Err(
                SmpsErrorKind::Ambiguous { name: name.to_owned(), one, other }.at(line.number)
            );
        }
        let is_second = self.time.rows[row] == 1;
        let second_row = self.index.rows[row];
        let Some(column) = column.filter(|column| !core.names_rhs(column)) else {
            let value = core.rows[row].rhs();
            return Ok(match (is_objective, is_second) {
                (true, _) => Element::Certain(value, "the constant of the objective".to_owned()),
                (_, true) => Element::Uncertain(RandomElement::Rhs(second_row), value),
                _ => {
                    let name = quote(name);
                    let element = format!("the right-hand side of the first-stage row {name}");
                    Element::Certain(value, element)
                }
            });
        };
        let Some(core_column) = core.column(column) else {
            if core.names_ranges(column) {
                let value = core.rows[row].range().unwrap_or(f64::INFINITY);
                let element = format!("the range of row {}", quote(name));
                return Ok(Element::Certain(value, element));
            }
            return Err(SmpsErrorKind::unknown("column", column).at(line.number));
        };
        let value = core.coefficient(row, core_column);
        let stage_column = self.index.columns[core_column];
        let certain = |element: String| Element::Certain(value, element);
        Ok(match (is_objective, is_second, self.time.columns[core_column]) {
            (true, _, 1) => Element::Uncertain(RandomElement::Cost(stage_column), value),
            (true, ..) => certain(format!("the cost of the first-stage column {}", quote(column))),
            (_, true, 1) => {
                Element::Uncertain(RandomElement::Recourse(second_row, stage_column), value)
            }
            (_, true, _) => {
                Element::Uncertain(RandomElement::Technology(second_row, stage_column), value)
            }
            _ => certain(format!(
                "the entry in the first-stage row {}, column {},",
                quote(name),
                quote(column)
            )),
        })
    }

    /// The place of an element, the core file's value and the value of this line. None if the
    /// element is not random.
    fn place(
        &mut self,
        element: Element,
        value: f64,
        line: DataLine<'a>,
    ) -> Result<Option<(RandomElement, f64, f64)>, LineError> {
        let (Element::Uncertain(_, core) | Element::Certain(core, _)) = element else {
            return Ok(None);
        };
        let value = self.modified(core, value);
        match element {
            _ if !value.is_finite() => {
                Err(SmpsErrorKind::Number(value.to_string()).at(line.number))
            }
            Element::Uncertain(place, _) => {
                if let RandomElement::Rhs(_) = place {
                    let what = self.describe(place);
                    note_large_rhs(SourcedValue { value, line: line.number }, self.notes, || what);
                }
                Ok(Some((place, core, value)))
            }
            Element::Certain(_, element) if value != core => {
                Err(SmpsErrorKind::NotRandom { element }.at(line.number))
            }
            Element::Certain(_, element) => {
                self.repeat(line.number, || element);
                Ok(None)
            }
            Element::Ignored => Ok(None),
        }
    }

    /// The core file's value changed by a value of this section.
    fn modified(&self, core: f64, value: f64) -> f64 {
        match self.modifier {
            Modifier::Replace => value,
            Modifier::Add => core + value,
            Modifier::Multiply => core * value,
        }
    }

    fn repeat(&mut self, line: usize, element: impl FnOnce() -> String) {
        let repeated = &mut self.repeated;
        repeated.get_or_insert_with(|| Repeated { line, element: element(), count: 0 }).count += 1;
    }

    /// Whether a line has the form of a bound in a core file.
    fn is_bound(&self, fields: &[&str]) -> bool {
        let types = ["UP", "LO", "FX", "FR", "MI", "PL"];
        let Some(first) = fields.first() else { return false };
        types.iter().any(|word| word.eq_ignore_ascii_case(first))
            && self.core.column(first).is_none()
            && fields[1..].iter().take(2).any(|field| self.core.column(field).is_some())
    }

    /// A bound must be that of the core file.
    fn bound(&mut self, fields: &[&'a str], line: DataLine<'a>) -> Result<(), LineError> {
        // The value follows the column, and period and probability may follow the value.
        let column = match fields.get(2).and_then(|field| self.core.column(field)) {
            Some(_) => 2,
            None => 1,
        };
        let bound = self.core.bound(&fields[..fields.len().min(column + 2)], line)?;
        let column = &self.core.columns[bound.column];
        let element = format!("a bound of column {}", quote(column.name));
        let (lower, upper) = column.bounds();
        let differs = |bound: Option<f64>, core: f64| match bound {
            Some(bound) if bound.is_finite() => self.modified(core, bound) != core,
            Some(bound) => bound != core,
            None => false,
        };
        if differs(bound.lower, lower) || differs(bound.upper, upper) {
            return Err(SmpsErrorKind::NotRandom { element }.at(line.number));
        }
        self.repeat(line.number, || element);
        Ok(())
    }

    /// Describes a random element for messages.
    fn describe(&self, place: RandomElement) -> String {
        let row = |row: usize| quote(self.core.rows[self.index.stage_rows[1][row]].name);
        let column = |stage: usize, column: usize| {
            quote(self.core.columns[self.index.stage_columns[stage][column]].name)
        };
        let entry =
            |of, stage, at| format!("the entry in row {}, column {}", row(of), column(stage, at));
        match place {
            RandomElement::Rhs(of) => format!("the right-hand side of row {}", row(of)),
            RandomElement::Technology(of, at) => entry(of, 0, at),
            RandomElement::Recourse(of, at) => entry(of, 1, at),
            RandomElement::Cost(at) => format!("the cost of column {}", column(1, at)),
        }
    }

    fn duplicate(&self, place: RandomElement, first: usize, line: usize) -> LineError {
        SmpsErrorKind::Duplicate { what: self.describe(place), first }.at(line)
    }

    /// A line of INDEP.
    fn independent(&mut self, fields: &[&'a str], line: DataLine<'a>) -> Result<(), LineError> {
        // Row and value, or column and row? A number tells, unless rows have numbers as names.
        let is_row_first = |fields: &[&str]| {
            let is_row = |field: &str| self.core.row(field).is_some();
            self.core.column(fields[0]).is_none()
                && !self.core.names_rhs(fields[0])
                && (is_row(fields[0]) || !is_row(fields[1]))
                && is_number(fields[1])
        };
        let (column, row, value, rest) = match *fields {
            [row, value, ref rest @ ..] if rest.len() == 1 => (None, row, value, rest),
            [row, value, ref rest @ ..] if rest.len() == 2 && is_row_first(fields) => {
                (None, row, value, rest)
            }
            [column, row, value, ref rest @ ..] if matches!(rest.len(), 1 | 2) => {
                (Some(column), row, value, rest)
            }
            _ => {
                let expected = "4 or 5: column or RHS, row, value, period (optional), probability";
                return Err(line.wrong_fields(fields, expected));
            }
        };
        let probability = self.probability(rest, true, line)?;
        let value = number(value, line.number)?;
        let element = self.element(column, row, line)?;
        let Some((place, core, value)) = self.place(element, value, line)? else { return Ok(()) };
        let block = match self.known.get(&place) {
            Some(known) if self.blocks[known.block].section == StochSection::Indep => known.block,
            Some(known) => return Err(self.duplicate(place, known.last.line, line.number)),
            None => {
                let block = self.blocks.len();
                let description = self.describe(place);
                let mut new = PendingBlock::new(StochSection::Indep, description, line.number);
                new.places.push(place);
                new.core.push(core);
                self.blocks.push(new);
                let last = SourcedValue { value, line: line.number };
                self.known.insert(place, KnownPlace { block, index: 0, outcome: 0, last });
                block
            }
        };
        let (line, changes) = (line.number, vec![(0, value)]);
        let outcome = PendingOutcome { line, probability, parent: None, changes };
        self.blocks[block].outcomes.push(outcome);
        Ok(())
    }

    /// Whether a line begins an outcome by this word. `counts` are the numbers of fields of such
    /// lines.
    ///
    /// # Errors
    /// The word is also the name of a column, and the line may give its value.
    fn is_outcome(
        &self,
        word: &str,
        counts: RangeInclusive<usize>,
        fields: &[&str],
        line: DataLine<'a>,
    ) -> Result<bool, LineError> {
        let core = self.core;
        let (3 | 5, &[first, row, value, ..]) = (fields.len(), fields) else {
            return Ok(fields.first().is_some_and(|first| first.eq_ignore_ascii_case(word)));
        };
        let is_value = core.column(first).is_some() && core.row(row).is_some() && is_number(value);
        match first.eq_ignore_ascii_case(word) {
            true if is_value && counts.contains(&fields.len()) => {
                let (one, other) = ("a column", "the word that begins an outcome");
                Err(SmpsErrorKind::Ambiguous { name: first.to_owned(), one, other }.at(line.number))
            }
            is_word => Ok(is_word && !is_value),
        }
    }

    /// A line of BLOCKS. The word BL may be missing where a period follows the block's name.
    fn block_line(&mut self, fields: &[&'a str], line: DataLine<'a>) -> Result<(), LineError> {
        let (name, rest) = match *fields {
            [_, name, ref rest @ ..] if self.is_outcome("BL", 3..=4, fields, line)? => (name, rest),
            [name, period, _] if self.is_period(period) && self.core.row(period).is_none() => {
                (name, &fields[1..])
            }
            _ => return self.values(fields, "a BL line", line),
        };
        if !matches!(rest.len(), 1 | 2) {
            let expected = "3 or 4: BL, block, period (optional) and probability";
            return Err(line.wrong_fields(fields, expected));
        }
        let probability = self.probability(rest, true, line)?;
        let new = self.blocks.len();
        let block = *self.block_by_name.entry(name).or_insert(new);
        if block == new {
            let description = format!("block {}", quote(name));
            self.blocks.push(PendingBlock::new(StochSection::Blocks, description, line.number));
        }
        // Other outcomes of a block change the first.
        let parent = (!self.blocks[block].outcomes.is_empty()).then_some(0);
        self.begin_outcome(block, probability, parent, line);
        Ok(())
    }

    /// A line of SCENARIOS. The parent may be missing where a period follows.
    fn scenario_line(&mut self, fields: &[&'a str], line: DataLine<'a>) -> Result<(), LineError> {
        let (name, rest) = match *fields {
            [_, name, ref rest @ ..] if self.is_outcome("SC", 4..=5, fields, line)? => (name, rest),
            _ => return self.values(fields, "an SC line", line),
        };
        let is_root = |name: &str| name.trim_matches(['\'', '"']).eq_ignore_ascii_case("ROOT");
        let (parent, rest) = match *rest {
            [one, other]
                if !self.scenario_by_name.contains_key(one)
                    && !is_root(one)
                    && (self.is_period(one) || self.is_period(other)) =>
            {
                (None, rest)
            }
            [parent, ref rest @ ..] if matches!(rest.len(), 1 | 2) => (Some(parent), rest),
            _ => {
                let expected = "4 or 5: SC, scenario, parent, probability and period (optional)";
                return Err(line.wrong_fields(fields, expected));
            }
        };
        let probability = self.probability(rest, false, line)?;
        let parent = match parent.map(|name| (name, self.scenario_by_name.get(name))) {
            None => None,
            Some((_, Some(parent))) => Some(*parent),
            Some((name, None)) if is_root(name) => None,
            Some((name, None)) => {
                return Err(SmpsErrorKind::unknown("scenario", name).at(line.number));
            }
        };
        // The section's header made the block.
        let Some(block) = self.scenarios else { return Ok(()) };
        let outcomes = &self.blocks[block].outcomes;
        if let Some(known) = self.scenario_by_name.insert(name, outcomes.len()) {
            let (what, first) = (format!("scenario {}", quote(name)), outcomes[known].line);
            return Err(SmpsErrorKind::Duplicate { what, first }.at(line.number));
        }
        self.begin_outcome(block, probability, parent, line);
        Ok(())
    }

    fn begin_outcome(
        &mut self,
        block: usize,
        probability: f64,
        parent: Option<usize>,
        line: DataLine<'a>,
    ) {
        let (line, changes) = (line.number, Vec::new());
        self.blocks[block].outcomes.push(PendingOutcome { line, probability, parent, changes });
        self.current = Some(block);
    }

    /// Values of the current outcome. `header` is the line that begins an outcome.
    fn values(
        &mut self,
        fields: &[&'a str],
        header: &'static str,
        line: DataLine<'a>,
    ) -> Result<(), LineError> {
        let Some(block) = self.current else {
            return Err(SmpsErrorKind::NoSection { expected: header }.at(line.number));
        };
        let (column, pairs) = match fields.len() {
            2 | 4 => (None, fields),
            3 | 5 => (Some(fields[0]), &fields[1..]),
            _ => {
                let expected =
                    "3 or 5: column or RHS, row, value, optionally another row and value";
                return Err(line.wrong_fields(fields, expected));
            }
        };
        for pair in pairs.chunks_exact(2) {
            let value = number(pair[1], line.number)?;
            let element = self.element(column, pair[0], line)?;
            if let Some((place, core, value)) = self.place(element, value, line)? {
                self.change(block, place, core, SourcedValue { value, line: line.number })?;
            }
        }
        Ok(())
    }

    /// Adds a value to the last outcome of a block.
    fn change(
        &mut self,
        block: usize,
        place: RandomElement,
        core: f64,
        entry: SourcedValue,
    ) -> Result<(), LineError> {
        let outcome = self.blocks[block].outcomes.len() - 1;
        let index = match self.known.get_mut(&place) {
            Some(known) if known.block == block && known.outcome != outcome => {
                (known.outcome, known.last) = (outcome, entry);
                known.index
            }
            Some(known) if known.block == block => {
                let last = Some(known.last);
                let what = self.describe(place);
                entry.is_new(last, self.notes, || what)?;
                return Ok(());
            }
            Some(known) => {
                let first = known.last.line;
                return Err(self.duplicate(place, first, entry.line));
            }
            None => {
                if outcome > 0 && self.blocks[block].section == StochSection::Blocks {
                    let what = self.describe(place);
                    self.notes.add(entry.line, || {
                        format!(
                            "{what} is missing in the first outcome of the block, which has the \
                             core file's value"
                        )
                    });
                }
                let pending = &mut self.blocks[block];
                let index = pending.places.len();
                pending.places.push(place);
                pending.core.push(core);
                self.known.insert(place, KnownPlace { block, index, outcome, last: entry });
                index
            }
        };
        self.blocks[block].outcomes[outcome].changes.push((index, entry.value));
        Ok(())
    }

    /// Completes a block. None if nothing in it is random.
    fn finish(&mut self, block: PendingBlock) -> Result<Option<MatrixBlock>, LineError> {
        let PendingBlock { description, line, places, core, outcomes: pending, .. } = block;
        let sum = sum(pending.iter().map(|outcome| outcome.probability));
        let is_equal = pending.len() > 2
            && pending.iter().all(|outcome| outcome.probability == pending[0].probability);
        let deviation = (sum - 1.0).abs();
        if deviation > if is_equal { EQUAL_SUM_TOLERANCE } else { SUM_TOLERANCE } {
            return Err(SmpsErrorKind::Sum { element: description, sum }.at(line));
        }
        if deviation > SUM_ROUNDING {
            self.notes.add(line, || {
                format!("the probabilities of {description} sum to {sum}: they are divided by it")
            });
        }
        // Outcomes of probability 0 can be parents of others, and so are removed at the end.
        let mut all: Vec<Vec<f64>> = Vec::with_capacity(pending.len());
        for outcome in &pending {
            let mut values = outcome.parent.map_or(&core, |parent| &all[parent]).clone();
            for (index, value) in &outcome.changes {
                values[*index] = *value;
            }
            all.push(values);
        }
        let mut outcomes = Vec::with_capacity(all.len());
        for (PendingOutcome { line, probability, .. }, values) in pending.into_iter().zip(all) {
            if probability > 0.0 {
                outcomes.push(Realisation { probability: probability / sum, values });
            } else {
                self.notes.add(line, || {
                    format!("an outcome of {description} has probability 0 and is ignored")
                });
            }
        }
        // Costs and recourse that only repeat the core file stay certain: recourse that is fixed is
        // cheaper to solve.
        let is_random: Vec<bool> = std::iter::zip(0.., &places)
            .map(|(index, place)| match place {
                RandomElement::Rhs(_) | RandomElement::Technology(..) => true,
                RandomElement::Cost(_) | RandomElement::Recourse(..) => {
                    outcomes.iter().any(|outcome| outcome.values[index] != core[index])
                }
            })
            .collect();
        for (place, _) in places.iter().zip(&is_random).filter(|(_, is_random)| !**is_random) {
            let what = self.describe(*place);
            self.repeat(line, || what);
        }
        for outcome in &mut outcomes {
            let values = std::mem::take(&mut outcome.values);
            let signed = places.iter().zip(values).map(|(place, value)| match place {
                RandomElement::Cost(_) if self.core.maximise => -value,
                _ => value,
            });
            outcome.values =
                signed.zip(&is_random).filter(|(_, keep)| **keep).map(|(value, _)| value).collect();
        }
        let places: Vec<RandomElement> =
            places.into_iter().zip(&is_random).filter(|(_, keep)| **keep).map(|(p, _)| p).collect();
        if places.is_empty() {
            self.notes.add(line, || format!("nothing is random in {description}"));
            return Ok(None);
        }
        Ok(Some(MatrixBlock { places, outcomes }))
    }
}
