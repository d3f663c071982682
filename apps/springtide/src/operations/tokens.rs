//! `token ...`: tokens to join a grid. The grid's directory contains them, whether a head runs or
//! not.
//!
//! Independent of the judgement and the use of tokens.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand, ValueHint};
use serde_json::{Value, json};
use springtide_actors::enrol::{
    BookError, BookFile, DoorStatus, ENROLMENT, Enrolment, GetDoor, LookAtBook, Token, TokenOrder,
    TokenRole, TokenState,
};
use springtide_actors::head::HEAD_CLUSTER;
use springtide_runtime::config::{GridConfig, Provider, SitePlace, Sources, load, nearest};
use springtide_runtime::id::ClusterId;
use springtide_runtime::net::join::{JoinToken, Minted};
use springtide_runtime::net::tls::{Ca, calendar};
use springtide_runtime::private;
use springtide_runtime::remote::Remote;

use crate::args::{time, words};
use crate::dates::date;
use crate::exit::Failed;
use crate::grid::{self, HeadFile, program_name};
use crate::report::{SCHEMA, many, seconds};
use crate::run::{Attachment, attach, print};

/// Timeout of a request to the head.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

impl std::str::FromStr for Role {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "node" => Ok(Self(TokenRole::Node)),
            "site" => Ok(Self(TokenRole::Site)),
            "client" => Ok(Self(TokenRole::Client)),
            _ => Err("must be node, site or client".to_owned()),
        }
    }
}

/// The role of a token, as an option.
#[derive(Clone, Copy, Debug)]
pub struct Role(TokenRole);

/// The subcommands of `token`.
#[derive(Subcommand, Clone, Debug)]
pub enum TokenCommand {
    /// Create a token, and print the command for the host that joins
    Create(CreateArgs),
    /// List the tokens, and the attempts to join
    List {
        /// Config of the grid
        #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
        config: PathBuf,
        /// Print the result as one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Revoke a token, so that no further node can join with it; joined nodes stay (see `node
    /// revoke`)
    Revoke {
        /// Id of the token, as `token list` shows it
        #[arg(value_name = "ID")]
        id: String,
        /// Config of the grid
        #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
        config: PathBuf,
    },
}

/// The options of `token create`.
#[derive(Args, Clone, Debug)]
pub struct CreateArgs {
    /// Config of the grid
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    config: PathBuf,
    /// Cluster to join; none for clients
    #[arg(long, value_name = "NAME")]
    cluster: Option<String>,
    /// Role to join as: node, site or client
    #[arg(long, value_name = "ROLE", default_value = "node",
          value_parser = words::<Role>(&["node", "site", "client"]), hide_possible_values = true)]
    role: Role,
    /// Validity of the token
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = time)]
    ttl: Duration,
    /// Maximum number of uses
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=100_000),
    )]
    uses: u32,
    /// Print the result as one JSON object
    #[arg(long)]
    json: bool,
}

impl From<BookError> for Failed {
    fn from(error: BookError) -> Self {
        Self::failure(error)
    }
}

/// Executes a subcommand of `token`.
///
/// # Errors
/// The config, the authority or the token store cannot be read, or no such cluster or token exists.
pub async fn token(command: TokenCommand) -> Result<(), Failed> {
    match command {
        TokenCommand::Create(args) => create(&args).await,
        TokenCommand::List { config, json } => list(&config, json).await,
        TokenCommand::Revoke { id, config } => revoke(&id, &config),
    }
}

/// A grid's config and its token store.
pub struct GridTokens {
    pub config: GridConfig,
    pub dir: PathBuf,
    pub book: BookFile,
}

impl GridTokens {
    /// Opens the token store of the grid of a config file.
    ///
    /// # Errors
    /// The config is wrong.
    pub fn of(file: &Path) -> Result<Self, Failed> {
        let config = load::<GridConfig>(&Sources::of_process(Some(file)))?.value;
        let dir = grid::dir_of(file, &config);
        if dir.exists() {
            private::check_dir(&dir)?;
        }
        let book = BookFile::of(&dir);
        Ok(Self { config, dir, book })
    }
}

/// The cluster that a token of this role is for.
fn cluster(config: &GridConfig, args: &CreateArgs) -> Result<ClusterId, Failed> {
    let Role(role) = args.role;
    let Some(name) = &args.cluster else {
        return match role {
            TokenRole::Client => Ok(HEAD_CLUSTER.into()),
            _ => Err(Failed::usage("no cluster is given: add --cluster NAME")),
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
        TokenRole::Client => wrong("is not joined by clients: omit --cluster"),
        _ => Ok(name.as_str().into()),
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

async fn create(args: &CreateArgs) -> Result<(), Failed> {
    let grid_tokens = GridTokens::of(&args.config)?;
    let Role(role) = args.role;
    let cluster = cluster(&grid_tokens.config, args)?;
    let at = join_address(&grid_tokens)?;
    let ca = grid::ca_dir(&grid_tokens.config, &grid_tokens.dir);
    grid::check_authority(&grid_tokens.config, &grid_tokens.dir)?;
    if grid_tokens.config.tls.ca.is_none() && !ca.exists() {
        let shown = args.config.display();
        return Err(Failed::failure(format!(
            "the grid of {shown} has no authority yet, which a token names: start it once with `{} \
            up {shown}`, which makes one",
            program_name()
        )));
    }
    let ca = Ca::load(&ca)?;
    let ttl = i64::try_from(args.ttl.as_secs()).unwrap_or(i64::MAX).max(1);
    let order = TokenOrder { role, cluster: cluster.clone(), ttl, uses: args.uses };
    let minted = Minted::draw().map_err(Failed::failure)?;
    let now = calendar()();
    let made = grid_tokens.book.change(|book| book.create(&order, &minted, now))?;
    let Minted { id, secret, .. } = minted;
    let token = JoinToken { authority: ca.fingerprint(), id, secret };
    let line = format!("{} node join {at} --token {token}", program_name());
    let ends = date(u64::try_from(made.expires).unwrap_or(0));
    if args.json {
        let object = json!({
            "schema": SCHEMA,
            "id": made.id,
            "token": token.to_string(),
            "role": role,
            "cluster": cluster,
            "uses": made.uses,
            "expires": ends,
            "door": at,
            "command": line,
        });
        return print(&format!("{object}\n"));
    }
    print(&format!("{line}\n"))?;
    let what = match role {
        TokenRole::Node => format!("nodes of cluster {cluster}"),
        TokenRole::Site => format!("the site of cluster {cluster}"),
        TokenRole::Client => "clients".to_owned(),
    };
    eprintln!(
        "token {} is for {what}, good until {ends} ({} from now), for {}; whoever has this line \
        can join: take it back with `{} token revoke {} --config {}`",
        made.id,
        seconds(ttl as f64),
        many(u64::from(made.uses), "use"),
        program_name(),
        made.id,
        args.config.display(),
    );
    if HeadFile::read(&grid_tokens.dir)?.is_none() {
        eprintln!(
            "no head runs for {0} as far as this host knows: `{1} up {0}` opens the join endpoint",
            args.config.display(),
            program_name()
        );
    }
    Ok(())
}

/// The grid's enrolment, if a head answers.
async fn connect_enrolment(
    file: &Path,
    grid_tokens: &GridTokens,
) -> Option<(Attachment, Remote<Enrolment>)> {
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
    let notified = enrolment.send(LookAtBook {}).deadline(REQUEST_TIMEOUT).await.is_ok();
    attachment.endpoint.net.close("answered").await;
    notified
}

async fn list(file: &Path, json: bool) -> Result<(), Failed> {
    let grid_tokens = GridTokens::of(file)?;
    let book = grid_tokens.book.read()?;
    let door = match connect_enrolment(file, &grid_tokens).await {
        Some((attachment, enrolment)) => {
            let door = enrolment.send(GetDoor {}).deadline(REQUEST_TIMEOUT).await.ok();
            attachment.endpoint.net.close("answered").await;
            door
        }
        None => None,
    };
    let now = calendar()();
    if json {
        let tokens: Vec<Value> = book.tokens().iter().map(|token| object(token, now)).collect();
        let object = json!({ "schema": SCHEMA, "tokens": tokens, "door": door });
        return print(&format!("{object}\n"));
    }
    print(&table(book.tokens(), now))?;
    if book.tokens().is_empty() {
        eprintln!(
            "there are no tokens: `{} token create --cluster NAME --config {}` makes one",
            program_name(),
            file.display()
        );
    }
    if let Some(door) = door {
        eprintln!("{}", join_attempts(&door));
    }
    Ok(())
}

fn object(token: &Token, now: i64) -> Value {
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

fn table(tokens: &[Token], now: i64) -> String {
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
            token.role.as_str().to_owned(),
            token.cluster.to_string(),
            state.to_owned(),
            format!("{}/{}", token.uses_left, token.uses),
            date(u64::try_from(token.expires).unwrap_or(0)),
        ]);
    }
    columns(&rows)
}

/// Formats rows with aligned columns.
pub fn columns<const N: usize>(rows: &[[String; N]]) -> String {
    let width = |at: usize| rows.iter().map(|row| row[at].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..N).map(width).collect();
    let mut out = String::new();
    for row in rows {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        out += cells.collect::<Vec<_>>().join("  ").trim_end();
        out.push('\n');
    }
    out
}

/// The attempts to join since the head's start.
fn join_attempts(door: &DoorStatus) -> String {
    let list = |counts: &std::collections::BTreeMap<String, u64>| {
        let parts: Vec<String> = counts.iter().map(|(why, n)| format!("{n} {why}")).collect();
        if parts.is_empty() { "none".to_owned() } else { parts.join(", ") }
    };
    format!(
        "since the head was started: {} joined; refused at the door: {}; links refused: {}",
        door.granted,
        list(&door.refused),
        list(&door.links_refused)
    )
}

fn revoke(id: &str, file: &Path) -> Result<(), Failed> {
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
            let note = match state {
                TokenState::Good => "",
                TokenState::UsedUp => " (it was used up)",
                TokenState::Expired => " (it had ended)",
                TokenState::Revoked => " (it was already)",
            };
            eprintln!(
                "token {id} is revoked{note}; nodes that joined with it stay: `{} node revoke \
                NODE` excludes a node",
                program_name()
            );
            Ok(())
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

#[cfg(test)]
mod tests {
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
        let door = DoorStatus { granted: 1, refused, links_refused: Default::default() };
        let expected = "since the head was started: 1 joined; refused at the door: 2 \
        used-up-token; links refused: none";
        assert_eq!(join_attempts(&door), expected);
    }
}
