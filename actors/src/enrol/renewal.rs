//! Renewal of certificates before they end: a process's own, over its link to the head without
//! dropping links, and those in files of nodes that another process starts.
//!
//! The time of renewal is a pure function of the certificate's dates, the calendar and a seed. The
//! calendar is read often, so that a machine that slept or whose clock was set is late by one
//! interval at most. Trusted authorities are adopted before a renewal and whether or not it
//! succeeds. This module does not know the head's decision.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use springtide_runtime::net::Net;
use springtide_runtime::net::tls::{Calendar, Dates, NodeIdentity, NodeName, TlsError};
use springtide_runtime::random::SplitMix;
use springtide_runtime::remote::{Remote, RemoteError};
use tokio::time::{Instant, sleep};

use super::{EnrolmentActor, GetAuthorities, RenewCertificate, RenewError};

/// The line before each certificate in PEM.
const CERTIFICATE: &str = "-----BEGIN CERTIFICATE-----";
/// Maximum interval between readings of the date.
const CHECK_INTERVAL: Duration = Duration::from_secs(20);
/// Minimum interval between readings of files.
const CHECK_INTERVAL_MIN: Duration = Duration::from_secs(1);
/// Maximum delay after a final refusal by the head; else an eighth of the remaining validity.
const FINAL_REFUSAL_DELAY: Duration = Duration::from_secs(24 * 3600);
/// Delay after the first failure; it doubles with each further one.
const RETRY: Duration = Duration::from_secs(10);
/// Maximum delay after a failure.
const RETRY_MAX: Duration = Duration::from_secs(3600);
/// Timeout of a request to the head.
const WITHIN: Duration = Duration::from_secs(20);

/// Data with which a node renews its certificate.
pub struct Renewal {
    /// Current identity of the node.
    pub identity: NodeIdentity,
    /// Directory of its certificate.
    pub dir: PathBuf,
    /// Returns the current date.
    pub calendar: Calendar,
    /// Seed of the exact times of renewal.
    pub seed: u64,
}

/// Time of a certificate's renewal, in seconds since 1970.
///
/// It is at two thirds of the certificate's life, or earlier by up to a twentieth of it, by `draw`
/// from 0 to 1. So nodes that joined together renew at different times.
pub fn renew_at(dates: Dates, draw: f64) -> i64 {
    let made = dates.made();
    let life = (dates.until - made) as f64;
    made + (life * (2.0 / 3.0 - draw.clamp(0.0, 1.0) / 20.0)).round() as i64
}

/// Whether a certificate is to be renewed now, by `draw` from 0 to 1. A certificate that starts in
/// the future was issued before the clock was set back, and is not accepted by any peer.
pub fn is_due(dates: Dates, draw: f64, now: i64) -> bool {
    now >= renew_at(dates, draw) || now < dates.from
}

/// Delay before the next attempt after this number of failures in a row, by `draw` from 0 to 1.
/// `left` is the remaining validity. The delay is at most an eighth of it, so that there are always
/// several attempts.
pub fn retry_in(failures: u32, left: Duration, draw: f64) -> Duration {
    let wait = RETRY.saturating_mul(1 << failures.min(16)).min(RETRY_MAX).min(left / 8);
    wait.mul_f64(0.75 + draw.clamp(0.0, 1.0) / 2.0).max(Duration::from_millis(200))
}

impl Renewal {
    /// Renews the certificate each time it is due, and adopts the trusted authorities each time
    /// they change. Completes when the certificate has ended and the head did not renew it over an
    /// existing link. Then no peer accepts links from this node.
    pub async fn keep(mut self, net: &Net, enrolment: &Remote<EnrolmentActor>) -> String {
        let mut random = SplitMix::with_text(self.seed, self.identity.name().node.as_str());
        let mut failures = 0;
        let mut draw = random.unit();
        let mut wait = Duration::ZERO;
        let mut checked: Option<Instant> = None;
        let mut spread = RotationSpread::default();
        loop {
            let now = (self.calendar)();
            if checked.is_none_or(|checked| checked.elapsed() >= CHECK_INTERVAL) {
                if let Err(why) = self.adopt_authorities(net, enrolment).await {
                    tracing::warn!("the grid's trusted authorities are not adopted: {why}");
                }
                checked = Some(Instant::now());
            }
            let is_replaced = match self.identity.is_of_issuing_authority() {
                Ok(is_current) => !is_current,
                Err(error) => return error.to_string(), // it was valid at the start
            };
            let is_rotating = self.identity.pem()[2].matches(CERTIFICATE).count() > 1;
            let spread_left = spread.left(is_rotating, is_replaced, draw, Instant::now());
            let dates = match self.identity.dates() {
                Ok(dates) => dates,
                Err(error) => return error.to_string(), // it was valid at the start
            };
            let seconds = |s: i64| Duration::from_secs(u64::try_from(s).unwrap_or(0));
            let has_ended = now > dates.until;
            if has_ended {
                wait = Duration::ZERO; // a link may still exist after the machine slept
            }
            let is_due = spread_left == Some(Duration::ZERO) || is_due(dates, draw, now);
            if !is_due || !wait.is_zero() {
                let due = seconds(if is_due { 0 } else { renew_at(dates, draw) - now });
                let due = due.min(spread_left.unwrap_or(CHECK_INTERVAL));
                let pause = due.max(wait).min(CHECK_INTERVAL);
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
                    (failures, draw) = (0, random.unit());
                }
                Err((_, why)) if has_ended => {
                    return format!(
                        "its certificate has ended and was not renewed in time ({why}): a joined \
                         node joins again with a token (`node join`); other nodes are restarted by \
                         their site or get one by `ca issue`"
                    );
                }
                Err((is_final, why)) => {
                    let left = seconds(dates.until - now);
                    wait = if is_final {
                        FINAL_REFUSAL_DELAY.min(left / 8).max(CHECK_INTERVAL_MIN)
                    } else {
                        retry_in(failures, left, random.unit())
                    };
                    failures += 1;
                    tracing::warn!(
                        "the certificate, which ends in {left:?}, is not renewed ({why}); retried \
                         in {wait:?}: check that the head is up and reachable, and that this node \
                         is not revoked (`node list`)"
                    );
                }
            }
        }
    }

    /// Trusts the authorities that the head trusts, and saves their certificates.
    async fn adopt_authorities(
        &mut self,
        net: &Net,
        enrolment: &Remote<EnrolmentActor>,
    ) -> Result<(), String> {
        let trusted = authorities(enrolment).await.filter(|all| all != self.identity.pem()[2]);
        let Some(trusted) = trusted else { return Ok(()) };
        let text = |error: TlsError| error.to_string();
        let same = self.identity.with_authorities(&trusted).map_err(text)?;
        net.renew(&same).map_err(text)?;
        self.identity = same;
        self.identity.save_certificate(&self.dir).map_err(text)
    }

    async fn renew(
        &mut self,
        net: &Net,
        enrolment: &Remote<EnrolmentActor>,
    ) -> Result<i64, RenewalFailure> {
        let new = renewed(&self.identity, enrolment).await?;
        let until = new.dates().map_err(failure)?.until;
        net.renew(&new).map_err(failure)?;
        self.identity = new;
        // It is in use already; without a copy on disk, it is lost with this process.
        self.identity.save_certificate(&self.dir).map_err(failure)?;
        Ok(until)
    }
}

/// Whether the refusal is final, and its reason.
type RenewalFailure = (bool, String);

fn failure(error: impl std::fmt::Display) -> RenewalFailure {
    (false, error.to_string())
}

/// Returns the same identity with another certificate.
async fn renewed(
    identity: &NodeIdentity,
    enrolment: &Remote<EnrolmentActor>,
) -> Result<NodeIdentity, RenewalFailure> {
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

/// The certificates of the authorities that are trusted now; none if the head does not say, as one
/// of an earlier version.
async fn authorities(enrolment: &Remote<EnrolmentActor>) -> Option<String> {
    enrolment.send(GetAuthorities {}).deadline(WITHIN).await.ok()?.ok()
}

/// Writes the trusted authorities to a directory that no process watches, and renews the
/// certificate there if it is due or its authority is replaced. To be called after each connection
/// to the head.
///
/// # Errors
/// The reason why the certificate stays as it is. In a rotation, the head's final refusal is an
/// error only when the trusted authorities have changed, so that a user sees it once.
pub async fn refresh_files(
    identity: &NodeIdentity,
    dir: &Path,
    now: i64,
    enrolment: &Remote<EnrolmentActor>,
) -> Result<(), String> {
    let text = |error: TlsError| error.to_string();
    let (identity, has_changed) = adopt_in_files(identity, dir, authorities(enrolment).await)?;
    let is_due = is_due(identity.dates().map_err(text)?, 0.0, now);
    if !is_due && identity.is_of_issuing_authority().map_err(text)? {
        return Ok(());
    }
    match renewed(&identity, enrolment).await {
        Ok(new) => new.save_certificate(dir).map_err(text),
        Err((true, _)) if !is_due && !has_changed => Ok(()),
        Err((_, why)) => Err(why),
    }
}

/// Writes these trusted authorities to a directory if they differ from those of the identity
/// there. Returns the identity that trusts them, and whether they differ.
fn adopt_in_files(
    identity: &NodeIdentity,
    dir: &Path,
    trusted: Option<String>,
) -> Result<(NodeIdentity, bool), String> {
    let Some(trusted) = trusted.filter(|all| all != identity.pem()[2]) else {
        return Ok((identity.clone(), false));
    };
    let text = |error: TlsError| error.to_string();
    let same = identity.with_authorities(&trusted).map_err(text)?;
    same.save_certificate(dir).map_err(text)?;
    Ok((same, true))
}

/// The time at which a running node requests a certificate of the next authority.
///
/// The nodes spread their requests over part of the half of a rotation in which that authority
/// issues. A node measures the length of a half: it is the time from its first check that shows
/// two trusted authorities to the one that shows the change of the issuing authority.
#[derive(Debug, Default)]
struct RotationSpread {
    announced: Option<Instant>,
    renew_from: Option<Instant>,
}

impl RotationSpread {
    /// The remaining delay of the request by `draw` from 0 to 1; `None` if no request is due.
    fn left(
        &mut self,
        is_rotating: bool,
        is_replaced: bool,
        draw: f64,
        now: Instant,
    ) -> Option<Duration> {
        if !is_replaced {
            self.renew_from = None;
            self.announced = is_rotating.then(|| self.announced.unwrap_or(now));
            return None;
        }
        if !is_rotating {
            return Some(Duration::ZERO); // the old authority is not trusted
        }
        let measured = self.announced.map(|announced| now.saturating_duration_since(announced));
        let from = *self.renew_from.get_or_insert(now + spread_over(measured, draw));
        Some(from.saturating_duration_since(now))
    }
}

/// The delay of a request after a measured half of a rotation, by `draw` from 0 to 1. It is at most
/// a half of that time, less the error of the measurement; zero without a measurement.
fn spread_over(measured: Option<Duration>, draw: f64) -> Duration {
    let sure = measured.unwrap_or_default().saturating_sub(2 * CHECK_INTERVAL);
    sure.mul_f64(draw.clamp(0.0, 1.0) / 2.0)
}

/// Renews the certificates in these directories each time one is due, with the keys there.
///
/// So a node that starts later finds a valid one. Running nodes renew their own a little earlier.
/// Never completes.
pub async fn renew_files(
    dirs: Vec<PathBuf>,
    calendar: Calendar,
    enrolment: Remote<EnrolmentActor>,
) {
    let mut reported = BTreeSet::new();
    loop {
        let mut pause = CHECK_INTERVAL;
        let trusted = authorities(&enrolment).await;
        for dir in &dirs {
            // The file may appear later.
            let Ok(identity) = NodeIdentity::load_even_if_expired(dir) else { continue };
            let Ok(dates) = identity.dates() else { continue };
            let now = calendar();
            let renewed = match adopt_in_files(&identity, dir, trusted.clone()) {
                Ok((same, _)) => {
                    let is_current = same.is_of_issuing_authority().unwrap_or(true);
                    if is_current && !is_due(dates, 0.0, now) {
                        let left = u64::try_from(renew_at(dates, 0.0) - now).unwrap_or(0);
                        pause = pause.min(Duration::from_secs(left));
                        continue;
                    }
                    match renewed(&same, &enrolment).await {
                        Ok(new) => new.save_certificate(dir).map_err(failure),
                        Err(failure) => Err(failure),
                    }
                }
                Err(why) => Err(failure(why)),
            };
            match renewed {
                Ok(()) => drop(reported.remove(dir)),
                Err((_, why)) if reported.insert(dir.clone()) => {
                    tracing::warn!("the certificate in {} is not renewed: {why}", dir.display());
                }
                Err(_) => {}
            }
        }
        sleep(pause.max(CHECK_INTERVAL_MIN)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: i64 = 3600;

    #[test]
    fn certificates_are_renewed_around_two_thirds_of_their_life() {
        // It was issued an hour after its start.
        let dates = Dates { from: 0, until: 25 * HOUR };
        let sixteen = HOUR + 16 * HOUR;
        assert_eq!(renew_at(dates, 0.0), sixteen);
        assert_eq!(renew_at(dates, 1.0), sixteen - 24 * HOUR / 20);
        // With a validity of seconds, as in tests.
        let short = Dates { from: 0, until: HOUR + 6 };
        for draw in [0.0, 0.5, 1.0] {
            assert!((HOUR + 3..=HOUR + 4).contains(&renew_at(short, draw)), "{draw}");
        }
    }

    #[test]
    fn the_calendar_determines_renewals() {
        let dates = Dates { from: 1000 * HOUR, until: 1025 * HOUR };
        for (now, due) in [
            (1001 * HOUR, false),
            (1016 * HOUR, false),
            (1017 * HOUR, true),
            // The machine slept, or its clock was set forward.
            (9000 * HOUR, true),
            // The clock was set back: the certificate starts in the future.
            (999 * HOUR, true),
            (0, true),
        ] {
            assert_eq!(is_due(dates, 0.0, now), due, "{now}");
        }
    }

    #[test]
    fn failures_are_retried_at_growing_intervals_and_several_times() {
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

    #[test]
    fn nodes_spread_their_requests_over_part_of_a_half() {
        let (start, day) = (Instant::now(), Duration::from_secs(86_400));
        for draw in [0.0, 0.5, 1.0] {
            let mut spread = RotationSpread::default();
            let mut at = |hours: u32, is_rotating, is_replaced| {
                spread.left(is_rotating, is_replaced, draw, start + hours * (day / 24))
            };
            assert_eq!(at(0, false, false), None);
            assert_eq!(at(100, true, false), None);
            assert_eq!(at(111, true, false), None);
            let delay = at(112, true, true).unwrap();
            let most = (day / 2 - 2 * CHECK_INTERVAL).mul_f64(draw / 2.0);
            assert_eq!(delay, most);
            // The delay passes, and is not measured from each check.
            assert_eq!(at(113, true, true), Some(delay.saturating_sub(day / 24)));
            assert_eq!(at(118, true, true), Some(Duration::ZERO));
            assert_eq!(at(119, true, false), None);
            // A node that was away for the first half, and one that was away for both.
            assert_eq!(
                RotationSpread::default().left(true, true, draw, start),
                Some(Duration::ZERO)
            );
            assert_eq!(
                RotationSpread::default().left(false, true, draw, start),
                Some(Duration::ZERO)
            );
        }
        // The shortest period of a rotation: the second half is longer than the delay.
        assert!(spread_over(Some(Duration::from_secs(50)), 1.0) <= Duration::from_secs(5));
    }
}
