//! Tests of loading: exact messages, layers, the template, and that no input panics.

use proptest::prelude::*;

use super::*;

fn grid(text: &str) -> Result<Loaded<GridConfig>, ConfigError> {
    load(&Sources::of_text("grid.toml", text))
}

fn errors(text: &str) -> String {
    grid(text).map(drop).unwrap_err().to_string()
}

#[test]
fn all_errors_are_reported_at_once_with_their_places() {
    let text = r#"
grd = "lab"
[head]
bind = "127.0.0.1"
[net]
gso = "yes"
queue_frames = 3
period = "10s"
connect_timeout = 5
[[cluster]]
name = "Ams"
nodes = 0
[[cluster]]
nodez = 2
[[link]]
betwen = ["ams", "del"]
rtt = "20"
bandwidth = "10MB"
[work]
steal = "randon"
stack = "1GB/s"
[stats]
[sats]
"#;
    let golden = "\
grid.toml:2:1: unknown key `grd` at the top; did you mean `grid`?
grid.toml:4:8: `head.bind` must be an address and a port such as \"127.0.0.1:0\", found \
\"127.0.0.1\"
grid.toml:6:7: `net.gso` must be true or false, found \"yes\"
grid.toml:7:16: `net.queue_frames` must be a whole number from 16 to 1000000, found 3
grid.toml:8:1: unknown key `period` in [net]; there is one in [stats]
grid.toml:9:19: `net.connect_timeout` must be a duration in quotes such as \"150ms\", found 5
grid.toml:11:8: `cluster.name` must be a name of 1 to 32 of a-z, 0-9 and dash, found \"Ams\"
grid.toml:12:9: `cluster.nodes` must be a whole number from 1 to 100000, found 0
grid.toml:13:1: [[cluster]] lacks the key `name`: for example name = \"ams\"
grid.toml:14:1: unknown key `nodez` in [cluster]; did you mean `nodes`?
grid.toml:16:1: unknown key `betwen` in [link]; did you mean `between`?
grid.toml:17:7: `link.rtt` must be a duration such as \"150ms\" (units ns, us, ms, s, m, h), found \
\"20\"
grid.toml:18:13: `link.bandwidth` must be a rate such as \"10MB/s\" or \"100Mbit/s\", found \"10MB\"
grid.toml:20:9: `work.steal` must be \"cluster-aware\" or \"random\", found \"randon\"; did you \
mean `random`?
grid.toml:21:9: `work.stack` must be a size such as \"64MiB\" (units B, kB, MB, GB, KiB, MiB, \
GiB), found \"1GB/s\"
grid.toml:23:2: unknown key `sats` at the top; did you mean `stats`?";
    assert_eq!(errors(text), golden);
}

#[test]
fn inconsistencies_are_reported_at_once() {
    let text = r#"
[head]
bind = "0.0.0.0:47001"
[[cluster]]
name = "ams"
nodes = 3
[[cluster]]
name = "ams"
[net]
bind = "0.0.0.0:0"
ports = "47000-47002"
queue_bytes = "1kB"
connect_timeout = "1ms"
[[link]]
between = ["ams", "anms"]
[[link]]
between = ["anms", "ams"]
[[link]]
between = ["ams", "ams"]
[work]
stack = "8GiB"
[stats]
period = "10ms"
[run]
timeout = "0s"
"#;
    let golden = "\
grid.toml:3:1: `head.bind` 0.0.0.0:47001 is no address that nodes can connect to: set \
`head.advertise` as well
grid.toml:3:1: `head.bind` port 47001 is among `net.ports` 47000-47002: a node could take it first
grid.toml:8:1: there are two clusters named \"ams\"; the other is on line 5
grid.toml:10:1: `net.bind` 0.0.0.0:0 is no address that others can connect to: set `net.advertise` \
as well
grid.toml:11:1: `net.ports` 47000-47002 has 3 ports for 4 nodes on this machine
grid.toml:12:1: `net.queue_bytes` must be at least \"256KiB\", found \"1kB\"
grid.toml:13:1: `net.connect_timeout` must be at least \"100ms\", found \"1ms\"
grid.toml:15:1: there is no cluster named \"anms\"; did you mean `ams`?
grid.toml:17:1: the link between \"anms\" and \"ams\" is given twice; the other is on line 15
grid.toml:17:1: there is no cluster named \"anms\"; did you mean `ams`?
grid.toml:19:1: a link must be between two clusters, found \"ams\" twice
grid.toml:21:1: `work.stack` must be \"256KiB\" to \"4GiB\", found \"8GiB\"
grid.toml:23:1: `stats.period` must be at least \"100ms\", found \"10ms\"
grid.toml:25:1: `run.timeout` must be longer than nothing, found \"0ns\"";
    assert_eq!(errors(text), golden);
}

#[test]
fn files_that_are_none() {
    let missing = load::<GridConfig>(&Sources::of_process(Some(Path::new("no/such.toml"))));
    let message = missing.map(drop).unwrap_err().to_string();
    assert_eq!(
        message,
        "cannot read the config file no/such.toml: No such file or directory (os error 2)"
    );

    assert_eq!(
        errors(""),
        "grid.toml:1:1: the grid has no cluster: add a [[cluster]] with name and nodes"
    );
    let newer = "config_version = 2\nnew_key = 1\n";
    let golden = "grid.toml:1:18: the file has config_version 2, this program reads up to 1: use a \
        newer springtide";
    assert_eq!(errors(newer), golden);
    let golden = "\
grid.toml:1:8: not TOML: string values must be quoted, expected literal string
grid.toml:3:5: not TOML: unclosed table, expected `]`";
    assert_eq!(errors("grid = lab\n\n[net\ngso = true\n"), golden);

    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("grid.toml");
    std::fs::write(&file, b"grid = \"a\"\n# \xc3\xa9\xff\n").unwrap();
    let problems = load::<GridConfig>(&Sources::of_process(Some(&file))).map(drop).unwrap_err();
    let at = ValueOrigin::File { file: file.display().to_string(), line: 2, column: 4 };
    assert_eq!(problems.problems()[0].at, at);
}

#[test]
fn tables_and_values_in_each_others_place() {
    let text = "net = 3\ncluster = 4\nlink = [1]\ngrid = {}\n[[head]]\n[[work.stack]]\n";
    let golden = "\
grid.toml:1:1: `net` must be a table: [net], found a whole number
grid.toml:2:1: `cluster` must be a list of tables: [[cluster]], found a whole number
grid.toml:3:9: an element of `link` must be a table, found a whole number
grid.toml:4:8: `grid` must be a name in quotes, found {}
grid.toml:5:3: `head` must be a table: [head], found a list
grid.toml:6:1: `work.stack` must be a size in quotes such as \"64MiB\", found [{}]";
    assert_eq!(errors(text), golden);
    let golden = "`cluster.env.A` must be text in quotes, found a whole number";
    assert!(errors("[[cluster]]\nname = \"a\"\nenv = { A = 1 }\n").contains(golden));
}

const SMALL: &str =
    "[[cluster]]\nname = \"ams-east\"\nnodes = 2\nenv = { API_TOKEN = \"s3cret\", LANG = \"C\" }\n";

fn layered() -> Sources {
    let mut sources = Sources::of_text("grid.toml", SMALL);
    let env = [
        ("SPRINGTIDE_NET__GSO", "false"),
        ("SPRINGTIDE_CLUSTER__AMS_EAST__NODES", "5"),
        ("SPRINGTIDE_CLUSTER__AMS_EAST__ENV__My__Var", "x"),
        ("SPRINGTIDE_STATS__PERIOD", "2s"),
        ("SPRINGTIDE_SEED", "7"),
        ("HOME", "/"),
    ];
    sources.env = env.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
    sources.with_flag("--period", "stats.period", "3s").with_flag("--steal", "work.steal", "random")
}

#[test]
fn later_layers_win_and_origins_are_shown() {
    let loaded = load::<GridConfig>(&layered()).unwrap();
    assert_eq!(loaded.value.cluster[0].nodes.get(), 5);
    assert_eq!(loaded.value.stats.period.get().as_secs(), 3);
    assert_eq!(loaded.value.work.steal, Steal::Random);
    assert!(!loaded.value.net.gso);
    assert_eq!(loaded.origin("net.gso"), Some(ValueOrigin::Env("SPRINGTIDE_NET__GSO".into())));
    assert_eq!(loaded.origin("net.attempts"), Some(ValueOrigin::Default));
    assert_eq!(loaded.origin("cluster[0].threads"), None);
    let at = |line, column| Some(ValueOrigin::File { file: "grid.toml".into(), line, column });
    assert_eq!(loaded.origin("cluster[0].name"), at(2, 1));
    assert_eq!(loaded.origin("cluster[0]"), at(1, 1));

    let shown = loaded.show(true);
    let golden = "\
config_version = 1                # default
grid = \"local\"                    # default

[head]
bind = \"127.0.0.1:0\"              # default

[[cluster]]
name = \"ams-east\"                 # file grid.toml:2
nodes = 5                         # env SPRINGTIDE_CLUSTER__AMS_EAST__NODES
provider = \"local\"                # default
on_demand = false                 # default
hosts = 1                         # default
site = \"head\"                     # default

[cluster.env]
API_TOKEN = \"<redacted>\"          # file grid.toml:4
LANG = \"C\"                        # file grid.toml:4
My__Var = \"x\"                     # env SPRINGTIDE_CLUSTER__AMS_EAST__ENV__My__Var

[net]
bind = \"127.0.0.1:0\"              # default
gso = false                       # env SPRINGTIDE_NET__GSO
";
    assert!(shown.starts_with(golden), "{shown}");
    assert!(shown.contains("\nperiod = \"3s\"                     # flag --period\n"), "{shown}");
    assert!(!shown.contains("s3cret"));
}

#[test]
fn errors_in_the_environment_and_in_flags() {
    let mut sources = Sources::of_text("grid.toml", SMALL);
    let env = [
        ("SPRINGTIDE_NET__GS0", "false"),
        ("SPRINGTIDE_CLUSTER__AMS_WEST__NODES", "5"),
        ("SPRINGTIDE_WORK__THREADS", "many"),
        ("SPRINGTIDE_NET__GSO__ON", "1"),
    ];
    sources.env = env.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
    let sources = sources
        .with_flag("--steal", "work.steal", "randon")
        .with_flag("--set", "net", "1")
        .with_flag("--clusters", "link", "[{");
    let golden = "\
environment variable SPRINGTIDE_CLUSTER__AMS_WEST__NODES: there is no `cluster` named `ams-west`; \
did you mean `ams-east`?
environment variable SPRINGTIDE_NET__GS0: unknown key `gs0` in [net]; did you mean `gso`?
environment variable SPRINGTIDE_NET__GSO__ON: `net.gso` holds a value, not keys
environment variable SPRINGTIDE_WORK__THREADS: `work.threads` must be a whole number from 1 to \
4096, found \"many\"
--clusters: `link` must be a list in TOML: ";
    let message = load::<GridConfig>(&sources).map(drop).unwrap_err().to_string();
    assert!(message.starts_with(golden), "{message}");
    let golden = "\n\
--set: `net` is a section: name a key in it
--steal: `work.steal` must be \"cluster-aware\" or \"random\", found \"randon\"; did you mean \
`random`?";
    assert!(message.ends_with(golden), "{message}");
}

#[test]
fn a_flag_can_give_the_clusters_of_a_grid_without_a_file() {
    let clusters = "[{ name = \"c1\", nodes = 2 }, { name = \"c2\", nodes = 3 }]";
    let sources = Sources::default().with_flag("--clusters", "cluster", clusters);
    let loaded = load::<GridConfig>(&sources).unwrap();
    let nodes: Vec<_> = loaded.value.cluster.iter().map(|c| c.nodes.get()).collect();
    assert_eq!(nodes, [2, 3]);
    assert_eq!(loaded.origin("cluster[1].nodes"), Some(ValueOrigin::Flag("--clusters".into())));
    let nothing = load::<GridConfig>(&Sources::default()).map(drop).unwrap_err().to_string();
    assert_eq!(nothing, "the grid has no cluster: add a [[cluster]] with name and nodes");
}

#[test]
fn what_is_shown_loads_again_as_the_same() {
    for text in [SMALL, &GridConfig::template(), &uncommented(&GridConfig::template())] {
        let text = text.replace("API_TOKEN", "API_WORD");
        let loaded = grid(&text).unwrap();
        for origins in [false, true] {
            assert_eq!(grid(&loaded.show(origins)).unwrap().value, loaded.value);
        }
    }
}

/// The template with its commented examples enabled.
fn uncommented(template: &str) -> String {
    let example = |line: &str| {
        let rest = line.strip_prefix("# ")?;
        if rest.starts_with('[') && rest.ends_with(']') {
            return Some(rest.to_owned());
        }
        let (key, _) = rest.split_once(" = ")?;
        key.chars().all(|c| c.is_ascii_lowercase() || c == '_').then(|| rest.to_owned())
    };
    let on: String =
        template.lines().map(|line| example(line).unwrap_or(line.to_owned()) + "\n").collect();
    // A site's addresses require its own process, and hosts require nodes on demand.
    let on = on.replace("site = \"head\"", "site = \"own\"");
    // A second head requires fixed addresses of both, and the authority in the grid's directory.
    let on = on.replacen("bind = \"127.0.0.1:0\"", "bind = \"127.0.0.1:46000\"", 1);
    let both = "advertise = [\"head-a.example.org:47000\", \"head-b.example.org:47000\"]";
    let on = on.replace("advertise = \"head.example.org:47000\"", both);
    let on = on.replace("ca = \"/etc/springtide/ca\"\n", "");
    on.replace("on_demand = false", "on_demand = true")
}

#[test]
fn the_templates_load_as_they_are_and_with_every_example() {
    let loaded = grid(&GridConfig::template()).unwrap();
    assert_eq!(loaded.value.cluster.len(), 2);
    assert!(loaded.value.link_between("del", "ams").is_some());
    assert!(loaded.value.link_between("del", "bud").is_none());
    let full = uncommented(&GridConfig::template());
    assert_ne!(full, GridConfig::template());
    let loaded = grid(&full).unwrap();
    assert_eq!(loaded.warnings, []);
    assert!(loaded.value.net.ports.is_some() && loaded.value.run.timeout.is_some());
    let node = |text: &str| load::<NodeConfig>(&Sources::of_text("node.toml", text));
    assert_eq!(node(&NodeConfig::template()).unwrap().value.node.as_str(), "ams-1");
    let full = node(&uncommented(&NodeConfig::template())).unwrap();
    assert!(full.value.incarnation.is_some());
    assert_eq!(node(&full.show(false)).unwrap().value, full.value);
    for template in [GridConfig::template(), NodeConfig::template()] {
        assert!(template.lines().all(|line| line.len() <= 120), "{template}");
    }
}

#[test]
fn a_node_lacks_what_only_its_site_knows() {
    let problems = load::<NodeConfig>(&Sources::of_text("node.toml", "[head]\nadress = \"a:1\"\n"));
    let golden = "\
node.toml:1:1: [identity] lacks the key `ca`: for example ca = \"ca.cert.pem\"
node.toml:1:1: [identity] lacks the key `certificate`: for example certificate = \"ams-1.cert.pem\"
node.toml:1:1: [identity] lacks the key `key`: for example key = \"ams-1.key.pem\"
node.toml:1:1: the config lacks the key `cluster`: for example cluster = \"ams\"
node.toml:1:1: the config lacks the key `node`: for example node = \"ams-1\"
node.toml:2:1: unknown key `adress` in [head]; did you mean `address`?";
    assert_eq!(problems.map(drop).unwrap_err().to_string(), golden);
}

#[test]
fn a_node_config_has_links() {
    let identity = "[identity]\ncertificate = \"node.pem\"\nkey = \"node.key\"\nca = \"ca.pem\"\n";
    let text = |links: &str| {
        format!(
            "node = \"ams-1\"\ncluster = \"ams\"\n{identity}\
             [head]\naddress = \"127.0.0.1:1\"\n{links}"
        )
    };
    let node = |links| load::<NodeConfig>(&Sources::of_text("node.toml", &text(links)));
    let links = "[[link]]\nbetween = [\"del\", \"ams\"]\nrtt = \"20ms\"\n\
        [[link]]\nbetween = [\"del\", \"bud\"]\n";
    let loaded = node(links).unwrap();
    let ends: Vec<_> =
        loaded.value.link.iter().map(|l| l.other_end("ams").map(Name::as_str)).collect();
    assert_eq!(ends, [Some("del"), None]);
    assert!(loaded.show(false).contains("[[link]]\nbetween = [\"del\", \"ams\"]\nrtt = \"20ms\""));
    let links = "[[link]]\nbetween = [\"ams\", \"del\"]\nrtt = \"20s\"\n\
        [[link]]\nbetween = [\"del\", \"ams\"]\n";
    let golden = "\
node.toml:11:1: `link.rtt` must be at most \"10s\", found \"20s\"
node.toml:13:1: the link between \"del\" and \"ams\" is given twice; the other is on line 10";
    assert_eq!(node(links).map(drop).unwrap_err().to_string(), golden);
    let links = "[[link]]\nbetween = [\"ams\", \"del\"]\nbandwidth = \"7bit/s\"\n";
    let golden = "node.toml:11:1: `link.bandwidth` must be at least \"1B/s\", found \"7bit/s\"";
    assert_eq!(node(links).map(drop).unwrap_err().to_string(), golden);
}

#[test]
fn threads_come_from_the_cluster_or_from_work() {
    let text =
        "[work]\nthreads = 3\n[[cluster]]\nname = \"a\"\n[[cluster]]\nname = \"b\"\nthreads = 2\n";
    let config = grid(text).unwrap().value;
    let threads: Vec<_> = config.cluster.iter().map(|cluster| config.threads_of(cluster)).collect();
    assert_eq!(threads, [3, 2]);
}

#[test]
fn a_renamed_key_has_two_spellings() {
    let bounds = |text: &str| {
        let adaptation = grid(text).unwrap().value.adaptation;
        (adaptation.min_processors.get(), adaptation.max_processors.map(|max| max.get()))
    };
    for text in [
        "[adaptation]\nmin_nodes = 3\nmax_nodes = 9\n",
        "[adaptation]\nmin_processors = 3\nmax_processors = 9\n",
    ] {
        let text = format!("{text}[[cluster]]\nname = \"a\"\n");
        assert_eq!(bounds(&text), (3, Some(9)), "{text}");
        let sources = Sources::of_text("grid.toml", &text);
        let sources = sources.with_flag("--set", "adaptation.min_nodes", "5");
        let sources = sources.with_flag("--max", "adaptation.max_processors", "7");
        let config = load::<GridConfig>(&sources).unwrap();
        let adaptation = &config.value.adaptation;
        assert_eq!(
            (adaptation.min_processors.get(), bounds(&config.show(false))),
            (5, (5, Some(7)))
        );
    }
}

#[test]
fn a_second_head_needs_fixed_addresses_and_a_witness() {
    let whole = r#"[head]
bind = "0.0.0.0:47000"
advertise = ["192.0.2.1:47000", "192.0.2.2:47000"]
[standby]
heads = ["192.0.2.1:47010", "192.0.2.2:47010"]
witness = "del"
[net]
bind = "192.0.2.1:0"
[[cluster]]
name = "del"
site = "own"
site_bind = "192.0.2.3:47000"
"#;
    let standby = grid(whole).unwrap().value.standby.unwrap();
    assert_eq!((standby.heads.all().len(), standby.witness.as_str()), (2, "del"));
    for (from, to, reason) in [
        ("[\"192.0.2.1:47010\", ", "[", "`standby.heads` must be two addresses"),
        ("2:47010\"]", "1:47010\"]", "`standby.heads` must be two addresses"),
        ("[\"192.0.2.1:47000\", \"192.0.2.2:47000\"]", "\"192.0.2.1:47000\"", "a list of two"),
        ("0.0.0.0:47000", "192.0.2.1:0", "set `head.bind` with its port"),
        ("witness = \"del\"", "witness = \"dell\"", "no cluster named \"dell\""),
        ("witness = \"del\"\n", "", "lacks the key `witness`"),
        ("site = \"own\"\nsite_bind = \"192.0.2.3:47000\"\n", "", "a process of its own"),
        ("192.0.2.3:47000", "192.0.2.3:0", "at a fixed address"),
        ("[standby]", "[tls]\nca = \"/ca\"\n[standby]", "leave `tls.ca` out"),
    ] {
        let text = whole.replacen(from, to, 1);
        assert_ne!(text, whole, "{from}");
        let error = grid(&text).unwrap_err().to_string();
        assert!(error.contains(reason), "{text}: {error}");
    }
}

#[test]
fn an_ssh_cluster_has_machines_and_options() {
    let text = r#"
[[cluster]]
name = "a"
provider = "ssh"
[[cluster]]
name = "b"
nodes = 6
provider = "ssh"
program = "/opt/springtide"
env = { "A B" = "x", C_1 = "y" }
[cluster.ssh]
hosts = { n1 = "2", "me@[::1]:2222" = "3" }
options = { Port = "2222", remotecommand = "tmux" }
answer_timeout = "10ms"
[[cluster]]
name = "c"
provider = "ssh"
program = "/opt/springtide"
[cluster.ssh]
hosts = { n1 = "some" }
[[cluster]]
name = "d"
provider = "ssh"
program = "/opt/springtide"
[cluster.ssh]
command = "ssh"
"#;
    let golden = "grid.toml:4:1: provider \"ssh\" needs machines: add [cluster.ssh] with `hosts`
grid.toml:10:9: no shell can set a variable named \"A B\": use letters, digits and underscores
grid.toml:12:21: `ssh.hosts` has places for 5 nodes, and the cluster has 6: raise the numbers or \
name more hosts
grid.toml:13:28: `ssh.options` cannot set RemoteCommand, which is always none. The command is that \
of the node.
grid.toml:14:1: `ssh.answer_timeout` must be at least \"1s\", found \"10ms\"
grid.toml:20:11: `ssh.hosts`: \"n1\" must take a whole number of nodes, at least 1, found \"some\"
grid.toml:23:1: `ssh.hosts` names no machine: give each with how many nodes it takes, { \
\"n1.example.org\" = \"8\" }";
    assert_eq!(errors(text), golden);
    let right = text.split("[[cluster]]").nth(2).unwrap();
    let right = right
        .replace("remotecommand", "LogLevel")
        .replace("= 6", "= 5")
        .replace("10ms", "10s")
        .replace("A B", "AB");
    let config = grid(&format!("[[cluster]]{right}")).unwrap().value;
    let hosts = config.cluster[0].ssh.as_ref().unwrap().hosts_for(5).unwrap();
    let names: Vec<_> = hosts.iter().map(|host| (host.name.as_str(), host.places)).collect();
    assert_eq!(names, [("me@[::1]:2222", 3), ("n1", 2)]);
}

#[test]
fn a_slurm_cluster_is_asked_at_times_that_it_can_bear() {
    let text = r#"
[[cluster]]
name = "a"
provider = "slurm"
[[cluster]]
name = "b"
provider = "slurm"
[cluster.slurm]
poll = "0s"
answer_timeout = "0s"
leave_ahead = "0s"
time = "0s"
memory = "0B"
partition = "two words"
qos = ""
[[cluster]]
name = "c"
provider = "slurm"
[cluster.slurm]
time = "1m"
"#;
    let golden = r#"grid.toml:4:1: provider "slurm" needs [cluster.slurm]: add it, empty or not
grid.toml:9:1: `slurm.poll` must be at least "100ms", found "0ns"
grid.toml:10:1: `slurm.answer_timeout` must be at least "1s", found "0ns"
grid.toml:11:1: `slurm.leave_ahead` must be at least "1s", found "0ns"
grid.toml:12:1: `slurm.time` must be longer than nothing, found "0ns"
grid.toml:13:1: `slurm.memory` must be at least "1MiB", found "0B"
grid.toml:14:1: `slurm.partition` must be a name without blanks, found "two words"
grid.toml:15:1: `slurm.qos` must be a name without blanks, found ""
grid.toml:20:1: `slurm.leave_ahead` "1m" leaves nothing of a node's `time` "1m": make it shorter"#;
    assert_eq!(errors(text), golden);
    let right = "[[cluster]]\nname = \"a\"\nprovider = \"slurm\"\n[cluster.slurm]\n";
    assert!(grid(right).unwrap().value.cluster[0].slurm.is_some());
}

#[test]
fn slurm_options_exclude_each_other() {
    let text = r#"
[[cluster]]
name = "a"
provider = "slurm"
[cluster.slurm]
memory = "1GiB"
mem_per_cpu = "512MiB"
gres = "gpu 1"
constraint = "-x"
missing_timeout = "1s"
extra = ["--exclusive", 3]
"#;
    let golden = "grid.toml:7:1: `slurm.memory` and `slurm.mem_per_cpu` exclude each other: \
leave one out
grid.toml:8:1: `slurm.gres` must be a name without blanks, found \"gpu 1\"
grid.toml:9:1: `slurm.constraint` must be a name without blanks, found \"-x\"
grid.toml:10:1: `slurm.missing_timeout` must be at least \"2s\", found \"1s\"
grid.toml:11:9: `cluster.slurm.extra` must be texts in a list such as [\"--size\", \"12\"], \
found [\"--exclusive\", 3]";
    assert_eq!(errors(text), golden);
}

#[test]
fn a_batch_system_needs_a_whole_template() {
    let text = r#"
[[cluster]]
name = "a"
provider = "batch"
[[cluster]]
name = "b"
provider = "batch"
[cluster.batch]
queue = "all.q"
[[cluster]]
name = "c"
provider = "batch"
[cluster.batch]
preset = "gridengin"
[[cluster]]
name = "d"
provider = "batch"
[cluster.batch]
preset = "gridengine"
values = { parallel_enviroment = "smp" }
[cluster.batch.template]
id = '([0-9]+'
name = 'no group'
cancel = ["qdel"]
state_meanings = { x = "runing" }
submit = "qsub"
[[cluster]]
name = "e"
provider = "batch"
[cluster.batch]
preset = "kubernetes"
account = "physics"
[[cluster]]
name = "f"
provider = "batch"
[cluster.batch.template]
submit = ["qsub", "{a b}"]
"#;
    let found = errors(text);
    for part in [
        "grid.toml:4:1: provider \"batch\" needs [cluster.batch]: add it, with a `preset`",
        "grid.toml:7:1: name a `preset` (slurm, gridengine, pbs, lsf, flux, htcondor, ",
        "grid.toml:14:10: `cluster.batch.preset` must be \"slurm\" or \"gridengine\" or ",
        "grid.toml:35:1: `batch.template` lacks `submit`, and no preset has it",
        "grid.toml:20:12: the template has no placeholder `parallel_enviroment`; it has: \
         parallel_environment, project, resources; did you mean `parallel_environment`?",
        "grid.toml:22:6: `cluster.batch.template.id` must be a regular expression, found \
         \"([0-9]+\": unclosed group",
        "grid.toml:23:1: `name` must have a group in parentheses: the value",
        "grid.toml:24:1: `cancel` must have {id} or {ids}",
        "grid.toml:25:20: `x` must be \"pending\", \"running\", ",
        "grid.toml:26:10: `cluster.batch.template.submit` must be a list of words such as",
        "grid.toml:31:1: `input` needs a value for {image}: add `image` to `values`",
        "grid.toml:32:1: the template has no placeholder for `account`: leave it out",
        "grid.toml:37:10: `cluster.batch.template.submit` must have placeholders of a-z",
    ] {
        assert!(found.contains(part), "{part}\n{found}");
    }
    let right = "[[cluster]]\nname = \"a\"\nprovider = \"batch\"\n[cluster.batch]\n\
        preset = \"gridengine\"\n[cluster.batch.template]\nlist = [\"qstat\", \"-u\", \"me\"]\n";
    let config = grid(right).unwrap().value;
    let template = config.cluster[0].batch_system().unwrap().commands_template().unwrap();
    assert_eq!(template.list.unwrap().parts().len(), 3);
    assert_eq!(template.cancel.unwrap().parts().len(), 2);
}

#[test]
fn a_site_of_its_own_has_its_own_addresses_and_ports() {
    let text = r#"
[net]
ports = "47000-47002"
[[cluster]]
name = "here"
nodes = 3
site_bind = "127.0.0.1:47010"
[[cluster]]
name = "there"
nodes = 3
site = "own"
[[cluster]]
name = "elsewhere"
nodes = 3
site = "own"
site_bind = "127.0.0.1:47010"
[[cluster]]
name = "few"
nodes = 2
site = "own"
site_bind = "127.0.0.1:47010"
reserve = 3
cap = 0
"#;
    let golden = "grid.toml:7:1: `cluster.site_bind` is of a site of its own: set `site` to \
        \"own\" as well, or leave it out
grid.toml:11:1: `net.ports` 47000-47002 has 3 ports for 3 nodes and their site on the machine of \
cluster \"there\"
grid.toml:22:1: `cluster.reserve` must be at most its processors, of which there are 2, found 3
grid.toml:23:7: `cluster.cap` must be a whole number from 1 to 100000, found 0";
    assert_eq!(errors(text), golden);
}

/// A typo of a key: a letter dropped, doubled, swapped with the next, or replaced.
fn typo(key: &str, at: usize, how: u8) -> String {
    let mut letters: Vec<char> = key.chars().collect();
    match how {
        0 if letters.len() > 2 => drop(letters.remove(at)),
        1 => letters.insert(at, letters[at]),
        2 if at + 1 < letters.len() => letters.swap(at, at + 1),
        _ => letters[at] = if letters[at] == 'q' { 'x' } else { 'q' },
    }
    letters.into_iter().collect()
}

#[test]
fn every_one_letter_typo_of_the_template_is_understood() {
    let template = uncommented(&GridConfig::template());
    let key =
        |line: &str| Some(line.split_once(" = ")?.0.to_owned()).filter(|_| !line.starts_with('#'));
    let keys: Vec<Option<String>> = template.lines().map(key).collect();
    let longest = keys.iter().flatten().map(String::len).max().unwrap();
    let mut tried = 0;
    // One file has all typos of one kind, for each must be reported. Of neighbouring keys only one
    // has a typo, so that the other remains.
    for (at, how, odd) in
        (0..longest).flat_map(|at| (0..8u8).map(move |how| (at, how % 4, usize::from(how / 4))))
    {
        let wrong = |(line, key): (usize, &Option<String>)| {
            let key = key.as_ref().filter(|key| line % 2 == odd && at < key.len())?;
            Some(typo(key, at, how)).filter(|wrong| wrong != key)
        };
        let wrong: Vec<Option<String>> = keys.iter().enumerate().map(wrong).collect();
        let lines = template.lines().zip(&keys).zip(&wrong);
        let text: String = lines
            .map(|((line, key), wrong)| match (key, wrong) {
                (Some(key), Some(wrong)) => format!("{wrong}{}\n", &line[key.len()..]),
                _ => format!("{line}\n"),
            })
            .collect();
        let Err(error) = grid(&text).map(drop) else {
            assert!(wrong.iter().all(Option::is_none), "{wrong:?}");
            continue;
        };
        for (number, (key, wrong)) in keys.iter().zip(&wrong).enumerate() {
            let (Some(key), Some(wrong)) = (key, wrong) else { continue };
            let here = |problem: &&ConfigProblem| {
                let ValueOrigin::File { line, column, .. } = &problem.at else { return false };
                (*line, *column) == (number + 1, 1)
            };
            let found = error.problems().iter().find(here);
            let found = found.unwrap_or_else(|| panic!("{key} as {wrong}: {error}"));
            assert!(found.reason.starts_with("unknown key"), "{key} as {wrong}: {found}");
            assert_eq!(found.meant.as_ref(), Some(key), "{key} as {wrong}: {error}");
            tried += 1;
        }
    }
    assert!(tried > 500, "{tried}");
}

proptest! {
    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let _ = grid(&text);
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("x.toml");
        std::fs::write(&file, &bytes).unwrap();
        let _ = load::<NodeConfig>(&Sources::of_process(Some(&file)));
    }

    #[test]
    fn no_override_panics(key in "[a-z_.\\[]{0,20}", known in 0usize..4, value in any::<String>()) {
        let known = ["net.gso", "cluster", "cluster.ams-east.env.X", "work.stack"][known];
        for key in [key.as_str(), known] {
            let sources = Sources::of_text("grid.toml", SMALL).with_flag("--set", key, &value);
            let _ = load::<GridConfig>(&sources);
        }
    }

    #[test]
    fn a_place_is_where_an_editor_finds_it(
        text in "[a\u{e9}\n\u{1f600}]{0,30}",
        byte in 0usize..140,
    ) {
        let (line, column) = position(&text, byte);
        let there: Vec<&str> = text.split('\n').collect();
        prop_assert!(line <= there.len() && column <= there[line - 1].chars().count() + 1);
    }
}

// The whole template is read twice for each of these edits.
proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn no_edit_of_a_config_panics(
        at in any::<prop::sample::Index>(),
        gone in 0usize..20,
        new in "[\\[\\]{}=\"'.,#a-z0-9\n -]{0,12}",
    ) {
        let mut text = uncommented(&GridConfig::template());
        let at = at.index(text.len());
        let end = (at + gone).min(text.len());
        text.replace_range(at..end, &new);
        match grid(&text) {
            Ok(loaded) => prop_assert!(grid(&loaded.show(true)).is_ok()),
            Err(error) => prop_assert!(!error.problems().is_empty()),
        }
    }
}

#[test]
fn rates_of_a_scenario_carry_something() {
    let text = r#"name = "slow"
[[cluster]]
name = "a"
start = 1
uplink = "7bit/s"
[[event]]
what = "uplink"
at = "5s"
cluster = "a"
bandwidth = "0B/s"
"#;
    let message = load::<ScenarioConfig>(&Sources::of_text("slow.toml", text)).unwrap_err();
    let golden = "\
slow.toml:5:1: nothing passes at this rate: give at least \"1B/s\", or leave it out where there is \
no limit
slow.toml:10:1: nothing passes at this rate: give at least \"1B/s\", or leave it out where there \
is no limit";
    assert_eq!(message.to_string(), golden);
}

#[test]
fn one_section_stands_for_many_clusters() {
    let read = |text: &str| load::<ScenarioConfig>(&Sources::of_text("many.toml", text));
    let text = r#"name = "many"
[[cluster]]
name = "c"
times = 12
nodes = 3
start = 2
[[cluster]]
name = "one"
[[event]]
what = "load"
at = "5s"
cluster = "c12"
nodes = 3
share = 0.5
"#;
    let config = read(text).unwrap().value;
    let names: Vec<_> = config.cluster.iter().map(|place| place.name.as_str()).collect();
    assert_eq!((names.len(), names[0], names[11], names[12]), (13, "c1", "c12", "one"));
    assert!(config.cluster.iter().all(|place| place.times.get() == 1));
    assert_eq!((config.cluster[11].nodes.get(), config.cluster[11].start.get()), (3, 2));
    let wrong = text.replace("\"one\"", "\"c3\"").replace("\"c12\"", "\"c13\"");
    let message = read(&wrong).unwrap_err().to_string();
    let golden = "\
many.toml:8:1: there are two clusters named \"c3\"; the other is on line 3
many.toml:12:1: there is no cluster named \"c13\"; did you mean `c1`?";
    assert_eq!(message, golden);
    let long = text.replace("\"c\"", &format!("\"{}\"", "c".repeat(31)));
    let message = read(&long).unwrap_err().to_string();
    assert!(message.starts_with("many.toml:3:1: must be a name of"), "{message}");
}

#[test]
fn errors_of_a_workload_have_their_lines() {
    let template = WorkloadConfig::template();
    let read = |text: &str| load::<WorkloadConfig>(&Sources::of_text("many.toml", text));
    assert_eq!(read(&template).unwrap().warnings, []);
    let message = |text: &str, golden: &str| {
        assert_eq!(read(text).unwrap_err().to_string(), golden.trim_end());
    };
    let text = r#"name = "wrong"
colour = "red"
[scheduling]
policy = "egal"
shares_max = 0.5
poll = "0s"
[[cluster]]
name = "a"
processors = 4
users = 5
reserve = 5
[[program]]
name = "p"
serial = 3.0
points = [[2, 1.0]]
max = 4
[[program]]
name = "p"
min = 5
max = 4
parallelism = 0.5
[[program]]
name = "q"
points = [[4, 1.0], [2, 3.0]]
max = 4
[[job]]
program = "pp"
[[job]]
at = "-5s"
program = "p"
count = 0
"#;
    message(
        text,
        "many.toml:2:1: unknown key `colour` at the top
many.toml:4:10: `scheduling.policy` must be \"fpsma\" or \"egs\" or \"efficiency-aware\", found \
\"egal\"
many.toml:5:1: must be at least 1, found 0.5
many.toml:6:1: must be longer than 0s
many.toml:10:1: must lie within 0 and its 4 processors, found 5
many.toml:11:1: cluster \"a\" has 4 processors
many.toml:15:1: how long it takes is said twice: keep `serial` or `points`
many.toml:18:1: there are two programs named \"p\"; the other is on line 13
many.toml:19:1: min 5 is more than max 4
many.toml:21:1: must be at least 1, found 0.5
many.toml:23:1: say how long it takes: `serial` and `parallel`, or `points`, or `alone`, \
`parallelism` and `sigma`
many.toml:24:10: `program.points` must be pairs of processors, rising, and seconds above 0, such \
as [[2, 600.0], [46, 240.0]], found [[4, 1.0], [2, 3.0]]
many.toml:27:1: there is no program named \"pp\"; did you mean `p`?
many.toml:29:6: `job.at` must be a duration such as \"150ms\" (units ns, us, ms, s, m, h), found \
\"-5s\"
many.toml:31:9: `job.count` must be a whole number from 1 to 10000000, found 0
",
    );
    let text = r#"name = "sizes"
trace = { malleable = 2.0, stretch = 0.0, file = "t.swf" }
[[program]]
name = "q"
max = 9
alone = 3.0
[[job]]
program = "q"
min = 5
max = 4
[[job]]
program = "q"
max = 10
[[job]]
program = "q"
start = 7
max = 6
"#;
    message(
        text,
        r#"many.toml:2:11: must lie within 0 and 1, found 2
many.toml:2:28: must be above 0, found 0
many.toml:2:43: the jobs are the trace's: leave [[job]] out, or this
many.toml:9:1: the fewest processors, 5, are more than the most, 4
many.toml:13:1: 10 is more than the 9 that program "q" can use
many.toml:16:1: must lie within 1 and 6, found 7
"#,
    );
}

#[test]
fn the_head_has_an_address_that_nodes_reach_from_theirs() {
    let text = "[head]\nbind = \"[::1]:0\"\n[[cluster]]\nname = \"a\"\n";
    // Without an address of their own, nodes bind to one of the head's kind.
    grid(text).unwrap();
    let four = format!("{text}[net]\nbind = \"127.0.0.1:0\"\n");
    let message = grid(&four).unwrap_err().to_string();
    let reason = "nodes bind to `net.bind` 127.0.0.1:0 (IPv4) and do not reach `head.bind` [::1]:0 \
                  (IPv6) from there: give both addresses of one kind";
    assert!(message.contains(":2:1: ") && message.ends_with(reason), "{message}");
    for net in
        ["[net]\nbind = \"[::1]:0\"\n", "[net]\nbind = \"[::]:0\"\nadvertise = \"[::1]:0\"\n"]
    {
        grid(&format!("{text}{net}")).unwrap();
    }
    let back = "[net]\nbind = \"[::1]:0\"\n[[cluster]]\nname = \"a\"\n";
    assert!(grid(back).unwrap_err().to_string().contains("give both addresses of one kind"));
    // The advertised address counts, and a name may have addresses of both kinds.
    let message = |at: &str| {
        format!("[head]\nbind = \"[::]:47000\"\nadvertise = \"{at}\"\n[[cluster]]\nname = \"a\"\n")
    };
    grid(&message("127.0.0.1:47000")).unwrap();
    grid(&message("localhost:47000")).unwrap();
    let six = message("[::1]:47000");
    grid(&six).unwrap();
    let four = format!("{six}[net]\nbind = \"127.0.0.1:0\"\n");
    assert!(grid(&four).unwrap_err().to_string().contains("`head.advertise`"));
    // One of several addresses is enough.
    let both = "advertise = [\"[::1]:47000\", \"127.0.0.1:47000\"]";
    grid(&four.replace("advertise = \"[::1]:47000\"", both)).unwrap();
    let none = grid(&six.replace("\"[::1]:47000\"", "[]")).unwrap_err().to_string();
    assert!(none.contains("must be 1 to 8 addresses, found 0"), "{none}");
}

#[test]
fn what_would_do_nothing_in_a_scenario_is_refused_with_its_line() {
    let read = |text: &str| {
        let text = format!(
            "name = \"x\"\n[app]\niterations = 5\n{text}\n[[cluster]]\nname = \"a\"\nstart = 1\n\
             [[cluster]]\nname = \"b\"\n"
        );
        load::<ScenarioConfig>(&Sources::of_text("x.toml", &text)).map(drop)
    };
    let event = |keys: &str| read(&format!("[[event]]\nat = \"5s\"\n{keys}"));
    event("what = \"kill\"\ncluster = \"a\"\ninterval = \"30s\"").unwrap();
    event("what = \"kill\"\ncluster = \"a\"\ninterval = \"30s\"\nduration = \"1s\"").unwrap();
    for (message, place) in [
        (
            event("what = \"kill\"\ncluster = \"a\"\nduration = \"1s\""),
            "x.toml:8:1: a \"kill\" ends at once",
        ),
        (
            event("what = \"load\"\nshare = 0.5\ncluster = \"a\"\ninterval = \"1s\""),
            "x.toml:9:1: an event must end before it repeats",
        ),
        (
            event("what = \"link\"\nbetween = [\"a\", \"b\"]"),
            "x.toml:6:1: a \"link\" changes nothing",
        ),
        (
            event("what = \"cut\"\nbetween = [\"a\", \"a\"]"),
            "x.toml:7:1: a link must be between two",
        ),
        (
            event("what = \"kill\"\ncluster = \"a\"\ninterval = \"1ms\""),
            "x.toml:8:1: must be at least \"100ms\"",
        ),
        (read("then_until = 4"), "x.toml:4:1: means nothing without `then_from`"),
        (read("then_from = 6\nthen_leaves = 2"), "x.toml:4:1: the job ends with iteration 5"),
        (read("each = \"1s\""), "x.toml:4:1: nodes prepare themselves for what is sent"),
    ] {
        let message = message.unwrap_err().to_string();
        assert!(message.starts_with(place), "{message}, not {place}");
    }
}

/// Every key with an earlier spelling, with its section.
fn respelled() -> Vec<(&'static ConfigSchema, &'static schema::Field)> {
    fn collect(
        schema: &'static ConfigSchema,
        all: &mut Vec<(&'static ConfigSchema, &'static schema::Field)>,
    ) {
        for field in schema.fields {
            all.extend(field.alias.map(|_| (schema, field)));
            if let schema::KeyKind::Section(inner) | schema::KeyKind::List(inner) = field.kind {
                collect(inner, all);
            }
        }
    }
    let roots = [
        root::<GridConfig>(),
        root::<JobsConfig>(),
        root::<LinksConfig>(),
        root::<NodeConfig>(),
        root::<ProfileConfig>(),
        root::<ScenarioConfig>(),
        root::<SiteConfig>(),
        root::<TopologyConfig>(),
        root::<WorkloadConfig>(),
    ];
    let mut all = Vec::new();
    roots.into_iter().for_each(|root| collect(root, &mut all));
    all
}

/// Reads a file of one section.
fn section(root: &'static ConfigSchema, text: &str) -> (toml::Table, Findings) {
    let (mut tree, mut findings) = (tree::defaults(root), Findings::default());
    let place = |span: Range<usize>| {
        let (line, column) = position(text, span.start);
        ValueOrigin::File { file: "x.toml".into(), line, column }
    };
    let table = DeTable::parse(text).unwrap();
    let mut layer = Layer { place: &place, root, whole: true, findings: &mut findings };
    layer.table(root, table.get_ref(), &mut tree, "");
    (tree::plain(&tree), findings)
}

/// Reads environment variables of one section.
fn variables(root: &'static ConfigSchema, keys: &[(&str, &str)]) -> (toml::Table, Findings) {
    let (mut tree, mut findings) = (tree::defaults(root), Findings::default());
    for (key, value) in keys {
        let place = |_| ValueOrigin::Env(key.to_uppercase());
        let mut layer = Layer { place: &place, root, whole: true, findings: &mut findings };
        layer.set(&mut tree, key, value);
    }
    (tree::plain(&tree), findings)
}

proptest! {
    #[test]
    fn earlier_spellings_give_the_same_values_with_a_warning(
        number in 0.0..1.0,
        count in 1u32..64,
    ) {
        let drawn = [
            format!("{number:?}"),
            format!("{count}"),
            format!("\"{count}s\""),
            format!("\"{count}MiB\""),
        ];
        for (root, field) in respelled() {
            let (key, alias) = (field.key, field.alias.unwrap_or_default());
            let schema::KeyKind::Leaf { check, .. } = field.kind else { panic!("{key}") };
            let value = drawn.iter().find(|value| check(&tree::builtin(value)).is_ok());
            let value = value.unwrap_or_else(|| panic!("no value is drawn for {key}"));
            let [old, new] = [alias, key].map(|key| format!("{key} = {value}\n"));

            let (plain, plain_found) = section(root, &new);
            let (aliased, found) = section(root, &old);
            prop_assert_eq!(&plain, &aliased);
            prop_assert_eq!(&plain[key].to_string(), &tree::builtin(value).to_string());
            prop_assert!(plain_found.warnings.is_empty());
            prop_assert!(found.problems.is_empty() && plain_found.problems.is_empty());
            let lines: Vec<_> = found.warnings.iter().map(ToString::to_string).collect();
            prop_assert_eq!(lines, [format!("x.toml, line 1: key `{alias}` is spelled `{key}`")]);

            let (set, found) = variables(root, &[(alias, value)]);
            prop_assert_eq!(&plain, &set);
            prop_assert_eq!(found.warnings.len(), 1);
            let name = alias.to_uppercase();
            let line = format!("environment variable {name}: key `{alias}` is spelled `{key}`");
            prop_assert_eq!(found.warnings[0].to_string(), line);

            for text in [format!("{old}{new}"), format!("{new}{old}")] {
                let (_, found) = section(root, &text);
                let lines: Vec<_> = found.problems.iter().map(ToString::to_string).collect();
                let line = format!(
                    "x.toml:2:1: `{key}` is given twice, as `{alias}` and as `{key}`; the other is \
                     on line 1: leave `{alias}` out"
                );
                prop_assert_eq!(lines, [line]);
            }
            for keys in [[alias, key], [key, alias]] {
                let (_, found) = variables(root, &keys.map(|key| (key, value.as_str())));
                prop_assert_eq!(found.problems.len(), 1);
            }
        }
    }
}

#[test]
fn an_earlier_spelling_names_one_key() {
    let all = respelled();
    assert!(all.len() > 20, "{}", all.len());
    for (schema, field) in all {
        let alias = field.alias.unwrap_or_default();
        let named = schema.fields.iter().filter(|f| f.key == alias || f.alias == Some(alias));
        assert_eq!(named.count(), 1, "`{alias}` stands for two keys");
    }
}

#[test]
fn earlier_spellings_load_with_warnings_in_order() {
    let text = "[adaptation]\nparole_s = 60.0\nmost_growth = 3.0\n[[cluster]]\nname = \"a\"\n\
        [cluster.slots]\nloose = 0.5\n";
    let sources = Sources::of_text("grid.toml", text);
    let sources = sources.with_flag("--set", "adaptation.most_shrink", "0.25");
    let loaded = load::<GridConfig>(&sources).unwrap();
    let AdaptationSection { quarantine_s, growth_max, shrink_min, .. } = loaded.value.adaptation;
    assert_eq!((quarantine_s, growth_max, shrink_min), (60.0, 3.0, 0.25));
    let lines: Vec<_> = loaded.warnings.iter().map(ToString::to_string).collect();
    let golden = [
        "grid.toml, line 2: key `parole_s` is spelled `quarantine_s`",
        "grid.toml, line 3: key `most_growth` is spelled `growth_max`",
        "grid.toml, line 7: key `loose` is spelled `unused_surcharge`",
        "--set: key `most_shrink` is spelled `shrink_min`",
    ];
    assert_eq!(lines, golden);
    let shown = loaded.show(false);
    assert!(shown.contains("quarantine_s = 60.0") && !shown.contains("parole_s"), "{shown}");

    let twice = "[adaptation]\nparole_s = 60.0\nquarantine_s = 60.0\n[[cluster]]\nname = \"a\"\n";
    assert_eq!(
        errors(twice),
        "grid.toml:3:1: `adaptation.quarantine_s` is given twice, as `parole_s` and as \
         `quarantine_s`; the other is on line 2: leave `parole_s` out"
    );
    // A later layer wins over an earlier one, however it spells the key.
    let mut layers = Sources::of_text("grid.toml", text);
    layers.env = vec![("SPRINGTIDE_ADAPTATION__QUARANTINE_S".into(), "90.0".into())];
    let loaded = load::<GridConfig>(&layers).unwrap();
    assert_eq!(loaded.value.adaptation.quarantine_s, 90.0);
}
