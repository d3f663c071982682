//! Configuration files: TOML in nine forms. What loads is shown, and loads again.

use springtide_runtime::config::{
    BatchPreset, Config, GridConfig, JobsConfig, LinksConfig, NodeConfig, ProfileConfig,
    ScenarioConfig, SiteConfig, Sources, TopologyConfig, WorkloadConfig, load,
};
use springtide_runtime::fuzz::{Target, run};

const WORDS: &[&str] = &[
    "=",
    "[",
    "]",
    "[[",
    "]]",
    "{",
    "}",
    "\"",
    "'''",
    "\n",
    ".",
    "#",
    "[a]\n",
    "x = ",
    "[[cluster]]\n",
    "name = \"a\"\n",
    "nodes = 2\n",
    "grid = \"g\"\n",
    "true",
    "\"1s\"",
    "\"10MiB\"",
    "\"1MB/s\"",
    "1979-05-27T07:32:00Z",
    "\\u0000",
    "\u{feff}",
    "\"auto\"",
    "listen = ",
    "[net]\n",
    "[work]\n",
    "[[event]]\n",
    "[[job]]\n",
    "config_version = 1\n",
    "provider = \"batch\"\n",
    "[cluster.batch.template]\n",
    "{x}",
    "'(x)'",
];

fn read<T: Config>(bytes: &[u8]) -> Result<(), String> {
    let text = super::text(bytes)?;
    let loaded = load::<T>(&Sources::of_text("x.toml", text)).map_err(|error| error.to_string())?;
    let shown = loaded.show(false);
    let again = load::<T>(&Sources::of_text("again.toml", &shown));
    let again = again.unwrap_or_else(|error| panic!("{error}\n{shown}"));
    assert_eq!(shown, again.show(false));
    let _ = loaded.show(true);
    Ok(())
}

fn fuzz<T: Config>(name: &'static str, seeds: Vec<Vec<u8>>) {
    run(Target { words: WORDS, max_len: 8 << 10, ..super::target(name, read::<T>) }, seeds);
}

/// The blocks of the book's pages that state a file.
fn examples(name: &str) -> Vec<Vec<u8>> {
    let pages = super::files("apps/springtide/book/src", &["md"]);
    let mut found = Vec::new();
    for page in pages {
        let page = String::from_utf8(page).unwrap();
        for block in page.split("```toml").skip(1) {
            let (head, block) = block.split_once('\n').unwrap();
            if head.contains(name) {
                found.push(block.split("```").next().unwrap().as_bytes().to_vec());
            }
        }
    }
    found.push(Vec::new());
    found
}

#[test]
fn grid() {
    let mut seeds = examples("grid");
    seeds.push(GridConfig::template().into_bytes());
    for preset in BatchPreset::ALL {
        // Read once in each process, which no single input pays for.
        preset.template().unwrap();
        let section = "[cluster.batch]\nvalues = { image = \"i\", claim = \"c\" }\n";
        let cluster = "[[cluster]]\nname = \"a\"\nprovider = \"batch\"\n";
        let template = preset.text().replace("[state", "[cluster.batch.template.state");
        let text = format!("{cluster}{section}[cluster.batch.template]\n{template}");
        seeds.push(text.into_bytes());
    }
    fuzz::<GridConfig>("fuzz::configs::grid", seeds);
}

#[test]
fn node() {
    let mut seeds = examples("node");
    seeds.push(NodeConfig::template().into_bytes());
    fuzz::<NodeConfig>("fuzz::configs::node", seeds);
}

#[test]
fn site() {
    let mut seeds = examples("site");
    // The sections of a node's file that a site's has as well, and its own key.
    let text = "cluster = \"a\"\n[head]\nname = \"head\"\naddress = \"127.0.0.1:7000\"\n\
                [identity]\ncertificate = \"a.cert.pem\"\nkey = \"a.key.pem\"\nca = \"ca.pem\"\n";
    seeds.push(text.as_bytes().to_vec());
    fuzz::<SiteConfig>("fuzz::configs::site", seeds);
}

#[test]
fn jobs() {
    let mut seeds = examples("jobs");
    seeds.push(JobsConfig::template().into_bytes());
    seeds.push(b"[[job]]\nname = \"q\"\njob = \"queens\"\nargs = [\"--size\", \"10\"]\n".to_vec());
    fuzz::<JobsConfig>("fuzz::configs::jobs", seeds);
}

#[test]
fn links() {
    let mut seeds = examples("links");
    seeds.push(LinksConfig::template().into_bytes());
    seeds.push(
        b"[inside]\nrtt = \"1ms\"\n[[link]]\nfrom = \"a\"\nto = \"b\"\nrtt = \"20ms\"\n".to_vec(),
    );
    fuzz::<LinksConfig>("fuzz::configs::links", seeds);
}

#[test]
fn scenario() {
    fuzz::<ScenarioConfig>(
        "fuzz::configs::scenario",
        super::files("apps/simulator/scenarios", &["toml"]),
    );
}

#[test]
fn workload() {
    fuzz::<WorkloadConfig>(
        "fuzz::configs::workload",
        super::files("apps/simulator/workloads", &["toml"]),
    );
}

#[test]
fn profile() {
    fuzz::<ProfileConfig>(
        "fuzz::configs::profile",
        super::files("netem-scripts/profiles", &["toml"]),
    );
}

#[test]
fn topology() {
    fuzz::<TopologyConfig>(
        "fuzz::configs::topology",
        super::files("netem-scripts/topologies", &["toml"]),
    );
}
