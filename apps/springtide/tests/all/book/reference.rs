//! The book's reference, made from the code: configs, command line, events, metrics, exit codes.
//!
//! This module must not know single keys, options, kinds or names.

use std::fmt::Write;

use clap::{Arg, Command};
use springtide_runtime::config::{
    GridConfig, JobsConfig, KeyDescription, KeyFallback, LinksConfig, NodeConfig, ProfileConfig,
    SSH_DIRECTIVES, ScenarioConfig, SiteConfig, SshTreatment, TopologyConfig, WorkloadConfig,
    describe,
};
use springtide_runtime::event::Event;

/// One of the configs.
pub struct ConfigKind {
    file: &'static str,
    title: &'static str,
    about: &'static str,
    pub keys: fn() -> Vec<KeyDescription>,
}

/// The kinds of all configs.
pub const KINDS: &[ConfigKind] = &[
    ConfigKind {
        file: "config-grid.md",
        title: "A grid's config",
        about: "All commands for a grid read this file. `springtide config init` writes one with \
                every key. `springtide config show --origin` prints the origin of each value.",
        keys: describe::<GridConfig>,
    },
    ConfigKind {
        file: "config-node.md",
        title: "A node's config",
        about: "`springtide node run --config FILE` reads this file. The head writes it for nodes \
                that it starts, and `node join` for nodes that join. `springtide config init \
                --node` writes an example.",
        keys: describe::<NodeConfig>,
    },
    ConfigKind {
        file: "config-site.md",
        title: "A site's config",
        about: "`springtide site run --config FILE` reads this file, which `up` writes.",
        keys: describe::<SiteConfig>,
    },
    ConfigKind {
        file: "config-jobs.md",
        title: "A file of jobs",
        about: "`springtide job submit --file FILE` reads this file. `springtide config init \
                --jobs` writes an example.",
        keys: describe::<JobsConfig>,
    },
    ConfigKind {
        file: "config-scenario.md",
        title: "A scenario",
        about: "`springtide sim run FILE` and `springtide wan run FILE` read this file. \
                `springtide sim show` prints an example.",
        keys: describe::<ScenarioConfig>,
    },
    ConfigKind {
        file: "config-topology.md",
        title: "A topology",
        about: "`springtide wan up FILE` creates the network that this file describes.",
        keys: describe::<TopologyConfig>,
    },
    ConfigKind {
        file: "config-links.md",
        title: "A file of links",
        about: "`springtide sim run --links FILE` reads this file for predictions. `springtide sim \
                show links` prints an example.",
        keys: describe::<LinksConfig>,
    },
    ConfigKind {
        file: "config-profile.md",
        title: "A link profile",
        about: "Each file of `netem-scripts/profiles` has these keys. Topologies and scenarios \
                name profiles.",
        keys: describe::<ProfileConfig>,
    },
    ConfigKind {
        file: "config-workload.md",
        title: "A workload",
        about: "`springtide sim workload FILE` reads this file. `springtide sim show workload` \
                prints an example.",
        keys: describe::<WorkloadConfig>,
    },
];

const NOTE: &str =
    "<!-- Generated from the code; the test that compares it prints how to regenerate it. -->\n\n";

/// All pages: file name and text.
pub fn pages(command: &Command) -> Vec<(&'static str, String)> {
    let mut all: Vec<_> = KINDS.iter().map(|kind| (kind.file, config(kind))).collect();
    all.push(("commands.md", commands(command)));
    all.push(("events.md", events()));
    all.push(("metrics.md", metrics_page()));
    all.push(("exit-codes.md", exit_codes(command)));
    all.push(("ssh.md", ssh_page()));
    all
}

/// What connections do with each directive of ssh's configuration.
fn ssh_page() -> String {
    let mut out = format!(
        "# Directives of ssh\n\n{NOTE}The provider `ssh` starts nodes over unattended connections. \
        They use the user's configuration of ssh, except directives that would ask a question, \
        open a forward or a display, or replace the node's command. A grid's config can set only \
        the values marked so, and directives that are honoured. An option is passed only to a \
        version of OpenSSH that knows it.\n\n\
        | directive | treatment | reason |\n| --- | --- | --- |\n"
    );
    for directive in SSH_DIRECTIVES {
        let treatment = match directive.treatment {
            SshTreatment::Overridden(value) => format!("overridden: `{value}`"),
            SshTreatment::ClearedBy(other) => format!("overridden by {other}"),
            SshTreatment::Preset => "overridden, unless the grid's config sets it".to_owned(),
            SshTreatment::Honoured => "honoured".to_owned(),
            SshTreatment::Harmless => "harmless".to_owned(),
        };
        let since = directive
            .since
            .map_or_else(String::new, |(major, minor)| format!(" (since OpenSSH {major}.{minor})"));
        let _ = writeln!(out, "| {}{since} | {treatment} | {} |", directive.name, directive.reason);
    }
    out
}

/// Text for a cell of a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('<', "&lt;").replace('\n', " ")
}

// ---- configs

fn config(kind: &ConfigKind) -> String {
    let mut out = format!("# {}\n\n{NOTE}{}\n", kind.title, kind.about);
    let keys = (kind.keys)();
    let mut tables: Vec<&str> = Vec::new();
    for key in &keys {
        if !tables.contains(&key.table.as_str()) {
            tables.push(&key.table);
        }
    }
    for table in tables {
        let what = keys.iter().find(|key| path(key) == table);
        match what {
            None => out += "\n## Outside all tables\n\n",
            Some(key) => {
                let many = matches!(key.unset, KeyFallback::Tables);
                let head = if many { format!("[[{table}]]") } else { format!("[{table}]") };
                let _ = write!(out, "\n## `{head}`\n\n{}\n", cell(&key.about));
                if matches!(key.unset, KeyFallback::NoTable) {
                    out += "Optional.\n";
                }
                out.push('\n');
            }
        }
        out += "| key | type | default | meaning |\n| --- | --- | --- | --- |\n";
        for key in keys.iter().filter(|key| key.table == table) {
            let unset = match key.unset {
                KeyFallback::Is(value) => format!("`{}`", value.replace('|', "\\|")),
                KeyFallback::Required(example) => format!("required, such as `{example}`"),
                KeyFallback::Absent(example) => format!("none; example: `{example}`"),
                KeyFallback::Table => "its own defaults".to_owned(),
                KeyFallback::NoTable => "no such table".to_owned(),
                KeyFallback::Tables => "none".to_owned(),
            };
            let (name, about) = (key.key, cell(&key.about));
            let _ = writeln!(out, "| `{name}` | {} | {unset} | {about} |", type_words(key));
        }
    }
    out
}

fn path(key: &KeyDescription) -> String {
    if key.table.is_empty() { key.key.to_owned() } else { format!("{}.{}", key.table, key.key) }
}

/// A type as people know it.
fn type_words(key: &KeyDescription) -> String {
    if !key.choices.is_empty() {
        return key
            .choices
            .iter()
            .map(|word| format!("`\"{word}\"`"))
            .collect::<Vec<_>>()
            .join(", ");
    }
    match key.unset {
        KeyFallback::Table | KeyFallback::NoTable => return "table".to_owned(),
        KeyFallback::Tables => return "array of tables".to_owned(),
        _ => {}
    }
    if let Some(bounds) =
        key.type_name.strip_prefix("BoundedInt<").and_then(|rest| rest.strip_suffix('>'))
    {
        let bounds = bounds.replace('_', "").replace("CONFIGVERSION", "1");
        let (least, most) = bounds.split_once(',').expect("two bounds");
        return if least == most { least.to_owned() } else { format!("{least} to {most}") };
    }
    let words = match key.type_name.as_str() {
        "bool" => "true or false",
        "f64" => "number",
        "u64" => "whole number",
        "Time" => "time, as `\"150ms\"`",
        "Size" => "size, as `\"64MiB\"`",
        "ByteRate" => "rate, as `\"10MB/s\"`",
        "Share" => "share, as `0.02` or `\"2%\"`",
        "Name" => "name",
        "String" => "text",
        "ArgumentList" => "list of texts",
        "CommandTemplate" => "list of words",
        "Pattern" => "regular expression",
        "TextTemplate" => "text with placeholders",
        "PathBuf" => "path",
        "SocketAddr" => "address and port",
        "HostPort" => "host and port",
        "HostPorts" => "host and port, or a list of them",
        "Ports" => "two ports",
        "Pair" => "two names",
        "Subnet" => "network",
        "ThreadCounts" => "list of whole numbers",
        "Points" => "list of points",
        "BTreeMap<String,String>" => "table of texts",
        other => panic!("reference.rs has no words for the type {other}: add them to `type_words`"),
    };
    words.to_owned()
}

// ---- the command line

fn commands(command: &Command) -> String {
    let mut command = command.clone();
    command.build();
    let mut out = format!(
        "# The command line\n\n{NOTE}Results go to standard output, notes to standard error. All \
         commands have the first three of these options.\n"
    );
    described(&mut out, &command, "springtide", &OptionSelection::All);
    out
}

/// Which options are shown: those of jobs stand once for all jobs.
enum OptionSelection {
    All,
    /// Those under this heading alone.
    Under(&'static str),
    /// All others.
    NotUnder(&'static str),
}

const OF_JOB: &str = "Job options";

fn described(out: &mut String, command: &Command, path: &str, shown: &OptionSelection) {
    let global = |arg: &&Arg| arg.is_global_set() && path != "springtide";
    let of_help = |arg: &&Arg| matches!(arg.get_id().as_str(), "help" | "version");
    let wanted = |arg: &&Arg| match shown {
        OptionSelection::All => true,
        OptionSelection::Under(heading) => arg.get_help_heading() == Some(heading),
        OptionSelection::NotUnder(heading) => arg.get_help_heading() != Some(heading),
    };
    let args: Vec<&Arg> = command
        .get_arguments()
        .filter(|arg| !arg.is_hide_set() && !global(arg) && !of_help(arg) && wanted(arg))
        .collect();
    let about = command.get_long_about().or(command.get_about());
    let about = about.map(ToString::to_string).unwrap_or_default();
    let _ = write!(out, "\n## `{path}`\n\n{}\n", cell(&about));
    if !args.is_empty() {
        out.push('\n');
        *out += "| option | meaning | default |\n| --- | --- | --- |\n";
    }
    for arg in args {
        let help = arg.get_long_help().or(arg.get_help());
        let help = help.map(ToString::to_string).unwrap_or_default();
        let words = arg.get_possible_values();
        let flag = !arg.get_action().takes_values();
        let words = if flag || arg.is_hide_possible_values_set() { Vec::new() } else { words };
        let words: Vec<_> = words.iter().map(|word| word.get_name().to_owned()).collect();
        let words = if words.is_empty() {
            String::new()
        } else {
            format!("; one of: {}", words.join(", "))
        };
        let default = arg.get_default_values().iter().map(|value| value.to_string_lossy());
        let default = default.map(|value| format!("`{value}`")).collect::<Vec<_>>().join(" ");
        let default = if flag { String::new() } else { default };
        let (name, help) = (cell(&arg_name(arg)), cell(&help));
        let _ = writeln!(out, "| {name} | {help}{words} | {default} |");
    }
    let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    if !after.is_empty() && path != "springtide" && !after.contains("--help`") {
        let _ = write!(out, "\n{}\n", cell(&after));
    }
    let jobs = |word: &str| path == format!("springtide {word}");
    for (i, deeper) in command.get_subcommands().filter(|deeper| !deeper.is_hide_set()).enumerate()
    {
        if deeper.get_name() == "help" {
            continue;
        }
        let below = format!("{path} {}", deeper.get_name());
        if jobs("run") {
            if i == 0 {
                of_all_jobs(out, command, "springtide run JOB", "--run-NAME");
            }
            described(out, deeper, &below, &OptionSelection::Under(OF_JOB));
        } else if jobs("job submit") || jobs("job plan") {
            // The jobs' own options are those of `run`.
            if i == 0 {
                of_all_jobs(out, command, &format!("{path} JOB"), "--job-NAME");
            }
        } else if path == "springtide"
            && deeper.get_arguments().any(|a| a.get_help_heading() == Some(OF_JOB))
        {
            described(out, deeper, &below, &OptionSelection::Under(OF_JOB));
        } else {
            described(out, deeper, &below, &OptionSelection::All);
        }
    }
}

/// Options that every job has: shown of one that has none of the same names itself.
fn of_all_jobs(out: &mut String, command: &Command, path: &str, clash: &str) {
    let clashes = |job: &&Command| {
        job.get_arguments().filter_map(Arg::get_long).any(|long| {
            clash.strip_suffix("NAME").is_some_and(|start| format!("--{long}").starts_with(start))
        })
    };
    let job = command.get_subcommands().find(|job| !clashes(job)).expect("a job without a clash");
    let about = format!(
        "Options of every job. If a job has an option of the same name, the option here is \
         `{clash}`."
    );
    let job = job.clone().about(about).long_about(None::<&str>);
    described(out, &job, path, &OptionSelection::NotUnder(OF_JOB));
}

fn arg_name(arg: &Arg) -> String {
    let value = || {
        let names = arg.get_value_names().unwrap_or_default();
        names.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
    };
    let mut names = Vec::new();
    names.extend(arg.get_short().map(|short| format!("-{short}")));
    names.extend(arg.get_long().map(|long| format!("--{long}")));
    match (names.is_empty(), arg.get_action().takes_values()) {
        (true, _) => format!("`{}`", value()),
        (false, true) => format!("`{} {}`", names.join(", "), value()),
        (false, false) => format!("`{}`", names.join(", ")),
    }
}

fn exit_codes(command: &Command) -> String {
    let all = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let mut out = format!(
        "# Exit codes\n\n{NOTE}Scripts may rely on the numbers.\n\n\
         | code | meaning |\n| --- | --- |\n"
    );
    for line in all.lines().skip(1) {
        let (code, what) = line.trim().split_once(' ').expect("a code and what it says");
        let _ = writeln!(out, "| {code} | {} |", cell(what.trim()));
    }
    out += "\nSome commands define their own codes:\n\n";
    let mut command = command.clone();
    command.build();
    of_commands(&mut out, &command, "springtide");
    out
}

fn of_commands(out: &mut String, command: &Command, path: &str) {
    for deeper in command.get_subcommands() {
        let path = format!("{path} {}", deeper.get_name());
        let after = deeper.get_after_help().map(ToString::to_string).unwrap_or_default();
        if let Some(codes) = after.strip_prefix("Exit codes:") {
            let _ = writeln!(out, "- `{path}`: {}", cell(codes.trim()));
        }
        of_commands(out, deeper, &path);
    }
}

// ---- events

const CATALOGUE: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../runtime/work/src/event/catalogue.rs");

/// The page of events. Relies on the format of the catalogue: one enum of variants with documented
/// fields, indented by rustfmt.
fn events() -> String {
    let text = super::read(CATALOGUE.as_ref());
    let (_, body) = text.split_once("pub enum Event {\n").expect("the enum of events");
    let (body, _) = body.split_once("\n}\n").expect("its end");
    let mut out = format!(
        "# Events\n\n{NOTE}Each line of a run's `events.jsonl` is a JSON object, and `kind` is its \
         kind. Kinds and fields keep their names and meanings; new ones may be added. *Decisions* \
         are never dropped. If space is short, the oldest *facts* are dropped, and the log has \
         their number.\n"
    );
    let (mut doc, mut fields) = (Vec::new(), String::new());
    let mut kind = None;
    for line in body.lines() {
        let (depth, line) = (line.len() - line.trim_start().len(), line.trim());
        if let Some(text) = line.strip_prefix("///") {
            doc.push(text.trim().to_owned());
        } else if line.starts_with("#[") {
            // How it is written, not what it is.
        } else if depth == 4
            && (line.ends_with(" {") || line.ends_with(','))
            && !line.starts_with('}')
        {
            let name = line.trim_end_matches([' ', '{', ',']);
            let about = std::mem::take(&mut doc).join(" ");
            kind = line.ends_with('{').then_some((name.to_owned(), about));
        } else if depth == 4 && line == "}," {
            let (name, about) = kind.take().expect("a variant began");
            let kind = snake(&name);
            // A kind that serde does not know reads as `Unknown`.
            let known = serde_json::from_value::<Event>(serde_json::json!({ "kind": kind }));
            assert!(
                !matches!(known, Ok(Event::Unknown)),
                "{kind} is no event's kind: mend `events`"
            );
            let decision = weight(&text, &name);
            let _ = write!(
                out,
                "\n## `{kind}`\n\n{} *{}.*\n\n\
                 | field | type | meaning |\n| --- | --- | --- |\n{fields}",
                cell(&about),
                if decision { "Decision" } else { "Fact" },
            );
            fields.clear();
        } else if depth == 8 {
            let (name, of) = line.trim_end_matches(',').split_once(": ").expect("a field");
            let about = std::mem::take(&mut doc).join(" ");
            let _ = writeln!(fields, "| `{name}` | {} | {} |", field_type(of), cell(&about));
        }
    }
    out
}

/// Whether a kind is never dropped, as the catalogue's `weight` says.
fn weight(text: &str, name: &str) -> bool {
    let (_, all) = text.split_once("pub fn weight(&self)").expect("the weights");
    let (decisions, _) =
        all.split_once("=> Retention::Always").expect("those that are not dropped");
    decisions.contains(&format!("Event::{name} "))
}

fn snake(name: &str) -> String {
    let mut out = String::new();
    for c in name.chars() {
        if c.is_ascii_uppercase() && !out.is_empty() {
            out.push('_');
        }
        out.push(c.to_ascii_lowercase());
    }
    out
}

fn field_type(of: &str) -> String {
    let inner = of.strip_prefix("Option<").and_then(|of| of.strip_suffix('>'));
    let words = match inner.unwrap_or(of) {
        "String" => "text",
        "u64" | "u32" => "whole number",
        "bool" => "true or false",
        "JobId" => "number of a job",
        "NodeId" => "name of a node",
        "ClusterId" => "name of a cluster",
        "Epoch" => "whole number",
        "Incarnation" => "incarnation number",
        "TaskPath" => "path of a task",
        "StealScope" => "`local` or `wide`",
        "StolenTaskEnd" => "`done`, `failed`, `handed_back` or `stopped`",
        "serde_json::Value" => "any JSON",
        "Vec<String>" => "list of texts",
        "Vec<NodeId>" => "list of nodes' names",
        "[u32; 2]" => "two whole numbers",
        "Vec<BookingRow>" => {
            "list of objects: `cluster`, `processors`, and `start_us` and `end_us` of the interval"
        }
        "Vec<WorkerSample>" => {
            "list of objects: `n` the node, `t` hundredths of its time by state, `v` its speed"
        }
        "BTreeMap<ClusterId, u32>" => "numbers by cluster",
        "Times" => "nanoseconds by state",
        "Box<Counters>" => "counts",
        "BTreeMap<String, LatencySummary>" => "summaries by name",
        other => panic!("reference.rs has no words for the type {other}: add them to `field_type`"),
    };
    if inner.is_some() { format!("{words}, or none") } else { words.to_owned() }
}

// ---- metrics

/// A metric family of the dashboard.
pub struct Metric {
    /// The name of the family in `/metrics`.
    pub name: String,
    counter: bool,
    help: String,
}

const METRICS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../dashboard/src/metrics.rs");

/// Families as the code declares them: `self.gauge("NAME", "HELP", ..)` or `self.counter(..)`.
pub fn metrics() -> Vec<Metric> {
    let text = super::read(METRICS.as_ref());
    let mut all = Vec::new();
    let mut rest = text.as_str();
    loop {
        let next = ["self.gauge(", "self.counter("]
            .iter()
            .filter_map(|call| Some((rest.find(call)?, call)));
        let Some((at, call)) = next.min() else { return all };
        rest = &rest[at + call.len()..];
        let mut strings = rest.split('"');
        let (name, help) = (strings.nth(1).expect("a name"), strings.nth(1).expect("a help"));
        let counter = call.contains("counter");
        let name = if counter { format!("{name}_total") } else { name.to_owned() };
        all.push(Metric { name, counter, help: help.to_owned() });
    }
}

fn metrics_page() -> String {
    let mut out = format!(
        "# Metrics\n\n{NOTE}`/metrics` of the dashboard has these metrics in the OpenMetrics \
         format. No label names a node or a job, so the number of series is bounded.\n\n\
         | name | kind | meaning |\n| --- | --- | --- |\n"
    );
    for Metric { name, counter, help } in metrics() {
        let kind = if counter { "counter" } else { "gauge" };
        let _ = writeln!(out, "| `{name}` | {kind} | {} |", cell(&help));
    }
    out
}
