//! `token`: join tokens, which decide who may join a grid.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand, ValueHint};
use serde_json::{Value, json};
use springtide_actors::enrol::{TokenRole, TokenState};
use springtide_cli::dates::date;
use springtide_cli::exit::Failed;
use springtide_cli::format::{SCHEMA, many, seconds};
use springtide_cli::options::{keyword_parser, time};
use springtide_cli::print::print;
use springtide_runtime::net::tls::calendar;

use crate::output::tokens::{join_attempts, object, table};
use springtide_operations::grid_files::program_name;
use springtide_operations::locate::default_config;
use springtide_operations::options::GlobalArgs;
use springtide_operations::process::{on_arbiter, start_log};
use springtide_operations::tokens::{self, CreatedToken, RevokedToken, TokenList, TokenSettings};

/// The role of a token, as an option.
#[derive(Clone, Copy, Debug)]
pub struct TokenRoleOption(TokenRole);

impl std::str::FromStr for TokenRoleOption {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "node" => Ok(Self(TokenRole::Node)),
            "site" => Ok(Self(TokenRole::Site)),
            "admin" => Ok(Self(TokenRole::Admin)),
            "submitter" | "client" => Ok(Self(TokenRole::Client)),
            "viewer" => Ok(Self(TokenRole::Viewer)),
            _ => Err("must be node, site, admin, submitter or viewer".to_owned()),
        }
    }
}

/// The subcommands of `token`.
#[derive(Subcommand, Clone, Debug)]
pub enum TokenCommand {
    /// Create a token, and print the command for the host that joins
    Create(CreateArgs),
    /// List the tokens, and the attempts to join
    List {
        /// Config of the grid [default: the nearest grid.toml]
        #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath,
              default_value_os_t = default_config(), hide_default_value = true)]
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
        /// Config of the grid [default: the nearest grid.toml]
        #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath,
              default_value_os_t = default_config(), hide_default_value = true)]
        config: PathBuf,
    },
}

/// The options of `token create`.
#[derive(Args, Clone, Debug)]
pub struct CreateArgs {
    /// Config of the grid [default: the nearest grid.toml]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath,
          default_value_os_t = default_config(), hide_default_value = true)]
    config: PathBuf,
    /// Cluster to join; none for clients
    #[arg(long, value_name = "NAME")]
    cluster: Option<String>,
    /// Role to join as: node or site; or that of a user: admin, submitter (also called client) or
    /// viewer
    #[arg(long, value_name = "ROLE", default_value = "node", hide_possible_values = true,
          value_parser = keyword_parser::<TokenRoleOption>(
              &["node", "site", "admin", "submitter", "viewer", "client"]))]
    role: TokenRoleOption,
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

/// Executes a subcommand of `token`.
///
/// # Errors
/// The config, the authority or the token store cannot be read, or no such cluster or token exists.
pub fn execute(command: TokenCommand, global: &GlobalArgs) -> Result<(), Failed> {
    start_log(global);
    match command {
        TokenCommand::Create(args) => create(&args),
        TokenCommand::List { config, json } => on_arbiter(list(&config, json)),
        TokenCommand::Revoke { id, config } => revoke(&id, &config),
    }
}

fn create(args: &CreateArgs) -> Result<(), Failed> {
    let TokenRoleOption(role) = args.role;
    let CreatedToken { entry, token, cluster, address, ttl_s, head_runs } =
        tokens::create(&TokenSettings {
            config: &args.config,
            cluster: args.cluster.as_deref(),
            role,
            ttl: args.ttl,
            uses: args.uses,
        })?;
    let (id, shown, program) = (&entry.id, args.config.display(), program_name());
    let line = format!("{program} node join {address} --token {token}");
    let ends = date(u64::try_from(entry.expires).unwrap_or(0));
    if args.json {
        let object = json!({
            "schema": SCHEMA,
            "id": id,
            "token": token.to_string(),
            "role": role,
            "cluster": cluster,
            "uses": entry.uses,
            "expires": ends,
            "door": address,
            "command": line,
        });
        return print(&format!("{object}\n"));
    }
    print(&format!("{line}\n"))?;
    let what = match role {
        TokenRole::Node => format!("nodes of cluster {cluster}"),
        TokenRole::Site => format!("the site of cluster {cluster}"),
        TokenRole::Client => "users who submit jobs".to_owned(),
        TokenRole::Admin => "operators".to_owned(),
        TokenRole::Viewer => "users who only look".to_owned(),
    };
    let (time, uses) = (seconds(ttl_s as f64), many(u64::from(entry.uses), "use"));
    eprintln!(
        "token {id} is for {what}, good until {ends} ({time} from now), for {uses}; everyone \
        with this line can join: revoke it with `{program} token revoke {id} --config {shown}`"
    );
    if !head_runs {
        eprintln!(
            "no head runs for {shown} as far as this host knows: `{program} up {shown}` opens the \
            join endpoint"
        );
    }
    Ok(())
}

async fn list(file: &Path, json: bool) -> Result<(), Failed> {
    let TokenList { book, attempts } = tokens::list(file).await?;
    let now = calendar()();
    if json {
        let tokens: Vec<Value> = book.tokens().iter().map(|token| object(token, now)).collect();
        let object = json!({ "schema": SCHEMA, "tokens": tokens, "door": attempts });
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
    if let Some(attempts) = attempts {
        eprintln!("{}", join_attempts(&attempts));
    }
    Ok(())
}

fn revoke(id: &str, file: &Path) -> Result<(), Failed> {
    let RevokedToken { id, state } = tokens::revoke(id, file)?;
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
