//! The times of the phases of a job's steps, as they are reported.

use serde::{Deserialize, Serialize};

/// The time of one phase, summed over all steps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PhaseTime {
    /// The name of the phase.
    pub name: String,
    /// Wall time in seconds.
    pub wall_s: f64,
    /// Processor time of this node's compute threads in seconds; none in virtual time, or where the
    /// system does not report it.
    pub cpu_s: Option<f64>,
    /// The part of the wall time in seconds outside loops and tasks that threads can share.
    pub serial_s: f64,
}

/// The times of all phases, in the order of their first laps.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PhaseTimes(pub Vec<PhaseTime>);

impl PhaseTimes {
    /// The part of the whole wall time that was serial; 0 if no time has passed.
    pub fn serial_share(&self) -> f64 {
        let sum = |of: fn(&PhaseTime) -> f64| self.0.iter().map(of).sum::<f64>();
        let wall = sum(|phase| phase.wall_s);
        if wall > 0.0 { sum(|phase| phase.serial_s) / wall } else { 0.0 }
    }

    /// The times for a result in JSON: an object for each phase by name, and `serial_share`.
    pub fn to_json(&self) -> serde_json::Value {
        let phase = |phase: &PhaseTime| {
            let PhaseTime { name, wall_s, cpu_s, serial_s } = phase;
            let times =
                serde_json::json!({ "wall_s": wall_s, "cpu_s": cpu_s, "serial_s": serial_s });
            (name.clone(), times)
        };
        let mut all: serde_json::Map<_, _> = self.0.iter().map(phase).collect();
        all.insert("serial_share".to_owned(), self.serial_share().into());
        all.into()
    }

    /// The times of an object that [`to_json`](Self::to_json) made. Entries of another form are
    /// left out.
    pub fn from_json(object: &serde_json::Value) -> Self {
        let phase = |(name, times): (&String, &serde_json::Value)| {
            let seconds = |key: &str| times[key].as_f64();
            let (wall_s, serial_s) = (seconds("wall_s")?, seconds("serial_s")?);
            Some(PhaseTime { name: name.clone(), wall_s, cpu_s: seconds("cpu_s"), serial_s })
        };
        Self(object.as_object().into_iter().flatten().filter_map(phase).collect())
    }

    /// Whether there are no phases.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds the times of other steps.
    pub fn add(&mut self, other: &Self) {
        other.0.iter().for_each(|phase| self.add_phase(phase.clone()));
    }

    pub(super) fn add_phase(&mut self, phase: PhaseTime) {
        match self.0.iter_mut().find(|known| known.name == phase.name) {
            Some(known) => {
                known.wall_s += phase.wall_s;
                known.cpu_s = known.cpu_s.zip(phase.cpu_s).map(|(sum, cpu)| sum + cpu);
                known.serial_s += phase.serial_s;
            }
            None => self.0.push(phase),
        }
    }
}
