//! What a run gives its user: a line for each step, snapshots, pictures and the outcome.

use springtide_runtime::work::{Outcome, ParallelLoops, Stop};

use crate::bodies::Bodies;
use crate::check::ForceError;
use crate::gadget;
use crate::history::RunHistory;
use crate::options::{BarnesHut, SnapshotFormat};
use crate::picture::Camera;
use crate::simulate::StepReport;
use crate::write;

/// Makes the snapshot and the picture of a step, if they are due, and passes them to `keep` with
/// their names.
pub(crate) fn artefacts(
    job: &BarnesHut,
    camera: &Camera,
    bodies: &Bodies,
    (step, time): (u64, f64),
    loops: &impl ParallelLoops<Stop: Into<Stop>>,
    mut keep: impl FnMut(&str, Vec<u8>) -> Result<(), Stop>,
) -> Result<(), Stop> {
    if due(job.snapshot_every, step) {
        let (extension, bytes) = match job.snapshot_format {
            SnapshotFormat::Npy => ("npy", write::npy(bodies)),
            SnapshotFormat::Csv => ("csv", write::csv(bodies)),
            SnapshotFormat::Gadget => ("gadget", gadget::write(bodies, time)?),
        };
        keep(&format!("snapshot-{step:06}.{extension}"), bytes)?;
    }
    let draw = || -> Result<_, Stop> { Ok(camera.draw_by(loops, bodies).map_err(Into::into)??) };
    if due(job.picture_every, step) {
        keep(&format!("density-{step:06}.png"), draw()?)?;
    }
    if due(job.render, step) {
        // Numbered without gaps, as programs need that make a video of frames.
        keep(&format!("frame-{:06}.png", step / job.render), draw()?)?;
    }
    Ok(())
}

pub(crate) fn line(report: &StepReport) -> String {
    let [x, y, z] = report.momentum;
    let mut line = format!(
        "step {}: energy {:.6} (error {:+.2e}), momentum ({x:+.2e}, {y:+.2e}, {z:+.2e}), angular \
         momentum off by {:.1e}",
        report.step,
        report.energy(),
        report.energy_error,
        report.angular_momentum_error
    );
    if let Some(ForceError { rms, median, p99 }) = report.force_error {
        line += &format!(", forces off by {rms:.1e} rms, {median:.1e} median, {p99:.1e} p99");
    }
    line
}

/// Whether an action with this interval in steps (0: never) is due.
pub(crate) fn due(every: u64, step: u64) -> bool {
    every > 0 && step.is_multiple_of(every)
}

pub(crate) fn outcome(bodies: &Bodies, history: &RunHistory) -> Outcome {
    Outcome { checksum: bodies.checksum(), result: history.result(bodies.len()) }
}
