//! `token ...`: who may join a grid. Tokens are in a book in the grid's directory, whether a head runs or not.
//!
//! Must not know how a token is judged, nor what a node does with it.

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
use crate::grid::{self, HeadFile, called};
use crate::report::{SCHEMA, many, seconds};
use crate::run::{Attachment, attach, print};

/// How long the head may take to answer.
const WITHIN: Duration = Duration::from_secs(5);

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

/// What whoever joins becomes, as an option.
#[derive(Clone, Copy, Debug)]
pub struct Role(TokenRole);

/// `token ...`
#[derive(Subcommand, Clone, Debug)]
pub enum TokenCommand {
    /// Make a token, and print the line to paste on the machine that is to join
    Create(CreateArgs),
    /// List the tokens, and who came to the door
    List {
        /// The grid's config
        #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
        config: PathBuf,
        /// Print it as one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Take a token back: nobody joins by it any more. Who has joined stays; see `node revoke`
    Revoke {
        /// Its id, which `token list` shows
        #[arg(value_name = "ID")]
        id: String,
        /// The grid's config
        #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
        config: PathBuf,
    },
}

/// `token create`
#[derive(Args, Clone, Debug)]
pub struct CreateArgs {
    /// The grid's config
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    config: PathBuf,
    /// The cluster that is joined; a client needs none
    #[arg(long, value_name = "NAME")]
    cluster: Option<String>,
    /// What whoever joins becomes: node, site or client
    #[arg(long, value_name = "ROLE", default_value = "node",
          value_parser = words::<Role>(&["node", "site", "client"]), hide_possible_values = true)]
    role: Role,
    /// How long it is good
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = time)]
    ttl: Duration,
    /// How often it may be used
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    uses: u32,
    /// Print it as one JSON object
    #[arg(long)]
    json: bool,
}

impl From<BookError> for Failed {
    fn from(error: BookError) -> Self {
        Self::failure(error)
    }
}

/// `token ...`
///
/// # Errors
/// The config, the authority or the book cannot be read; there is no such cluster or token.
pub async fn token(command: TokenCommand) -> Result<(), Failed> {
    match command {
        TokenCommand::Create(args) => create(&args).await,
        TokenCommand::List { config, json } => list(&config, json).await,
        TokenCommand::Revoke { id, config } => revoke(&id, &config),
    }
}

/// A grid's config, and its book.
pub struct Desk {
    pub config: GridConfig,
    pub dir: PathBuf,
    pub book: BookFile,
}

impl Desk {
    /// Of this config file.
    ///
    /// # Errors
    /// Every mistake in it.
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

/// Which cluster a token of this role is for.
fn cluster(config: &GridConfig, args: &CreateArgs) -> Result<ClusterId, Failed> {
    let Role(role) = args.role;
    let Some(name) = &args.cluster else {
        return match role {
            TokenRole::Client => Ok(HEAD_CLUSTER.into()),
            _ => Err(Failed::usage("which cluster is joined? give --cluster NAME")),
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
            "is none that nodes join: set its `provider` to \"join\" in the config, and start `up` anew",
        ),
        TokenRole::Site if section.site != SitePlace::Own => {
            wrong("has no site of its own: set `site = \"own\"` in the config")
        }
        TokenRole::Client => wrong("is not joined by clients: leave --cluster out"),
        _ => Ok(name.as_str().into()),
    }
}

/// Where those who join reach the door: as the config says, or as the head that runs has written.
fn door(desk: &Desk) -> Result<String, Failed> {
    let join = &desk.config.join;
    let Some(bind) = join.bind else {
        return Err(Failed::usage(
            "the grid has no door at which anybody could join: set `join.bind` in its config, for example \"0.0.0.0:47900\" with \
             `join.advertise`, and start `up` anew",
        ));
    };
    if let Some(advertise) = &join.advertise {
        return Ok(advertise.to_string());
    }
    if bind.port() != 0 {
        return Ok(bind.to_string());
    }
    let running = HeadFile::read(&desk.dir)?.and_then(|head| head.join);
    running.map(|at| at.to_string()).ok_or_else(|| {
        Failed::failure(
            "where nodes join is known only while a head runs, for `join.bind` has port 0: give it a port, or start the grid first",
        )
    })
}

async fn create(args: &CreateArgs) -> Result<(), Failed> {
    let desk = Desk::of(&args.config)?;
    let Role(role) = args.role;
    let cluster = cluster(&desk.config, args)?;
    let at = door(&desk)?;
    let ca = grid::ca_dir(&desk.config, &desk.dir);
    grid::check_authority(&desk.config, &desk.dir)?;
    if desk.config.tls.ca.is_none() && !ca.exists() {
        let shown = args.config.display();
        return Err(Failed::failure(format!(
            "the grid of {shown} has no authority yet, which a token names: start it once with `{} up {shown}`, which makes one",
            called()
        )));
    }
    let ca = Ca::load(&ca)?;
    let ttl = i64::try_from(args.ttl.as_secs()).unwrap_or(i64::MAX).max(1);
    let order = TokenOrder { role, cluster: cluster.clone(), ttl, uses: args.uses };
    let minted = Minted::draw().map_err(Failed::failure)?;
    let now = calendar()();
    let made = desk.book.change(|book| book.create(&order, &minted, now))?;
    let Minted { id, secret, .. } = minted;
    let token = JoinToken { authority: ca.fingerprint(), id, secret };
    let line = format!("{} node join {at} --token {token}", called());
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
        "token {} is for {what}, good until {ends} ({} from now), for {}; whoever has this line can join: take it back with \
         `{} token revoke {} --config {}`",
        made.id,
        seconds(ttl as f64),
        many(u64::from(made.uses), "use"),
        called(),
        made.id,
        args.config.display(),
    );
    if HeadFile::read(&desk.dir)?.is_none() {
        eprintln!(
            "no head runs for {0} as far as this machine knows: `{1} up {0}` opens the door",
            args.config.display(),
            called()
        );
    }
    Ok(())
}

/// The grid's enrolment, if a head answers.
async fn asked(file: &Path, desk: &Desk) -> Option<(Attachment, Remote<Enrolment>)> {
    HeadFile::read(&desk.dir).ok().flatten()?;
    let attachment = attach(file, &desk.config).await.ok()?;
    let enrolment = attachment.endpoint.hub.remote(&attachment.head, ENROLMENT);
    Some((attachment, enrolment))
}

/// Has a head that runs look at the book at once. Whether it has: if not, it will, when it runs.
pub async fn tell_head(file: &Path, desk: &Desk) -> bool {
    let Some((attachment, enrolment)) = asked(file, desk).await else { return false };
    let told = enrolment.send(LookAtBook {}).deadline(WITHIN).await.is_ok();
    attachment.endpoint.net.close("told").await;
    told
}

async fn list(file: &Path, json: bool) -> Result<(), Failed> {
    let desk = Desk::of(file)?;
    let book = desk.book.read()?;
    let door = match asked(file, &desk).await {
        Some((attachment, enrolment)) => {
            let door = enrolment.send(GetDoor {}).deadline(WITHIN).await.ok();
            attachment.endpoint.net.close("told").await;
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
            called(),
            file.display()
        );
    }
    if let Some(door) = door {
        eprintln!("{}", told(&door));
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

/// Rows with their columns one under the other.
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

/// Who came to the door since the head was started.
fn told(door: &DoorStatus) -> String {
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
    let desk = Desk::of(file)?;
    let now = calendar()();
    // The whole token may have been pasted.
    let id = id.parse::<JoinToken>().map_or_else(|_| id.to_owned(), |token| token.id);
    let before = desk.book.change(|book| {
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
                "token {id} is revoked{note}; who has joined by it stays: `{} node revoke NODE` cuts a node off",
                called()
            );
            Ok(())
        }
        Err(known) => {
            let hint = match nearest(&id, known.iter().map(String::as_str)) {
                Some(meant) => format!("did you mean {meant}?"),
                None => format!("`{} token list --config {}` shows them", called(), file.display()),
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
    fn who_came_is_told_by_reason() {
        let refused = [("used-up-token".to_owned(), 2)].into();
        let door = DoorStatus { granted: 1, refused, links_refused: Default::default() };
        let expected = "since the head was started: 1 joined; refused at the door: 2 used-up-token; links refused: none";
        assert_eq!(told(&door), expected);
    }
}
