//! Access control: every request is judged before any other processing.
//!
//! All access is read-only. On a loopback address, every user of this host has access. Elsewhere a
//! token is required for every path and method. `Host` and `Origin` show whether another page
//! directed the browser here (DNS rebinding, cross-origin requests). This module does not know
//! what is served.

use std::net::{IpAddr, SocketAddr};

use ring::digest::{SHA256, digest};

/// The cookie that contains the token of a browser.
pub const COOKIE: &str = "springtide";

/// The parts of a request that matter for access.
#[derive(Clone, Copy, Debug, Default)]
pub struct RequestFacts<'a> {
    /// The method of the request.
    pub method: &'a str,
    /// The `Host` header, or the authority of the address.
    pub host: Option<&'a str>,
    /// The `Origin` header of the request.
    pub origin: Option<&'a str>,
    /// The `Sec-Fetch-Site` header, which browsers send to HTTPS and loopback addresses, and which
    /// no page can set.
    pub fetch_site: Option<&'a str>,
    /// The `Authorization` header of the request.
    pub authorization: Option<&'a str>,
    /// The value of the cookie [`COOKIE`].
    pub cookie: Option<&'a str>,
    /// The parameter `token` of the query.
    pub query: Option<&'a str>,
}

/// The verdict on a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessVerdict {
    /// The request is answered.
    Pass,
    /// The address contains the token: the browser gets a cookie, and is redirected to the address
    /// without it.
    Enter,
    /// The request is refused with this status and reason.
    Refuse(u16, &'static str),
}

/// The access control of a dashboard.
#[derive(Clone, Debug)]
pub struct Guard {
    /// The SHA-256 digest of the token.
    token: Option<Vec<u8>>,
    hosts: Vec<String>,
}

/// A reason not to start the dashboard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GuardError {
    /// Everybody could read it.
    #[error(
        "the dashboard would be open to everybody who can reach {0}: add a token \
        (`dashboard.token_file`, a file with at least 16 characters that only its owner may read), \
        or bind it to 127.0.0.1"
    )]
    Open(SocketAddr),
    /// The token is too short.
    #[error(
        "the dashboard's token has fewer than 16 characters: `openssl rand -hex 16` creates a \
        suitable one"
    )]
    Short,
}

impl Guard {
    /// Creates the access control of a dashboard at this address, which also has the name `name`.
    ///
    /// # Errors
    /// Everybody could read it, or the token is too short.
    pub fn new(
        bind: SocketAddr,
        token: Option<&str>,
        name: Option<&str>,
    ) -> Result<Self, GuardError> {
        match token {
            None if !bind.ip().is_loopback() => return Err(GuardError::Open(bind)),
            Some(token) if token.len() < 16 => return Err(GuardError::Short),
            _ => {}
        }
        let port = bind.port();
        let mut hosts = vec![bind.to_string()];
        if bind.ip().is_loopback() || bind.ip().is_unspecified() {
            hosts.extend(["localhost", "127.0.0.1", "[::1]"].map(|name| format!("{name}:{port}")));
        }
        hosts.extend(name.map(str::to_ascii_lowercase));
        hosts.extend(name.map(|name| format!("{}:{port}", name.to_ascii_lowercase())));
        let token = token.map(|token| digest(&SHA256, token.as_bytes()).as_ref().to_vec());
        Ok(Self { token, hosts })
    }

    /// Judges a request by its parts.
    pub fn judge(&self, facts: &RequestFacts<'_>) -> AccessVerdict {
        let Some(host) = facts.host.map(str::to_ascii_lowercase) else {
            return AccessVerdict::Refuse(400, "a request without Host");
        };
        if !self.is_here(&host) {
            return AccessVerdict::Refuse(421, "Host is not this dashboard's: see dashboard.name");
        }
        if !self.is_own_page(facts, &host) {
            return AccessVerdict::Refuse(403, "requested by a page of another origin");
        }
        let shown = facts.authorization.and_then(|text| text.strip_prefix("Bearer "));
        let entered = match &self.token {
            None => AccessVerdict::Pass,
            Some(token) if shown.or(facts.cookie).is_some_and(|shown| is(shown, token)) => {
                AccessVerdict::Pass
            }
            Some(token) if facts.query.is_some_and(|shown| is(shown, token)) => {
                AccessVerdict::Enter
            }
            Some(_) => return AccessVerdict::Refuse(401, "the token is missing or wrong"),
        };
        match facts.method {
            "GET" | "HEAD" => entered,
            _ => AccessVerdict::Refuse(405, "only read requests are allowed"),
        }
    }

    /// Whether the request comes from a page of this dashboard, or from no page. A reverse proxy
    /// may change `Host` but not `Origin`, so that the two may differ.
    fn is_own_page(&self, facts: &RequestFacts<'_>, host: &str) -> bool {
        let Some(origin) = facts.origin else { return true };
        if let Some(site) = facts.fetch_site {
            return site == "same-origin";
        }
        let origin = origin.to_ascii_lowercase();
        let authority = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
        authority.is_some_and(|name| name == host || self.hosts.iter().any(|own| own == name))
    }

    fn is_here(&self, host: &str) -> bool {
        if self.hosts.iter().any(|known| known == host) {
            return true;
        }
        // A plain address cannot be the name of another page.
        let ip = host.parse::<SocketAddr>().map(|at| at.ip()).or_else(|_| host.parse::<IpAddr>());
        ip.is_ok()
    }
}

/// Compares digests, so that the time is independent of the token.
fn is(shown: &str, token: &[u8]) -> bool {
    digest(&SHA256, shown.as_bytes()).as_ref() == token
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &str = "0123456789abcdef";

    fn guard(token: Option<&str>) -> Guard {
        Guard::new("127.0.0.1:7475".parse().unwrap(), token, Some("grid.example.org")).unwrap()
    }

    fn get(host: &str) -> RequestFacts<'_> {
        RequestFacts { method: "GET", host: Some(host), ..RequestFacts::default() }
    }

    #[test]
    fn a_token_is_required_except_on_loopback() {
        for (bind, token, fits) in [
            ("127.0.0.1:1", None, true),
            ("[::1]:1", None, true),
            ("0.0.0.0:1", None, false),
            ("10.0.0.1:1", None, false),
            ("10.0.0.1:1", Some(TOKEN), true),
            ("10.0.0.1:1", Some("short"), false),
        ] {
            let at = bind.parse().unwrap();
            assert_eq!(Guard::new(at, token, None).is_ok(), fits, "{bind} {token:?}");
        }
    }

    #[test]
    fn no_method_passes_without_the_token_and_only_reads_pass_with_it() {
        let guard = guard(Some(TOKEN));
        let bearer = format!("Bearer {TOKEN}");
        for method in ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "X"] {
            let facts = RequestFacts { method, ..get("localhost:7475") };
            let refused = |facts: &RequestFacts<'_>| match guard.judge(facts) {
                AccessVerdict::Refuse(status, _) => status,
                _ => 0,
            };
            assert_eq!(refused(&facts), 401, "{method}");
            assert_eq!(refused(&RequestFacts { cookie: Some("0123456789abcdee"), ..facts }), 401);
            assert_eq!(refused(&RequestFacts { query: Some(""), ..facts }), 401);
            let reads = matches!(method, "GET" | "HEAD");
            let expected = if reads { 0 } else { 405 };
            assert_eq!(refused(&RequestFacts { authorization: Some(&bearer), ..facts }), expected);
            assert_eq!(refused(&RequestFacts { cookie: Some(TOKEN), ..facts }), expected);
        }
        let enters = RequestFacts { query: Some(TOKEN), ..get("localhost:7475") };
        assert_eq!(guard.judge(&enters), AccessVerdict::Enter);
    }

    #[test]
    fn foreign_pages_are_detected_by_host_and_origin() {
        let guard = guard(None);
        let is = |facts: RequestFacts<'_>| guard.judge(&facts);
        for host in ["localhost:7475", "127.0.0.1:7475", "LOCALHOST:7475", "grid.example.org"] {
            assert_eq!(is(get(host)), AccessVerdict::Pass, "{host}");
        }
        // A name that resolves to this host, and a name with the same prefix.
        for host in ["evil.example.org:7475", "localhost.evil.org:7475", "localhost"] {
            assert!(matches!(is(get(host)), AccessVerdict::Refuse(421, _)), "{host}");
        }
        assert!(matches!(
            is(RequestFacts { host: None, ..get("") }),
            AccessVerdict::Refuse(400, _)
        ));
        let from = |origin| RequestFacts { origin: Some(origin), ..get("localhost:7475") };
        assert_eq!(is(from("http://localhost:7475")), AccessVerdict::Pass);
        for origin in ["http://evil.example.org", "null", "http://localhost:7476", "file://"] {
            assert!(matches!(is(from(origin)), AccessVerdict::Refuse(403, _)), "{origin}");
        }
        // Behind a reverse proxy, the browser uses the proxy's name, and this server its own.
        assert_eq!(is(from("https://grid.example.org")), AccessVerdict::Pass);
        let through =
            |site| RequestFacts { fetch_site: Some(site), ..from("http://127.0.0.1:8080") };
        assert_eq!(is(through("same-origin")), AccessVerdict::Pass);
        for site in ["same-site", "cross-site", "none"] {
            assert!(matches!(is(through(site)), AccessVerdict::Refuse(403, _)), "{site}");
        }
    }
}
