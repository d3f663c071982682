//! The benchmark on a node that serves no job. Must not know what its speed is used for.

use super::*;

impl Handler<MeasureSpeed> for Worker {
    type Result = ResponseActFuture<Self, Result<Measurement, String>>;

    /// The benchmark runs apart, so that the node goes on answering.
    fn handle(&mut self, message: MeasureSpeed, _ctx: &mut Context<Self>) -> Self::Result {
        let refused = match &self.running {
            Some(running) => Some(format!("it works for {}", running.spec.id)),
            None if self.measuring.is_some() => Some("another benchmark runs".to_owned()),
            None if !(self.config.seam)().is_real() => Some("its time is virtual".to_owned()),
            None => None,
        };
        if let Some(why) = refused {
            return Box::pin(actix::fut::err(format!("node {}: {why}", self.me())));
        }
        let stop = Arc::new(AtomicBool::new(false));
        self.measuring = Some(stop.clone());
        let (registry, threads, stopped) =
            (self.registry.clone(), self.config.threads, stop.clone());
        let measured = tokio::task::spawn_blocking(move || {
            measure(&registry, &message.spec, threads, || stopped.load(Ordering::Relaxed))
        });
        let then =
            move |answer: Result<_, tokio::task::JoinError>, worker: &mut Self, _: &mut _| {
                if worker.measuring.as_ref().is_some_and(|current| Arc::ptr_eq(current, &stop)) {
                    worker.measuring = None;
                }
                answer.unwrap_or_else(|error| Err(format!("the benchmark panicked: {error}")))
            };
        Box::pin(measured.into_actor(self).map(then))
    }
}

/// Runs a benchmark for as long as it takes to see the quota's effect, on all threads; blocks.
fn measure(
    registry: &Arc<Registry>,
    spec: &BenchmarkSpec,
    threads: u32,
    stop: impl Fn() -> bool + Sync,
) -> Result<Measurement, String> {
    let quota = Probe::new().sample(Instant::now()).quota;
    let stretch = quota.map_or(USUAL_QUOTA_PERIOD, |quota| quota.period);
    let at_least = stretch.saturating_mul(BenchmarkSettings::default().quota_periods);
    let at_most = at_least.max(MEASURE_AT_MOST);
    let goal = BenchmarkGoal { at_least, at_most, stretch };
    let run =
        bench::run(registry, spec, threads, goal, &stop).map_err(|error| error.to_string())?;
    if stop() {
        return Err("it was stopped, for the node is needed".to_owned());
    }
    run.measurement().ok_or_else(|| "nothing was repeated".to_owned())
}
