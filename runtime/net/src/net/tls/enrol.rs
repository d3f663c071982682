//! Certificates for enrolment: a node's key and request, the authority's signature, and the
//! verification of the authority in a token.
//!
//! This module does not know tokens, connections or the assignment of names.

use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rcgen::{
    Certificate, CertificateParams, CertificateSigningRequestParams, DistinguishedName,
    ExtendedKeyUsagePurpose, KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PKCS_ED25519,
    PublicKey, PublicKeyData, SanType,
};
use ring::digest::{SHA256, digest};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, ServerConfig,
    SignatureScheme,
};
use x509_parser::prelude::{FromDer as _, X509Certificate};

use super::{
    BACKDATE, CA_CERT, Ca, CertificateSubject, Dates, NODE_CERT, NodeIdentity, NodeName, PUBLIC,
    Role, SERVER_NAME, TlsError, certificates, check_name, malformed, subject, write,
};
use crate::id::{ClusterId, NodeId};

/// The application protocol of the join endpoint.
pub const JOIN_ALPN: &[u8] = b"springtide-join/1";

/// The date in seconds since 1970, by which certificates and tokens are valid. A value, so that
/// tests can set it.
pub type Calendar = Arc<dyn Fn() -> i64 + Send + Sync>;

/// The date of the system.
pub fn calendar() -> Calendar {
    Arc::new(|| {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        i64::try_from(since.unwrap_or_default().as_secs()).unwrap_or(i64::MAX)
    })
}

/// SHA-256 of a certificate in DER; as text, 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    fn of(der: &[u8]) -> Self {
        let mut sum = [0; 32];
        sum.copy_from_slice(digest(&SHA256, der).as_ref());
        Self(sum)
    }

    /// The fingerprint of the first certificate in a PEM text.
    ///
    /// # Errors
    /// `Malformed`.
    pub fn of_pem(pem: &str) -> Result<Self, TlsError> {
        let none = Path::new("");
        let certs = certificates(none, pem)?;
        let first = certs.first().ok_or_else(|| malformed(none, "it holds no certificate"))?;
        Ok(Self::of(first))
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Fingerprint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "must be 64 digits of hexadecimal".to_owned();
        if text.len() != 64 || !text.is_ascii() {
            return Err(wrong());
        }
        let mut sum = [0; 32];
        for (byte, two) in sum.iter_mut().zip(text.as_bytes().chunks(2)) {
            let two = std::str::from_utf8(two).map_err(|_| wrong())?;
            *byte = u8::from_str_radix(two, 16).map_err(|_| wrong())?;
        }
        Ok(Self(sum))
    }
}

/// A new key without a certificate.
pub struct NewKey(KeyPair);

impl NewKey {
    /// Generates a key.
    ///
    /// # Errors
    /// `Make`.
    pub fn make() -> Result<Self, TlsError> {
        Ok(Self(KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?))
    }

    /// A certificate request in DER, which proves the possession of the private key. It contains no
    /// name.
    ///
    /// # Errors
    /// `Make`.
    pub fn request(&self) -> Result<Vec<u8>, TlsError> {
        request_of(&self.0)
    }

    /// Combines the key with its certificate.
    ///
    /// # Errors
    /// `Malformed`, `Tls`: the certificate is not for this key, or names no node.
    pub fn identity(self, cert_pem: &str, ca_pem: &str) -> Result<NodeIdentity, TlsError> {
        NodeIdentity::of_parts(cert_pem, &self.0.serialize_pem(), ca_pem)
    }
}

fn request_of(key: &KeyPair) -> Result<Vec<u8>, TlsError> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    Ok(params.serialize_request(key)?.der().to_vec())
}

/// The public key of a request (PKCS #10 in DER), whose signature is verified.
fn key_of(request: &[u8]) -> Result<PublicKey, TlsError> {
    let request = CertificateSigningRequestParams::from_der(&request.to_vec().into())
        .map_err(|error| TlsError::Request(error.to_string()))?;
    let key = request.public_key;
    if ![&PKCS_ECDSA_P256_SHA256, &PKCS_ED25519].contains(&PublicKeyData::algorithm(&key)) {
        let why = "its key is neither ECDSA P-256 nor Ed25519";
        return Err(TlsError::Request(why.to_owned()));
    }
    Ok(key)
}

/// Checks whether [`Ca::sign`] accepts a request.
///
/// # Errors
/// `Request`.
pub fn check_request(request: &[u8]) -> Result<(), TlsError> {
    key_of(request).map(drop)
}

impl Ca {
    /// SHA-256 of the authority's certificate.
    pub fn fingerprint(&self) -> Fingerprint {
        // The text was generated or parsed as a certificate.
        Fingerprint::of_pem(self.cert_pem()).unwrap_or(Fingerprint([0; 32]))
    }

    /// Signs a certificate for the public key of a request; all other contents of the request are
    /// ignored. In a rotation, a cross-signed certificate of this authority follows in the text.
    ///
    /// `name` identifies the owner. The certificate is valid from an hour before `now` (seconds
    /// since 1970) to `validity` after it.
    ///
    /// # Errors
    /// `Request`: the request is malformed, has an invalid signature, or a key of an unsupported
    /// kind. `Name`, `Make`.
    pub fn sign(
        &self,
        request: &[u8],
        name: &NodeName,
        validity: Duration,
        now: i64,
    ) -> Result<String, TlsError> {
        let key = key_of(request)?;
        let params = self.leaf(name, validity, now)?;
        Ok(self.with_chain(&params.signed_by(&key, &self.issuer)?))
    }

    /// A certificate of this authority in PEM. In a rotation, the authority's own certificate by
    /// the old authority follows, for peers that trust only that one.
    fn with_chain(&self, cert: &Certificate) -> String {
        format!("{}{}", cert.pem(), self.cross_signed)
    }

    /// Creates a node's key and certificate as [`Ca::issue`] does, at a given time (seconds since
    /// 1970).
    ///
    /// # Errors
    /// As [`Ca::issue`].
    pub fn issue_at(
        &self,
        node: &NodeId,
        cluster: &ClusterId,
        role: &str,
        validity: Duration,
        now: i64,
    ) -> Result<NodeIdentity, TlsError> {
        let name = NodeName { node: node.clone(), cluster: cluster.clone(), role: role.to_owned() };
        let params = self.leaf(&name, validity, now)?;
        let key = KeyPair::generate_for(self.kind.algorithm())?;
        let cert = params.signed_by(&key, &self.issuer)?;
        Ok(NodeIdentity {
            name,
            grid: self.grid.clone(),
            cert_pem: self.with_chain(&cert),
            key_pem: key.serialize_pem(),
            ca_pem: self.cert_pem.clone(),
        })
    }

    /// The contents of a node's certificate.
    fn leaf(
        &self,
        name: &NodeName,
        validity: Duration,
        now: i64,
    ) -> Result<CertificateParams, TlsError> {
        check_name("node", name.node.as_str())?;
        check_name("cluster", name.cluster.as_str())?;
        check_name("role", &name.role)?;
        let uri = name.to_string();
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(now).unwrap_or(0));
        let mut params = CertificateParams::default();
        params.not_before = (now - BACKDATE).into();
        params.not_after = (now + validity.min(self.validity)).into();
        params.serial_number = self.kind.serial();
        params.distinguished_name = subject(name.node.as_str(), &self.grid);
        params.subject_alt_names =
            vec![SanType::DnsName(SERVER_NAME.try_into()?), SanType::URI(uri.as_str().try_into()?)];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.use_authority_key_identifier_extension = true;
        Ok(params)
    }
}

impl NodeIdentity {
    /// Assembles an identity from PEM texts.
    ///
    /// # Errors
    /// `Malformed`, `Tls`: the certificate is not for this key, or names no node.
    pub fn of_parts(cert_pem: &str, key_pem: &str, ca_pem: &str) -> Result<Self, TlsError> {
        let none = Path::new("");
        let CertificateSubject { grid, name, .. } = CertificateSubject::of_pem(none, cert_pem)?;
        CertificateSubject::of_pem(none, ca_pem)?;
        let name = name.ok_or_else(|| malformed(none, "it names no springtide:// node"))?;
        let [cert_pem, key_pem, ca_pem] = [cert_pem, key_pem, ca_pem].map(str::to_owned);
        let identity = Self { name, grid, cert_pem, key_pem, ca_pem };
        // This checks that the key matches the certificate.
        identity.client_config()?;
        Ok(identity)
    }

    /// A request for another certificate of the same key, in DER.
    ///
    /// # Errors
    /// `Make`.
    pub fn request(&self) -> Result<Vec<u8>, TlsError> {
        request_of(&KeyPair::from_pem(&self.key_pem)?)
    }

    /// The same node with another certificate.
    ///
    /// # Errors
    /// `Malformed`, `Tls`: the certificate is not for this node's key, or not for this node.
    pub fn with_certificate(&self, cert_pem: &str) -> Result<Self, TlsError> {
        let new = Self::of_parts(cert_pem, &self.key_pem, &self.ca_pem)?;
        if (new.name(), new.grid()) != (self.name(), self.grid()) {
            let reason = format!("it names {}, but this node is {}", new.name, self.name);
            return Err(malformed(Path::new("the certificate"), reason));
        }
        Ok(new)
    }

    /// The same node, which trusts these authorities.
    ///
    /// # Errors
    /// `Malformed`, `Tls`: the text is not a certificate, or one of another grid.
    pub fn with_authorities(&self, ca_pem: &str) -> Result<Self, TlsError> {
        let none = Path::new("the authorities' certificates");
        let grid = CertificateSubject::of_pem(none, ca_pem)?.grid;
        if grid != self.grid {
            return Err(malformed(none, format!("they are of grid {grid}, not {}", self.grid)));
        }
        Self::of_parts(&self.cert_pem, &self.key_pem, ca_pem)
    }

    /// Whether the first of the trusted authorities, which issues now, issued the certificate.
    ///
    /// # Errors
    /// `Malformed`.
    pub fn is_of_issuing_authority(&self) -> Result<bool, TlsError> {
        let none = Path::new("");
        let first = |pem: &str| -> Result<_, TlsError> {
            let found = certificates(none, pem)?.into_iter().next();
            found.ok_or_else(|| malformed(none, "it holds no certificate"))
        };
        let (leaf, authority) = (first(&self.cert_pem)?, first(&self.ca_pem)?);
        let parse = |der| X509Certificate::from_der(der).map_err(|error| malformed(none, error));
        let ((_, leaf), (_, authority)) = (parse(&leaf)?, parse(&authority)?);
        Ok(leaf.issuer().as_raw() == authority.subject().as_raw())
    }

    /// Writes the certificate and those of the authorities, each atomically, next to its existing
    /// key.
    ///
    /// # Errors
    /// `Write`.
    pub fn save_certificate(&self, dir: &Path) -> Result<(), TlsError> {
        write(&dir.join(CA_CERT), &self.ca_pem, PUBLIC)?;
        write(&dir.join(NODE_CERT), &self.cert_pem, PUBLIC)
    }

    /// The period of validity of the certificate.
    ///
    /// # Errors
    /// `Malformed`.
    pub fn dates(&self) -> Result<Dates, TlsError> {
        Dates::of_pem(Path::new(""), &self.cert_pem)
    }

    /// TLS settings of the join endpoint: it presents the authority's certificate as well, and
    /// requires no client certificate.
    pub(crate) fn door_config(&self) -> Result<ServerConfig, TlsError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let (mut certs, key, _) = self.material()?;
        certs.extend(certificates(Path::new(""), &self.ca_pem)?);
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_no_client_auth()
            .with_single_cert(certs, key)?;
        config.alpn_protocols = vec![JOIN_ALPN.to_vec()];
        config.send_tls13_tickets = 0;
        Ok(config)
    }
}

/// TLS settings of a joining node: it accepts only the head of the grid of this authority.
pub(crate) fn pinned_config(authority: Fingerprint) -> Result<ClientConfig, TlsError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = PinnedHeadVerifier { authority, provider: provider.clone() };
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    config.alpn_protocols = vec![JOIN_ALPN.to_vec()];
    config.resumption = Resumption::disabled();
    Ok(config)
}

/// Accepts a head's certificate of the authority with this fingerprint, whose certificate the
/// server must present. Ordinary nodes have certificates of the same authority, but must not
/// receive a token.
#[derive(Debug)]
struct PinnedHeadVerifier {
    authority: Fingerprint,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for PinnedHeadVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let named = |cert: &&CertificateDer<'_>| Fingerprint::of(cert) == self.authority;
        let root = intermediates.iter().find(named).ok_or(CertificateError::UnknownIssuer)?;
        let mut roots = RootCertStore::empty();
        roots.add(root.clone().into_owned())?;
        let chain =
            WebPkiServerVerifier::builder_with_provider(Arc::new(roots), self.provider.clone())
                .build()
                .map_err(|error| rustls::Error::General(error.to_string()))?;
        let verified =
            chain.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)?;
        match NodeName::of_certificate(end_entity).map(|name| name.role_kind()) {
            Some(Role::Head) => Ok(verified),
            _ => Err(CertificateError::ApplicationVerificationFailure.into()),
        }
    }

    /// Never called, because only TLS 1.3 is enabled.
    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::Error::General("TLS 1.2 is not spoken".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

impl Dates {
    /// The validity of the first certificate in a PEM text; errors name `file`.
    ///
    /// # Errors
    /// `Malformed`.
    pub fn of_pem(file: &Path, pem: &str) -> Result<Self, TlsError> {
        let certs = certificates(file, pem)?;
        let first = certs.first().ok_or_else(|| malformed(file, "it holds no certificate"))?;
        let (_, cert) = X509Certificate::from_der(first).map_err(|error| malformed(file, error))?;
        let validity = cert.validity();
        Ok(Self { from: validity.not_before.timestamp(), until: validity.not_after.timestamp() })
    }

    /// Time of creation: certificates are valid from an earlier time on.
    pub fn made(&self) -> i64 {
        let made = self.from + i64::try_from(BACKDATE.as_secs()).unwrap_or(0);
        if made < self.until { made } else { self.from }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::tls::NODE_VALIDITY;

    fn name(role: &str) -> NodeName {
        NodeName { node: "lab-1".into(), cluster: "lab".into(), role: role.to_owned() }
    }

    const DAY: Duration = Duration::from_secs(24 * 3600);

    #[test]
    fn fingerprints_survive_formatting_and_parsing() {
        let ca = Ca::ephemeral("g").unwrap();
        let text = ca.fingerprint().to_string();
        assert_eq!(text.len(), 64);
        assert_eq!(text.parse::<Fingerprint>(), Ok(ca.fingerprint()));
        assert_ne!(ca.fingerprint(), Ca::ephemeral("g").unwrap().fingerprint());
        for bad in ["", &text[1..], &format!("{text}0"), &format!("g{}", &text[1..])] {
            assert!(bad.parse::<Fingerprint>().is_err(), "{bad}");
        }
    }

    #[test]
    fn the_authority_uses_only_the_key_of_a_request() {
        let ca = Ca::ephemeral("g").unwrap();
        let key = NewKey::make().unwrap();
        // A request with another name, or for an authority, has no effect.
        let mut params = CertificateParams::default();
        params.distinguished_name = subject("head", "other");
        params.subject_alt_names =
            vec![SanType::URI("springtide://head/head/head".try_into().unwrap())];
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let request = params.serialize_request(&key.0).unwrap().der().to_vec();
        let now = calendar()();
        let cert = ca.sign(&request, &name("node"), DAY, now).unwrap();
        let identity = key.identity(&cert, ca.cert_pem()).unwrap();
        assert_eq!((identity.name(), identity.grid()), (&name("node"), "g"));
        let dates = identity.dates().unwrap();
        assert_eq!((dates.made(), dates.until), (now, now + 24 * 3600));
        let der = certificates(Path::new(""), &cert).unwrap();
        let (_, read) = X509Certificate::from_der(&der[0]).unwrap();
        assert!(!read.is_ca());
        assert!(!read.key_usage().unwrap().unwrap().value.key_cert_sign());
    }

    #[test]
    fn a_request_with_an_invalid_signature_is_refused() {
        let ca = Ca::ephemeral("g").unwrap();
        let sound = NewKey::make().unwrap().request().unwrap();
        let now = calendar()();
        ca.sign(&sound, &name("node"), DAY, now).unwrap();
        for at in [sound.len() - 1, sound.len() / 2] {
            let mut corrupted = sound.clone();
            corrupted[at] ^= 1;
            assert!(ca.sign(&corrupted, &name("node"), DAY, now).is_err(), "{at}");
        }
        for bad in [&b""[..], &sound[..40], b"-----BEGIN"] {
            assert!(ca.sign(bad, &name("node"), DAY, now).is_err());
        }
    }

    #[test]
    fn a_new_certificate_is_accepted_for_the_same_key_and_name_only() {
        let ca = Ca::ephemeral("g").unwrap();
        let now = calendar()();
        let (node, cluster) = ("lab-1".into(), "lab".into());
        let first = ca.issue(&node, &cluster, "node", NODE_VALIDITY).unwrap();
        let request = first.request().unwrap();
        let next = ca.sign(&request, &name("node"), DAY, now).unwrap();
        let renewed = first.with_certificate(&next).unwrap();
        assert_eq!(renewed.dates().unwrap().until, now + 24 * 3600);
        let other = ca.sign(&request, &name("client"), DAY, now).unwrap();
        assert!(first.with_certificate(&other).unwrap_err().to_string().contains("names"));
        let foreign = NewKey::make().unwrap().request().unwrap();
        let foreign = ca.sign(&foreign, &name("node"), DAY, now).unwrap();
        assert!(matches!(first.with_certificate(&foreign), Err(TlsError::Tls(_))));
    }

    #[test]
    fn only_the_head_of_the_pinned_authority_is_accepted() {
        let (ca, other) = (Ca::ephemeral("g").unwrap(), Ca::ephemeral("g").unwrap());
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let pinned = PinnedHeadVerifier { authority: ca.fingerprint(), provider };
        let verify = |of: &Ca, role: &str, shown: &Ca, now: i64| {
            let identity = of.issue_at(&"head".into(), &"head".into(), role, DAY, now).unwrap();
            let none = Path::new("");
            let leaf = certificates(none, identity.pem()[0]).unwrap();
            let chain = certificates(none, shown.cert_pem()).unwrap();
            let server = ServerName::try_from(SERVER_NAME).unwrap();
            pinned.verify_server_cert(&leaf[0], &chain, &server, &[], UnixTime::now()).map(drop)
        };
        let now = calendar()();
        verify(&ca, "head", &ca, now).unwrap();
        assert!(verify(&ca, "node", &ca, now).is_err(), "a node is no head");
        assert!(verify(&other, "head", &other, now).is_err());
        assert!(
            verify(&other, "head", &ca, now).is_err(),
            "the right authority with a foreign leaf"
        );
        assert!(verify(&ca, "head", &other, now).is_err(), "the authority must be presented");
        assert!(verify(&ca, "head", &ca, now - 3 * 24 * 3600).is_err(), "past its date");
    }
}
