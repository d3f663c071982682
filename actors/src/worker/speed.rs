//! The benchmark on a node without a job. This module does not know the speed's use.

use springtide_runtime::meter::BenchmarkRun;
use springtide_runtime::work::Seam;
use springtide_runtime::work::bench::BenchmarkError;
use tokio::sync::oneshot;

use super::*;

impl Handler<MeasureSpeed> for Worker {
    type Result = ResponseActFuture<Self, Result<SpeedMeasurement, String>>;

    /// Runs the benchmark on a separate thread, so that the node keeps answering.
    fn handle(&mut self, message: MeasureSpeed, _ctx: &mut Context<Self>) -> Self::Result {
        let refused = match &self.running {
            Some(running) => Some(format!("it works for {}", running.spec.id)),
            None if self.measuring.is_some() => Some("another benchmark runs".to_owned()),
            None => None,
        };
        if let Some(why) = refused {
            return Box::pin(actix::fut::err(format!("node {}: {why}", self.me())));
        }
        let stop = Arc::new(AtomicBool::new(false));
        self.measuring = Some(stop.clone());
        let (registry, threads, stopped) =
            (self.registry.clone(), self.config.threads, stop.clone());
        let is_stopped = move || stopped.load(Ordering::Relaxed);
        let seam = (self.config.seam)();
        let (sender, receiver) = oneshot::channel();
        let spec = message.spec;
        // The receiver may be gone.
        let started = if seam.is_real() {
            tokio::task::spawn_blocking(move || {
                drop(sender.send(measure(&registry, &spec, threads, &seam, is_stopped)));
            });
            Ok(())
        } else {
            let here = seam.clone();
            let run =
                move || drop(sender.send(modelled(&registry, &spec, threads, &here, is_stopped)));
            seam.start(0, "benchmark".to_owned(), STACK, Box::new(run))
        };
        if let Err(error) = started {
            tracing::warn!(%error, "a benchmark has no thread");
        }
        let on_done = move |answer: Result<_, _>, worker: &mut Self, _: &mut _| {
            if worker.measuring.as_ref().is_some_and(|current| Arc::ptr_eq(current, &stop)) {
                worker.measuring = None;
            }
            answer.unwrap_or_else(|_| Err("the benchmark panicked".to_owned()))
        };
        Box::pin(receiver.into_actor(self).map(on_done))
    }
}

/// Stack size of a benchmark's thread in virtual time, in bytes.
const STACK: usize = 1 << 20;

/// Runs a benchmark in virtual time, on one thread of this seam: in virtual time all threads are
/// equal and independent.
fn modelled(
    registry: &Arc<Registry>,
    spec: &BenchmarkSpec,
    threads: u32,
    seam: &Arc<dyn Seam>,
    stop: impl Fn() -> bool,
) -> Result<SpeedMeasurement, String> {
    let goal = goal(USUAL_QUOTA_PERIOD);
    let run = bench::run_here(registry, spec, goal, seam, STACK, &stop);
    let one = stopped_or_measured(run, &stop)?;
    Ok(SpeedMeasurement { speed: one.speed * f64::from(threads.max(1)), ..one })
}

fn goal(stretch: Duration) -> BenchmarkGoal {
    let at_least = stretch.saturating_mul(BenchmarkSettings::default().quota_periods);
    BenchmarkGoal {
        min_length: at_least,
        max_length: at_least.max(MEASURE_AT_MOST),
        window: stretch,
    }
}

fn stopped_or_measured(
    run: Result<BenchmarkRun, BenchmarkError>,
    stop: impl Fn() -> bool,
) -> Result<SpeedMeasurement, String> {
    let run = run.map_err(|error| error.to_string())?;
    if stop() {
        return Err("it was stopped, since the node is needed".to_owned());
    }
    run.measurement().ok_or_else(|| "no repetition was complete".to_owned())
}

/// Runs a benchmark on all compute threads, long enough to observe a quota's effect. Blocks the
/// thread.
fn measure(
    registry: &Arc<Registry>,
    spec: &BenchmarkSpec,
    threads: u32,
    seam: &Arc<dyn Seam>,
    stop: impl Fn() -> bool + Clone + Send + Sync + 'static,
) -> Result<SpeedMeasurement, String> {
    let quota = LoadReader::new().sample(Instant::now()).quota;
    let stretch = quota.map_or(USUAL_QUOTA_PERIOD, |quota| quota.period);
    let run = bench::run(registry, spec, threads, goal(stretch), seam, stop.clone());
    stopped_or_measured(run, stop)
}
