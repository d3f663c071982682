//! Rotation of an authority: another key and certificate replace those of a grid that runs.
//!
//! ```text
//! DIR/ca.pem         the trusted certificates: the issuing one and, in a rotation, the other one
//! DIR/ca.key         the key of the issuing authority
//! DIR/next.key       the key of the next authority, before it issues
//! DIR/rotation.json  the period of the rotation, and the time of its last step
//! ```
//!
//! First all processes learn to trust the next certificate. After half of the period the next
//! authority issues, and they get new certificates. After the other half the old one is trusted no
//! more. The change of the issuing key is one rename: the certificate in `ca.pem` that fits the key
//! is the issuing one. A crash between two writes repeats or delays a step. Independent of the
//! distribution of certificates.

use std::fs;
use std::path::Path;
use std::time::Duration;

use rcgen::{KeyPair, PublicKeyData as _};
use serde::{Deserialize, Serialize};
use x509_parser::prelude::{FromDer as _, X509Certificate};

use super::{
    CA_CERT, CA_KEY, CA_VALIDITY, Ca, CertificateKind, PUBLIC, SECRET, TlsError, certificates,
    malformed, read, read_key, write,
};

const NEXT_KEY: &str = "next.key";
const ROTATION: &str = "rotation.json";
const END: &str = "-----END CERTIFICATE-----";

/// A step of a rotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RotationStep {
    /// Both authorities are trusted, and the old one issues.
    Announced,
    /// Both authorities are trusted, and the new one issues.
    Issuing,
    /// Only the new one is trusted: the rotation has ended.
    Ended,
}

/// The state of a rotation on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct RotationState {
    period_s: u64,
    /// Time since which a head has executed the present step; absent: none has seen it.
    since_unix_s: Option<i64>,
}

/// The certificates of a PEM text, each as a text.
fn split(pem: &str) -> impl Iterator<Item = &str> {
    pem.split_inclusive(END).map(str::trim_start).filter(|part| part.ends_with(END))
}

/// Puts the certificate of a key first.
///
/// # Errors
/// A description of the defect: no certificate fits the key.
pub(super) fn issuer_first(file: &Path, pem: &str, key: &KeyPair) -> Result<Vec<String>, TlsError> {
    let (mut own, mut others) = (Vec::new(), Vec::new());
    for part in split(pem) {
        let der = certificates(file, part)?;
        let fits = der.first().is_some_and(|der| {
            X509Certificate::from_der(der)
                .is_ok_and(|(_, cert)| cert.public_key().raw == key.subject_public_key_info())
        });
        if fits { own.push(format!("{part}\n")) } else { others.push(format!("{part}\n")) }
    }
    if own.is_empty() {
        return Err(malformed(file, "it has no certificate of the key in ca.key"));
    }
    own.extend(others);
    Ok(own)
}

/// The step after the present one, if it is due. `now` is in seconds since 1970.
fn next_step(step: RotationStep, state: RotationState, now: i64) -> Option<RotationStep> {
    let since = state.since_unix_s?;
    let half = i64::try_from(state.period_s / 2).unwrap_or(i64::MAX);
    let next = match step {
        RotationStep::Announced => RotationStep::Issuing,
        RotationStep::Issuing => RotationStep::Ended,
        RotationStep::Ended => return None,
    };
    (now >= since.saturating_add(half)).then_some(next)
}

impl Ca {
    /// Begins a rotation of the authority in this directory. [`Ca::advance_rotation`] continues it.
    ///
    /// # Errors
    /// `Rotating` if one is under way; `Read`, `Malformed`, `Write`, `Make`.
    pub fn begin_rotation(dir: &Path, period: Duration) -> Result<Self, TlsError> {
        if let Some(step) = Self::rotation(dir) {
            return Err(TlsError::Rotating { dir: dir.to_owned(), step });
        }
        let old = Self::load(dir)?;
        let next = Self::make(old.grid(), CA_VALIDITY, CertificateKind::Real)?;
        write(&dir.join(NEXT_KEY), &next.key_pem, SECRET)?;
        let issuer = split(old.cert_pem()).next().unwrap_or_default();
        write(&dir.join(CA_CERT), &format!("{issuer}\n{}", next.cert_pem), PUBLIC)?;
        let state = RotationState { period_s: period.as_secs(), since_unix_s: None };
        write_state(dir, state)?;
        Ok(next)
    }

    /// The step of the rotation that is under way in this directory, if one is.
    pub fn rotation(dir: &Path) -> Option<RotationStep> {
        if !dir.join(ROTATION).exists() {
            return None;
        }
        let is_announced = dir.join(NEXT_KEY).exists();
        Some(if is_announced { RotationStep::Announced } else { RotationStep::Issuing })
    }

    /// Executes the next step of a rotation, if it is due at this time (seconds since 1970). Only
    /// the grid's head calls it: the time of a step counts while a head runs that knows it.
    ///
    /// # Errors
    /// `Read`, `Malformed`, `Write`: a later call repeats the step.
    pub fn advance_rotation(dir: &Path, now: i64) -> Result<Option<RotationStep>, TlsError> {
        let Some(step) = Self::rotation(dir) else { return Ok(None) };
        let file = dir.join(ROTATION);
        let text = read(&file, "remove it to end the rotation")?;
        let state: RotationState =
            serde_json::from_str(&text).map_err(|error| malformed(&file, error))?;
        if state.since_unix_s.is_none() {
            write_state(dir, RotationState { since_unix_s: Some(now), ..state })?;
            return Ok(Some(step));
        }
        let Some(next) = next_step(step, state, now) else { return Ok(None) };
        match next {
            RotationStep::Announced => {}
            RotationStep::Issuing => {
                // First, so that a crash prolongs a step and never shortens one.
                write_state(dir, RotationState { since_unix_s: Some(now), ..state })?;
                let (from, to) = (dir.join(NEXT_KEY), dir.join(CA_KEY));
                fs::rename(from, &to).map_err(|source| TlsError::Write { file: to, source })?;
            }
            RotationStep::Ended => {
                let ca = Self::load(dir)?;
                let issuer = split(ca.cert_pem()).next().unwrap_or_default();
                write(&dir.join(CA_CERT), &format!("{issuer}\n"), PUBLIC)?;
                fs::remove_file(&file).map_err(|source| TlsError::Write { file, source })?;
            }
        }
        Ok(Some(next))
    }
}

fn write_state(dir: &Path, state: RotationState) -> Result<(), TlsError> {
    let file = dir.join(ROTATION);
    let text = serde_json::to_string(&state).map_err(|error| malformed(&file, error))?;
    write(&file, &text, PUBLIC)
}

/// Reads the key of an authority and its certificates, that of the key first.
pub(super) fn load(dir: &Path) -> Result<(KeyPair, String, Vec<String>), TlsError> {
    let mend = "make one with `springtide ca init`";
    let (cert_file, key_file) = (dir.join(CA_CERT), dir.join(CA_KEY));
    let cert_pem = read(&cert_file, mend)?;
    let key_pem = read_key(&key_file, mend)?;
    let key = KeyPair::from_pem(&key_pem).map_err(|error| malformed(&key_file, error))?;
    let all = issuer_first(&cert_file, &cert_pem, &key)?;
    Ok((key, key_pem, all))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::tls::{NODE_VALIDITY, NodeIdentity};

    const PERIOD: Duration = Duration::from_secs(100);

    fn issue(dir: &Path) -> NodeIdentity {
        Ca::load(dir).unwrap().issue(&"ams-1".into(), &"ams".into(), "node", NODE_VALIDITY).unwrap()
    }

    /// Whether a process with the first identity accepts the second one.
    fn accepts(one: &NodeIdentity, other: &NodeIdentity) -> bool {
        let none = Path::new("");
        let roots = certificates(none, one.pem()[2]).unwrap();
        let leaf = certificates(none, other.pem()[0]).unwrap();
        let (_, leaf) = X509Certificate::from_der(&leaf[0]).unwrap();
        roots.iter().any(|root| {
            let (_, root) = X509Certificate::from_der(root).unwrap();
            leaf.issuer() == root.subject()
        })
    }

    #[test]
    fn each_step_is_trusted_by_the_step_before_and_after() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let old = Ca::create("g", dir).unwrap();
        let mut issued = vec![issue(dir)];
        let next = Ca::begin_rotation(dir, PERIOD).unwrap();
        assert_eq!(Ca::rotation(dir), Some(RotationStep::Announced));
        let refused = Ca::begin_rotation(dir, PERIOD).unwrap_err();
        assert!(matches!(refused, TlsError::Rotating { .. }), "{refused}");
        assert_eq!(Ca::load(dir).unwrap().fingerprint(), old.fingerprint());
        issued.push(issue(dir));
        let advance = |now| Ca::advance_rotation(dir, now).unwrap();
        // The time counts from the first head that knows the step.
        assert_eq!(advance(1000), Some(RotationStep::Announced));
        assert_eq!(advance(1049), None);
        assert_eq!(advance(1050), Some(RotationStep::Issuing));
        assert_eq!(Ca::load(dir).unwrap().fingerprint(), next.fingerprint());
        issued.push(issue(dir));
        assert_eq!(advance(1099), None);
        assert_eq!(advance(1100), Some(RotationStep::Ended));
        assert_eq!((Ca::rotation(dir), advance(9999)), (None, None));
        assert_eq!(Ca::load(dir).unwrap().fingerprint(), next.fingerprint());
        issued.push(issue(dir));
        for pair in issued.windows(2) {
            assert!(accepts(&pair[0], &pair[1]) && accepts(&pair[1], &pair[0]));
        }
        assert!(!accepts(&issued[0], &issued[2]) && !accepts(&issued[3], &issued[0]));
        for identity in &issued {
            identity.client_config().unwrap();
            identity.server_config().unwrap();
        }
    }

    #[test]
    fn a_key_without_its_certificate_is_refused() {
        let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        Ca::create("g", one.path()).unwrap();
        Ca::create("g", other.path()).unwrap();
        fs::copy(other.path().join(CA_CERT), one.path().join(CA_CERT)).unwrap();
        let refused = Ca::load(one.path()).unwrap_err().to_string();
        assert!(refused.contains("no certificate of the key"), "{refused}");
    }
}
