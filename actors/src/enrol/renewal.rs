//! Certificates that are renewed before they end: a process's own, over its link to the head and without a
//! link being dropped; and those in files of nodes that another process starts.
//!
//! When is a pure function of the certificate's dates, the calendar and a seed. The calendar is looked at
//! often: a machine that slept, or whose clock was set, is late by that much alone. Must not know how the
//! head decides.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use springtide_runtime::net::Net;
use springtide_runtime::net::tls::{Calendar, Dates, NodeIdentity, NodeName};
use springtide_runtime::random::SplitMix;
use springtide_runtime::remote::{Remote, RemoteError};
use tokio::time::sleep;

use super::{Enrolment, RenewCertificate, RenewError};

/// The date is looked at at least this often.
const LOOK_EVERY: Duration = Duration::from_secs(20);
/// Files are not looked at more often than this.
const LOOK_EVERY_MIN: Duration = Duration::from_secs(1);
/// The head does not renew it: it is asked again after this time, or an eighth of what is left.
const NOT_RENEWED: Duration = Duration::from_secs(24 * 3600);
/// First wait after a failure; twice that after the next, and so on.
const RETRY: Duration = Duration::from_secs(10);
/// And no longer than this.
const RETRY_MAX: Duration = Duration::from_secs(3600);
/// How long the head may take.
const WITHIN: Duration = Duration::from_secs(20);

/// What a node renews its certificate with.
pub struct Renewal {
    /// Who it is.
    pub identity: NodeIdentity,
    /// Where its certificate is kept.
    pub dir: PathBuf,
    /// The date.
    pub calendar: Calendar,
    /// Of when exactly it renews.
    pub seed: u64,
}

/// When a certificate is to be renewed, in seconds since 1970: after two thirds of its life, sooner by up to a twentieth of it, by
/// the draw from 0 to 1. So that nodes which joined together do not all call together.
pub fn renew_at(dates: Dates, draw: f64) -> i64 {
    let made = dates.made();
    let life = (dates.until - made) as f64;
    made + (life * (2.0 / 3.0 - draw.clamp(0.0, 1.0) / 20.0)).round() as i64
}

/// Whether a certificate is to be renewed now, by the draw from 0 to 1. One that begins later than now was
/// made before the clock was set back: nobody would take it.
pub fn is_due(dates: Dates, draw: f64, now: i64) -> bool {
    now >= renew_at(dates, draw) || now < dates.from
}

/// How long after so many failures in a row it is tried again, `left` before the certificate ends, by the draw from 0 to 1. At most an
/// eighth of what is left, so that there are several attempts in any case.
pub fn retry_in(failures: u32, left: Duration, draw: f64) -> Duration {
    let wait = RETRY.saturating_mul(1 << failures.min(16)).min(RETRY_MAX).min(left / 8);
    wait.mul_f64(0.75 + draw.clamp(0.0, 1.0) / 2.0).max(Duration::from_millis(200))
}

impl Renewal {
    /// Renews the certificate each time it is due. Completes when it has ended and the head did not renew
    /// it over a link that still stood. Nobody takes a link from this node any more then.
    pub async fn keep(mut self, net: &Net, enrolment: &Remote<Enrolment>) -> String {
        let mut lots = SplitMix::of(self.seed, self.identity.name().node.as_str());
        let mut failures = 0;
        let mut draw = lots.unit();
        let mut wait = Duration::ZERO;
        loop {
            let now = (self.calendar)();
            let dates = match self.identity.dates() {
                Ok(dates) => dates,
                Err(error) => return error.to_string(), // it was read before
            };
            let seconds = |s: i64| Duration::from_secs(u64::try_from(s).unwrap_or(0));
            let has_ended = now > dates.until;
            if has_ended {
                wait = Duration::ZERO; // there may be a link still: a machine that slept
            }
            let is_due = is_due(dates, draw, now);
            if !is_due || !wait.is_zero() {
                let due = seconds(if is_due { 0 } else { renew_at(dates, draw) - now });
                let pause = due.max(wait).min(LOOK_EVERY);
                sleep(pause).await;
                wait = wait.saturating_sub(pause);
                continue;
            }
            match self.renew(net, enrolment).await {
                Ok(until) => {
                    tracing::info!(
                        "the certificate is renewed, for another {} s",
                        until - (self.calendar)()
                    );
                    (failures, draw) = (0, lots.unit());
                }
                Err((_, why)) if has_ended => {
                    return format!(
                        "its certificate has ended and was not renewed in time ({why}): a node that joined joins anew \
                         with a token (`node join`), others are started again by their site or get one by `ca issue`"
                    );
                }
                Err((is_final, why)) => {
                    let left = seconds(dates.until - now);
                    wait = match is_final {
                        true => NOT_RENEWED.min(left / 8).max(LOOK_EVERY_MIN),
                        false => retry_in(failures, left, lots.unit()),
                    };
                    failures += 1;
                    tracing::warn!(
                        "the certificate, which ends in {left:?}, is not renewed ({why}); tried again in {wait:?}: see that the head \
                         is up and reached, and that this node is not revoked (`node list`)"
                    );
                }
            }
        }
    }

    async fn renew(&mut self, net: &Net, enrolment: &Remote<Enrolment>) -> Result<i64, Failure> {
        let new = renewed(&self.identity, enrolment).await?;
        let until = new.dates().map_err(failure)?.until;
        net.renew(&new).map_err(failure)?;
        self.identity = new;
        // In use it is in any case; not kept, it is lost with this process.
        self.identity.save_certificate(&self.dir).map_err(failure)?;
        Ok(until)
    }
}

/// Whether the head will not renew it later either, and why.
type Failure = (bool, String);

fn failure(error: impl std::fmt::Display) -> Failure {
    (false, error.to_string())
}

/// The same identity with another certificate.
async fn renewed(
    identity: &NodeIdentity,
    enrolment: &Remote<Enrolment>,
) -> Result<NodeIdentity, Failure> {
    let NodeName { node, cluster, role } = identity.name().clone();
    let request = identity.request().map_err(failure)?.into();
    let ask = RenewCertificate { node, cluster, role, request };
    let answer = match enrolment.send(ask).deadline(WITHIN).await {
        Ok(answer) => answer,
        // The grid ends with its command.
        Err(error @ RemoteError::NoActor { .. }) => return Err((true, error.to_string())),
        Err(error) => return Err(failure(error)),
    };
    let certificate = match answer {
        Ok(certificate) => certificate,
        Err(error @ RenewError::NotJoined { .. }) => return Err((true, error.to_string())),
        Err(error) => return Err(failure(error)),
    };
    identity.with_certificate(&certificate).map_err(failure)
}

/// Renews the certificates in these directories each time one is due, with the keys that are there, so
/// that a node which is started later finds a valid one. Nodes that run renew their own, a little sooner.
/// Never completes.
pub async fn renew_files(dirs: Vec<PathBuf>, calendar: Calendar, enrolment: Remote<Enrolment>) {
    let mut told = BTreeSet::new();
    loop {
        let mut pause = LOOK_EVERY;
        for dir in &dirs {
            // It may be there later.
            let Ok(identity) = NodeIdentity::load_whatever_date(dir) else { continue };
            let Ok(dates) = identity.dates() else { continue };
            let now = calendar();
            if !is_due(dates, 0.0, now) {
                let left = u64::try_from(renew_at(dates, 0.0) - now).unwrap_or(0);
                pause = pause.min(Duration::from_secs(left));
                continue;
            }
            let renewed = match renewed(&identity, &enrolment).await {
                Ok(new) => new.save_certificate(dir).map_err(failure),
                Err(failure) => Err(failure),
            };
            match renewed {
                Ok(()) => drop(told.remove(dir)),
                Err((_, why)) if told.insert(dir.clone()) => {
                    tracing::warn!("the certificate in {} is not renewed: {why}", dir.display());
                }
                Err(_) => {}
            }
        }
        sleep(pause.max(LOOK_EVERY_MIN)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: i64 = 3600;

    #[test]
    fn certificates_are_renewed_around_two_thirds_of_their_life() {
        // It was made an hour after it begins.
        let dates = Dates { from: 0, until: 25 * HOUR };
        let sixteen = HOUR + 16 * HOUR;
        assert_eq!(renew_at(dates, 0.0), sixteen);
        assert_eq!(renew_at(dates, 1.0), sixteen - 24 * HOUR / 20);
        // Of seconds, as tests have them.
        let short = Dates { from: 0, until: HOUR + 6 };
        for draw in [0.0, 0.5, 1.0] {
            assert!((HOUR + 3..=HOUR + 4).contains(&renew_at(short, draw)), "{draw}");
        }
    }

    #[test]
    fn the_calendar_alone_says_what_is_due() {
        let dates = Dates { from: 1000 * HOUR, until: 1025 * HOUR };
        for (now, due) in [
            (1001 * HOUR, false),
            (1016 * HOUR, false),
            (1017 * HOUR, true),
            // The machine slept, or its clock was set forward.
            (9000 * HOUR, true),
            // It was set back: the certificate begins in the future.
            (999 * HOUR, true),
            (0, true),
        ] {
            assert_eq!(is_due(dates, 0.0, now), due, "{now}");
        }
    }

    #[test]
    fn failures_are_tried_again_later_each_time_and_several_times_before_the_end() {
        let day = Duration::from_secs(86_400);
        let waits: Vec<_> = (0..12).map(|n| retry_in(n, day, 0.5).as_secs()).collect();
        assert_eq!(waits[..4], [10, 20, 40, 80]);
        assert_eq!(waits[11], 3600);
        for draw in [0.0, 1.0] {
            let (mut left, mut attempts) = (Duration::from_secs(8 * 3600), 0);
            while left > Duration::from_secs(2) && attempts < 1000 {
                left = left.saturating_sub(retry_in(attempts, left, draw));
                attempts += 1;
            }
            assert!((10..1000).contains(&attempts), "{attempts}");
        }
        assert_eq!(retry_in(0, Duration::ZERO, 0.0), Duration::from_millis(200));
    }
}
