//! Linear programs in exact arithmetic: an oracle that shares nothing with the crate's own simplex
//! method.
//!
//! A two-phase tableau method with Bland's rule on rational numbers. No verdict is returned before
//! its certificate is checked against the program, also exactly: primal and dual feasibility with
//! equal objectives, a Farkas ray, or a feasible point with a direction of falling costs.

use num_rational::{BigRational, Ratio};
use num_traits::{CheckedAdd, CheckedDiv, CheckedMul, CheckedSub, One, Signed, ToPrimitive, Zero};
use springtide_stochastic::lp::LinearProgram;

/// The truth about a linear program.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Truth {
    /// The least cost, rounded once.
    Optimal(f64),
    Infeasible,
    Unbounded,
}

/// Solves a program exactly.
///
/// # Panics
/// If a certificate fails its check, or a number of the program is not finite where it must be.
pub fn solve(problem: &LinearProgram) -> Truth {
    // Most small programs fit; the others need numbers of any length.
    attempt::<Ratio<i128>>(problem)
        .or_else(|| attempt::<BigRational>(problem))
        .expect("numbers of any length do not overflow")
}

/// A rational number; operations return none where it would overflow.
pub trait ExactNumber:
    Clone
    + PartialOrd
    + Zero
    + One
    + Signed
    + CheckedAdd
    + CheckedSub
    + CheckedMul
    + CheckedDiv
    + ToPrimitive
{
    fn exact(value: f64) -> Option<Self>;
}

impl ExactNumber for Ratio<i128> {
    fn exact(value: f64) -> Option<Self> {
        let big = BigRational::from_float(value).expect("a finite number");
        Some(Self::new(big.numer().to_i128()?, big.denom().to_i128()?))
    }
}

impl ExactNumber for BigRational {
    fn exact(value: f64) -> Option<Self> {
        Some(Self::from_float(value).expect("a finite number"))
    }
}

/// How a variable of the standard form stands for one of the program: `value = sign * own + shift`.
#[derive(Clone)]
struct VariablePart<R> {
    column: usize,
    sign: R,
    shift: R,
}

/// Entries over parts, right-hand side, and sense: -1 at least, 0 equal, 1 at most.
type ExactRow<R> = (Vec<(usize, R)>, R, i8);

/// The standard form min c'z, Az = b, z >= 0 with b >= 0, and what its rows stand for.
struct Standard<R> {
    /// Rows by variable, without slacks and artificials.
    a: Vec<Vec<R>>,
    b: Vec<R>,
    c: Vec<R>,
    /// The constant of the objective.
    constant: R,
}

fn attempt<R: ExactNumber>(problem: &LinearProgram) -> Option<Truth> {
    let standard = Standard::<R>::new(problem)?;
    standard.solve()
}

impl<R: ExactNumber> Standard<R> {
    fn new(problem: &LinearProgram) -> Option<Self> {
        let n = problem.columns();
        let mut parts: Vec<VariablePart<R>> = Vec::new();
        // Rows as entries over parts, an upper bound's slack, and a right-hand side.
        let mut bounded: Vec<(usize, R)> = Vec::new();
        for column in 0..n {
            let (lower, upper) = problem.bounds(column);
            if lower.is_finite() {
                let shift = R::exact(lower)?;
                if upper.is_finite() {
                    bounded.push((parts.len(), R::exact(upper)?.checked_sub(&shift)?));
                }
                parts.push(VariablePart { column, sign: R::one(), shift });
            } else if upper.is_finite() {
                parts.push(VariablePart { column, sign: -R::one(), shift: R::exact(upper)? });
            } else {
                parts.push(VariablePart { column, sign: R::one(), shift: R::zero() });
                parts.push(VariablePart { column, sign: -R::one(), shift: R::zero() });
            }
        }
        let of_column: Vec<Vec<usize>> = (0..n)
            .map(|column| (0..parts.len()).filter(|at| parts[*at].column == column).collect())
            .collect();
        let mut rows: Vec<ExactRow<R>> = Vec::new();
        for row in 0..problem.rows() {
            let (lower, upper) = problem.row_bounds(row);
            let (mut entries, mut shift) = (Vec::new(), R::zero());
            for (column, value) in problem.row(row) {
                let value = R::exact(value)?;
                for &at in &of_column[column] {
                    entries.push((at, value.checked_mul(&parts[at].sign)?));
                }
                let first = of_column[column][0];
                shift = shift.checked_add(&value.checked_mul(&parts[first].shift)?)?;
            }
            let minus = |bound: f64| -> Option<R> { R::exact(bound)?.checked_sub(&shift) };
            if lower == upper {
                rows.push((entries, minus(lower)?, 0));
                continue;
            }
            if lower.is_finite() {
                rows.push((entries.clone(), minus(lower)?, -1));
            }
            if upper.is_finite() {
                rows.push((entries, minus(upper)?, 1));
            }
        }
        for (part, range) in bounded {
            rows.push((vec![(part, R::one())], range, 1));
        }
        let slacks = rows.iter().filter(|row| row.2 != 0).count();
        let width = parts.len() + slacks;
        let (mut a, mut b) = (Vec::new(), Vec::new());
        let mut slack = parts.len();
        for (entries, rhs, sense) in rows {
            let mut line = vec![R::zero(); width];
            for (at, value) in entries {
                line[at] = line[at].checked_add(&value)?;
            }
            if sense != 0 {
                line[slack] = if sense > 0 { R::one() } else { -R::one() };
                slack += 1;
            }
            let flip = rhs.is_negative();
            a.push(if flip { line.into_iter().map(|value| -value).collect() } else { line });
            b.push(if flip { -rhs } else { rhs });
        }
        let (mut c, mut constant) = (vec![R::zero(); width], R::zero());
        let mut seen = vec![false; n];
        for (at, part) in parts.iter().enumerate() {
            let cost = R::exact(problem.cost(part.column))?;
            c[at] = cost.checked_mul(&part.sign)?;
            if !std::mem::replace(&mut seen[part.column], true) {
                constant = constant.checked_add(&cost.checked_mul(&part.shift)?)?;
            }
        }
        Some(Self { a, b, c, constant })
    }

    fn solve(&self) -> Option<Truth> {
        let (m, width) = (self.a.len(), self.c.len());
        // Artificial variables are the unit columns behind the others; they hold the inverse as
        // well.
        let mut rows: Vec<Vec<R>> = Vec::with_capacity(m);
        for (at, line) in self.a.iter().enumerate() {
            let mut row = line.clone();
            row.extend((0..m).map(|other| if other == at { R::one() } else { R::zero() }));
            row.push(self.b[at].clone());
            rows.push(row);
        }
        let mut basis: Vec<usize> = (width..width + m).collect();
        // Reduced costs of the first phase: the sum of artificials.
        let mut phase_one = vec![R::zero(); width + m + 1];
        for row in &rows {
            for (at, value) in row.iter().enumerate() {
                if at < width || at == width + m {
                    phase_one[at] = phase_one[at].checked_sub(value)?;
                }
            }
        }
        let ended = iterate(&mut rows, &mut basis, &mut [&mut phase_one], width)?;
        assert!(ended.is_none(), "the first phase has a lower bound");
        if !phase_one[width + m].is_zero() {
            self.check_infeasible(&phase_one)?;
            return Some(Truth::Infeasible);
        }
        // Artificials that are still basic, at zero, leave where any variable can take their place.
        for at in 0..m {
            if basis[at] >= width
                && let Some(entering) = (0..width).find(|column| !rows[at][*column].is_zero())
            {
                pivot(&mut rows, &mut basis, &mut [&mut phase_one], at, entering)?;
            }
        }
        let mut phase_two: Vec<R> = self.c.clone();
        phase_two.resize(width + m + 1, R::zero());
        for (row, &basic) in rows.iter().zip(&basis) {
            if basic < width && !self.c[basic].is_zero() {
                let cost = self.c[basic].clone();
                for (own, value) in phase_two.iter_mut().zip(row) {
                    if !value.is_zero() {
                        *own = own.checked_sub(&cost.checked_mul(value)?)?;
                    }
                }
            }
        }
        let ended = iterate(&mut rows, &mut basis, &mut [&mut phase_two], width)?;
        let mut point = vec![R::zero(); width];
        for (row, &basic) in rows.iter().zip(&basis) {
            if basic < width {
                point[basic] = row[width + m].clone();
            }
        }
        self.check_point(&point)?;
        if let Some(entering) = ended {
            let mut direction = vec![R::zero(); width];
            direction[entering] = R::one();
            for (row, &basic) in rows.iter().zip(&basis) {
                if basic < width {
                    direction[basic] = -row[entering].clone();
                }
            }
            self.check_direction(&direction)?;
            return Some(Truth::Unbounded);
        }
        let value = dot(&self.c, &point)?;
        self.check_duals(&phase_two, &value)?;
        Some(Truth::Optimal(value.checked_add(&self.constant)?.to_f64()?))
    }

    /// Az = b and z >= 0.
    fn check_point(&self, z: &[R]) -> Option<()> {
        assert!(z.iter().all(|value| !value.is_negative()), "a negative variable");
        for (line, rhs) in self.a.iter().zip(&self.b) {
            assert!(dot(line, z)? == *rhs, "a row is not met");
        }
        Some(())
    }

    /// Ad = 0, d >= 0 and c'd < 0.
    fn check_direction(&self, d: &[R]) -> Option<()> {
        assert!(d.iter().all(|value| !value.is_negative()), "a negative direction");
        for line in &self.a {
            assert!(dot(line, d)?.is_zero(), "a direction that leaves a row");
        }
        assert!(dot(&self.c, d)?.is_negative(), "a direction of rising costs");
        Some(())
    }

    /// Multipliers with A'y <= 0 and b'y > 0, from the first phase.
    fn check_infeasible(&self, reduced: &[R]) -> Option<()> {
        let (m, width) = (self.a.len(), self.c.len());
        // An artificial costs 1, and its reduced cost is 1 - y.
        let y: Vec<R> = (0..m).map(|at| R::one() - reduced[width + at].clone()).collect();
        assert!(dot(&self.b, &y)?.is_positive(), "a ray that proves nothing");
        for column in 0..width {
            let mut sum = R::zero();
            for (line, y) in self.a.iter().zip(&y) {
                if !line[column].is_zero() {
                    sum = sum.checked_add(&line[column].checked_mul(y)?)?;
                }
            }
            assert!(!sum.is_positive(), "a ray that a variable breaks");
        }
        Some(())
    }

    /// A'y <= c and b'y equal to the cost.
    fn check_duals(&self, reduced: &[R], value: &R) -> Option<()> {
        let (m, width) = (self.a.len(), self.c.len());
        let y: Vec<R> = (0..m).map(|at| -reduced[width + at].clone()).collect();
        assert!(dot(&self.b, &y)? == *value, "primal and dual objectives differ");
        for column in 0..width {
            let mut sum = R::zero();
            for (line, y) in self.a.iter().zip(&y) {
                if !line[column].is_zero() {
                    sum = sum.checked_add(&line[column].checked_mul(y)?)?;
                }
            }
            assert!(sum <= self.c[column], "a dual row is broken");
        }
        Some(())
    }
}

fn dot<R: ExactNumber>(one: &[R], other: &[R]) -> Option<R> {
    let mut sum = R::zero();
    for (one, other) in one.iter().zip(other) {
        if !one.is_zero() && !other.is_zero() {
            sum = sum.checked_add(&one.checked_mul(other)?)?;
        }
    }
    Some(sum)
}

/// Pivots by Bland's rule among the first `width` variables. Returns the variable that has no
/// limit, or none at the optimum of the first cost row.
fn iterate<R: ExactNumber>(
    rows: &mut [Vec<R>],
    basis: &mut [usize],
    costs: &mut [&mut Vec<R>],
    width: usize,
) -> Option<Option<usize>> {
    loop {
        let entering = (0..width).find(|column| costs[0][*column].is_negative());
        let Some(entering) = entering else { return Some(None) };
        let mut best: Option<(R, usize)> = None;
        for (at, row) in rows.iter().enumerate() {
            // An artificial at zero must stay there: any entry blocks.
            let blocks = row[entering].is_positive()
                || basis[at] >= width && !row[entering].is_zero() && row[row.len() - 1].is_zero();
            if !blocks {
                continue;
            }
            let limit = row[row.len() - 1].checked_div(&row[entering].abs())?;
            let better = match &best {
                None => true,
                Some((least, known)) => {
                    limit < *least || limit == *least && basis[at] < basis[*known]
                }
            };
            if better {
                best = Some((limit, at));
            }
        }
        let Some((_, leaving)) = best else { return Some(Some(entering)) };
        pivot(rows, basis, costs, leaving, entering)?;
    }
}

fn pivot<R: ExactNumber>(
    rows: &mut [Vec<R>],
    basis: &mut [usize],
    costs: &mut [&mut Vec<R>],
    leaving: usize,
    entering: usize,
) -> Option<()> {
    let divisor = rows[leaving][entering].clone();
    for value in &mut rows[leaving] {
        if !value.is_zero() {
            *value = value.checked_div(&divisor)?;
        }
    }
    let line = rows[leaving].clone();
    let eliminate = |row: &mut Vec<R>| -> Option<()> {
        let times = row[entering].clone();
        if !times.is_zero() {
            for (own, value) in row.iter_mut().zip(&line) {
                if !value.is_zero() {
                    *own = own.checked_sub(&times.checked_mul(value)?)?;
                }
            }
        }
        Some(())
    };
    for (at, row) in rows.iter_mut().enumerate() {
        if at != leaving {
            eliminate(row)?;
        }
    }
    for row in costs {
        eliminate(row)?;
    }
    basis[leaving] = entering;
    Some(())
}
