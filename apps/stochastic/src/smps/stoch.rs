//! The stochastic file: which elements are random, and what they may be.
//!
//! Must not know how the other two files are written.

use std::collections::{BTreeMap, HashMap};

use super::Stages;
use super::core::{Core, Kind};
use super::error::{Cause, Notes, Problem, shown};
use super::lines::{Form, Line, Reader, drive, number};
use super::time::Periods;
use crate::model::{Block, Place, Realisation};

const SECTIONS: &str = "STOCH, INDEP, BLOCKS, SCENARIOS and ENDATA";

/// Probabilities are written in decimals; what they lack of 1 is rounding up to here.
const SUM_OFF_MAX: f64 = 1e-6;

/// The most values of all outcomes together, 1 GiB of them: outcomes that say what differs are short in a file and long in memory.
const VALUES_MAX: usize = 1 << 27;

/// Reads what is random.
pub(super) fn read<'a>(
    text: &'a str,
    core: &Core<'_>,
    periods: &Periods<'_>,
    stages: &Stages,
    notes: &mut Notes,
) -> Result<(&'a str, Vec<Block>), Problem> {
    let mut reader = StochReader {
        core,
        periods,
        stages,
        name: "",
        section: None,
        modify: Modify::Replace,
        drafts: Vec::new(),
        known: BTreeMap::new(),
        blocks: HashMap::new(),
        scenarios: None,
        scenario: HashMap::new(),
        current: None,
        notes: Notes::new(),
    };
    drive(text, notes, &mut reader)?;
    notes.append(reader.notes);
    let mut values = 0_usize;
    let mut blocks = Vec::with_capacity(reader.drafts.len());
    for draft in reader.drafts {
        values = values.saturating_add(draft.places.len().saturating_mul(draft.outcomes.len()));
        if values > VALUES_MAX {
            return Err(Cause::TooMany { what: "values of random elements", limit: VALUES_MAX }
                .at(draft.line));
        }
        blocks.extend(draft.finish(notes)?);
    }
    if blocks.is_empty() {
        notes.add(None, || "nothing is random".to_owned());
    }
    Ok((reader.name, blocks))
}

/// What a value in the file does to that in the core file.
#[derive(Clone, Copy)]
enum Modify {
    Replace,
    Add,
    Multiply,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Section {
    Stoch,
    Indep,
    Blocks,
    Scenarios,
}

impl Section {
    fn word(self) -> &'static str {
        match self {
            Self::Stoch => "STOCH",
            Self::Indep => "INDEP",
            Self::Blocks => "BLOCKS",
            Self::Scenarios => "SCENARIOS",
        }
    }
}

/// A block as it is read.
struct Draft {
    section: Section,
    /// What it is in messages.
    what: String,
    line: usize,
    places: Vec<Place>,
    /// Of each place, as the core file has it.
    core: Vec<f64>,
    outcomes: Vec<Outcome>,
}

struct Outcome {
    line: usize,
    probability: f64,
    /// The earlier outcome from which it differs; none: the core file.
    parent: Option<usize>,
    /// What differs: index of a place, and value.
    values: Vec<(usize, f64)>,
}

impl Draft {
    fn new(section: Section, what: String, line: usize) -> Self {
        Self { section, what, line, places: Vec::new(), core: Vec::new(), outcomes: Vec::new() }
    }

    /// None if nothing is random in it.
    fn finish(self, notes: &mut Notes) -> Result<Option<Block>, Problem> {
        let sum = sum(self.outcomes.iter().map(|outcome| outcome.probability));
        if (sum - 1.0).abs() > SUM_OFF_MAX {
            return Err(Cause::Sum { element: self.what, sum }.at(self.line));
        }
        if self.places.is_empty() {
            notes.add(self.line, || format!("nothing is random in {}", self.what));
            return Ok(None);
        }
        // Outcomes without probability can be what others differ from, and so go last.
        let mut all: Vec<Vec<f64>> = Vec::with_capacity(self.outcomes.len());
        for outcome in &self.outcomes {
            let parent = outcome.parent.map_or(&self.core, |parent| &all[parent]);
            let mut values = parent.clone();
            for (place, value) in &outcome.values {
                values[*place] = *value;
            }
            all.push(values);
        }
        let mut outcomes = Vec::with_capacity(all.len());
        for (outcome, values) in self.outcomes.iter().zip(all) {
            match outcome.probability > 0.0 {
                true => {
                    outcomes.push(Realisation { probability: outcome.probability / sum, values })
                }
                false => notes.add(outcome.line, || {
                    format!("this realisation of {} has no probability and is left out", self.what)
                }),
            }
        }
        Ok(Some(Block { places: self.places, outcomes }))
    }
}

/// Neumaier's sum, so that a hundred times 0.01 is 1.
fn sum(values: impl Iterator<Item = f64>) -> f64 {
    let (mut sum, mut rest) = (0.0_f64, 0.0_f64);
    for value in values {
        let next = sum + value;
        rest += match sum.abs() >= value.abs() {
            true => (sum - next) + value,
            false => (value - next) + sum,
        };
        sum = next;
    }
    sum + rest
}

/// Where a random element is.
struct Known {
    draft: usize,
    /// Among the places of the draft.
    index: usize,
    /// The outcome that gave it last, and its line.
    outcome: usize,
    line: usize,
}

/// An element that a line names, with its value in the core file.
enum Element {
    Random(Place, f64),
    /// It must not be random.
    Certain(f64, String),
    /// In a row without effect.
    Idle,
}

struct StochReader<'a, 'c> {
    core: &'c Core<'c>,
    periods: &'c Periods<'c>,
    stages: &'c Stages,
    name: &'a str,
    section: Option<Section>,
    modify: Modify,
    drafts: Vec<Draft>,
    known: BTreeMap<Place, Known>,
    /// Drafts of BLOCKS by name.
    blocks: HashMap<&'a str, usize>,
    /// The draft of SCENARIOS.
    scenarios: Option<usize>,
    /// Outcomes of SCENARIOS by name.
    scenario: HashMap<&'a str, usize>,
    /// The draft whose last outcome the next lines are of.
    current: Option<usize>,
    notes: Notes,
}

impl<'a> Reader<'a> for StochReader<'a, '_> {
    fn header(&mut self, name: &'a str, line: Line<'a>) -> Result<(), Problem> {
        let section = match name.to_ascii_uppercase().as_str() {
            // Some have NAME here as in a core file.
            "STOCH" | "NAME" => Section::Stoch,
            "INDEP" => Section::Indep,
            "BLOCKS" => Section::Blocks,
            "SCENARIOS" => Section::Scenarios,
            _ => {
                let name = name.to_owned();
                return Err(Cause::UnknownSection { name, known: SECTIONS }.at(line.number));
            }
        };
        match section {
            Section::Stoch => self.name = line.rest(),
            _ => self.kind(section, line)?,
        }
        self.section = Some(section);
        self.current = None;
        Ok(())
    }

    fn data(&mut self, line: Line<'a>) -> Result<(), Problem> {
        match self.section {
            None | Some(Section::Stoch) => {
                Err(Cause::NoSection { first: "INDEP, BLOCKS or SCENARIOS" }.at(line.number))
            }
            Some(Section::Indep) => self.indep(line),
            Some(Section::Blocks | Section::Scenarios) => self.block(line),
        }
    }
}

impl<'a> StochReader<'a, '_> {
    fn form(&self) -> Form {
        self.core.form
    }

    /// Distribution and modifier behind the name of a section.
    fn kind(&mut self, section: Section, line: Line<'a>) -> Result<(), Problem> {
        let mut words = line.rest().split_whitespace();
        let distribution = words.next().unwrap_or_default();
        if !distribution.eq_ignore_ascii_case("DISCRETE") {
            let (section, name) = (section.word(), distribution.to_owned());
            return Err(Cause::Distribution { section, name }.at(line.number));
        }
        let modifier = words.next().unwrap_or("REPLACE");
        self.modify = match modifier.to_ascii_uppercase().as_str() {
            "REPLACE" => Modify::Replace,
            // Whether to the core file's value or to the parent's, those who write such files do not agree.
            "ADD" | "MULTIPLY" if section == Section::Scenarios => {
                let reason = format!(
                    "SCENARIOS DISCRETE {} is not read: write values with REPLACE",
                    shown(modifier)
                );
                return Err(Cause::Unsupported(reason).at(line.number));
            }
            "ADD" => Modify::Add,
            "MULTIPLY" => Modify::Multiply,
            _ => {
                let known = "only REPLACE, ADD and MULTIPLY";
                let reason = format!("the modifier {} is not known, {known}", shown(modifier));
                return Err(Cause::Unsupported(reason).at(line.number));
            }
        };
        let scenarios = section == Section::Scenarios;
        if self.drafts.iter().take(1).any(|first| scenarios || first.section == Section::Scenarios)
        {
            let reason =
                "SCENARIOS stand for all that is random: one such section alone".to_owned();
            return Err(Cause::Unsupported(reason).at(line.number));
        }
        if scenarios {
            self.scenarios = Some(self.drafts.len());
            self.drafts.push(Draft::new(section, "the scenarios".to_owned(), line.number));
        }
        Ok(())
    }

    fn probability(text: &str, line: usize) -> Result<f64, Problem> {
        let value = number(text, line)?;
        match (0.0..=1.0).contains(&value) {
            true => Ok(value),
            false => Err(Cause::Probability(value).at(line)),
        }
    }

    fn is_period(&self, name: &str) -> bool {
        self.periods.names.contains(&name)
    }

    fn known_period(&self, name: &str, line: usize) -> Result<(), Problem> {
        match self.is_period(name) {
            true => Ok(()),
            false => Err(Cause::unknown("period", name).at(line)),
        }
    }

    /// The element of a column, or of the right-hand sides if there is none or it names them, and a row.
    fn element(&self, column: Option<&str>, name: &str, line: usize) -> Result<Element, Problem> {
        let core = self.core;
        let row = core.row(name).ok_or_else(|| Cause::unknown("row", name).at(line))?;
        let objective = row == core.objective;
        if core.rows[row].kind == Kind::None && !objective {
            return Ok(Element::Idle);
        }
        let second = self.periods.rows[row] == 1;
        let Some(column) = column.filter(|column| !core.names_rhs(column)) else {
            let rhs = core.rows[row].rhs();
            return Ok(match (objective, second) {
                (true, _) => Element::Certain(rhs, "the constant of the objective".to_owned()),
                (_, true) => Element::Random(Place::Rhs(self.stages.rows[row]), rhs),
                (_, false) => Element::Certain(
                    rhs,
                    format!("the right-hand side of the first-stage row {}", shown(name)),
                ),
            });
        };
        let Some(at) = core.column(column) else {
            if core.names_ranges(column) {
                return Err(Cause::NotRandom {
                    element: format!("the range of row {}", shown(name)),
                }
                .at(line));
            }
            return Err(Cause::unknown("column", column).at(line));
        };
        let value = core.entry(row, at);
        let entry = |of: &str| format!("{of}, row {} of column {},", shown(name), shown(column));
        Ok(match (objective, second, self.periods.columns[at]) {
            (true, ..) => Element::Certain(value, format!("the cost of column {}", shown(column))),
            (_, false, _) => Element::Certain(value, entry("an entry of the first stage")),
            (_, true, 1) => Element::Certain(value, entry("an entry of the recourse matrix")),
            _ => Element::Random(
                Place::Technology(self.stages.rows[row], self.stages.columns[at]),
                value,
            ),
        })
    }

    /// Bounds stand in a stochastic file as in a core file.
    fn no_bound(&self, fields: &[&str], line: usize) -> Result<(), Problem> {
        let is_type = |word: &str| ["UP", "LO", "FX", "FR", "MI", "PL"].contains(&word);
        match fields {
            [word, _, column, ..] if is_type(word) && self.core.column(word).is_none() => {
                let element = format!("a bound of column {}", shown(column));
                Err(Cause::NotRandom { element }.at(line))
            }
            _ => Ok(()),
        }
    }

    fn modified(&self, core: f64, value: f64, line: usize) -> Result<f64, Problem> {
        let value = match self.modify {
            Modify::Replace => value,
            Modify::Add => core + value,
            Modify::Multiply => core * value,
        };
        match value.is_finite() {
            true => Ok(value),
            false => Err(Cause::Number(value.to_string()).at(line)),
        }
    }

    /// The place of an element with a new value; none if nothing is random in it.
    fn random(
        &mut self,
        element: Element,
        value: f64,
        line: usize,
    ) -> Result<Option<(Place, f64, f64)>, Problem> {
        match element {
            Element::Random(place, core) => {
                Ok(Some((place, core, self.modified(core, value, line)?)))
            }
            Element::Certain(core, element) => match self.modified(core, value, line)? == core {
                true => {
                    self.notes.add(line, || {
                        format!("{element} is as in the core file: it is not taken to be random")
                    });
                    Ok(None)
                }
                false => Err(Cause::NotRandom { element }.at(line)),
            },
            Element::Idle => Ok(None),
        }
    }

    fn describe(&self, place: Place) -> String {
        let name = |second: usize| self.core.rows[self.stages.stage_rows[1][second]].name;
        match place {
            Place::Rhs(row) => format!("the right-hand side of row {}", shown(name(row))),
            Place::Technology(row, column) => {
                let column = self.core.columns[self.stages.stage_columns[0][column]].name;
                format!("row {} of column {}", shown(name(row)), shown(column))
            }
            Place::Cost(column) => {
                let column = self.core.columns[self.stages.stage_columns[1][column]].name;
                format!("the cost of column {}", shown(column))
            }
            Place::Recourse(row, column) => {
                let column = self.core.columns[self.stages.stage_columns[1][column]].name;
                format!("row {} of column {}", shown(name(row)), shown(column))
            }
        }
    }

    fn indep(&mut self, line: Line<'a>) -> Result<(), Problem> {
        let fields = line.fields(self.form());
        self.no_bound(&fields, line.number)?;
        // A row and its period, or a column and its row? A number behind tells, unless periods are named by numbers.
        let row_first = |fields: &[&str]| {
            self.core.column(fields[0]).is_none()
                && !self.core.names_rhs(fields[0])
                && self.core.row(fields[0]).is_some()
        };
        let (column, row, value, period, probability) = match fields[..] {
            [row, value, probability] => (None, row, value, None, probability),
            [row, value, period, probability] if self.is_period(period) && row_first(&fields) => {
                (None, row, value, Some(period), probability)
            }
            [column, row, value, probability] => (Some(column), row, value, None, probability),
            [column, row, value, period, probability] => {
                (Some(column), row, value, Some(period), probability)
            }
            _ => {
                let expected =
                    "4 or 5: column or RHS, row, value, perhaps the period, and probability";
                return Err(Cause::Fields { found: fields.len(), expected }.at(line.number));
            }
        };
        if let Some(period) = period {
            self.known_period(period, line.number)?;
        }
        let value = number(value, line.number)?;
        let probability = Self::probability(probability, line.number)?;
        let element = self.element(column, row, line.number)?;
        let Some((place, core, value)) = self.random(element, value, line.number)? else {
            return Ok(());
        };
        let draft = match self.known.get(&place) {
            Some(known) if self.drafts[known.draft].section == Section::Indep => known.draft,
            Some(known) => return Err(self.twice(place, known.line, line.number)),
            None => {
                let draft = self.drafts.len();
                let mut new = Draft::new(Section::Indep, self.describe(place), line.number);
                new.places.push(place);
                new.core.push(core);
                self.drafts.push(new);
                let known = Known { draft, index: 0, outcome: 0, line: line.number };
                self.known.insert(place, known);
                draft
            }
        };
        let values = vec![(0, value)];
        let line = line.number;
        self.drafts[draft].outcomes.push(Outcome { line, probability, parent: None, values });
        Ok(())
    }

    fn twice(&self, place: Place, first: usize, line: usize) -> Problem {
        Cause::Twice { what: self.describe(place), first }.at(line)
    }

    /// A line of BLOCKS or SCENARIOS.
    fn block(&mut self, line: Line<'a>) -> Result<(), Problem> {
        let fields = line.fields(self.form());
        let scenarios = self.section == Some(Section::Scenarios);
        let word = fields.first().copied().unwrap_or_default();
        if scenarios && word.eq_ignore_ascii_case("SC") {
            let (&[_, name, parent, probability, ref period @ ..], 4 | 5) =
                (&*fields, fields.len())
            else {
                let expected = "4 or 5: SC, scenario, parent, probability, and perhaps the period";
                return Err(Cause::Fields { found: fields.len(), expected }.at(line.number));
            };
            period.iter().try_for_each(|period| self.known_period(period, line.number))?;
            let probability = Self::probability(probability, line.number)?;
            return self.begin_scenario(name, parent, probability, line.number);
        }
        if !scenarios && word.eq_ignore_ascii_case("BL") {
            let (&[_, name, ref period @ .., probability], 3 | 4) = (&*fields, fields.len()) else {
                let expected = "3 or 4: BL, block, perhaps the period, and probability";
                return Err(Cause::Fields { found: fields.len(), expected }.at(line.number));
            };
            period.iter().try_for_each(|period| self.known_period(period, line.number))?;
            let probability = Self::probability(probability, line.number)?;
            self.begin_block(name, probability, line.number);
            return Ok(());
        }
        self.values(&fields, line.number)
    }

    fn begin_block(&mut self, name: &'a str, probability: f64, line: usize) {
        let new = self.drafts.len();
        let draft = *self.blocks.entry(name).or_insert(new);
        if draft == new {
            self.drafts.push(Draft::new(Section::Blocks, format!("block {}", shown(name)), line));
        }
        let outcomes = &mut self.drafts[draft].outcomes;
        // The first realisation of a block is what others differ from.
        let parent = (!outcomes.is_empty()).then_some(0);
        outcomes.push(Outcome { line, probability, parent, values: Vec::new() });
        self.current = Some(draft);
    }

    fn begin_scenario(
        &mut self,
        name: &'a str,
        parent: &str,
        probability: f64,
        line: usize,
    ) -> Result<(), Problem> {
        // There is a draft since the section began.
        let Some(draft) = self.scenarios else { return Ok(()) };
        let outcomes = &mut self.drafts[draft].outcomes;
        let root = parent.trim_matches(['\'', '"']).eq_ignore_ascii_case("ROOT");
        let parent = match self.scenario.get(parent) {
            Some(parent) => Some(*parent),
            None if root => None,
            None => return Err(Cause::unknown("scenario", parent).at(line)),
        };
        if let Some(before) = self.scenario.insert(name, outcomes.len()) {
            let (what, first) = (format!("scenario {}", shown(name)), outcomes[before].line);
            return Err(Cause::Twice { what, first }.at(line));
        }
        outcomes.push(Outcome { line, probability, parent, values: Vec::new() });
        self.current = Some(draft);
        Ok(())
    }

    fn values(&mut self, fields: &[&str], line: usize) -> Result<(), Problem> {
        let Some(draft) = self.current else {
            let begin =
                if self.section == Some(Section::Blocks) { "a BL line" } else { "an SC line" };
            return Err(Cause::NoSection { first: begin }.at(line));
        };
        self.no_bound(fields, line)?;
        let (column, pairs) = match fields.len() {
            2 | 4 => (None, fields),
            3 | 5 => (Some(fields[0]), &fields[1..]),
            found => {
                let expected =
                    "3 or 5: column or RHS, row, value, and perhaps another row and value";
                return Err(Cause::Fields { found, expected }.at(line));
            }
        };
        for pair in pairs.chunks_exact(2) {
            let value = number(pair[1], line)?;
            let element = self.element(column, pair[0], line)?;
            let Some((place, core, value)) = self.random(element, value, line)? else { continue };
            let outcome = self.drafts[draft].outcomes.len() - 1;
            let index = match self.known.get_mut(&place) {
                Some(known) if known.draft == draft && known.outcome != outcome => {
                    (known.outcome, known.line) = (outcome, line);
                    known.index
                }
                Some(known) => {
                    let first = known.line;
                    return Err(self.twice(place, first, line));
                }
                None => {
                    let block = &mut self.drafts[draft];
                    if outcome > 0 && block.section == Section::Blocks {
                        let what = self.describe(place);
                        self.notes.add(line, || {
                            format!("{what} is not in the first realisation of the block: there it is as in the core file")
                        });
                    }
                    let block = &mut self.drafts[draft];
                    let index = block.places.len();
                    block.places.push(place);
                    block.core.push(core);
                    self.known.insert(place, Known { draft, index, outcome, line });
                    index
                }
            };
            self.drafts[draft].outcomes[outcome].values.push((index, value));
        }
        Ok(())
    }
}
