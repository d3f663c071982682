//! Texts about join tokens.

use serde_json::{Value, json};
use springtide_actors::enrol::{JoinStatus, Token, TokenState};
use springtide_cli::dates::date;

use super::table::columns;

/// A token as an object.
pub fn object(token: &Token, now: i64) -> Value {
    json!({
        "id": token.id,
        "role": token.role,
        "cluster": token.cluster,
        "state": token.state(now),
        "uses": token.uses,
        "uses_left": token.uses_left,
        "created": date(u64::try_from(token.created).unwrap_or(0)),
        "expires": date(u64::try_from(token.expires).unwrap_or(0)),
    })
}

/// Tokens as a table.
pub fn table(tokens: &[Token], now: i64) -> String {
    if tokens.is_empty() {
        return String::new();
    }
    let mut rows = vec![["ID", "ROLE", "CLUSTER", "STATE", "LEFT", "ENDS"].map(str::to_owned)];
    for token in tokens {
        let state = match token.state(now) {
            TokenState::Good => "good",
            TokenState::UsedUp => "used up",
            TokenState::Expired => "expired",
            TokenState::Revoked => "revoked",
        };
        rows.push([
            token.id.clone(),
            token.role.word().to_owned(),
            token.cluster.to_string(),
            state.to_owned(),
            format!("{}/{}", token.uses_left, token.uses),
            date(u64::try_from(token.expires).unwrap_or(0)),
        ]);
    }
    columns(&rows)
}

/// The attempts to join since the head's start.
pub fn join_attempts(status: &JoinStatus) -> String {
    let list = |counts: &std::collections::BTreeMap<String, u64>| {
        let parts: Vec<String> = counts.iter().map(|(why, n)| format!("{n} {why}")).collect();
        if parts.is_empty() { "none".to_owned() } else { parts.join(", ") }
    };
    format!(
        "since the head was started: {} joined; refused at the join endpoint: {}; links refused: \
        {}",
        status.granted,
        list(&status.refused),
        list(&status.links_refused)
    )
}

#[cfg(test)]
mod tests {
    use springtide_actors::enrol::TokenRole;

    use super::*;

    #[test]
    fn tokens_are_listed_with_their_state() {
        let token = |id: &str, expires, uses_left, revoked| Token {
            id: id.into(),
            role: TokenRole::Node,
            cluster: "lab".into(),
            secret_sha256: "s".into(),
            created: 0,
            expires,
            uses: 2,
            uses_left,
            revoked,
        };
        let tokens = [
            token("a1", 100, 2, None),
            token("b2", 10, 1, None),
            token("c3", 99, 0, None),
            token("d4", 99, 1, Some(3)),
        ];
        let expected = "\
ID  ROLE  CLUSTER  STATE    LEFT  ENDS
a1  node  lab      good     2/2   1970-01-01T00:01:40Z
b2  node  lab      expired  1/2   1970-01-01T00:00:10Z
c3  node  lab      used up  0/2   1970-01-01T00:01:39Z
d4  node  lab      revoked  1/2   1970-01-01T00:01:39Z
";
        assert_eq!(table(&tokens, 50), expected);
        assert_eq!(table(&[], 50), "");
        assert!(!object(&tokens[0], 50).to_string().contains("secret"));
    }

    #[test]
    fn join_attempts_are_counted_by_reason() {
        let refused = [("used-up-token".to_owned(), 2)].into();
        let status = JoinStatus { granted: 1, refused, links_refused: Default::default() };
        let expected = "since the head was started: 1 joined; refused at the join endpoint: 2 \
        used-up-token; links refused: none";
        assert_eq!(join_attempts(&status), expected);
    }
}
