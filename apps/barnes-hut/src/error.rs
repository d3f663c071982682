//! The errors of a simulation.

/// The reason why a simulation cannot start or continue.
#[derive(Debug, thiserror::Error)]
pub enum SimulationError {
    /// A position or velocity is not a finite number.
    #[error(
        "step {step}: body {body} has left the range of numbers; a smaller --dt or a larger \
         --softening may help"
    )]
    NotFinite {
        /// The number of the step (0: before the first).
        step: u64,
        /// The index of the first such body.
        body: usize,
    },
    /// The forces are for another number of bodies.
    #[error("forces of {got} bytes came where {expected} were due")]
    WrongForces {
        /// The expected number of bytes.
        expected: usize,
        /// The actual number of bytes.
        got: usize,
    },
    /// A saved state does not belong to the run.
    #[error("the saved block time steps do not belong to this run; start it again")]
    OtherRungs,
}
