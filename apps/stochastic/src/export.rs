//! Writers: a sample as SMPS files, and its extensive form as an MPS file.
//!
//! Numbers are written in the shortest form that reads back to the same bits. Names keep their
//! letters; blanks in them become underscores, so that the files read in free format. Names that
//! are equal then get a number.

use std::collections::HashMap;
use std::fmt::Write as _;

use crate::extensive::{WeightedScenario, extensive_form};
use crate::model::{RandomElement, Stage, TwoStage};

/// Names of the two periods in the files.
const PERIODS: [&str; 2] = ["STAGE1", "STAGE2"];
/// Name of the objective, unless another row has it.
const OBJECTIVE: &str = "COST";
/// Name of the set of right-hand sides, unless a column has it.
const RHS: &str = "RHS";

/// The extensive form of a sample in MPS format, in the sense of the model.
pub fn extensive_mps(
    model: &TwoStage,
    scenarios: impl IntoIterator<Item = WeightedScenario>,
) -> String {
    let problem = extensive_form(model, scenarios);
    let repeated = |first: &[String], second: &[String], at: usize| {
        if at < first.len() {
            word(&first[at])
        } else {
            let at = at - first.len();
            format!("{}_{}", word(&second[at % second.len()]), at / second.len() + 1)
        }
    };
    let mut writer = MpsWriter::new(model);
    for row in 0..problem.rows() {
        let name = repeated(&model.first.rows, &model.second.rows, row);
        let (lower, upper) = problem.row_bounds(row);
        writer.row(name, lower, upper);
    }
    for column in 0..problem.columns() {
        let name = repeated(&model.first.columns, &model.second.columns, column);
        let entries = problem.column(column).iter().map(|&(row, value)| (row as usize, value));
        writer.column(name, problem.cost(column), entries, problem.bounds(column));
    }
    writer.finish()
}

/// A sample as core, time and stochastic file, with each scenario listed.
pub fn sample_smps(
    model: &TwoStage,
    scenarios: impl IntoIterator<Item = WeightedScenario>,
) -> [String; 3] {
    let (first, second) = (&model.first, &model.second);
    let (n, m) = (first.columns.len(), first.rows.len());
    let mut writer = MpsWriter::new(model);
    for stage in [first, second] {
        for row in 0..stage.rows.len() {
            let (lower, upper) =
                (stage.rhs[row] - stage.below[row], stage.rhs[row] + stage.above[row]);
            writer.row(word(&stage.rows[row]), lower, upper);
        }
    }
    let both = |one: &Stage, column: usize, shift: usize| -> Vec<(usize, f64)> {
        one.matrix.column(column).map(|(row, value)| (row + shift, value)).collect()
    };
    for column in 0..n {
        let mut entries = both(first, column, 0);
        entries.extend(model.technology.column(column).map(|(row, value)| (row + m, value)));
        let bounds = (first.lower[column], first.upper[column]);
        writer.column(word(&first.columns[column]), first.cost[column], entries, bounds);
    }
    for column in 0..second.columns.len() {
        let bounds = (second.lower[column], second.upper[column]);
        let entries = both(second, column, m);
        writer.column(word(&second.columns[column]), second.cost[column], entries, bounds);
    }
    let name = program_name(model);
    let MpsWriter { rows, columns, objective, rhs_set, .. } = &writer;
    let (rows, columns) = (&rows.names, &columns.names);
    let mut time = format!("TIME {name}\nPERIODS\n");
    let name_at = |names: &[String], at: usize| names.get(at).cloned().unwrap_or_default();
    let first_row = if m > 0 { name_at(rows, 0) } else { objective.clone() };
    let _ = writeln!(time, "    {} {first_row} {}", name_at(columns, 0), PERIODS[0]);
    let (second_column, second_row) = (name_at(columns, n), name_at(rows, m));
    let _ = writeln!(time, "    {second_column} {second_row} {}\nENDATA", PERIODS[1]);
    let sign = sign(model);
    let mut stoch = format!("STOCH {name}\nSCENARIOS DISCRETE\n");
    for (at, (probability, values)) in scenarios.into_iter().enumerate() {
        let _ = writeln!(stoch, " SC SCEN{} ROOT {probability} {}", at + 1, PERIODS[1]);
        for (place, value) in values {
            let _ = match place {
                RandomElement::Rhs(row) => {
                    let shift = writer.rhs_shift(second, row);
                    writeln!(stoch, "    {rhs_set} {} {}", rows[m + row], value + shift)
                }
                RandomElement::Technology(row, column) => {
                    writeln!(stoch, "    {} {} {value}", columns[column], rows[m + row])
                }
                RandomElement::Recourse(row, column) => {
                    writeln!(stoch, "    {} {} {value}", columns[n + column], rows[m + row])
                }
                RandomElement::Cost(column) => {
                    writeln!(stoch, "    {} {objective} {}", columns[n + column], sign * value)
                }
            };
        }
    }
    stoch.push_str("ENDATA\n");
    [writer.finish(), time, stoch]
}

fn word(name: &str) -> String {
    let word = name.split_whitespace().collect::<Vec<_>>().join("_");
    if word.is_empty() { "_".to_owned() } else { word }
}

/// A name, with a number at its end if it is one of `names`.
fn unused<'a>(name: &str, names: impl Iterator<Item = &'a String> + Clone) -> String {
    let is_unused = |candidate: &String| names.clone().all(|name| word(name) != *candidate);
    let numbered = (2..).map(|number| format!("{name}{number}"));
    std::iter::once(name.to_owned()).chain(numbered).find(is_unused).unwrap_or_default()
}

fn program_name(model: &TwoStage) -> String {
    if model.name.trim().is_empty() { "PROGRAM".to_owned() } else { word(&model.name) }
}

fn sign(model: &TwoStage) -> f64 {
    if model.maximise { -1.0 } else { 1.0 }
}

/// Names of rows or columns in a file, none twice.
#[derive(Default)]
struct UniqueNames {
    names: Vec<String>,
    /// The number of the last item of each name.
    numbers: HashMap<String, usize>,
}

impl UniqueNames {
    /// Reserves a name. Returns it, with a number if it is in use.
    fn reserve(&mut self, name: String) -> String {
        let mut unique = name.clone();
        while self.numbers.contains_key(&unique) {
            let number = self.numbers.entry(name.clone()).or_default();
            *number += 1;
            unique = format!("{name}_{number}");
        }
        self.numbers.insert(unique.clone(), 1);
        unique
    }

    fn add(&mut self, name: String) -> &str {
        let name = self.reserve(name);
        self.names.push(name);
        &self.names[self.names.len() - 1]
    }
}

/// The sections of an MPS file under way.
struct MpsWriter {
    row_lines: String,
    column_lines: String,
    rhs: String,
    ranges: String,
    bounds: String,
    rows: UniqueNames,
    columns: UniqueNames,
    objective: String,
    rhs_set: String,
    sign: f64,
    head: String,
}

impl MpsWriter {
    fn new(model: &TwoStage) -> Self {
        let sign = sign(model);
        let sense = if model.maximise { "OBJSENSE\n    MAX\n" } else { "" };
        let (first, second) = (&model.first, &model.second);
        let objective = unused(OBJECTIVE, first.rows.iter().chain(&second.rows));
        let rhs_set = unused(RHS, first.columns.iter().chain(&second.columns));
        let mut rhs = String::new();
        if model.offset != 0.0 {
            // The constant is minus the objective's right-hand side.
            let _ = writeln!(rhs, "    {rhs_set} {objective} {}", -sign * model.offset);
        }
        let mut rows = UniqueNames::default();
        rows.reserve(objective.clone());
        Self {
            row_lines: format!(" N {objective}\n"),
            column_lines: String::new(),
            rhs,
            ranges: String::new(),
            bounds: String::new(),
            rows,
            columns: UniqueNames::default(),
            objective,
            rhs_set,
            sign,
            head: format!("NAME {}\n{sense}ROWS\n", program_name(model)),
        }
    }

    fn row(&mut self, name: String, lower: f64, upper: f64) {
        let (kind, rhs) = match (lower.is_finite(), upper.is_finite()) {
            (true, true) if lower == upper => ("E", lower),
            (_, true) => ("L", upper),
            (true, false) => ("G", lower),
            (false, false) => ("N", 0.0),
        };
        let name = self.rows.add(name);
        let _ = writeln!(self.row_lines, " {kind} {name}");
        if rhs != 0.0 {
            let _ = writeln!(self.rhs, "    {} {name} {rhs}", self.rhs_set);
        }
        if kind == "L" && lower.is_finite() {
            let _ = writeln!(self.ranges, "    RNG {name} {}", upper - lower);
        }
    }

    /// What is added to a right-hand side, as a row with two bounds is written by its upper one.
    fn rhs_shift(&self, stage: &Stage, row: usize) -> f64 {
        if stage.above[row].is_finite() { stage.above[row] } else { -stage.below[row] }
    }

    fn column(
        &mut self,
        name: String,
        cost: f64,
        entries: impl IntoIterator<Item = (usize, f64)>,
        (lower, upper): (f64, f64),
    ) {
        let name = self.columns.add(name);
        let lines = &mut self.column_lines;
        // A column without entries must occur, too.
        let _ = writeln!(lines, "    {name} {} {}", self.objective, self.sign * cost);
        for (row, value) in entries {
            let _ = writeln!(lines, "    {name} {} {value}", self.rows.names[row]);
        }
        let bounds = &mut self.bounds;
        let _ = match (lower, upper) {
            (0.0, f64::INFINITY) => Ok(()),
            (f64::NEG_INFINITY, f64::INFINITY) => writeln!(bounds, " FR BND {name}"),
            (lower, upper) if lower == upper => writeln!(bounds, " FX BND {name} {lower}"),
            _ => {
                if lower == f64::NEG_INFINITY {
                    let _ = writeln!(bounds, " MI BND {name}");
                } else if lower != 0.0 || upper < 0.0 {
                    let _ = writeln!(bounds, " LO BND {name} {lower}");
                }
                if upper.is_finite() { writeln!(bounds, " UP BND {name} {upper}") } else { Ok(()) }
            }
        };
    }

    fn finish(self) -> String {
        let Self { row_lines, column_lines, rhs, ranges, bounds, head, .. } = self;
        let mut file = format!("{head}{row_lines}COLUMNS\n{column_lines}RHS\n{rhs}");
        for (section, lines) in [("RANGES", ranges), ("BOUNDS", bounds)] {
            if !lines.is_empty() {
                let _ = write!(file, "{section}\n{lines}");
            }
        }
        file.push_str("ENDATA\n");
        file
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::extensive::scenarios;
    use crate::fixtures;
    use crate::lp::simplex::Pricing;
    use crate::lp::{LinearProgram, Simplex, Status};
    use crate::sample::{Sampler, Sampling};
    use crate::smps::{Files, read_bytes};

    fn read(core: &str, time: &str, stoch: &str) -> TwoStage {
        let files = Files::new("core", "time", "stoch");
        let texts = [core.as_bytes(), time.as_bytes(), stoch.as_bytes()];
        read_bytes(texts, &files).unwrap_or_else(|error| panic!("{error}\n{core}{time}{stoch}")).0
    }

    fn least(problem: LinearProgram) -> f64 {
        let mut simplex = Simplex::new(problem, Pricing::Steepest);
        assert_eq!(simplex.solve(), Status::Optimal);
        simplex.objective()
    }

    /// Ranges, free and bounded columns, a constant, and a sense.
    fn models() -> Vec<TwoStage> {
        let mut odd = fixtures::plants();
        odd.name = "odd plants".to_owned();
        odd.offset = 2.5;
        odd.maximise = true;
        odd.first.lower[0] = -1.0;
        odd.first.upper[0] = 7.5;
        odd.second.below[0] = 4.0;
        odd.second.above[0] = 3.0;
        odd.random[0].places.push(RandomElement::Cost(1));
        odd.random[0].outcomes.iter_mut().for_each(|one| one.values.push(0.1 + one.probability));
        vec![fixtures::plants(), fixtures::farm(), fixtures::reservoir(), odd]
    }

    #[test]
    fn samples_read_back_as_they_are() {
        for model in models() {
            let sampler = Sampler::new(&model, Sampling::MonteCarlo, 3, 12).unwrap();
            let [core, time, stoch] = sample_smps(&model, scenarios(&model, &sampler));
            let back = read(&core, &time, &stoch);
            assert_eq!((back.offset, back.maximise), (model.offset, model.maximise));
            let all = Sampler::new(&back, Sampling::All, 0, 0).unwrap();
            assert_eq!(all.count(), 12);
            let one = extensive_form(&model, scenarios(&model, &sampler));
            let other = extensive_form(&back, scenarios(&back, &all));
            assert_eq!((one.rows(), one.columns()), (other.rows(), other.columns()));
            for row in 0..one.rows() {
                let (low, high) = one.row_bounds(row);
                let (other_low, other_high) = other.row_bounds(row);
                let near = |one: f64, other: f64| one == other || (one - other).abs() < 1e-12;
                assert!(near(low, other_low) && near(high, other_high), "row {row}");
                assert!(one.row(row).eq(other.row(row)), "row {row}");
            }
            assert!((least(one) - least(other)).abs() < 1e-9);
        }
    }

    /// Names of columns differ in blanks alone or equal those of scenarios. A row and a column have
    /// the names that the files use themselves.
    #[test]
    fn names_in_files_are_unique() {
        let mut model = fixtures::plants();
        let [one, two, three] = [0, 1, 2].map(|at| model.second.columns[at].clone());
        model.first.columns = [format!("{one}_1"), "A B".to_owned(), "A_B".to_owned()].to_vec();
        model.second.columns[3] = "RHS".to_owned();
        model.second.rows[1] = OBJECTIVE.to_owned();
        model.first.rows[0] = format!("{OBJECTIVE}_1");
        model.offset = 1.5;
        let sampler = Sampler::new(&model, Sampling::MonteCarlo, 3, 2).unwrap();
        let [core, time, stoch] = sample_smps(&model, scenarios(&model, &sampler));
        let back = read(&core, &time, &stoch);
        assert_eq!(back.offset, model.offset);
        assert_eq!(back.first.columns[1..], ["A_B", "A_B_2"]);
        assert_eq!(back.second.columns[..4], [&*one, &*two, &*three, "RHS"]);
        assert_eq!(back.second.rows[1], OBJECTIVE);
        let all = Sampler::new(&back, Sampling::All, 0, 0).unwrap();
        let right = least(extensive_form(&model, scenarios(&model, &sampler)));
        let other = least(extensive_form(&back, scenarios(&back, &all)));
        assert!((right - other).abs() < 1e-9);
        let mps = extensive_mps(&model, scenarios(&model, &sampler));
        let (row, column) = (&model.first.rows[0], &model.first.columns[0]);
        let second = format!("{one}_1_2 {}_1", model.second.rows[0]);
        let time = format!("TIME\nPERIODS\n {column} {row} A\n {second} B\nENDATA\n");
        let back = read(&mps, &time, "STOCH\nINDEP DISCRETE\nENDATA\n");
        let whole = least(extensive_form(&back, [(1.0, Vec::new())]));
        assert!((whole - right).abs() < 1e-9, "{mps}");
    }

    #[test]
    fn an_extensive_form_reads_back_with_the_same_optimum() {
        for model in models() {
            let sampler = Sampler::new(&model, Sampling::MonteCarlo, 5, 4).unwrap();
            let mps = extensive_mps(&model, scenarios(&model, &sampler));
            // As a two-stage program in which nothing is random.
            let second = format!("{}_1", word(&model.second.columns[0]));
            let row = format!("{}_1", word(&model.second.rows[0]));
            let first = model.first.rows.first().map_or(OBJECTIVE.to_owned(), |row| word(row));
            let column = word(&model.first.columns[0]);
            let time = format!("TIME\nPERIODS\n {column} {first} A\n {second} {row} B\nENDATA\n");
            let back = read(&mps, &time, "STOCH\nINDEP DISCRETE\nENDATA\n");
            let whole = extensive_form(&back, [(1.0, Vec::new())]);
            let right = least(extensive_form(&model, scenarios(&model, &sampler)));
            assert!((least(whole) - right).abs() < 1e-9 * (1.0 + right.abs()), "{mps}");
        }
    }
}
