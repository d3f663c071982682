//! Join tokens: creation, listing, revocation. The grid's directory contains them, whether a head
//! runs or not.
//!
//! This module knows neither the judgement nor the use of tokens.

use std::path::{Path, PathBuf};
use std::time::Duration;

use springtide_actors::admit::Principal;
use springtide_actors::enrol::{
    ENROLMENT, EnrolmentActor, EnrolmentState, EnrolmentStore, GetJoinStatus, JoinStatus,
    ReloadEnrolment, Token, TokenRole, TokenSpec, TokenState,
};
use springtide_actors::head::HEAD_CLUSTER;
use springtide_cli::exit::Failed;
use springtide_runtime::config::{GridConfig, Provider, SitePlace, nearest};
use springtide_runtime::id::ClusterId;
use springtide_runtime::net::join::{JoinToken, NewToken};
use springtide_runtime::net::tls::{Ca, calendar};
use springtide_runtime::private;
use springtide_runtime::remote::Remote;

use super::attach::{Attachment, attach, directory_user, grid_config, record_command};
use super::grid_files::{HeadFile, ca_dir, check_authority, dir_of, program_name};
use super::standby::check_not_waiting;

/// Timeout of a request to the head.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// A grid's config and its token store.
pub struct GridTokens {
    /// The config of the grid.
    pub config: GridConfig,
    /// The directory of the grid.
    pub dir: PathBuf,
    /// The store of the grid's tokens.
    pub book: EnrolmentStore,
    /// The user who changes the tokens.
    pub user: Principal,
}

impl GridTokens {
    /// Opens the token store of the grid of a config file.
    ///
    /// # Errors
    /// The config is wrong, or `tls.identity` is not an operator's.
    pub fn of(file: &Path) -> Result<Self, Failed> {
        let config = grid_config(file)?;
        let dir = dir_of(file, &config);
        if dir.exists() {
            private::check_dir(&dir)?;
        }
        check_not_waiting(&config, &dir)?;
        let user = directory_user(&config)?;
        let book = EnrolmentStore::of(&dir);
        Ok(Self { config, dir, book, user })
    }
}

/// The address of the join endpoint, from the config or from the file of the running head.
fn join_address(grid_tokens: &GridTokens) -> Result<String, Failed> {
    let join = &grid_tokens.config.join;
    let Some(bind) = join.bind else {
        return Err(Failed::usage(
            "the grid has no join endpoint: set `join.bind` in its config, for \
            example \"0.0.0.0:47900\" with `join.advertise`, and restart `up`",
        ));
    };
    if let Some(advertise) = &join.advertise {
        return Ok(advertise.to_string());
    }
    if bind.port() != 0 {
        return Ok(bind.to_string());
    }
    let running = HeadFile::read(&grid_tokens.dir)?.and_then(|head| head.join);
    running.map(|at| at.to_string()).ok_or_else(|| {
        Failed::failure(
            "the join address is known only while a head runs, because `join.bind` has port 0: \
            give it a port, or start the grid first",
        )
    })
}

/// The settings of a new token.
pub struct TokenSettings<'a> {
    /// The config file of the grid.
    pub config: &'a Path,
    /// The cluster to join; none for clients.
    pub cluster: Option<&'a str>,
    /// The role to join as.
    pub role: TokenRole,
    /// The validity of the token.
    pub ttl: Duration,
    /// The maximum number of uses.
    pub uses: u32,
}

/// A token as it was created.
pub struct CreatedToken {
    /// The entry of the token store.
    pub entry: Token,
    /// The token, as its holder gets it.
    pub token: JoinToken,
    /// The cluster that it is for.
    pub cluster: ClusterId,
    /// The address to join at.
    pub address: String,
    /// The validity in seconds.
    pub ttl_s: i64,
    /// Whether a head runs, as far as this host knows.
    pub head_runs: bool,
}

/// The cluster that a token of this role is for.
fn cluster(config: &GridConfig, settings: &TokenSettings<'_>) -> Result<ClusterId, Failed> {
    let role = settings.role;
    let Some(name) = settings.cluster else {
        return match role {
            TokenRole::Client | TokenRole::Admin | TokenRole::Viewer => {
                Ok(role.users_cluster().unwrap_or(HEAD_CLUSTER).into())
            }
            TokenRole::Node | TokenRole::Site => {
                Err(Failed::usage("no cluster is given: add --cluster NAME"))
            }
        };
    };
    let names = || config.cluster.iter().map(|cluster| cluster.name.as_str());
    let Some(section) = config.cluster.iter().find(|cluster| cluster.name.as_str() == name) else {
        let hint = match nearest(name, names()) {
            Some(meant) => format!("did you mean {meant}?"),
            None => format!("it has {}", names().collect::<Vec<_>>().join(", ")),
        };
        return Err(Failed::usage(format!("the grid has no cluster {name}: {hint}")));
    };
    let wrong = |what: &str| Err(Failed::usage(format!("cluster {name} {what}")));
    match role {
        TokenRole::Node if section.provider != Provider::Join => wrong(
            "is not one that nodes join: set its `provider` to \"join\" in the config, and start \
            `up` again",
        ),
        TokenRole::Site if section.site != SitePlace::Own => {
            wrong("has no site of its own: set `site = \"own\"` in the config")
        }
        TokenRole::Client | TokenRole::Admin | TokenRole::Viewer => {
            wrong("is not joined by clients: omit --cluster")
        }
        _ => Ok(name.into()),
    }
}

/// Creates a token.
///
/// # Errors
/// The config, the authority or the token store cannot be read, or no such cluster exists.
pub fn create(settings: &TokenSettings<'_>) -> Result<CreatedToken, Failed> {
    let grid_tokens = GridTokens::of(settings.config)?;
    let role = settings.role;
    let cluster = cluster(&grid_tokens.config, settings)?;
    let at = join_address(&grid_tokens)?;
    let ca = ca_dir(&grid_tokens.config, &grid_tokens.dir);
    check_authority(&grid_tokens.config, &grid_tokens.dir)?;
    if grid_tokens.config.tls.ca.is_none() && !ca.exists() {
        let shown = settings.config.display();
        return Err(Failed::failure(format!(
            "the grid of {shown} has no authority yet, which a token names: start it once with `{} \
            up {shown}`, which makes one",
            program_name()
        )));
    }
    let ca = Ca::load(&ca)?;
    let ttl = i64::try_from(settings.ttl.as_secs()).unwrap_or(i64::MAX).max(1);
    let order = TokenSpec { role, cluster: cluster.clone(), ttl, uses: settings.uses };
    let minted = NewToken::draw().map_err(Failed::failure)?;
    let now = calendar()();
    let entry = grid_tokens.book.change(|book| book.create(&order, &minted, now))?;
    let NewToken { id, secret, .. } = minted;
    let token = JoinToken { authority: ca.fingerprint(), id, secret };
    let about = format!("{} for {}", entry.id, role.word());
    record_command(&grid_tokens.dir, grid_tokens.user, "token create", &about);
    let head_runs = HeadFile::read(&grid_tokens.dir)?.is_some();
    Ok(CreatedToken { entry, token, cluster, address: at, ttl_s: ttl, head_runs })
}

/// The grid's enrolment, if a head answers.
async fn connect_enrolment(
    file: &Path,
    grid_tokens: &GridTokens,
) -> Option<(Attachment, Remote<EnrolmentActor>)> {
    HeadFile::read(&grid_tokens.dir).ok().flatten()?;
    let attachment = attach(file, &grid_tokens.config).await.ok()?;
    let enrolment = attachment.endpoint.hub.remote(&attachment.head, ENROLMENT);
    Some((attachment, enrolment))
}

/// Asks a running head to read the token store at once; another head reads it at its start. Returns
/// whether a head answered.
pub async fn notify_head(file: &Path, grid_tokens: &GridTokens) -> bool {
    let Some((attachment, enrolment)) = connect_enrolment(file, grid_tokens).await else {
        return false;
    };
    let notified = enrolment.send(ReloadEnrolment {}).deadline(REQUEST_TIMEOUT).await.is_ok();
    attachment.endpoint.net.close("answered").await;
    notified
}

/// The tokens of a grid.
pub struct TokenList {
    /// The store of the grid's tokens.
    pub book: EnrolmentState,
    /// The attempts to join since the head's start, if a head answers.
    pub attempts: Option<JoinStatus>,
}

/// Reads the tokens of the grid of a config file.
///
/// # Errors
/// The config or the token store cannot be read.
pub async fn list(file: &Path) -> Result<TokenList, Failed> {
    let grid_tokens = GridTokens::of(file)?;
    let book = grid_tokens.book.read()?;
    let attempts = match connect_enrolment(file, &grid_tokens).await {
        Some((attachment, enrolment)) => {
            let attempts = enrolment.send(GetJoinStatus {}).deadline(REQUEST_TIMEOUT).await.ok();
            attachment.endpoint.net.close("answered").await;
            attempts
        }
        None => None,
    };
    Ok(TokenList { book, attempts })
}

/// Revokes a token, named by its id or itself. Returns its id and its state before.
///
/// # Errors
/// The config or the token store cannot be read, or no such token exists.
pub fn revoke(id: &str, file: &Path) -> Result<RevokedToken, Failed> {
    let grid_tokens = GridTokens::of(file)?;
    let now = calendar()();
    // The argument may be the whole token.
    let id = id.parse::<JoinToken>().map_or_else(|_| id.to_owned(), |token| token.id);
    let before = grid_tokens.book.change(|book| {
        let known: Vec<String> = book.tokens().iter().map(|token| token.id.clone()).collect();
        book.revoke_token(&id, now).ok_or(known)
    })?;
    match before {
        Ok(state) => {
            record_command(&grid_tokens.dir, grid_tokens.user, "token revoke", &id);
            Ok(RevokedToken { id, state })
        }
        Err(known) => {
            let hint = match nearest(&id, known.iter().map(String::as_str)) {
                Some(meant) => format!("did you mean {meant}?"),
                None => format!(
                    "`{} token list --config {}` shows them",
                    program_name(),
                    file.display()
                ),
            };
            Err(Failed::usage(format!("there is no token {id}: {hint}")))
        }
    }
}

/// A token that was revoked.
pub struct RevokedToken {
    /// The id of the token.
    pub id: String,
    /// Its state before the revocation.
    pub state: TokenState,
}
