//! The persistent state of enrolment and its decisions: tokens, issued names and revoked names.
//!
//! No I/O and no clock: dates are arguments, in seconds since 1970. This module knows neither
//! certificates nor connections.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use springtide_protocol::names::{HEAD_CLUSTER, USERS_CLUSTER, site_node};
use springtide_runtime::id::{ClusterId, NodeId};
use springtide_runtime::net::join::{JoinReason, JoinRefusal, NewToken, matches_secret};
use springtide_runtime::net::tls::NodeName;

/// Seconds for which ended entries are kept.
const KEEP_ENDED_S: i64 = 30 * 24 * 3600;

/// Role of a process that joins by a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TokenRole {
    /// A node of the cluster.
    Node,
    /// The cluster's own site.
    Site,
    /// A client that submits jobs under its own name.
    #[serde(alias = "submitter")]
    Client,
    /// A client that acts for the grid's operator.
    Admin,
    /// A client that reads the states of all jobs.
    Viewer,
}

impl TokenRole {
    /// Returns the role's name in certificates.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Site => "site",
            Self::Client | Self::Admin => "client",
            Self::Viewer => "viewer",
        }
    }

    /// Returns the role in lists of tokens.
    pub fn word(self) -> &'static str {
        match self {
            Self::Client => "submitter",
            Self::Admin => "admin",
            Self::Node | Self::Site | Self::Viewer => self.as_str(),
        }
    }

    /// The cluster in the certificates of a user's role. That of the head makes an operator.
    pub fn users_cluster(self) -> Option<&'static str> {
        match self {
            Self::Node | Self::Site => None,
            Self::Admin => Some(HEAD_CLUSTER),
            Self::Client | Self::Viewer => Some(USERS_CLUSTER),
        }
    }
}

/// Properties of a token to create.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenSpec {
    /// Role of a process that joins by it.
    pub role: TokenRole,
    /// Cluster that it joins.
    pub cluster: ClusterId,
    /// Validity of the token in seconds.
    pub ttl: i64,
    /// Maximum number of uses.
    pub uses: u32,
}

/// A token, without its secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Token {
    /// Public identifier of the token.
    pub id: String,
    /// Role of a process that joins by it.
    pub role: TokenRole,
    /// Cluster that it joins.
    pub cluster: ClusterId,
    /// SHA-256 of its secret.
    pub secret_sha256: String,
    /// Time of its creation.
    pub created: i64,
    /// End of its validity.
    pub expires: i64,
    /// Maximum number of uses in total.
    pub uses: u32,
    /// Number of uses left.
    pub uses_left: u32,
    /// Time of its revocation, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked: Option<i64>,
}

/// Whether a token is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum TokenState {
    /// It may be used.
    Good,
    /// It has no uses left.
    UsedUp,
    /// Its validity has ended.
    Expired,
    /// It was revoked by an operator.
    Revoked,
}

impl Token {
    /// Returns its state at a time.
    pub fn state(&self, now: i64) -> TokenState {
        match self {
            Self { revoked: Some(_), .. } => TokenState::Revoked,
            Self { expires, .. } if *expires <= now => TokenState::Expired,
            Self { uses_left: 0, .. } => TokenState::UsedUp,
            _ => TokenState::Good,
        }
    }
}

/// A name that was issued to a joined process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IssuedName {
    /// Cluster of the process.
    pub cluster: ClusterId,
    /// Role of the process.
    pub role: TokenRole,
    /// Identifier of its token.
    pub token: String,
    /// Time of its joining.
    pub joined: i64,
    /// End of its newest certificate.
    pub until: i64,
    /// Its revocation, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked: Option<Revocation>,
}

/// Revocation of a name's certificates.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revocation {
    /// Time of the revocation.
    pub at: i64,
    /// Reason of the revocation.
    pub reason: String,
}

/// Why a name is not revoked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RevokeError {
    /// No process has joined under the name.
    #[error("no process has joined under the name {node}")]
    Unknown {
        /// The unknown name.
        node: NodeId,
        /// Names that were issued.
        known: Vec<NodeId>,
    },
}

/// The tokens and names of a grid's enrolment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EnrolmentState {
    tokens: Vec<Token>,
    names: BTreeMap<NodeId, IssuedName>,
}

/// An attempt to join by a token.
#[derive(Clone, Copy, Debug)]
pub struct JoinAttempt<'a> {
    /// Identifier of the token.
    pub token: &'a str,
    /// Secret of the token, as presented.
    pub secret: &'a str,
    /// Requested name; absent: any.
    pub node: Option<&'a NodeId>,
    /// Date of the attempt, in seconds since 1970.
    pub now: i64,
    /// End of the certificate to issue, in seconds since 1970.
    pub until: i64,
}

/// A change of the state, as it is stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum EnrolmentChange {
    /// A token is new or changed.
    Token {
        /// The token after the change.
        token: Token,
    },
    /// A token is deleted.
    TokenForgotten {
        /// Identifier of the token.
        id: String,
    },
    /// A name is issued, or its entry changes.
    Name {
        /// The name itself.
        node: NodeId,
        /// Entry after the change.
        given: IssuedName,
    },
    /// A name is deleted.
    NameForgotten {
        /// The name itself.
        node: NodeId,
    },
}

impl EnrolmentState {
    /// The changes from another state to this one.
    pub(super) fn changes_since(&self, before: &Self) -> Vec<EnrolmentChange> {
        let token = |state: &Self, id: &str| state.tokens.iter().find(|one| one.id == id).cloned();
        let gone = before.tokens.iter().filter(|one| token(self, &one.id).is_none());
        let mut changes: Vec<EnrolmentChange> =
            gone.map(|one| EnrolmentChange::TokenForgotten { id: one.id.clone() }).collect();
        let new = self.tokens.iter().filter(|one| token(before, &one.id).as_ref() != Some(one));
        changes.extend(new.map(|token| EnrolmentChange::Token { token: token.clone() }));
        let gone = before.names.keys().filter(|node| !self.names.contains_key(*node));
        changes.extend(gone.map(|node| EnrolmentChange::NameForgotten { node: node.clone() }));
        let new = self.names.iter().filter(|(node, given)| before.names.get(*node) != Some(given));
        changes.extend(new.map(|(node, given)| EnrolmentChange::Name {
            node: node.clone(),
            given: given.clone(),
        }));
        changes
    }

    pub(super) fn apply(&mut self, change: EnrolmentChange) {
        match change {
            EnrolmentChange::Token { token } => {
                match self.tokens.iter_mut().find(|one| one.id == token.id) {
                    Some(one) => *one = token,
                    None => self.tokens.push(token),
                }
            }
            EnrolmentChange::TokenForgotten { id } => self.tokens.retain(|one| one.id != id),
            EnrolmentChange::Name { node, given } => drop(self.names.insert(node, given)),
            EnrolmentChange::NameForgotten { node } => drop(self.names.remove(&node)),
        }
    }

    /// All tokens, oldest first.
    pub fn tokens(&self) -> &[Token] {
        &self.tokens
    }

    /// All issued names with their entries.
    pub fn names(&self) -> &BTreeMap<NodeId, IssuedName> {
        &self.names
    }

    /// The entry of an issued name.
    pub fn given(&self, node: &NodeId) -> Option<&IssuedName> {
        self.names.get(node)
    }

    /// Creates and stores a new token.
    pub fn create(&mut self, order: &TokenSpec, minted: &NewToken, now: i64) -> Token {
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

    /// Revokes a token. Returns its previous state, or none for an unknown identifier.
    pub fn revoke_token(&mut self, id: &str, now: i64) -> Option<TokenState> {
        let token = self.tokens.iter_mut().find(|token| token.id == id)?;
        let before = token.state(now);
        token.revoked.get_or_insert(now);
        Some(before)
    }

    /// Admits a process: judges the token, chooses a name and decrements the token's uses,
    /// atomically.
    ///
    /// `most` is the maximum number of nodes of the token's cluster; none: nodes do not join this
    /// cluster.
    ///
    /// # Errors
    /// The reason of the refusal; then nothing has changed.
    pub fn admit(
        &mut self,
        attempt: &JoinAttempt<'_>,
        most: impl FnOnce(&ClusterId) -> Option<u32>,
    ) -> Result<NodeName, JoinRefusal> {
        let JoinAttempt { token: id, secret, node: asked, now, until } = *attempt;
        self.tidy(now);
        let at = self.judge(id, secret, now)?;
        let Token { role, cluster, .. } = &self.tokens[at];
        // Tokens of earlier versions name the head's cluster for clients.
        let (role, cluster) =
            (*role, role.users_cluster().map_or_else(|| cluster.clone(), ClusterId::from));
        let node = match role {
            TokenRole::Node => self.node_name(&cluster, most(&cluster), asked, now)?,
            TokenRole::Site => site_node(&cluster),
            // Several clients may use one token.
            TokenRole::Client | TokenRole::Admin | TokenRole::Viewer => {
                let used = self.tokens[at].uses - self.tokens[at].uses_left + 1;
                NodeId::from(format!("{}-{id}-{used}", role.as_str()))
            }
        };
        if role != TokenRole::Node
            && let Some(asked) = asked.filter(|asked| **asked != node)
        {
            let why = format!("a {} by this token is named {node}, not {asked}", role.as_str());
            return Err(JoinRefusal::open(JoinReason::NameTaken, why));
        }
        let token = &mut self.tokens[at];
        token.uses_left -= 1;
        let (token, revoked) = (token.id.clone(), None);
        let given =
            IssuedName { cluster: cluster.clone(), role, token, joined: now, until, revoked };
        self.names.insert(node.clone(), given);
        Ok(NodeName { node, cluster, role: role.as_str().to_owned() })
    }

    /// Index of a valid token. Without one, the caller does not learn the reason.
    fn judge(&self, id: &str, secret: &str, now: i64) -> Result<usize, JoinRefusal> {
        let closed = |reason, why: String| Err(JoinRefusal::closed(reason, why));
        let found = self.tokens.iter().position(|token| token.id == id);
        let Some(at) = found else {
            // Takes as long as for an existing token.
            let _ = matches_secret("", secret);
            let shown: String = id.chars().take(16).filter(|c| !c.is_control()).collect();
            return closed(JoinReason::UnknownToken, format!("there is no token {shown}"));
        };
        let token = &self.tokens[at];
        if !matches_secret(&token.secret_sha256, secret) {
            return closed(JoinReason::WrongSecret, format!("the secret of token {id} is wrong"));
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
                format!("token {id} was used {} times, which is its maximum", token.uses),
            ),
        }
    }

    /// The requested name, or the lowest free number of the cluster.
    fn node_name(
        &self,
        cluster: &ClusterId,
        most: Option<u32>,
        asked: Option<&NodeId>,
        now: i64,
    ) -> Result<NodeId, JoinRefusal> {
        let Some(most) = most else {
            let why =
                format!("nodes do not join cluster {cluster}: its `provider` is not \"join\"");
            return Err(JoinRefusal::open(JoinReason::NoRoom, why));
        };
        let name = |n: u32| NodeId::from(format!("{cluster}-{n}"));
        let taken = |node: &NodeId| self.names.get(node).filter(|given| given.until > now);
        let left = |given: &IssuedName| span(given.until - now);
        if let Some(asked) = asked {
            if !(1..=most).any(|n| name(n) == *asked) {
                let (first, last) = (name(1), name(most));
                let why = format!("nodes of cluster {cluster} are named {first} to {last}");
                return Err(JoinRefusal::open(JoinReason::NameTaken, why));
            }
            return match taken(asked) {
                None => Ok(asked.clone()),
                Some(given) => {
                    let why = format!(
                        "the name {asked} belongs to a node whose certificate is valid for \
                         another {}: choose another, or none",
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
                    "cluster {cluster} has issued all its {most} names to nodes with valid \
                     certificates (the next is free in {}): raise its `nodes`",
                    first.unwrap_or_default()
                ),
            )
        })
    }

    /// Checks that a name may have another certificate, and records the end of that.
    ///
    /// # Errors
    /// None if the name was not issued to such a process, else the reason of its revocation.
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

    /// Revokes the certificates of a name.
    ///
    /// # Errors
    /// [`RevokeError`] if the name was not issued.
    pub fn revoke(&mut self, node: &NodeId, reason: &str, now: i64) -> Result<(), RevokeError> {
        let known = || self.names.keys().cloned().collect();
        if !self.names.contains_key(node) {
            return Err(RevokeError::Unknown { node: node.clone(), known: known() });
        }
        if let Some(given) = self.names.get_mut(node) {
            given.revoked = Some(Revocation { at: now, reason: reason.to_owned() });
        }
        Ok(())
    }

    /// Names with revoked certificates that are still valid, and the reasons.
    pub fn revoked(&self, now: i64) -> BTreeMap<NodeId, String> {
        // Verifiers' clocks may be an hour late.
        let counts = |given: &&IssuedName| given.until + 3600 > now;
        let names = self.names.iter().filter(|(_, given)| counts(given));
        names
            .filter_map(|(node, given)| Some((node.clone(), given.revoked.clone()?.reason)))
            .collect()
    }

    /// Deletes entries that ended long ago.
    fn tidy(&mut self, now: i64) {
        self.tokens.retain(|token| token.expires + KEEP_ENDED_S > now);
        self.names.retain(|_, given| given.until + KEEP_ENDED_S > now);
    }
}

/// Formats seconds for people.
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

    struct Fixture {
        state: EnrolmentState,
        now: i64,
    }

    impl Fixture {
        fn new() -> Self {
            Self { state: EnrolmentState::default(), now: NOW }
        }

        fn token(&mut self, role: TokenRole, uses: u32) -> NewToken {
            let minted = NewToken::draw().unwrap();
            let order = TokenSpec { role, cluster: "lab".into(), ttl: DAY, uses };
            self.state.create(&order, &minted, self.now);
            minted
        }

        /// Joins a cluster of at most three nodes.
        fn join(&mut self, token: &NewToken, asked: Option<&str>) -> Result<String, JoinRefusal> {
            let asked = asked.map(NodeId::from);
            let most = |cluster: &ClusterId| (cluster.as_str() == "lab").then_some(3);
            let attempt = JoinAttempt {
                token: &token.id,
                secret: &token.secret,
                node: asked.as_ref(),
                now: self.now,
                until: self.now + DAY,
            };
            self.state.admit(&attempt, most).map(|name| name.to_string())
        }

        fn reason(&mut self, token: &NewToken, asked: Option<&str>) -> (JoinReason, bool) {
            let before = self.state.clone();
            let refusal = self.join(token, asked).unwrap_err();
            assert_eq!(self.state, before, "a refusal changes nothing");
            (refusal.reason, refusal.text_for_caller.is_some())
        }
    }

    #[test]
    fn names_are_the_lowest_free_numbers() {
        let mut fixture = Fixture::new();
        let token = fixture.token(TokenRole::Node, 5);
        assert_eq!(fixture.join(&token, None).unwrap(), "springtide://lab/node/lab-1");
        assert_eq!(fixture.join(&token, Some("lab-3")).unwrap(), "springtide://lab/node/lab-3");
        assert_eq!(fixture.join(&token, None).unwrap(), "springtide://lab/node/lab-2");
        assert_eq!(fixture.reason(&token, None), (JoinReason::NoRoom, true));
        for asked in ["lab-3", "lab-4", "lab-0", "lab-03", "del-1", "head", "lab-site"] {
            assert_eq!(
                fixture.reason(&token, Some(asked)),
                (JoinReason::NameTaken, true),
                "{asked}"
            );
        }
        // lab-2 renews; the others' certificates end.
        let name = NodeName { node: "lab-2".into(), cluster: "lab".into(), role: "node".into() };
        fixture.state.renew(&name, NOW + 2 * DAY).unwrap();
        fixture.now += DAY;
        let token = fixture.token(TokenRole::Node, 5);
        assert_eq!(fixture.join(&token, Some("lab-3")).unwrap(), "springtide://lab/node/lab-3");
        assert_eq!(fixture.join(&token, None).unwrap(), "springtide://lab/node/lab-1");
        assert_eq!(fixture.reason(&token, None), (JoinReason::NoRoom, true));
    }

    #[test]
    fn invalid_tokens_have_reasons_that_callers_do_not_learn() {
        let mut fixture = Fixture::new();
        let token = fixture.token(TokenRole::Node, 2);
        let unknown = NewToken::draw().unwrap();
        assert_eq!(fixture.reason(&unknown, None), (JoinReason::UnknownToken, false));
        let wrong = NewToken { id: token.id.clone(), ..unknown };
        assert_eq!(fixture.reason(&wrong, None), (JoinReason::WrongSecret, false));
        fixture.join(&token, None).unwrap();
        fixture.join(&token, None).unwrap();
        assert_eq!(fixture.reason(&token, None), (JoinReason::UsedUpToken, false));
        let late = fixture.token(TokenRole::Node, 2);
        fixture.now += DAY - 1;
        fixture.join(&late, None).unwrap();
        fixture.now += 1;
        assert_eq!(fixture.reason(&late, None), (JoinReason::ExpiredToken, false));
        // A caller without the secret does not learn that the token has ended.
        let wrong = NewToken { id: late.id, ..wrong };
        assert_eq!(fixture.reason(&wrong, None), (JoinReason::WrongSecret, false));
        let revoked = fixture.token(TokenRole::Node, 2);
        assert_eq!(fixture.state.revoke_token(&revoked.id, fixture.now), Some(TokenState::Good));
        assert_eq!(fixture.state.revoke_token(&revoked.id, fixture.now), Some(TokenState::Revoked));
        assert_eq!(fixture.state.revoke_token("none", fixture.now), None);
        assert_eq!(fixture.reason(&revoked, None), (JoinReason::RevokedToken, false));
    }

    #[test]
    fn sites_and_clients_have_names_of_their_own() {
        let mut fixture = Fixture::new();
        let site = fixture.token(TokenRole::Site, 1);
        assert_eq!(fixture.reason(&site, Some("lab-1")), (JoinReason::NameTaken, true));
        assert_eq!(fixture.join(&site, None).unwrap(), "springtide://lab/site/lab-site");
        let client = fixture.token(TokenRole::Client, 2);
        let id = client.id.clone();
        for n in 1..=2 {
            let expected = format!("springtide://users/client/client-{id}-{n}");
            assert_eq!(fixture.join(&client, None).unwrap(), expected);
        }
    }

    #[test]
    fn a_revocation_lasts_until_the_end_of_the_certificate() {
        let mut fixture = Fixture::new();
        let token = fixture.token(TokenRole::Node, 3);
        fixture.join(&token, None).unwrap();
        let node: NodeId = "lab-1".into();
        let other = fixture.state.revoke(&"lab-2".into(), "stolen", NOW);
        assert_eq!(
            other,
            Err(RevokeError::Unknown { node: "lab-2".into(), known: vec![node.clone()] })
        );
        fixture.state.revoke(&node, "stolen", NOW).unwrap();
        let revoked = BTreeMap::from([(node.clone(), "stolen".to_owned())]);
        assert_eq!(fixture.state.revoked(NOW), revoked);
        let name = NodeName { node, cluster: "lab".into(), role: "node".into() };
        assert_eq!(fixture.state.renew(&name, NOW + 9 * DAY), Err(Some("stolen".to_owned())));
        // Its name is not issued meanwhile.
        assert_eq!(fixture.join(&token, None).unwrap(), "springtide://lab/node/lab-2");
        fixture.now += DAY + 3600;
        assert_eq!(fixture.state.revoked(fixture.now), BTreeMap::new());
        let token = fixture.token(TokenRole::Node, 1);
        assert_eq!(fixture.join(&token, None).unwrap(), "springtide://lab/node/lab-1");
    }

    #[test]
    fn certificates_are_renewed_for_the_same_name_only() {
        let mut fixture = Fixture::new();
        let token = fixture.token(TokenRole::Node, 1);
        fixture.join(&token, None).unwrap();
        let own = NodeName { node: "lab-1".into(), cluster: "lab".into(), role: "node".into() };
        fixture.state.renew(&own, NOW + 2 * DAY).unwrap();
        assert_eq!(fixture.state.given(&own.node).unwrap().until, NOW + 2 * DAY);
        for other in [
            NodeName { node: "lab-2".into(), ..own.clone() },
            NodeName { cluster: "del".into(), ..own.clone() },
            NodeName { role: "client".into(), ..own.clone() },
        ] {
            assert_eq!(fixture.state.renew(&other, NOW + 3 * DAY), Err(None), "{other}");
        }
    }

    #[test]
    fn entries_are_deleted_long_after_their_end() {
        let mut fixture = Fixture::new();
        let token = fixture.token(TokenRole::Node, 1);
        fixture.join(&token, None).unwrap();
        fixture.now += KEEP_ENDED_S;
        fixture.token(TokenRole::Node, 1);
        assert_eq!((fixture.state.tokens().len(), fixture.state.names().len()), (2, 1));
        fixture.now += DAY;
        fixture.token(TokenRole::Node, 1);
        assert_eq!((fixture.state.tokens().len(), fixture.state.names().len()), (2, 0));
    }

    #[test]
    fn the_secret_is_not_in_the_book() {
        let mut fixture = Fixture::new();
        let token = fixture.token(TokenRole::Node, 1);
        let changes = fixture.state.changes_since(&EnrolmentState::default());
        let text = serde_json::to_string(&changes).unwrap();
        assert!(!text.contains(&token.secret) && text.contains(&token.id));
        let mut again = EnrolmentState::default();
        let changes: Vec<EnrolmentChange> = serde_json::from_str(&text).unwrap();
        changes.into_iter().for_each(|change| again.apply(change));
        assert_eq!(again, fixture.state);
    }
}
