//! What enrolment must not forget, and what it decides by: tokens, the names that were given, and those that were revoked.
//!
//! No I/O and no clock: the date comes in, in seconds since 1970. Must not know certificates or connections.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use springtide_runtime::id::{ClusterId, NodeId};
use springtide_runtime::net::join::{JoinReason, JoinRefusal, Minted, matches_secret};
use springtide_runtime::net::tls::NodeName;

use crate::site_host::site_node;

/// What has ended is told for so long, in seconds; then it is forgotten.
const REMEMBER: i64 = 30 * 24 * 3600;

/// What whoever joins by a token becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TokenRole {
    /// A node of the cluster.
    Node,
    /// The cluster's own site.
    Site,
    /// A client.
    Client,
}

impl TokenRole {
    /// As certificates have it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Site => "site",
            Self::Client => "client",
        }
    }
}

/// What a token is to be like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenOrder {
    /// What whoever joins by it becomes.
    pub role: TokenRole,
    /// In which cluster.
    pub cluster: ClusterId,
    /// For how many seconds it is good.
    pub ttl: i64,
    /// How often it may be used.
    pub uses: u32,
}

/// A token, without its secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Token {
    /// Which; public.
    pub id: String,
    /// What whoever joins by it becomes.
    pub role: TokenRole,
    /// In which cluster.
    pub cluster: ClusterId,
    /// SHA-256 of its secret.
    pub secret_sha256: String,
    /// When it was made.
    pub created: i64,
    /// When it ends.
    pub expires: i64,
    /// How often it may be used in all.
    pub uses: u32,
    /// And from now on.
    pub uses_left: u32,
    /// When it was revoked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked: Option<i64>,
}

/// Whether a token may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum TokenState {
    /// It may.
    Good,
    /// It was used as often as it may be.
    UsedUp,
    /// Its time is over.
    Expired,
    /// Somebody took it back.
    Revoked,
}

impl Token {
    /// Whether it may be used.
    pub fn state(&self, now: i64) -> TokenState {
        match self {
            Self { revoked: Some(_), .. } => TokenState::Revoked,
            Self { expires, .. } if *expires <= now => TokenState::Expired,
            Self { uses_left: 0, .. } => TokenState::UsedUp,
            _ => TokenState::Good,
        }
    }
}

/// A name that was given to somebody who joined.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Given {
    /// Its cluster.
    pub cluster: ClusterId,
    /// Its role.
    pub role: TokenRole,
    /// By which token.
    pub token: String,
    /// When it joined.
    pub joined: i64,
    /// When its newest certificate ends.
    pub until: i64,
    /// It may not be used any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked: Option<Revoked>,
}

/// That a name's certificates are not valid any more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revoked {
    /// Since when.
    pub at: i64,
    /// Why.
    pub reason: String,
}

/// Why a name is not revoked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RevokeError {
    /// Nobody has joined under it.
    #[error("nobody has joined under the name {node}")]
    Unknown {
        /// Which.
        node: NodeId,
        /// Names that were given.
        known: Vec<NodeId>,
    },
}

/// The book.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Book {
    tokens: Vec<Token>,
    names: BTreeMap<NodeId, Given>,
}

/// A change of the book, as it is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Change {
    /// A token is new, or another one than before.
    Token {
        /// The token.
        token: Token,
    },
    /// A token is forgotten.
    TokenForgotten {
        /// Its id.
        id: String,
    },
    /// A name is given, or what is known of it changes.
    Name {
        /// The name.
        node: NodeId,
        /// To whom.
        given: Given,
    },
    /// A name is forgotten.
    NameForgotten {
        /// The name.
        node: NodeId,
    },
}

impl Book {
    /// What makes this book of another one.
    pub(super) fn changes_since(&self, before: &Self) -> Vec<Change> {
        let token = |book: &Self, id: &str| book.tokens.iter().find(|one| one.id == id).cloned();
        let gone = before.tokens.iter().filter(|one| token(self, &one.id).is_none());
        let mut changes: Vec<Change> =
            gone.map(|one| Change::TokenForgotten { id: one.id.clone() }).collect();
        let new = self.tokens.iter().filter(|one| token(before, &one.id).as_ref() != Some(one));
        changes.extend(new.map(|token| Change::Token { token: token.clone() }));
        let gone = before.names.keys().filter(|node| !self.names.contains_key(*node));
        changes.extend(gone.map(|node| Change::NameForgotten { node: node.clone() }));
        let new = self.names.iter().filter(|(node, given)| before.names.get(*node) != Some(given));
        changes.extend(
            new.map(|(node, given)| Change::Name { node: node.clone(), given: given.clone() }),
        );
        changes
    }

    pub(super) fn apply(&mut self, change: Change) {
        match change {
            Change::Token { token } => {
                match self.tokens.iter_mut().find(|one| one.id == token.id) {
                    Some(one) => *one = token,
                    None => self.tokens.push(token),
                }
            }
            Change::TokenForgotten { id } => self.tokens.retain(|one| one.id != id),
            Change::Name { node, given } => drop(self.names.insert(node, given)),
            Change::NameForgotten { node } => drop(self.names.remove(&node)),
        }
    }

    /// Every token, oldest first.
    pub fn tokens(&self) -> &[Token] {
        &self.tokens
    }

    /// Every name that was given.
    pub fn names(&self) -> &BTreeMap<NodeId, Given> {
        &self.names
    }

    /// To whom a name was given.
    pub fn given(&self, node: &NodeId) -> Option<&Given> {
        self.names.get(node)
    }

    /// A new token.
    pub fn create(&mut self, order: &TokenOrder, minted: &Minted, now: i64) -> Token {
        self.tidy(now);
        let token = Token {
            id: minted.id.clone(),
            role: order.role,
            cluster: order.cluster.clone(),
            secret_sha256: minted.kept.clone(),
            created: now,
            expires: now.saturating_add(order.ttl),
            uses: order.uses,
            uses_left: order.uses,
            revoked: None,
        };
        self.tokens.push(token.clone());
        token
    }

    /// Takes a token back. None if there is none of this id, else how it was before.
    pub fn revoke_token(&mut self, id: &str, now: i64) -> Option<TokenState> {
        let token = self.tokens.iter_mut().find(|token| token.id == id)?;
        let before = token.state(now);
        token.revoked.get_or_insert(now);
        Some(before)
    }

    /// Lets somebody in: judges the token, chooses a name and counts the token down, all or nothing. `most`: how many nodes the
    /// token's cluster may have; none: it is no cluster that nodes join. `until`: when the certificate will end.
    ///
    /// # Errors
    /// Why not; nothing has changed then.
    pub fn admit(
        &mut self,
        (id, secret): (&str, &str),
        asked: Option<&NodeId>,
        most: impl FnOnce(&ClusterId) -> Option<u32>,
        (now, until): (i64, i64),
    ) -> Result<NodeName, JoinRefusal> {
        self.tidy(now);
        let at = self.judge(id, secret, now)?;
        let Token { role, cluster, .. } = &self.tokens[at];
        let (role, cluster) = (*role, cluster.clone());
        let node = match role {
            TokenRole::Node => self.node_name(&cluster, most(&cluster), asked, now)?,
            TokenRole::Site => site_node(&cluster),
            // One token may be used by several.
            TokenRole::Client => {
                let used = self.tokens[at].uses - self.tokens[at].uses_left + 1;
                NodeId::from(format!("client-{id}-{used}"))
            }
        };
        if role != TokenRole::Node
            && let Some(asked) = asked.filter(|asked| **asked != node)
        {
            let why = format!("a {} by this token is called {node}, not {asked}", role.as_str());
            return Err(JoinRefusal::open(JoinReason::NameTaken, why));
        }
        let token = &mut self.tokens[at];
        token.uses_left -= 1;
        let (token, revoked) = (token.id.clone(), None);
        let given = Given { cluster: cluster.clone(), role, token, joined: now, until, revoked };
        self.names.insert(node.clone(), given);
        Ok(NodeName { node, cluster, role: role.as_str().to_owned() })
    }

    /// Which token it is, if it is good. A caller without a good one learns nothing of why.
    fn judge(&self, id: &str, secret: &str, now: i64) -> Result<usize, JoinRefusal> {
        let closed = |reason, why: String| Err(JoinRefusal::closed(reason, why));
        let found = self.tokens.iter().position(|token| token.id == id);
        let Some(at) = found else {
            // As long as for one that is there.
            let _ = matches_secret("", secret);
            let shown: String = id.chars().take(16).filter(|c| !c.is_control()).collect();
            return closed(JoinReason::UnknownToken, format!("there is no token {shown}"));
        };
        let token = &self.tokens[at];
        if !matches_secret(&token.secret_sha256, secret) {
            return closed(JoinReason::WrongSecret, format!("the secret of token {id} is another"));
        }
        let ago = |then: i64| span(now.saturating_sub(then));
        match token.state(now) {
            TokenState::Good => Ok(at),
            TokenState::Revoked => {
                closed(JoinReason::RevokedToken, format!("token {id} was revoked"))
            }
            TokenState::Expired => closed(
                JoinReason::ExpiredToken,
                format!("token {id} ended {} ago", ago(token.expires)),
            ),
            TokenState::UsedUp => closed(
                JoinReason::UsedUpToken,
                format!("token {id} was used {} times, and may not be used again", token.uses),
            ),
        }
    }

    /// The name that is asked for, or the lowest free number of the cluster.
    fn node_name(
        &self,
        cluster: &ClusterId,
        most: Option<u32>,
        asked: Option<&NodeId>,
        now: i64,
    ) -> Result<NodeId, JoinRefusal> {
        let Some(most) = most else {
            let why = format!(
                "cluster {cluster} is none that nodes join: its `provider` is not \"join\""
            );
            return Err(JoinRefusal::open(JoinReason::NoRoom, why));
        };
        let name = |n: u32| NodeId::from(format!("{cluster}-{n}"));
        let taken = |node: &NodeId| self.names.get(node).filter(|given| given.until > now);
        let left = |given: &Given| span(given.until - now);
        if let Some(asked) = asked {
            if !(1..=most).any(|n| name(n) == *asked) {
                let why =
                    format!("nodes of cluster {cluster} are called {} to {}", name(1), name(most));
                return Err(JoinRefusal::open(JoinReason::NameTaken, why));
            }
            return match taken(asked) {
                None => Ok(asked.clone()),
                Some(given) => {
                    let why = format!(
                        "the name {asked} is a node's whose certificate is valid for another {}: choose another, or none",
                        left(given)
                    );
                    Err(JoinRefusal::open(JoinReason::NameTaken, why))
                }
            };
        }
        (1..=most).map(name).find(|node| taken(node).is_none()).ok_or_else(|| {
            let all = (1..=most).map(name);
            let first = all.filter_map(|node| taken(&node)).map(left).min_by_key(String::len);
            JoinRefusal::open(
                JoinReason::NoRoom,
                format!(
                    "cluster {cluster} has given all its {most} names to nodes with valid certificates (the next is free in {}): \
                     raise its `nodes`",
                    first.unwrap_or_default()
                ),
            )
        })
    }

    /// Whether a name may have another certificate; notes when that will end.
    ///
    /// # Errors
    /// None: it was not given to anybody so called. Else why it is revoked.
    pub fn renew(&mut self, name: &NodeName, until: i64) -> Result<(), Option<String>> {
        let given = self.names.get_mut(&name.node);
        let given = given
            .filter(|given| given.cluster == name.cluster && given.role.as_str() == name.role)
            .ok_or(None)?;
        if let Some(revoked) = &given.revoked {
            return Err(Some(revoked.reason.clone()));
        }
        given.until = given.until.max(until);
        Ok(())
    }

    /// Revokes what was given to a name.
    ///
    /// # Errors
    /// [`RevokeError`].
    pub fn revoke(&mut self, node: &NodeId, reason: &str, now: i64) -> Result<(), RevokeError> {
        let known = || self.names.keys().cloned().collect();
        if !self.names.contains_key(node) {
            return Err(RevokeError::Unknown { node: node.clone(), known: known() });
        }
        if let Some(given) = self.names.get_mut(node) {
            given.revoked = Some(Revoked { at: now, reason: reason.to_owned() });
        }
        Ok(())
    }

    /// Whose certificates are revoked and not over yet, and why.
    pub fn revoked(&self, now: i64) -> BTreeMap<NodeId, String> {
        // Whoever judges dates may be an hour behind.
        let counts = |given: &&Given| given.until + 3600 > now;
        let names = self.names.iter().filter(|(_, given)| counts(given));
        names
            .filter_map(|(node, given)| Some((node.clone(), given.revoked.clone()?.reason)))
            .collect()
    }

    /// Forgets what ended long ago.
    fn tidy(&mut self, now: i64) {
        self.tokens.retain(|token| token.expires + REMEMBER > now);
        self.names.retain(|_, given| given.until + REMEMBER > now);
    }
}

/// Seconds for people.
fn span(seconds: i64) -> String {
    match seconds {
        ..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} days", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_800_000_000;
    const DAY: i64 = 86_400;

    struct Desk {
        book: Book,
        now: i64,
    }

    impl Desk {
        fn new() -> Self {
            Self { book: Book::default(), now: NOW }
        }

        fn token(&mut self, role: TokenRole, uses: u32) -> Minted {
            let minted = Minted::draw().unwrap();
            let order = TokenOrder { role, cluster: "lab".into(), ttl: DAY, uses };
            self.book.create(&order, &minted, self.now);
            minted
        }

        /// In a cluster of three.
        fn join(&mut self, token: &Minted, asked: Option<&str>) -> Result<String, JoinRefusal> {
            let asked = asked.map(NodeId::from);
            let most = |cluster: &ClusterId| (cluster.as_str() == "lab").then_some(3);
            let dates = (self.now, self.now + DAY);
            let who = (token.id.as_str(), token.secret.as_str());
            self.book.admit(who, asked.as_ref(), most, dates).map(|name| name.to_string())
        }

        fn reason(&mut self, token: &Minted, asked: Option<&str>) -> (JoinReason, bool) {
            let before = self.book.clone();
            let refusal = self.join(token, asked).unwrap_err();
            assert_eq!(self.book, before, "a refusal changes nothing");
            (refusal.reason, refusal.told.is_some())
        }
    }

    #[test]
    fn names_are_the_lowest_free_numbers() {
        let mut desk = Desk::new();
        let token = desk.token(TokenRole::Node, 5);
        assert_eq!(desk.join(&token, None).unwrap(), "springtide://lab/node/lab-1");
        assert_eq!(desk.join(&token, Some("lab-3")).unwrap(), "springtide://lab/node/lab-3");
        assert_eq!(desk.join(&token, None).unwrap(), "springtide://lab/node/lab-2");
        assert_eq!(desk.reason(&token, None), (JoinReason::NoRoom, true));
        for asked in ["lab-3", "lab-4", "lab-0", "lab-03", "del-1", "head", "lab-site"] {
            assert_eq!(desk.reason(&token, Some(asked)), (JoinReason::NameTaken, true), "{asked}");
        }
        // lab-2 renews, the others' certificates end.
        let name = NodeName { node: "lab-2".into(), cluster: "lab".into(), role: "node".into() };
        desk.book.renew(&name, NOW + 2 * DAY).unwrap();
        desk.now += DAY;
        let token = desk.token(TokenRole::Node, 5);
        assert_eq!(desk.join(&token, Some("lab-3")).unwrap(), "springtide://lab/node/lab-3");
        assert_eq!(desk.join(&token, None).unwrap(), "springtide://lab/node/lab-1");
        assert_eq!(desk.reason(&token, None), (JoinReason::NoRoom, true));
    }

    #[test]
    fn each_bad_token_has_its_reason_and_its_caller_hears_none() {
        let mut desk = Desk::new();
        let token = desk.token(TokenRole::Node, 2);
        let unknown = Minted::draw().unwrap();
        assert_eq!(desk.reason(&unknown, None), (JoinReason::UnknownToken, false));
        let wrong = Minted { id: token.id.clone(), ..unknown };
        assert_eq!(desk.reason(&wrong, None), (JoinReason::WrongSecret, false));
        desk.join(&token, None).unwrap();
        desk.join(&token, None).unwrap();
        assert_eq!(desk.reason(&token, None), (JoinReason::UsedUpToken, false));
        let late = desk.token(TokenRole::Node, 2);
        desk.now += DAY - 1;
        desk.join(&late, None).unwrap();
        desk.now += 1;
        assert_eq!(desk.reason(&late, None), (JoinReason::ExpiredToken, false));
        // Whoever has not the secret is not told more of one that is over.
        let wrong = Minted { id: late.id, ..wrong };
        assert_eq!(desk.reason(&wrong, None), (JoinReason::WrongSecret, false));
        let taken_back = desk.token(TokenRole::Node, 2);
        assert_eq!(desk.book.revoke_token(&taken_back.id, desk.now), Some(TokenState::Good));
        assert_eq!(desk.book.revoke_token(&taken_back.id, desk.now), Some(TokenState::Revoked));
        assert_eq!(desk.book.revoke_token("none", desk.now), None);
        assert_eq!(desk.reason(&taken_back, None), (JoinReason::RevokedToken, false));
    }

    #[test]
    fn sites_and_clients_have_names_of_their_own() {
        let mut desk = Desk::new();
        let site = desk.token(TokenRole::Site, 1);
        assert_eq!(desk.reason(&site, Some("lab-1")), (JoinReason::NameTaken, true));
        assert_eq!(desk.join(&site, None).unwrap(), "springtide://lab/site/lab-site");
        let client = desk.token(TokenRole::Client, 2);
        let id = client.id.clone();
        for n in 1..=2 {
            let expected = format!("springtide://lab/client/client-{id}-{n}");
            assert_eq!(desk.join(&client, None).unwrap(), expected);
        }
    }

    #[test]
    fn what_is_revoked_stays_so_until_its_certificate_is_over() {
        let mut desk = Desk::new();
        let token = desk.token(TokenRole::Node, 3);
        desk.join(&token, None).unwrap();
        let node: NodeId = "lab-1".into();
        let other = desk.book.revoke(&"lab-2".into(), "stolen", NOW);
        assert_eq!(
            other,
            Err(RevokeError::Unknown { node: "lab-2".into(), known: vec![node.clone()] })
        );
        desk.book.revoke(&node, "stolen", NOW).unwrap();
        let revoked = BTreeMap::from([(node.clone(), "stolen".to_owned())]);
        assert_eq!(desk.book.revoked(NOW), revoked);
        let name = NodeName { node, cluster: "lab".into(), role: "node".into() };
        assert_eq!(desk.book.renew(&name, NOW + 9 * DAY), Err(Some("stolen".to_owned())));
        // Its name is given to nobody meanwhile.
        assert_eq!(desk.join(&token, None).unwrap(), "springtide://lab/node/lab-2");
        desk.now += DAY + 3600;
        assert_eq!(desk.book.revoked(desk.now), BTreeMap::new());
        let token = desk.token(TokenRole::Node, 1);
        assert_eq!(desk.join(&token, None).unwrap(), "springtide://lab/node/lab-1");
    }

    #[test]
    fn certificates_are_renewed_for_who_joined_as_they_say() {
        let mut desk = Desk::new();
        let token = desk.token(TokenRole::Node, 1);
        desk.join(&token, None).unwrap();
        let own = NodeName { node: "lab-1".into(), cluster: "lab".into(), role: "node".into() };
        desk.book.renew(&own, NOW + 2 * DAY).unwrap();
        assert_eq!(desk.book.given(&own.node).unwrap().until, NOW + 2 * DAY);
        for other in [
            NodeName { node: "lab-2".into(), ..own.clone() },
            NodeName { cluster: "del".into(), ..own.clone() },
            NodeName { role: "client".into(), ..own.clone() },
        ] {
            assert_eq!(desk.book.renew(&other, NOW + 3 * DAY), Err(None), "{other}");
        }
    }

    #[test]
    fn what_ended_long_ago_is_forgotten() {
        let mut desk = Desk::new();
        let token = desk.token(TokenRole::Node, 1);
        desk.join(&token, None).unwrap();
        desk.now += REMEMBER;
        desk.token(TokenRole::Node, 1);
        assert_eq!((desk.book.tokens().len(), desk.book.names().len()), (2, 1));
        desk.now += DAY;
        desk.token(TokenRole::Node, 1);
        assert_eq!((desk.book.tokens().len(), desk.book.names().len()), (2, 0));
    }

    #[test]
    fn the_secret_is_not_in_the_book() {
        let mut desk = Desk::new();
        let token = desk.token(TokenRole::Node, 1);
        let changes = desk.book.changes_since(&Book::default());
        let text = serde_json::to_string(&changes).unwrap();
        assert!(!text.contains(&token.secret) && text.contains(&token.id));
        let mut again = Book::default();
        let changes: Vec<Change> = serde_json::from_str(&text).unwrap();
        changes.into_iter().for_each(|change| again.apply(change));
        assert_eq!(again, desk.book);
    }
}
