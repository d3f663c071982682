//! Join tokens as text: which authority to trust, which token it is, and the secret that shows it.
//!
//! `SPRINGTIDE1<SHA-256 of the authority's certificate>::<id>.<secret>`. The first part lets a node that joins see whom it speaks to
//! before it says the secret. Must not know how tokens are kept.

use std::fmt;
use std::str::FromStr;

use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom, SystemRandom};

use crate::net::tls::Fingerprint;

const PREFIX: &str = "SPRINGTIDE1";
/// Digits of hexadecimal.
const ID_LEN: usize = 10;
const SECRET_LEN: usize = 48;

/// Why a text is no token.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "this is no join token ({0}): paste the whole text that `token create` printed, SPRINGTIDE1...::ID.SECRET"
)]
pub struct TokenError(String);

/// A token as whoever joins has it.
#[derive(Clone, PartialEq, Eq)]
pub struct JoinToken {
    /// The authority of the grid.
    pub authority: Fingerprint,
    /// Which token of it; public.
    pub id: String,
    /// Not public.
    pub secret: String,
}

impl fmt::Debug for JoinToken {
    /// Without the secret: this gets into logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}::{}.…", self.authority, self.id)
    }
}

impl fmt::Display for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}::{}.{}", self.authority, self.id, self.secret)
    }
}

impl FromStr for JoinToken {
    type Err = TokenError;

    fn from_str(text: &str) -> Result<Self, TokenError> {
        let wrong = |why: String| TokenError(why);
        let rest = text.trim().strip_prefix(PREFIX);
        let rest = rest.ok_or_else(|| wrong(format!("it does not begin with {PREFIX}")))?;
        let (authority, rest) = rest
            .split_once("::")
            .ok_or_else(|| wrong("there is no :: after the authority's sum".to_owned()))?;
        let authority =
            authority.parse().map_err(|why| wrong(format!("the authority's sum {why}")))?;
        let (id, secret) =
            rest.split_once('.').ok_or_else(|| wrong("there is no secret".to_owned()))?;
        for (what, part, len) in [("id", id, ID_LEN), ("secret", secret, SECRET_LEN)] {
            if part.len() != len || !part.bytes().all(|b| b.is_ascii_hexdigit()) {
                return Err(wrong(format!("its {what} must be {len} digits of hexadecimal")));
            }
        }
        Ok(Self { authority, id: id.to_owned(), secret: secret.to_owned() })
    }
}

/// A new token's id and secret, and what is kept of the secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Minted {
    /// Which token.
    pub id: String,
    /// Said once, and kept nowhere.
    pub secret: String,
    /// SHA-256 of the secret's text, in hexadecimal.
    pub kept: String,
}

impl Minted {
    /// Draws one from the system's randomness.
    ///
    /// # Errors
    /// The system gives none.
    pub fn draw() -> Result<Self, String> {
        let mut bytes = [0; (ID_LEN + SECRET_LEN) / 2];
        SystemRandom::new()
            .fill(&mut bytes)
            .map_err(|_| "the system gives no randomness for a token".to_owned())?;
        let (id, secret) = bytes.split_at(ID_LEN / 2);
        let secret = hex(secret);
        Ok(Self { id: hex(id), kept: sum(&secret), secret })
    }
}

/// Whether a secret is the one of which this was kept. Takes as long for a wrong one as for the right one.
pub fn matches_secret(kept: &str, secret: &str) -> bool {
    let given = sum(secret);
    let unequal = |differs: u8, (a, b): (u8, u8)| differs | (a ^ b);
    let differs = given.bytes().zip(kept.bytes()).fold(0, unequal);
    std::hint::black_box(differs) == 0 && given.len() == kept.len()
}

fn sum(secret: &str) -> String {
    hex(digest(&SHA256, secret.as_bytes()).as_ref())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::tls::Ca;

    #[test]
    fn tokens_are_text_and_back() {
        let authority = Ca::ephemeral("g").unwrap().fingerprint();
        let Minted { id, secret, kept } = Minted::draw().unwrap();
        let token = JoinToken { authority, id: id.clone(), secret: secret.clone() };
        let text = token.to_string();
        assert_eq!(text.parse(), Ok(token.clone()));
        assert_eq!(format!(" {text}\n").parse(), Ok(token.clone()));
        assert!(!format!("{token:?}").contains(&secret));
        assert!(matches_secret(&kept, &secret));
        assert!(!kept.contains(&secret));
        let other = Minted::draw().unwrap();
        assert!(!matches_secret(&kept, &other.secret) && other.id != id);
        assert!(!matches_secret("", "") && !matches_secret(&kept[1..], &secret));
    }

    #[test]
    fn what_is_wrong_with_a_text_is_said() {
        let sum = "a".repeat(64);
        let secret = "b".repeat(SECRET_LEN);
        let whole = format!("SPRINGTIDE1{sum}::0123456789.{secret}");
        whole.parse::<JoinToken>().unwrap();
        for (bad, says) in [
            (String::new(), "begin with"),
            (whole.replace("TIDE1", "TIDE2"), "begin with"),
            (whole.replace("::", ":"), "no ::"),
            (whole.replace(&sum, &sum[1..]), "64 digits"),
            (whole.replace(&sum, &format!("z{}", &sum[1..])), "64 digits"),
            (whole.replace('.', ""), "no secret"),
            (whole.replace("0123456789", "01234567"), "its id"),
            (whole[..whole.len() - 1].to_owned(), "its secret"),
            (whole.replace("0123456789", "01234567é"), "its id"),
        ] {
            let error = bad.parse::<JoinToken>().unwrap_err().to_string();
            assert!(error.contains(says) && error.contains("token create"), "{bad}: {error}");
        }
    }
}
