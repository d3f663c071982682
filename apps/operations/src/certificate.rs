//! Certificates for tokens: the exchange with a grid, for nodes and users.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use springtide_cli::exit::{Exit, Failed};
use springtide_runtime::net::join::{JoinGrant, JoinToken, join};
use springtide_runtime::net::tls::{Fingerprint, NewKey, NodeIdentity};

/// The environment variable that may contain a token.
pub const TOKEN_VAR: &str = "SPRINGTIDE_TOKEN";
/// Timeout of the exchange.
pub const JOIN_TIMEOUT: Duration = Duration::from_secs(15);

/// The token for a user: the given one, or that of the environment.
///
/// # Errors
/// The text is not a token.
pub fn given_token(given: Option<&str>) -> Result<Option<JoinToken>, Failed> {
    let text = given.map(str::to_owned).or_else(|| std::env::var(TOKEN_VAR).ok());
    text.map(|text| text.parse::<JoinToken>().map_err(Failed::usage)).transpose()
}

/// Gets a certificate for a token, with a new key.
///
/// # Errors
/// The grid does not answer or refuses the token, or another grid has answered.
pub async fn join_user(at: SocketAddr, token: &JoinToken) -> Result<NodeIdentity, Failed> {
    let key = NewKey::make()?;
    let from = SocketAddr::new(local_address(at)?, 0);
    let grant = join(from, at, token, key.request()?, None, JOIN_TIMEOUT).await?;
    identity_of(key, token, &grant)
}

/// The identity that a grid has granted.
///
/// # Errors
/// The certificate is of another authority than the token's, or does not fit the key.
pub fn identity_of(
    key: NewKey,
    token: &JoinToken,
    grant: &JoinGrant,
) -> Result<NodeIdentity, Failed> {
    let JoinGrant { certificate, authority, .. } = grant;
    if Fingerprint::of_pem(authority)? != token.authority {
        return Err(Failed::new(
            Exit::Auth,
            "the grid sent the certificate of another authority than the token's: no file is \
            written",
        ));
    }
    Ok(key.identity(certificate, authority)?)
}

/// This host's address in packets to that address.
///
/// # Errors
/// There is no route to the address.
pub fn local_address(at: SocketAddr) -> Result<IpAddr, Failed> {
    let any: IpAddr = match at {
        SocketAddr::V4(_) => [0; 4].into(),
        SocketAddr::V6(_) => [0; 16].into(),
    };
    // Sends nothing: the system only looks up the route.
    let found = UdpSocket::bind((any, 0)).and_then(|socket| {
        socket.connect(at)?;
        socket.local_addr()
    });
    found.map(|address| address.ip()).map_err(|error| {
        Failed::failure(format!("this host has no route to {at}: {error}; add --bind"))
    })
}
