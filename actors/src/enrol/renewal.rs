//! A node's own certificate: renewed over its link to the head before it ends, without a link being dropped.
//!
//! When is a pure function of the certificate's dates and a seed. Must not know how the head decides.

use std::path::PathBuf;
use std::time::Duration;

use springtide_runtime::net::Net;
use springtide_runtime::net::tls::{Calendar, Dates, NodeIdentity};
use springtide_runtime::random::SplitMix;
use springtide_runtime::remote::Remote;
use tokio::time::sleep;

use super::{Enrolment, RenewCertificate};

/// The date is looked at at least this often: a machine that slept is late otherwise.
const LOOK_EVERY: Duration = Duration::from_secs(60);
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

/// How long after so many failures in a row it is tried again, `left` before the certificate ends, by the draw from 0 to 1. At most an
/// eighth of what is left, so that there are several attempts in any case.
pub fn retry_in(failures: u32, left: Duration, draw: f64) -> Duration {
    let wait = RETRY.saturating_mul(1 << failures.min(16)).min(RETRY_MAX).min(left / 8);
    wait.mul_f64(0.75 + draw.clamp(0.0, 1.0) / 2.0).max(Duration::from_millis(200))
}

impl Renewal {
    /// Renews the certificate each time it is due. Completes when it has ended, which is told: nobody takes a link from this node
    /// any more.
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
            if now > dates.until {
                return "its certificate has ended and was not renewed in time: join anew with a token (`node join`)"
                    .to_owned();
            }
            let due = seconds(renew_at(dates, draw) - now);
            if !due.is_zero() || !wait.is_zero() {
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
                Err(why) => {
                    let left = seconds(dates.until - now);
                    wait = retry_in(failures, left, lots.unit());
                    failures += 1;
                    tracing::warn!(
                        "the certificate, which ends in {left:?}, is not renewed ({why}); tried again in {wait:?}: see that the head \
                         is up and reached, and that this node is not revoked (`node list`)"
                    );
                }
            }
        }
    }

    async fn renew(&mut self, net: &Net, enrolment: &Remote<Enrolment>) -> Result<i64, String> {
        let text = |error: &dyn std::fmt::Display| error.to_string();
        let name = self.identity.name().clone();
        let request = self.identity.request().map_err(|error| text(&error))?.into();
        let ask =
            RenewCertificate { node: name.node, cluster: name.cluster, role: name.role, request };
        let answer = enrolment.send(ask).deadline(WITHIN).await.map_err(|error| text(&error))?;
        let certificate = answer.map_err(|error| text(&error))?;
        let new = self.identity.with_certificate(&certificate).map_err(|error| text(&error))?;
        let until = new.dates().map_err(|error| text(&error))?.until;
        net.renew(&new).map_err(|error| text(&error))?;
        self.identity = new;
        // In use it is in any case; not kept, it is lost with this process.
        self.identity.save_certificate(&self.dir).map_err(|error| text(&error))?;
        Ok(until)
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
