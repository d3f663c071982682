//! HiGHS as an oracle: tests and measurements compare its answers with those of the crate's own
//! simplex method.
//!
//! This file holds all unsafe code of the crate: calls of a C library, after checks of the lengths
//! of their arguments. This module must not know stages or scenarios; only tests use it.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_void};
use std::ptr::NonNull;

use highs_sys::HighsInt;

use crate::lp::Problem;

/// The end of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// At a least-cost point.
    Optimal,
    /// No feasible point exists.
    Infeasible,
    /// The time limit was reached.
    TimeLimit,
    /// Another status, by its number in HiGHS.
    Other(HighsInt),
}

/// A basis: the position of each variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Basis {
    columns: Vec<HighsInt>,
    rows: Vec<HighsInt>,
}

/// A linear program in HiGHS.
pub struct Highs {
    /// The model that `Highs_create` made. This struct owns it and destroys it on drop.
    raw: NonNull<c_void>,
    /// The number of columns of the model.
    columns: usize,
    /// The number of rows of the model.
    rows: usize,
}

impl Highs {
    /// A program for the dual simplex method, in one thread, without output and with the default
    /// values of all other options.
    pub fn new(problem: &Problem) -> Self {
        // SAFETY: the function has no arguments and no preconditions.
        let raw = unsafe { highs_sys::Highs_create() };
        let raw = NonNull::new(raw).expect("HiGHS has memory for a model");
        let mut highs = Self { raw, columns: 0, rows: 0 };
        highs.set_bool(c"output_flag", false);
        highs.set_string(c"solver", c"simplex");
        highs.set_string(c"parallel", c"off");
        highs.set_int(c"threads", 1);
        highs.set_int(c"simplex_strategy", 1);
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
        // SAFETY: this struct owns `raw`. All pointers are of vectors that live until the call
        // returns, and the library copies their elements. Costs and bounds have one element for
        // each column or row; the lengths of starts, indices and values were checked above.
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
        check(status, "the program");
        (self.columns, self.rows) = (columns, rows);
    }

    /// Turns presolving off, which would discard a basis.
    pub fn without_presolve(mut self) -> Self {
        self.set_string(c"presolve", c"off");
        self
    }

    /// Sets the primal and the dual feasibility tolerance, which are 1e-7 by default.
    pub fn with_tolerance(mut self, tolerance: f64) -> Self {
        self.set_double(c"primal_feasibility_tolerance", tolerance);
        self.set_double(c"dual_feasibility_tolerance", tolerance);
        self
    }

    /// Limits the seconds of all runs together.
    pub fn with_time_limit(mut self, seconds: f64) -> Self {
        self.set_double(c"time_limit", seconds);
        self
    }

    /// Sets the bounds of all rows.
    ///
    /// # Panics
    /// If a length is not the number of rows.
    pub fn set_row_bounds(&mut self, lower: &[f64], upper: &[f64]) {
        assert_eq!((lower.len(), upper.len()), (self.rows, self.rows));
        if self.rows == 0 {
            return;
        }
        let last = number(self.rows - 1);
        // SAFETY: this struct owns `raw`, which has `rows` rows. Both slices have as many elements,
        // and live until the call returns.
        let status = unsafe {
            highs_sys::Highs_changeRowsBoundsByRange(
                self.raw.as_ptr(),
                0,
                last,
                lower.as_ptr(),
                upper.as_ptr(),
            )
        };
        check(status, "bounds");
    }

    /// The last basis of the last run.
    ///
    /// # Panics
    /// If there was no run.
    pub fn basis(&self) -> Basis {
        let mut basis = Basis { columns: vec![0; self.columns], rows: vec![0; self.rows] };
        // SAFETY: this struct owns `raw`, which has `columns` columns and `rows` rows. The vectors
        // have as many elements, and nothing else refers to them.
        let status = unsafe {
            highs_sys::Highs_getBasis(
                self.raw.as_ptr(),
                basis.columns.as_mut_ptr(),
                basis.rows.as_mut_ptr(),
            )
        };
        check(status, "its basis");
        basis
    }

    /// Sets the first basis of the next run.
    ///
    /// # Panics
    /// If it has another number of columns or rows, or is not a basis.
    pub fn set_basis(&mut self, basis: &Basis) {
        assert_eq!((basis.columns.len(), basis.rows.len()), (self.columns, self.rows));
        // SAFETY: this struct owns `raw`, which has `columns` columns and `rows` rows. Both vectors
        // have as many elements, and live until the call returns. The library checks the basis.
        let status = unsafe {
            highs_sys::Highs_setBasis(
                self.raw.as_ptr(),
                basis.columns.as_ptr(),
                basis.rows.as_ptr(),
            )
        };
        check(status, "a basis");
    }

    /// Makes the basis of the logical variables the first basis of the next run.
    pub fn set_slack_basis(&mut self) {
        // SAFETY: this struct owns `raw`.
        check(unsafe { highs_sys::Highs_setLogicalBasis(self.raw.as_ptr()) }, "the slack basis");
    }

    /// Solves the program, from the basis of the last run if there was one.
    pub fn run(&mut self) -> End {
        // SAFETY: this struct owns `raw`, and `&mut self` excludes other calls.
        check(unsafe { highs_sys::Highs_run(self.raw.as_ptr()) }, "a run");
        // SAFETY: as above; the call only reads.
        match unsafe { highs_sys::Highs_getModelStatus(self.raw.as_ptr()) } {
            highs_sys::MODEL_STATUS_OPTIMAL => End::Optimal,
            highs_sys::MODEL_STATUS_INFEASIBLE => End::Infeasible,
            highs_sys::MODEL_STATUS_REACHED_TIME_LIMIT => End::TimeLimit,
            other => End::Other(other),
        }
    }

    /// The cost of the last point of the last run.
    pub fn objective(&self) -> f64 {
        // SAFETY: this struct owns `raw`; the call only reads.
        unsafe { highs_sys::Highs_getObjectiveValue(self.raw.as_ptr()) }
    }

    /// The number of pivots of the last run.
    pub fn iterations(&self) -> u64 {
        let mut count: HighsInt = 0;
        // SAFETY: this struct owns `raw`. The name is a C string, and `count` has the type of the
        // value.
        let status = unsafe {
            highs_sys::Highs_getIntInfoValue(
                self.raw.as_ptr(),
                c"simplex_iteration_count".as_ptr(),
                &mut count,
            )
        };
        check(status, "a count");
        u64::try_from(count).unwrap_or(0)
    }

    fn set_bool(&mut self, option: &CStr, value: bool) {
        // SAFETY: this struct owns `raw`. The name is a C string that lives until the call returns.
        let status = unsafe {
            highs_sys::Highs_setBoolOptionValue(
                self.raw.as_ptr(),
                option.as_ptr(),
                HighsInt::from(value),
            )
        };
        check(status, "an option");
    }

    fn set_int(&mut self, option: &CStr, value: HighsInt) {
        // SAFETY: as above.
        let status = unsafe {
            highs_sys::Highs_setIntOptionValue(self.raw.as_ptr(), option.as_ptr(), value)
        };
        check(status, "an option");
    }

    fn set_double(&mut self, option: &CStr, value: f64) {
        // SAFETY: as above.
        let status = unsafe {
            highs_sys::Highs_setDoubleOptionValue(self.raw.as_ptr(), option.as_ptr(), value)
        };
        check(status, "an option");
    }

    fn set_string(&mut self, option: &CStr, value: &CStr) {
        // SAFETY: as above; the value is a C string too, and the library copies it.
        let status = unsafe {
            highs_sys::Highs_setStringOptionValue(
                self.raw.as_ptr(),
                option.as_ptr(),
                value.as_ptr(),
            )
        };
        check(status, "an option");
    }
}

impl Drop for Highs {
    fn drop(&mut self) {
        // SAFETY: `Highs_create` made `raw`, this struct owns it, and this is its last use.
        unsafe { highs_sys::Highs_destroy(self.raw.as_ptr()) }
    }
}

/// Checks the status of a call. Warnings, such as that of a reached time limit, pass.
///
/// # Panics
/// If the call failed.
#[track_caller]
fn check(status: HighsInt, subject: &str) {
    assert_ne!(status, highs_sys::STATUS_ERROR, "HiGHS refused {subject}");
}

/// A count in the integer type of HiGHS.
fn number(count: usize) -> HighsInt {
    HighsInt::try_from(count).expect("counts fit the integers of HiGHS")
}

/// Two products earn 3 and 2 each; at most 4 are made in all, and 3 of the first.
#[test]
fn programs_bounds_and_bases_pass_to_highs_and_back() {
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
