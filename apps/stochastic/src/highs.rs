//! HiGHS as an oracle: linear programs that are held, in tests and measurements, against this
//! crate's own simplex method.
//!
//! All that is unsafe in this crate is here: calls of a C library, with the lengths of what they
//! are given checked first. Must not know stages nor scenarios, and nothing but tests may know it.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_void};
use std::ptr::NonNull;

use highs_sys::HighsInt;

use crate::lp::Problem;

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// At a least-cost point.
    Optimal,
    /// There is no point.
    Infeasible,
    /// Its time was up.
    Late,
    /// Otherwise: HiGHS' number for it.
    Other(HighsInt),
}

/// Which variables are basic, and where the others are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Basis {
    columns: Vec<HighsInt>,
    rows: Vec<HighsInt>,
}

/// A linear program in HiGHS.
pub struct Highs {
    /// Made by `Highs_create`, known to nobody else, and destroyed only where this is dropped.
    raw: NonNull<c_void>,
    /// How many columns the library has been given, and rows.
    columns: usize,
    rows: usize,
}

impl Highs {
    /// A program to be solved by the dual simplex method, in one thread and without a word; else
    /// all is as it is by default.
    pub fn new(problem: &Problem) -> Self {
        // SAFETY: it takes nothing, and can be called at any time.
        let raw = unsafe { highs_sys::Highs_create() };
        let raw = NonNull::new(raw).expect("HiGHS has no memory");
        let mut highs = Self { raw, columns: 0, rows: 0 };
        highs.switch(c"output_flag", false);
        highs.text(c"solver", c"simplex");
        highs.text(c"parallel", c"off");
        highs.whole(c"threads", 1);
        highs.whole(c"simplex_strategy", 1);
        highs.pass(problem);
        highs
    }

    fn pass(&mut self, problem: &Problem) {
        let (columns, rows, entries) = (problem.columns(), problem.rows(), problem.entries());
        let cost: Vec<f64> = (0..columns).map(|column| problem.cost(column)).collect();
        let bounds = (0..columns).map(|column| problem.bounds(column));
        let (lower, upper): (Vec<f64>, Vec<f64>) = bounds.unzip();
        let bounds = (0..rows).map(|row| problem.row_bounds(row));
        let (row_lower, row_upper): (Vec<f64>, Vec<f64>) = bounds.unzip();
        let (mut starts, mut index, mut value) = (Vec::new(), Vec::new(), Vec::new());
        for row in 0..rows {
            starts.push(number(index.len()));
            for (column, entry) in problem.row(row) {
                index.push(number(column));
                value.push(entry);
            }
        }
        assert_eq!((index.len(), value.len(), starts.len()), (entries, entries, rows));
        // SAFETY: `raw` is a program that nobody else has (see there). All pointers are of vectors
        // that live until the call has returned, and the library copies what it is given. Costs and
        // bounds have as many numbers as there are columns or rows, for they were made by counting
        // these; starts, indices and values were counted above.
        let status = unsafe {
            highs_sys::Highs_passLp(
                self.raw.as_ptr(),
                number(columns),
                number(rows),
                number(entries),
                highs_sys::MATRIX_FORMAT_ROW_WISE,
                highs_sys::OBJECTIVE_SENSE_MINIMIZE,
                0.0,
                cost.as_ptr(),
                lower.as_ptr(),
                upper.as_ptr(),
                row_lower.as_ptr(),
                row_upper.as_ptr(),
                starts.as_ptr(),
                index.as_ptr(),
                value.as_ptr(),
            )
        };
        done(status, "the program");
        (self.columns, self.rows) = (columns, rows);
    }

    /// Without presolving, which would throw a basis away.
    pub fn without_presolve(mut self) -> Self {
        self.text(c"presolve", c"off");
        self
    }

    /// Rows and bounds, and reduced costs, are to be met as exactly as this; it is 1e-7 by default.
    pub fn to(mut self, tolerance: f64) -> Self {
        self.real(c"primal_feasibility_tolerance", tolerance);
        self.real(c"dual_feasibility_tolerance", tolerance);
        self
    }

    /// Its first run ends after so many seconds at the latest; the time of later ones is added to
    /// it.
    pub fn within(mut self, seconds: f64) -> Self {
        self.real(c"time_limit", seconds);
        self
    }

    /// Sets the bounds of all rows.
    ///
    /// # Panics
    /// If there are not as many as rows.
    pub fn set_row_bounds(&mut self, lower: &[f64], upper: &[f64]) {
        assert_eq!((lower.len(), upper.len()), (self.rows, self.rows));
        if self.rows == 0 {
            return;
        }
        let last = number(self.rows - 1);
        // SAFETY: `raw` is a program that nobody else has, of as many rows as `rows` says; both
        // slices have as many numbers, and are read until the call returns.
        let status = unsafe {
            highs_sys::Highs_changeRowsBoundsByRange(
                self.raw.as_ptr(),
                0,
                last,
                lower.as_ptr(),
                upper.as_ptr(),
            )
        };
        done(status, "bounds");
    }

    /// The basis that the last run ended at.
    ///
    /// # Panics
    /// If there is none.
    pub fn basis(&self) -> Basis {
        let mut basis = Basis { columns: vec![0; self.columns], rows: vec![0; self.rows] };
        // SAFETY: `raw` is a program that nobody else has, of so many columns and rows; the vectors
        // have room for as many numbers, and nobody else has them either.
        let status = unsafe {
            highs_sys::Highs_getBasis(
                self.raw.as_ptr(),
                basis.columns.as_mut_ptr(),
                basis.rows.as_mut_ptr(),
            )
        };
        done(status, "its basis");
        basis
    }

    /// The next run begins at this basis.
    ///
    /// # Panics
    /// If it is of another number of columns or rows, or is no basis.
    pub fn set_basis(&mut self, basis: &Basis) {
        assert_eq!((basis.columns.len(), basis.rows.len()), (self.columns, self.rows));
        // SAFETY: `raw` is a program that nobody else has, of so many columns and rows; both
        // vectors have as many numbers, and are read until the call returns. The library itself
        // sees whether they are a basis.
        let status = unsafe {
            highs_sys::Highs_setBasis(
                self.raw.as_ptr(),
                basis.columns.as_ptr(),
                basis.rows.as_ptr(),
            )
        };
        done(status, "a basis");
    }

    /// The next run begins at the basis of the rows' logical variables, and there is no other until
    /// then.
    pub fn set_slack_basis(&mut self) {
        // SAFETY: `raw` is a program that nobody else has.
        done(unsafe { highs_sys::Highs_setLogicalBasis(self.raw.as_ptr()) }, "the slack basis");
    }

    /// Solves, from the basis of the last run if there was one.
    pub fn run(&mut self) -> End {
        // SAFETY: `raw` is a program that nobody else has, so that nothing changes it meanwhile.
        done(unsafe { highs_sys::Highs_run(self.raw.as_ptr()) }, "a run");
        // SAFETY: as above; it only reads.
        match unsafe { highs_sys::Highs_getModelStatus(self.raw.as_ptr()) } {
            highs_sys::MODEL_STATUS_OPTIMAL => End::Optimal,
            highs_sys::MODEL_STATUS_INFEASIBLE => End::Infeasible,
            highs_sys::MODEL_STATUS_REACHED_TIME_LIMIT => End::Late,
            other => End::Other(other),
        }
    }

    /// The cost of the point that the last run ended at.
    pub fn objective(&self) -> f64 {
        // SAFETY: `raw` is a program that nobody else has; it only reads.
        unsafe { highs_sys::Highs_getObjectiveValue(self.raw.as_ptr()) }
    }

    /// How many pivots the last run made.
    pub fn iterations(&self) -> u64 {
        let mut count: HighsInt = 0;
        // SAFETY: `raw` is a program that nobody else has; the name ends with a zero; `count` has
        // the type that this value has.
        let status = unsafe {
            highs_sys::Highs_getIntInfoValue(
                self.raw.as_ptr(),
                c"simplex_iteration_count".as_ptr(),
                &mut count,
            )
        };
        done(status, "a count");
        u64::try_from(count).unwrap_or(0)
    }

    fn switch(&mut self, option: &CStr, value: bool) {
        // SAFETY: `raw` is a program that nobody else has; the name ends with a zero and is read
        // until the call returns.
        let status = unsafe {
            highs_sys::Highs_setBoolOptionValue(
                self.raw.as_ptr(),
                option.as_ptr(),
                HighsInt::from(value),
            )
        };
        done(status, "an option");
    }

    fn whole(&mut self, option: &CStr, value: HighsInt) {
        // SAFETY: as above.
        let status = unsafe {
            highs_sys::Highs_setIntOptionValue(self.raw.as_ptr(), option.as_ptr(), value)
        };
        done(status, "an option");
    }

    fn real(&mut self, option: &CStr, value: f64) {
        // SAFETY: as above.
        let status = unsafe {
            highs_sys::Highs_setDoubleOptionValue(self.raw.as_ptr(), option.as_ptr(), value)
        };
        done(status, "an option");
    }

    fn text(&mut self, option: &CStr, value: &CStr) {
        // SAFETY: as above, and the value ends with a zero as well; the library copies it.
        let status = unsafe {
            highs_sys::Highs_setStringOptionValue(
                self.raw.as_ptr(),
                option.as_ptr(),
                value.as_ptr(),
            )
        };
        done(status, "an option");
    }
}

impl Drop for Highs {
    fn drop(&mut self) {
        // SAFETY: `raw` was made by `Highs_create`, nobody else has it, and it is used no more.
        unsafe { highs_sys::Highs_destroy(self.raw.as_ptr()) }
    }
}

/// # Panics
/// If the library has not done it. Its warnings, as that of a run that is late, are told by what
/// follows.
#[track_caller]
fn done(status: HighsInt, what: &str) {
    assert_ne!(status, highs_sys::STATUS_ERROR, "HiGHS did not take {what}");
}

fn number(count: usize) -> HighsInt {
    HighsInt::try_from(count).expect("more than HiGHS can count")
}

/// Two products of 3 and 2 each, of which at most 4 in all and 3 of the first: what is given
/// arrives, and what is asked comes back.
#[test]
fn a_program_arrives_changes_and_starts_where_it_ended() {
    let mut problem = Problem::new(&[-3.0, -2.0], &[0.0; 2], &[3.0, f64::INFINITY]);
    problem.add_row([(0, 1.0), (1, 1.0)], f64::NEG_INFINITY, 4.0);
    problem.add_row([(0, 1.0), (1, -1.0)], -10.0, 10.0);
    let mut highs = Highs::new(&problem).without_presolve();
    assert_eq!((highs.run(), highs.objective()), (End::Optimal, -11.0));
    assert!(highs.iterations() > 0);
    let best = highs.basis();
    highs.set_row_bounds(&[f64::NEG_INFINITY, -10.0], &[5.0, 10.0]);
    assert_eq!((highs.run(), highs.objective(), highs.iterations()), (End::Optimal, -13.0, 0));
    highs.set_row_bounds(&[f64::NEG_INFINITY, -10.0], &[6.0, 10.0]);
    highs.set_slack_basis();
    assert_eq!((highs.run(), highs.objective()), (End::Optimal, -15.0));
    assert!(highs.iterations() > 0);
    highs.set_row_bounds(&[f64::NEG_INFINITY, -10.0], &[4.0, 10.0]);
    highs.set_basis(&best);
    assert_eq!((highs.run(), highs.objective(), highs.iterations()), (End::Optimal, -11.0, 0));
    highs.set_row_bounds(&[9.0, 8.0], &[9.0, 10.0]);
    assert_eq!(highs.run(), End::Infeasible);
}
