//! Rotation of an authority: the next key and certificate replace the old ones of a grid that runs.
//!
//! ```text
//! DIR/ca.pem            certificates of the trusted authorities, the issuing one's first
//! DIR/ca.key            key of the issuing authority
//! DIR/next.key          key of the next authority, before it issues
//! DIR/cross-signed.pem  certificate of the next authority by the old one, while both are trusted
//!                       and the next one issues
//! DIR/rotation.json     period of the rotation, and elapsed time of the present step
//! ```
//!
//! First all processes learn to trust the next certificate. After half of the period the next
//! authority issues, and they get new certificates. These contain the cross-signed certificate, so
//! that a process that was away and trusts only the old authority accepts them. After the other
//! half the old authority is not trusted. The change of the issuing key is one rename: the
//! certificate in `ca.pem` that fits the key is the issuing one. A crash between two writes repeats
//! or delays a step. This module does not know the distribution of certificates.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

use rcgen::{KeyPair, PublicKeyData};
use serde::{Deserialize, Serialize};
use x509_parser::prelude::{FromDer as _, X509Certificate};

use super::{
    CA_CERT, CA_KEY, CA_VALIDITY, Ca, CertificateKind, NODE_VALIDITY, PUBLIC, SECRET, TlsError,
    authority_params, certificates, malformed, read, read_key, write,
};

const NEXT_KEY: &str = "next.key";
const CROSS_SIGNED: &str = "cross-signed.pem";
const ROTATION: &str = "rotation.json";
const END: &str = "-----END CERTIFICATE-----";

/// A step of a rotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RotationStep {
    /// Both authorities are trusted, and the old one issues.
    Announced,
    /// Both authorities are trusted, and the next one issues.
    Issuing,
    /// Only the next one is trusted: the rotation has ended.
    Ended,
}

/// The state of a rotation on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct RotationState {
    period_s: u64,
    /// Time for which heads have run in the present step; absent: no head has seen it.
    elapsed_ms: Option<u64>,
}

/// The certificates of a PEM text, each as a text.
fn split(pem: &str) -> impl Iterator<Item = &str> {
    pem.split_inclusive(END).map(str::trim_start).filter(|part| part.ends_with(END))
}

/// Whether the first certificate of a PEM text is for this key.
fn is_for_key(file: &Path, pem: &str, key: &KeyPair) -> Result<bool, TlsError> {
    let der = certificates(file, pem)?;
    Ok(der.first().is_some_and(|der| {
        X509Certificate::from_der(der)
            .is_ok_and(|(_, cert)| cert.public_key().raw == key.subject_public_key_info())
    }))
}

/// Puts the certificate of a key first.
///
/// # Errors
/// A description of the defect: no certificate fits the key.
pub(super) fn issuer_first(file: &Path, pem: &str, key: &KeyPair) -> Result<Vec<String>, TlsError> {
    let (mut own, mut others) = (Vec::new(), Vec::new());
    for part in split(pem) {
        let side = if is_for_key(file, part, key)? { &mut own } else { &mut others };
        side.push(format!("{part}\n"));
    }
    if own.is_empty() {
        return Err(malformed(file, "it has no certificate of the key in ca.key"));
    }
    own.extend(others);
    Ok(own)
}

/// The step after the present one, if heads have run for half of the period in the present one.
fn next_step(step: RotationStep, period: Duration, elapsed: Duration) -> Option<RotationStep> {
    let next = match step {
        RotationStep::Announced => RotationStep::Issuing,
        RotationStep::Issuing => RotationStep::Ended,
        RotationStep::Ended => return None,
    };
    (elapsed >= period / 2).then_some(next)
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
        write_state(dir, RotationState { period_s: period.as_secs(), elapsed_ms: None })?;
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

    /// Adds the time since the last call, in which the grid's head ran, to the present step of a
    /// rotation. Executes the next step if it is due, and returns a step that begins. The first
    /// call in a rotation returns `Announced` and adds no time.
    ///
    /// # Errors
    /// `Read`, `Malformed`, `Write`: a later call repeats the step, and must add this time again.
    pub fn advance_rotation(dir: &Path, ran: Duration) -> Result<Option<RotationStep>, TlsError> {
        let Some(step) = Self::rotation(dir) else { return Ok(None) };
        let file = dir.join(ROTATION);
        let text = read(&file, "remove it to end the rotation")?;
        let state: RotationState =
            serde_json::from_str(&text).map_err(|error| malformed(&file, error))?;
        let Some(elapsed_ms) = state.elapsed_ms else {
            write_state(dir, RotationState { elapsed_ms: Some(0), ..state })?;
            return Ok(Some(step));
        };
        let period = Duration::from_secs(state.period_s);
        let elapsed = Duration::from_millis(elapsed_ms).saturating_add(ran);
        let Some(next) = next_step(step, period, elapsed) else {
            let elapsed_ms = Some(u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX));
            write_state(dir, RotationState { elapsed_ms, ..state })?;
            return Ok(None);
        };
        match next {
            RotationStep::Announced => {}
            RotationStep::Issuing => {
                // The old key is lost after the rename.
                let cross_signed = cross_sign(dir, period)?;
                write(&dir.join(CROSS_SIGNED), &cross_signed, PUBLIC)?;
                // Before the rename, so that a crash prolongs a step and never shortens one.
                write_state(dir, RotationState { elapsed_ms: Some(0), ..state })?;
                let (from, to) = (dir.join(NEXT_KEY), dir.join(CA_KEY));
                fs::rename(from, &to).map_err(|source| TlsError::Write { file: to, source })?;
                // Other readers of the file take the first certificate for the issuing one.
                write(&dir.join(CA_CERT), Self::load(dir)?.cert_pem(), PUBLIC)?;
            }
            RotationStep::Ended => {
                let ca = Self::load(dir)?;
                let issuer = split(ca.cert_pem()).next().unwrap_or_default();
                write(&dir.join(CA_CERT), &format!("{issuer}\n"), PUBLIC)?;
                // The state is last: while it exists, a later call repeats this step.
                for file in [dir.join(CROSS_SIGNED), file].into_iter().filter(|file| file.exists())
                {
                    fs::remove_file(&file).map_err(|source| TlsError::Write { file, source })?;
                }
            }
        }
        Ok(Some(next))
    }
}

/// The certificate of the next authority's name and key, signed by the old authority. It outlives
/// the period, because a step lasts longer while no head runs.
fn cross_sign(dir: &Path, period: Duration) -> Result<String, TlsError> {
    let old = Ca::load(dir)?;
    let file = dir.join(NEXT_KEY);
    let next = read_key(&file, "remove rotation.json to end the rotation")?;
    let next = KeyPair::from_pem(&next).map_err(|error| malformed(&file, error))?;
    let validity = period.saturating_add(NODE_VALIDITY).min(CA_VALIDITY);
    let params = authority_params(old.grid(), &next, validity, old.kind, 0);
    Ok(params.signed_by(&next, &old.issuer)?.pem())
}

fn write_state(dir: &Path, state: RotationState) -> Result<(), TlsError> {
    let file = dir.join(ROTATION);
    let text = serde_json::to_string(&state).map_err(|error| malformed(&file, error))?;
    write(&file, &text, PUBLIC)
}

/// The files of an authority.
pub(super) struct AuthorityFiles {
    pub(super) key: KeyPair,
    pub(super) key_pem: String,
    /// Certificates of the trusted authorities, that of the key first.
    pub(super) trusted: Vec<String>,
    /// Certificate of the key by the old authority in PEM; empty outside of a rotation.
    pub(super) cross_signed: String,
}

/// Reads the key of an authority and its certificates.
pub(super) fn load(dir: &Path) -> Result<AuthorityFiles, TlsError> {
    let mend = "make one with `springtide ca init`";
    let (cert_file, key_file) = (dir.join(CA_CERT), dir.join(CA_KEY));
    let cert_pem = read(&cert_file, mend)?;
    let key_pem = read_key(&key_file, mend)?;
    let key = KeyPair::from_pem(&key_pem).map_err(|error| malformed(&key_file, error))?;
    let trusted = issuer_first(&cert_file, &cert_pem, &key)?;
    let file = dir.join(CROSS_SIGNED);
    let mut cross_signed = String::new();
    if file.exists() {
        let text = read(&file, "restore it from a backup")?;
        // After a crash before the change of the key, it is for the next one.
        if is_for_key(&file, &text, &key)? {
            cross_signed = text;
        }
    }
    Ok(AuthorityFiles { key, key_pem, trusted, cross_signed })
}

/// Modification times since 1970 and lengths of an authority's files; `None` for missing ones.
type FileStamps = [Option<(Duration, u64)>; 3];

/// Reads the authority in a directory, and parses its files only when they have changed.
#[derive(Debug)]
pub struct AuthorityReader {
    dir: PathBuf,
    last: Mutex<Option<(FileStamps, Arc<Ca>)>>,
}

impl AuthorityReader {
    /// Creates a reader of the authority in this directory.
    pub fn new(dir: PathBuf) -> Self {
        Self { dir, last: Mutex::default() }
    }

    /// The authority as it is on disk now.
    ///
    /// # Errors
    /// As [`Ca::load`].
    pub fn read(&self) -> Result<Arc<Ca>, TlsError> {
        let stamps = [CA_CERT, CA_KEY, CROSS_SIGNED].map(|name| {
            let found = fs::metadata(self.dir.join(name)).ok()?;
            let modified = found.modified().ok()?.duration_since(UNIX_EPOCH).ok()?;
            Some((modified, found.len()))
        });
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, ca)) = last.as_ref().filter(|(before, _)| *before == stamps) {
            return Ok(Arc::clone(ca));
        }
        let ca = Arc::new(Ca::load(&self.dir)?);
        *last = Some((stamps, Arc::clone(&ca)));
        Ok(ca)
    }
}

#[cfg(test)]
mod tests {
    use rustls::{ClientConfig, ClientConnection, Connection, ServerConfig, ServerConnection};

    use super::*;
    use crate::net::tls::{Fingerprint, NodeIdentity, SERVER_NAME, calendar};

    const PERIOD: Duration = Duration::from_secs(100);

    fn issue(dir: &Path) -> NodeIdentity {
        Ca::load(dir).unwrap().issue(&"ams-1".into(), &"ams".into(), "node", NODE_VALIDITY).unwrap()
    }

    fn advance(dir: &Path, ran: u64) -> Option<RotationStep> {
        Ca::advance_rotation(dir, Duration::from_secs(ran)).unwrap()
    }

    /// Passes what one end of a connection has to send to the other end.
    fn deliver(from: &mut Connection, to: &mut Connection) -> Result<(), rustls::Error> {
        let mut bytes = Vec::new();
        while from.wants_write() {
            from.write_tls(&mut bytes).unwrap();
        }
        while !bytes.is_empty() {
            let read = to.read_tls(&mut &*bytes).unwrap();
            bytes.drain(..read);
            to.process_new_packets()?;
        }
        Ok(())
    }

    /// The ends of a new connection.
    fn ends(client: ClientConfig, server: ServerConfig) -> [Connection; 2] {
        let name = SERVER_NAME.try_into().unwrap();
        let client = ClientConnection::new(Arc::new(client), name).unwrap();
        let server = ServerConnection::new(Arc::new(server)).unwrap();
        [client.into(), server.into()]
    }

    /// Whether two processes with these identities accept each other, by a real handshake.
    fn connect(client: &NodeIdentity, server: &NodeIdentity) -> Result<(), rustls::Error> {
        let (client, server) = (client.client_config().unwrap(), server.server_config().unwrap());
        let [mut client, mut server] = ends(client, server);
        for _ in 0..4 {
            deliver(&mut client, &mut server)?;
            deliver(&mut server, &mut client)?;
        }
        assert!(!client.is_handshaking() && !server.is_handshaking());
        Ok(())
    }

    fn accept_each_other(one: &NodeIdentity, other: &NodeIdentity) -> bool {
        connect(one, other).and(connect(other, one)).is_ok()
    }

    #[test]
    fn a_process_that_missed_the_first_half_is_accepted_in_the_second() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let old = Ca::create("g", dir).unwrap();
        let before = issue(dir);
        let next = Ca::begin_rotation(dir, PERIOD).unwrap();
        assert_eq!(Ca::rotation(dir), Some(RotationStep::Announced));
        let refused = Ca::begin_rotation(dir, PERIOD).unwrap_err();
        assert!(matches!(refused, TlsError::Rotating { .. }), "{refused}");
        assert_eq!(Ca::load(dir).unwrap().fingerprint(), old.fingerprint());
        let announced = issue(dir);
        // The time counts from the first head that knows the step.
        assert_eq!(advance(dir, 1000), Some(RotationStep::Announced));
        assert_eq!(advance(dir, 49), None);
        assert_eq!(advance(dir, 1), Some(RotationStep::Issuing));
        assert_eq!(Ca::load(dir).unwrap().fingerprint(), next.fingerprint());
        let issuing = issue(dir);
        // One that was away trusts only the old authority, and renews its certificate.
        assert_eq!(issuing.pem()[0].matches(END).count(), 2);
        for one in [&before, &announced] {
            assert!(accept_each_other(one, &issuing));
        }
        let ca = Ca::load(dir).unwrap();
        let request = before.request().unwrap();
        let renewed = ca.sign(&request, before.name(), NODE_VALIDITY, calendar()()).unwrap();
        let renewed = before.with_certificate(&renewed).unwrap();
        assert!(accept_each_other(&before, &renewed));
        let renewed = renewed.with_authorities(ca.cert_pem()).unwrap();
        assert_eq!(advance(dir, 49), None);
        assert_eq!(advance(dir, 1), Some(RotationStep::Ended));
        assert_eq!((Ca::rotation(dir), advance(dir, 9999)), (None, None));
        assert_eq!(Ca::load(dir).unwrap().fingerprint(), next.fingerprint());
        assert_eq!(fs::read_dir(dir).unwrap().count(), 2);
        let ended = issue(dir);
        assert_eq!(ended.pem()[0].matches(END).count(), 1);
        for one in [&issuing, &renewed] {
            assert!(accept_each_other(one, &ended));
        }
        for one in [&before, &announced] {
            assert!(connect(one, &ended).is_err() && connect(&ended, one).is_err());
        }
    }

    #[test]
    fn a_token_of_the_old_authority_is_valid_until_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let old = Ca::create("g", dir.path()).unwrap().fingerprint();
        Ca::begin_rotation(dir.path(), PERIOD).unwrap();
        let join = |pinned: Fingerprint| {
            let ca = Ca::load(dir.path()).unwrap();
            let head = ca.issue(&"head".into(), &"head".into(), "head", NODE_VALIDITY).unwrap();
            let mut client = crate::net::tls::pinned_config(pinned).unwrap();
            client.alpn_protocols.clear();
            let [mut client, mut server] = ends(client, head.door_config().unwrap());
            deliver(&mut client, &mut server).unwrap();
            deliver(&mut server, &mut client)
        };
        for (ran, accepted) in [(0, true), (50, true), (50, false)] {
            advance(dir.path(), ran);
            assert_eq!(join(old).is_ok(), accepted, "{:?}", Ca::rotation(dir.path()));
            join(Ca::load(dir.path()).unwrap().fingerprint()).unwrap();
        }
    }

    #[test]
    fn only_the_time_of_a_running_head_counts() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        Ca::create("g", dir).unwrap();
        // A head of an earlier version has written a date: the step begins again.
        Ca::begin_rotation(dir, PERIOD).unwrap();
        fs::write(dir.join(ROTATION), r#"{"period_s":100,"since_unix_s":1000}"#).unwrap();
        assert_eq!(advance(dir, 0), Some(RotationStep::Announced));
        assert_eq!(advance(dir, 30), None);
        // The next head continues where the last one ended, at any later time.
        assert_eq!(advance(dir, 0), None);
        assert_eq!(advance(dir, 19), None);
        assert_eq!(advance(dir, 1), Some(RotationStep::Issuing));
    }

    #[test]
    fn a_crash_before_the_change_of_the_key_repeats_the_step() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        Ca::create("g", dir).unwrap();
        let next = Ca::begin_rotation(dir, PERIOD).unwrap();
        fs::write(dir.join(CROSS_SIGNED), cross_sign(dir, PERIOD).unwrap()).unwrap();
        assert_eq!(issue(dir).pem()[0].matches(END).count(), 1);
        for step in [RotationStep::Announced, RotationStep::Issuing] {
            assert_eq!(advance(dir, 50), Some(step));
        }
        assert_eq!(issue(dir).pem()[0].matches(END).count(), 2);
        assert_eq!(Ca::load(dir).unwrap().fingerprint(), next.fingerprint());
    }

    #[test]
    fn a_reader_parses_files_again_when_they_change() {
        let dir = tempfile::tempdir().unwrap();
        Ca::create("g", dir.path()).unwrap();
        let reader = AuthorityReader::new(dir.path().to_owned());
        let first = reader.read().unwrap();
        assert!(Arc::ptr_eq(&first, &reader.read().unwrap()));
        let next = Ca::begin_rotation(dir.path(), PERIOD).unwrap().fingerprint();
        assert_eq!(reader.read().unwrap().cert_pem().matches(END).count(), 2);
        advance(dir.path(), 0);
        advance(dir.path(), 50);
        assert_eq!(reader.read().unwrap().fingerprint(), next);
        fs::remove_file(dir.path().join(CA_KEY)).unwrap();
        reader.read().unwrap_err();
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
