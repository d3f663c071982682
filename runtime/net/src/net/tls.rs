//! The grid's certificate authority, and the certificates by which nodes prove their names.
//!
//! This module does not know connections. Every link uses mutual TLS 1.3 with this authority only.
//! A node certificate names node, cluster and role in one URI
//! (`springtide://<cluster>/<role>/<node>`), and the grid as its subject's organisation.

mod enrol;
mod rotation;

use std::fmt;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PKCS_ED25519, PublicKeyData, SerialNumber,
    SignatureAlgorithm,
};
use rustls::client::Resumption;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer as _, X509Certificate};

pub(crate) use self::enrol::pinned_config;
pub use self::enrol::{Calendar, Fingerprint, JOIN_ALPN, NewKey, calendar, check_request};
use self::rotation::AuthorityFiles;
pub use self::rotation::{AuthorityReader, RotationStep};
use crate::id::{ClusterId, NodeId};
use crate::private::{self, PrivateError, give_to_owner};

/// The application protocol of every link. It contains the major version, so the handshake refuses
/// a different one.
pub const ALPN: &[u8] = b"springtide/1";

/// The application protocol of two sides without a common major version; it never changes.
///
/// The caller opens a bidirectional stream, sends its versions as text of up to 200 bytes, and
/// finishes the stream. The other side closes the connection with code 2 and a text that names the
/// versions of both. Each side thus learns the other's major version.
pub const VERSIONS_ALPN: &[u8] = b"springtide-versions";

/// Validity of a node certificate of a permanent grid.
pub const NODE_VALIDITY: Duration = Duration::from_secs(30 * DAY);

/// Validity of certificates of a grid that ends with its command. They are neither trusted
/// afterwards nor renewed.
pub const EPHEMERAL_VALIDITY: Duration = CA_VALIDITY;

/// The name that TLS checks in every node certificate. The URI next to it identifies the node.
pub(crate) const SERVER_NAME: &str = "node.springtide";

const DAY: u64 = 24 * 3600;
const CA_VALIDITY: Duration = Duration::from_secs(3650 * DAY);
/// Certificates are valid from this time before their creation, for clocks that are behind.
const BACKDATE: Duration = Duration::from_secs(3600);

const CA_CERT: &str = "ca.pem";
const CA_KEY: &str = "ca.key";
const NODE_CERT: &str = "node.pem";
const NODE_KEY: &str = "node.key";

/// The reason why certificates cannot be created, read or written.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("cannot read {}: {source}; {remedy}", .file.display())]
    Read {
        /// Path of the file.
        file: PathBuf,
        /// The error of the system.
        source: io::Error,
        /// The remedy, for users.
        remedy: &'static str,
    },
    /// Users other than its owner can access a key.
    #[error(transparent)]
    Private(#[from] PrivateError),
    /// A file cannot be written.
    #[error("cannot write {}: {source}", .file.display())]
    Write {
        /// Path of the file.
        file: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// An authority already exists. A second one would disconnect every node of the first.
    #[error("{} exists: this folder holds a grid's authority already; remove it, or choose \
             another folder", .file.display())]
    Exists {
        /// Path of its certificate.
        file: PathBuf,
    },
    /// A rotation of the authority is under way.
    #[error("the authority in {} is being replaced already ({})", .dir.display(), match .step {
        RotationStep::Announced => "the next one is trusted, and does not issue yet",
        RotationStep::Issuing | RotationStep::Ended => {
            "the next one issues, and the old one is still trusted"
        }
    })]
    Rotating {
        /// Directory of the authority.
        dir: PathBuf,
        /// The present step.
        step: RotationStep,
    },
    /// The contents of a file are invalid.
    #[error("{} is not usable: {reason}; issue it again with `springtide ca issue`",
            .file.display())]
    Malformed {
        /// Path of the file; empty for other sources.
        file: PathBuf,
        /// Description of the defect.
        reason: String,
    },
    /// A certificate request is invalid.
    #[error("the certificate request is invalid: {0}")]
    Request(String),
    /// A name is not allowed in a certificate.
    #[error("{what} name {name:?}: use 1 to 63 letters, digits, '.', '_' or '-'")]
    Name {
        /// Kind of the name: `grid`, `cluster`, `role` or `node`.
        what: &'static str,
        /// The name that was refused.
        name: String,
    },
    /// A key or certificate cannot be created.
    #[error("cannot make a certificate: {0}")]
    Make(#[from] rcgen::Error),
    /// The TLS library refuses the certificates.
    #[error("the certificates cannot be used for TLS: {0}")]
    Tls(#[from] rustls::Error),
}

/// A grid's certificate authority, which issues node identities. Its key stays on the issuing host.
pub struct Ca {
    grid: String,
    cert_pem: String,
    key_pem: String,
    /// Certificate of this authority by the old one, in a rotation; else empty.
    cross_signed: String,
    issuer: Issuer<'static, KeyPair>,
    validity: Duration,
    kind: CertificateKind,
}

/// The kind of a grid's keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CertificateKind {
    Real,
    /// For simulated time: all messages have the same length in every run.
    Simulated,
}

impl CertificateKind {
    fn algorithm(self) -> &'static SignatureAlgorithm {
        match self {
            Self::Real => &PKCS_ECDSA_P256_SHA256,
            // ECDSA signatures vary in length by a few bytes.
            Self::Simulated => &PKCS_ED25519,
        }
    }

    /// The serial number. Random ones vary in length by a byte; simulated certificates are never
    /// revoked.
    fn serial(self) -> Option<SerialNumber> {
        (self == Self::Simulated).then(|| SerialNumber::from(1))
    }
}

impl Ca {
    /// Creates an authority in `dir` (`ca.pem`, and `ca.key`, readable only by its owner).
    ///
    /// # Errors
    /// `Exists` if `dir` already has one, `Name`, `Write`, `Make`.
    pub fn create(grid: &str, dir: &Path) -> Result<Self, TlsError> {
        let file = dir.join(CA_CERT);
        if file.exists() {
            return Err(TlsError::Exists { file });
        }
        let ca = Self::make(grid, CA_VALIDITY, CertificateKind::Real)?;
        write(&dir.join(CA_KEY), &ca.key_pem, SECRET)?;
        write(&file, &ca.cert_pem, PUBLIC)?;
        Ok(ca)
    }

    /// Creates an authority in memory only, for a grid that ends with its command.
    ///
    /// # Errors
    /// `Name`, `Make`.
    pub fn ephemeral(grid: &str) -> Result<Self, TlsError> {
        Self::make(grid, EPHEMERAL_VALIDITY, CertificateKind::Real)
    }

    /// Creates an authority for simulated time: its handshakes have the same length in all runs.
    pub(crate) fn simulated(grid: &str) -> Result<Self, TlsError> {
        Self::make(grid, EPHEMERAL_VALIDITY, CertificateKind::Simulated)
    }

    /// Loads the authority from `dir`.
    ///
    /// # Errors
    /// `Read`, `Malformed`.
    pub fn load(dir: &Path) -> Result<Self, TlsError> {
        let cert_file = dir.join(CA_CERT);
        let AuthorityFiles { key, key_pem, trusted, cross_signed } = rotation::load(dir)?;
        let own = trusted.first().map(String::as_str).unwrap_or_default();
        let subject = CertificateSubject::of_pem(&cert_file, own)?;
        let issuer =
            Issuer::from_ca_cert_pem(own, key).map_err(|error| malformed(&cert_file, error))?;
        let cert_pem = trusted.concat();
        let (validity, kind) = (CA_VALIDITY, CertificateKind::Real);
        Ok(Self { grid: subject.grid, cert_pem, key_pem, cross_signed, issuer, validity, kind })
    }

    fn make(grid: &str, validity: Duration, kind: CertificateKind) -> Result<Self, TlsError> {
        check_name("grid", grid)?;
        let key = KeyPair::generate_for(kind.algorithm())?;
        // Its path contains the next authority's certificate in a rotation.
        let params = authority_params(grid, &key, validity, kind, 1);
        let cert_pem = params.self_signed(&key)?.pem();
        let key_pem = key.serialize_pem();
        Ok(Self {
            grid: grid.to_owned(),
            cert_pem,
            key_pem,
            cross_signed: String::new(),
            issuer: Issuer::new(params, key),
            validity,
            kind,
        })
    }

    /// Name of the grid.
    pub fn grid(&self) -> &str {
        &self.grid
    }

    /// Certificates of the trusted authorities in PEM: this one's and, in a rotation, that of the
    /// old or next authority, which does not issue.
    pub fn cert_pem(&self) -> &str {
        &self.cert_pem
    }

    /// Creates a node's key and certificate. `validity` is limited to the authority's own.
    ///
    /// # Errors
    /// `Name`, `Make`.
    pub fn issue(
        &self,
        node: &NodeId,
        cluster: &ClusterId,
        role: &str,
        validity: Duration,
    ) -> Result<NodeIdentity, TlsError> {
        self.issue_at(node, cluster, role, validity, calendar()())
    }
}

impl fmt::Debug for Ca {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ca").field("grid", &self.grid).finish_non_exhaustive()
    }
}

/// The identity in a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeName {
    /// Name of the node.
    pub node: NodeId,
    /// Cluster of the node.
    pub cluster: ClusterId,
    /// Role in the grid: `head`, `site`, `node`, `client` or `viewer`.
    pub role: String,
}

/// The rights of a certificate's owner in the grid. `remote::Sender` checks messages against them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Gives orders to nodes: the scheduler and built-in sites.
    Head,
    /// Starts the nodes of its cluster in a separate process, and stores its files.
    Site,
    /// Executes jobs: registers with its site, and may coordinate.
    Node,
    /// Submits jobs and receives their outcomes.
    Client,
    /// Reads the states of all jobs, and changes nothing.
    Viewer,
    /// A role unknown to this version, which has no rights.
    Other,
}

impl NodeName {
    /// Role of the certificate's owner.
    pub fn role_kind(&self) -> Role {
        match &*self.role {
            "head" => Role::Head,
            "site" => Role::Site,
            "node" => Role::Node,
            "client" => Role::Client,
            "viewer" => Role::Viewer,
            _ => Role::Other,
        }
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{URI_SCHEME}{}/{}/{}", self.cluster, self.role, self.node)
    }
}

const URI_SCHEME: &str = "springtide://";

impl NodeName {
    fn parse(uri: &str) -> Option<Self> {
        let mut parts = uri.strip_prefix(URI_SCHEME)?.split('/');
        let (cluster, role, node) = (parts.next()?, parts.next()?, parts.next()?);
        let whole = parts.next().is_none();
        let sound = [cluster, role, node].into_iter().all(|name| check_name("", name).is_ok());
        (whole && sound).then(|| Self {
            node: node.into(),
            cluster: cluster.into(),
            role: role.into(),
        })
    }

    /// The identity in a certificate, whose signature must have been verified.
    pub(crate) fn of_certificate(der: &[u8]) -> Option<Self> {
        CertificateSubject::of_der(der).ok()?.name
    }
}

/// A node's certificate and key, and the authority that it trusts.
#[derive(Clone)]
pub struct NodeIdentity {
    name: NodeName,
    grid: String,
    cert_pem: String,
    key_pem: String,
    ca_pem: String,
}

impl NodeIdentity {
    /// Reads `node.pem`, `node.key` and `ca.pem` from a folder.
    ///
    /// # Errors
    /// `Read`, `Malformed` (also for a certificate that names no node, or has expired).
    pub fn load(dir: &Path) -> Result<Self, TlsError> {
        let mend = "issue it with `springtide ca issue`";
        let (cert_file, key_file, ca_file) =
            (dir.join(NODE_CERT), dir.join(NODE_KEY), dir.join(CA_CERT));
        let cert_pem = read(&cert_file, mend)?;
        let key_pem = read_key(&key_file, mend)?;
        let ca_pem = read(&ca_file, mend)?;
        let subject = CertificateSubject::of_pem(&cert_file, &cert_pem)?;
        CertificateSubject::of_pem(&ca_file, &ca_pem)?;
        PrivateKeyDer::from_pem_slice(key_pem.as_bytes())
            .map_err(|error| malformed(&key_file, error))?;
        let name =
            subject.name.ok_or_else(|| malformed(&cert_file, "it names no springtide:// node"))?;
        if let Some(expired) = subject.expired {
            return Err(malformed(&cert_file, format!("it was valid until {expired}")));
        }
        Ok(Self { name, grid: subject.grid, cert_pem, key_pem, ca_pem })
    }

    /// Reads a certificate that is to be renewed and may have expired.
    ///
    /// # Errors
    /// As [`NodeIdentity::load`], without the check of the date.
    pub fn load_even_if_expired(dir: &Path) -> Result<Self, TlsError> {
        let text = |name| read(&dir.join(name), "issue it with `springtide ca issue`");
        Self::of_parts(&text(NODE_CERT)?, &text(NODE_KEY)?, &text(CA_CERT)?)
    }

    /// Writes `node.pem`, `node.key` (readable only by its owner) and `ca.pem` into a folder, which
    /// is created if necessary.
    ///
    /// # Errors
    /// `Write`.
    pub fn save(&self, dir: &Path) -> Result<(), TlsError> {
        write(&dir.join(CA_CERT), &self.ca_pem, PUBLIC)?;
        write(&dir.join(NODE_KEY), &self.key_pem, SECRET)?;
        write(&dir.join(NODE_CERT), &self.cert_pem, PUBLIC)
    }

    /// The identity in the certificate.
    pub fn name(&self) -> &NodeName {
        &self.name
    }

    /// Name of the node's grid.
    pub fn grid(&self) -> &str {
        &self.grid
    }

    /// Certificate, key and authority, each in PEM.
    pub fn pem(&self) -> [&str; 3] {
        [&self.cert_pem, &self.key_pem, &self.ca_pem]
    }

    /// TLS settings of the accepting side of a link, which requires a certificate of the grid's
    /// authority.
    pub(crate) fn server_config(&self) -> Result<ServerConfig, TlsError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let (certs, key, roots) = self.material()?;
        let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider.clone())
            .build()
            .map_err(|error| malformed(Path::new(""), error))?;
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_client_cert_verifier(verifier)
            .with_single_cert(certs, key)?;
        // The first common protocol is used: the last one serves sides without another.
        config.alpn_protocols = vec![ALPN.to_vec(), VERSIONS_ALPN.to_vec()];
        // No resumption: links are long-lived, and every new one presents its certificate.
        config.send_tls13_tickets = 0;
        Ok(config)
    }

    /// TLS settings of the connecting side of a link.
    pub(crate) fn client_config(&self) -> Result<ClientConfig, TlsError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let (certs, key, roots) = self.material()?;
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_root_certificates(roots)
            .with_client_auth_cert(certs, key)?;
        // The first common protocol is used: the last one serves sides without another.
        config.alpn_protocols = vec![ALPN.to_vec(), VERSIONS_ALPN.to_vec()];
        config.resumption = Resumption::disabled();
        Ok(config)
    }

    /// The same certificate with another authority, as a forger would present it.
    #[cfg(test)]
    pub(crate) fn with_authority(mut self, ca_pem: &str) -> Self {
        ca_pem.clone_into(&mut self.ca_pem);
        self
    }

    fn material(&self) -> Result<Material, TlsError> {
        let none = Path::new("");
        let certs = certificates(none, &self.cert_pem)?;
        let key = PrivateKeyDer::from_pem_slice(self.key_pem.as_bytes())
            .map_err(|error| malformed(none, error))?;
        let mut roots = RootCertStore::empty();
        for cert in certificates(none, &self.ca_pem)? {
            roots.add(cert)?;
        }
        Ok((certs, key, Arc::new(roots)))
    }
}

type Material = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>, Arc<RootCertStore>);

impl fmt::Debug for NodeIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeIdentity").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Period of validity of a certificate, in seconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dates {
    /// First second of validity.
    pub from: i64,
    /// Last second of validity.
    pub until: i64,
}

impl Dates {
    /// The validity of the first certificate in a PEM file.
    ///
    /// # Errors
    /// `Read`, `Malformed`.
    pub fn of_file(file: &Path) -> Result<Self, TlsError> {
        let pem = read(file, "name a certificate in PEM")?;
        Self::of_pem(file, &pem)
    }

    /// Days left at this time (seconds since 1970); negative after the end.
    pub fn days_left(&self, now: i64) -> i64 {
        (self.until - now).div_euclid(DAY as i64)
    }
}

/// The parsed contents of a certificate.
struct CertificateSubject {
    grid: String,
    name: Option<NodeName>,
    /// The end of validity, if it has passed.
    expired: Option<String>,
}

impl CertificateSubject {
    fn of_pem(file: &Path, pem: &str) -> Result<Self, TlsError> {
        let certs = certificates(file, pem)?;
        let first = certs.first().ok_or_else(|| malformed(file, "it holds no certificate"))?;
        Self::of_der(first).map_err(|reason| malformed(file, reason))
    }

    fn of_der(der: &[u8]) -> Result<Self, String> {
        let (_, cert) = X509Certificate::from_der(der).map_err(|error| error.to_string())?;
        let grid = cert
            .subject()
            .iter_organization()
            .next()
            .and_then(|part| part.as_str().ok())
            .ok_or("it names no grid")?
            .to_owned();
        let names = cert.subject_alternative_name().map_err(|error| error.to_string())?;
        let name = names.and_then(|extension| {
            extension.value.general_names.iter().find_map(|name| match name {
                GeneralName::URI(uri) => NodeName::parse(uri),
                _ => None,
            })
        });
        let end = cert.validity().not_after;
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let expired = (end.timestamp() < now.as_secs() as i64).then(|| end.to_string());
        Ok(Self { grid, name, expired })
    }
}

fn certificates(file: &Path, pem: &str) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    CertificateDer::pem_slice_iter(pem.as_bytes())
        .collect::<Result<_, _>>()
        .map_err(|error| malformed(file, error))
}

fn params(validity: Duration) -> CertificateParams {
    let now = SystemTime::now();
    let mut params = CertificateParams::default();
    params.not_before = (now - BACKDATE).into();
    params.not_after = (now + validity).into();
    params
}

/// The contents of a certificate of an authority of a grid with this key. Its paths have at most
/// `path_len` further authorities.
fn authority_params(
    grid: &str,
    key: &impl PublicKeyData,
    validity: Duration,
    kind: CertificateKind,
    path_len: u8,
) -> CertificateParams {
    let mut params = params(validity);
    params.serial_number = kind.serial();
    // Two authorities of grids of the same name must have different names. Otherwise a foreign
    // certificate would look like one of this authority with an invalid signature.
    let id: String =
        params.key_identifier(key).iter().take(4).map(|byte| format!("{byte:02x}")).collect();
    params.distinguished_name = subject(&format!("{grid} authority {id}"), grid);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(path_len));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

fn subject(common_name: &str, grid: &str) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::OrganizationName, grid);
    name.push(DnType::CommonName, common_name);
    name
}

fn check_name(what: &'static str, name: &str) -> Result<(), TlsError> {
    let fits = (1..=63).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b));
    if fits { Ok(()) } else { Err(TlsError::Name { what, name: name.to_owned() }) }
}

fn malformed(file: &Path, reason: impl fmt::Display) -> TlsError {
    TlsError::Malformed { file: file.to_owned(), reason: reason.to_string() }
}

fn read(file: &Path, mend: &'static str) -> Result<String, TlsError> {
    fs::read_to_string(file).map_err(|source| TlsError::Read {
        file: file.to_owned(),
        source,
        remedy: mend,
    })
}

/// Reads a key that only its owner can access.
fn read_key(file: &Path, mend: &'static str) -> Result<String, TlsError> {
    let text = read(file, mend)?;
    private::check_file(file)?;
    Ok(text)
}

const PUBLIC: u32 = 0o644;
const SECRET: u32 = 0o600;

/// Writes a file atomically: under a temporary name with its final permissions, then renamed.
fn write(file: &Path, text: &str, mode: u32) -> Result<(), TlsError> {
    let attempt = || -> io::Result<()> {
        let folder = file.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(folder)?;
        let mut temporary = file.as_os_str().to_owned();
        temporary.push(format!(".{}.new", std::process::id()));
        let temporary = PathBuf::from(temporary);
        // A killed process with the same id may have left it.
        let _ = fs::remove_file(&temporary);
        let written = create(&temporary, mode)
            .and_then(|mut f| f.write_all(text.as_bytes()).and_then(|()| f.sync_all()))
            .and_then(|()| give_to_owner(&temporary))
            .and_then(|()| fs::rename(&temporary, file));
        if written.is_err() {
            let _ = fs::remove_file(&temporary);
        }
        written
    };
    attempt().map_err(|source| TlsError::Write { file: file.to_owned(), source })
}

#[cfg(unix)]
fn create(file: &Path, mode: u32) -> io::Result<fs::File> {
    use std::os::unix::fs::OpenOptionsExt as _;
    fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(file)
}

#[cfg(not(unix))]
fn create(file: &Path, _mode: u32) -> io::Result<fs::File> {
    fs::OpenOptions::new().write(true).create_new(true).open(file)
}

#[cfg(test)]
mod tests {
    use rcgen::SanType;

    use super::*;

    fn issue(ca: &Ca, node: &str) -> NodeIdentity {
        ca.issue(&node.into(), &"ams".into(), "node", NODE_VALIDITY).unwrap()
    }

    #[test]
    fn an_authority_and_an_identity_survive_saving_and_loading() {
        let dir = tempfile::tempdir().unwrap();
        Ca::create("test-grid", dir.path()).unwrap();
        let ca = Ca::load(dir.path()).unwrap();
        assert_eq!(ca.grid(), "test-grid");
        let made = issue(&ca, "ams-1");
        let folder = dir.path().join("deep/ams-1");
        made.save(&folder).unwrap();
        let loaded = NodeIdentity::load(&folder).unwrap();
        let dates = Dates::of_file(&folder.join(NODE_CERT)).unwrap();
        assert_eq!(dates.until - dates.from, (NODE_VALIDITY + BACKDATE).as_secs() as i64);
        assert_eq!((dates.days_left(dates.until), dates.days_left(dates.until + 1)), (0, -1));
        assert_eq!(loaded.pem(), made.pem());
        assert_eq!(loaded.name(), made.name());
        assert_eq!(loaded.grid(), "test-grid");
        assert_eq!(loaded.name().to_string(), "springtide://ams/node/ams-1");
        loaded.server_config().unwrap();
        loaded.client_config().unwrap();
        let left: Vec<_> = fs::read_dir(&folder).unwrap().map(|f| f.unwrap().file_name()).collect();
        assert_eq!(left.len(), 3, "{left:?}");
    }

    #[cfg(unix)]
    #[test]
    fn keys_are_readable_by_their_owner_only() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let ca = Ca::create("g", dir.path()).unwrap();
        issue(&ca, "n").save(dir.path()).unwrap();
        for file in [CA_KEY, NODE_KEY] {
            let mode = fs::metadata(dir.path().join(file)).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{file}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_key_that_others_can_access_is_refused() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let ca = Ca::create("g", dir.path()).unwrap();
        issue(&ca, "n").save(dir.path()).unwrap();
        for mode in [0o640, 0o604, 0o660, 0o644] {
            for file in [CA_KEY, NODE_KEY] {
                let path = dir.path().join(file);
                fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            }
            let refused = [
                Ca::load(dir.path()).unwrap_err().to_string(),
                NodeIdentity::load(dir.path()).unwrap_err().to_string(),
            ];
            for (refused, file) in refused.iter().zip([CA_KEY, NODE_KEY]) {
                let mend = format!("chmod 600 {}", dir.path().join(file).display());
                assert!(refused.contains(&mend), "{refused}");
            }
        }
    }

    #[test]
    fn errors_name_the_file_and_the_remedy() {
        let dir = tempfile::tempdir().unwrap();
        let text = Ca::load(dir.path()).unwrap_err().to_string();
        assert!(text.contains("ca.pem") && text.contains("springtide ca init"), "{text}");
        let text = NodeIdentity::load(dir.path()).unwrap_err().to_string();
        assert!(text.contains("node.pem") && text.contains("springtide ca issue"), "{text}");

        let ca = Ca::create("g", dir.path()).unwrap();
        let text = Ca::create("g", dir.path()).unwrap_err().to_string();
        assert!(text.contains("exists"), "{text}");

        issue(&ca, "n").save(dir.path()).unwrap();
        for file in [NODE_CERT, NODE_KEY, CA_CERT] {
            let kept = fs::read(dir.path().join(file)).unwrap();
            for bad in ["", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"] {
                fs::write(dir.path().join(file), bad).unwrap();
                let text = NodeIdentity::load(dir.path()).unwrap_err().to_string();
                assert!(text.contains(file), "{text}");
            }
            fs::write(dir.path().join(file), kept).unwrap();
        }
        NodeIdentity::load(dir.path()).unwrap();

        for bad in ["", "a/b", "a b", "\u{e9}", &"x".repeat(64)] {
            let refused = ca.issue(&bad.into(), &"c".into(), "node", NODE_VALIDITY);
            assert!(matches!(refused, Err(TlsError::Name { what: "node", .. })), "{bad}");
        }
    }

    #[test]
    fn an_expired_certificate_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let ca = Ca::ephemeral("g").unwrap();
        let mut identity = issue(&ca, "n");
        let key = KeyPair::from_pem(&identity.key_pem).unwrap();
        let mut params = params(Duration::ZERO);
        params.not_after = (SystemTime::now() - Duration::from_secs(60)).into();
        params.distinguished_name = subject("n", "g");
        let uri = identity.name.to_string();
        params.subject_alt_names = vec![SanType::URI(uri.as_str().try_into().unwrap())];
        identity.cert_pem = params.signed_by(&key, &ca.issuer).unwrap().pem();
        identity.save(dir.path()).unwrap();
        let text = NodeIdentity::load(dir.path()).unwrap_err().to_string();
        assert!(text.contains("valid until"), "{text}");
    }

    #[test]
    fn only_complete_names_are_parsed_from_uris() {
        let name = NodeName::parse("springtide://ams/head/ams-3").unwrap();
        assert_eq!(
            (name.node.as_str(), name.cluster.as_str(), &*name.role),
            ("ams-3", "ams", "head")
        );
        for bad in [
            "",
            "springtide://",
            "springtide://a/b",
            "springtide://a/b/c/d",
            "http://a/b/c",
            "springtide://a//c",
        ] {
            assert_eq!(NodeName::parse(bad), None, "{bad}");
        }
    }
}
