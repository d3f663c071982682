//! Join tokens as text: the authority to trust, the token's id, and its secret.
//!
//! `SPRINGTIDE1<SHA-256 of the authority's certificate>::<id>.<secret>`. With the first part a
//! joining node verifies the other side before it sends the secret. This module does not know the
//! storage of tokens.

use std::fmt;
use std::str::FromStr;

use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom, SystemRandom};

use crate::net::tls::Fingerprint;

const PREFIX: &str = "SPRINGTIDE1";
/// Length of a token's id in hexadecimal digits.
const ID_LEN: usize = 10;
/// Length of a token's secret in hexadecimal digits.
const SECRET_LEN: usize = 48;

/// The reason why a text is not a token.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "this is no join token ({0}): paste the whole text that `token create` printed, \
     SPRINGTIDE1...::ID.SECRET"
)]
pub struct TokenError(String);

/// A token in the possession of a joining node.
#[derive(Clone, PartialEq, Eq)]
pub struct JoinToken {
    /// Fingerprint of the grid's authority.
    pub authority: Fingerprint,
    /// Id of the token, which is public.
    pub id: String,
    /// Secret of the token, which is not public.
    pub secret: String,
}

impl fmt::Debug for JoinToken {
    /// Without the secret, because it is written to logs.
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

/// Id and secret of a new token, with the hash of the secret.
#[derive(Clone, PartialEq, Eq)]
pub struct NewToken {
    /// Id of the token.
    pub id: String,
    /// The secret, which is shown once and never stored.
    pub secret: String,
    /// SHA-256 of the secret's text in hexadecimal, to be stored.
    pub kept: String,
}

impl NewToken {
    /// Draws a token from the system's randomness.
    ///
    /// # Errors
    /// The system provides no randomness.
    pub fn draw() -> Result<Self, String> {
        let mut bytes = [0; (ID_LEN + SECRET_LEN) / 2];
        SystemRandom::new()
            .fill(&mut bytes)
            .map_err(|_| "the system provides no randomness for a token".to_owned())?;
        let (id, secret) = bytes.split_at(ID_LEN / 2);
        let secret = hex(secret);
        Ok(Self { id: hex(id), kept: sum(&secret), secret })
    }
}

/// Whether a secret matches a stored hash. The comparison takes constant time.
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
    fn tokens_survive_formatting_and_parsing() {
        let authority = Ca::ephemeral("g").unwrap().fingerprint();
        let NewToken { id, secret, kept } = NewToken::draw().unwrap();
        let token = JoinToken { authority, id: id.clone(), secret: secret.clone() };
        let text = token.to_string();
        assert_eq!(text.parse(), Ok(token.clone()));
        assert_eq!(format!(" {text}\n").parse(), Ok(token.clone()));
        assert!(!format!("{token:?}").contains(&secret));
        assert!(matches_secret(&kept, &secret));
        assert!(!kept.contains(&secret));
        let other = NewToken::draw().unwrap();
        assert!(!matches_secret(&kept, &other.secret) && other.id != id);
        assert!(!matches_secret("", "") && !matches_secret(&kept[1..], &secret));
    }

    #[test]
    fn defects_of_a_text_are_named() {
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
