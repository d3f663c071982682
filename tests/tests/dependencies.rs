//! Dependencies have licences and sources that `deny.toml` allows.
//!
//! A substitute for `cargo deny check licenses bans sources` that needs neither cargo-deny nor a
//! network. It sees the crates of this platform; `Cargo.lock` gives the sources of all.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use serde::Deserialize;
use serde::de::DeserializeOwned;

#[derive(Deserialize)]
struct DenyConfig {
    licenses: Licences,
    bans: Bans,
    sources: Sources,
}

#[derive(Deserialize)]
struct Licences {
    allow: Vec<String>,
}

#[derive(Deserialize)]
struct Bans {
    deny: Vec<Ban>,
}

#[derive(Deserialize)]
struct Ban {
    #[serde(rename = "crate")]
    name: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Sources {
    allow_registry: Vec<String>,
    allow_git: Vec<String>,
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Lock {
    package: Vec<Package>,
}

/// A crate of `cargo metadata` or of `Cargo.lock`, which has no licences.
#[derive(Deserialize)]
struct Package {
    name: String,
    license: Option<String>,
    /// None for a crate of the workspace.
    source: Option<String>,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read<T: DeserializeOwned>(name: &str) -> T {
    let text = fs::read_to_string(root().join(name)).expect("a file at the root");
    toml::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The output of a tool of the toolchain.
fn output(tool: &str, arguments: &[&str]) -> String {
    let program = env::var_os(tool.to_uppercase()).unwrap_or_else(|| tool.into());
    let output = Command::new(program).args(arguments).current_dir(root()).output();
    let output = output.unwrap_or_else(|error| panic!("{tool}: {error}"));
    assert!(output.status.success(), "{tool}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("the output is text")
}

/// Whether an SPDX expression can be met with allowed licences.
///
/// Binds as SPDX does: `WITH` before `AND` before `OR`. A slash is an old form of `OR`.
fn is_allowed(expression: &str, allowed: &[String]) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let mut words = spaced.split_whitespace().peekable();
    let met = any_of(&mut words, allowed);
    met && words.peek().is_none()
}

type Words<'a> = std::iter::Peekable<std::str::SplitWhitespace<'a>>;

fn any_of(words: &mut Words<'_>, allowed: &[String]) -> bool {
    let mut met = all_of(words, allowed);
    while words.next_if_eq(&"OR").is_some() {
        met |= all_of(words, allowed);
    }
    met
}

fn all_of(words: &mut Words<'_>, allowed: &[String]) -> bool {
    let mut met = one_of(words, allowed);
    while words.next_if_eq(&"AND").is_some() {
        met &= one_of(words, allowed);
    }
    met
}

fn one_of(words: &mut Words<'_>, allowed: &[String]) -> bool {
    if words.next_if_eq(&"(").is_some() {
        let met = any_of(words, allowed);
        let closed = words.next_if_eq(&")").is_some();
        return met && closed;
    }
    let Some(licence) = words.next() else { return false };
    let exception = words.next_if_eq(&"WITH").and_then(|_| words.next());
    let name = exception.map_or(licence.to_owned(), |with| format!("{licence} WITH {with}"));
    allowed.contains(&name)
}

fn licence_violations(packages: &[Package], allowed: &[String]) -> Vec<String> {
    let violation = |package: &Package| {
        let licence = package.license.as_deref().unwrap_or("no licence");
        (!is_allowed(licence, allowed)).then(|| format!("{}: {licence}", package.name))
    };
    packages.iter().filter_map(violation).collect()
}

fn source_violations(packages: &[Package], config: &DenyConfig) -> Vec<String> {
    let is_known = |source: &str| {
        let listed = |kind: &str, urls: &[String]| {
            source.strip_prefix(kind).is_some_and(|url| {
                let url = url.split(['?', '#']).next().unwrap_or(url);
                urls.iter().any(|allowed| allowed == url)
            })
        };
        listed("registry+", &config.sources.allow_registry)
            || listed("git+", &config.sources.allow_git)
    };
    let violation = |package: &Package| {
        let name = &package.name;
        if config.bans.deny.iter().any(|ban| ban.name == *name) {
            return Some(format!("{name}: banned"));
        }
        let source = package.source.as_deref().filter(|source| !is_known(source))?;
        Some(format!("{name}: {source}"))
    };
    packages.iter().filter_map(violation).collect()
}

#[test]
fn dependencies_have_allowed_licences() {
    let version = output("rustc", &["-vV"]);
    let host = version.lines().find_map(|line| line.strip_prefix("host: ")).expect("a host");
    let arguments = ["metadata", "--format-version", "1", "--offline", "--filter-platform", host];
    let metadata: Metadata =
        serde_json::from_str(&output("cargo", &arguments)).expect("cargo's JSON");
    assert!(metadata.packages.len() > 100, "{} crates", metadata.packages.len());
    let config: DenyConfig = read("deny.toml");
    let found = licence_violations(&metadata.packages, &config.licenses.allow);
    assert!(found.is_empty(), "deny.toml does not allow:\n{}", found.join("\n"));
}

#[test]
fn dependencies_have_allowed_sources() {
    let lock: Lock = read("Cargo.lock");
    assert!(lock.package.len() > 100, "{} crates", lock.package.len());
    let found = source_violations(&lock.package, &read("deny.toml"));
    assert!(found.is_empty(), "deny.toml does not allow:\n{}", found.join("\n"));
}

/// What crates.io shows of a package, and where its folder is.
#[derive(Deserialize)]
struct PublishedPackage {
    name: String,
    manifest_path: PathBuf,
    /// Empty if the package is not published.
    publish: Option<Vec<String>>,
    description: Option<String>,
    keywords: Vec<String>,
    categories: Vec<String>,
    readme: Option<PathBuf>,
}

#[test]
fn packages_have_what_a_registry_shows() {
    #[derive(Deserialize)]
    struct Workspace {
        packages: Vec<PublishedPackage>,
    }
    let arguments = ["metadata", "--format-version", "1", "--offline", "--no-deps"];
    let workspace: Workspace =
        serde_json::from_str(&output("cargo", &arguments)).expect("cargo's JSON");
    let published = |package: &&PublishedPackage| package.publish.is_none();
    let mut lacking = Vec::new();
    for package in workspace.packages.iter().filter(published) {
        let folder = package.manifest_path.parent().expect("a manifest lies in a folder");
        let has_licence = |file: &&str| {
            let text = |path: PathBuf| fs::read_to_string(path).unwrap_or_default();
            text(folder.join(file)) == text(root().join(file))
        };
        let facts = [
            ("description", package.description.is_some()),
            ("keywords", !package.keywords.is_empty()),
            ("categories", !package.categories.is_empty()),
            ("readme", package.readme.is_some()),
            (
                "links to the files of licences: ln -s ../../LICENSE-MIT ../../LICENSE-APACHE .",
                ["LICENSE-MIT", "LICENSE-APACHE"].iter().all(has_licence),
            ),
        ];
        let name = &package.name;
        lacking
            .extend(facts.iter().filter(|fact| !fact.1).map(|(what, _)| format!("{name}: {what}")));
    }
    assert!(lacking.is_empty(), "packages lack:\n{}", lacking.join("\n"));
}

/// Adds the paths of all sources below a folder, from the root of the repository.
fn collect_sources(folder: &str, found: &mut Vec<String>) {
    for entry in fs::read_dir(root().join(folder)).expect("a folder of the repository") {
        let entry = entry.expect("an entry of the folder");
        let path = format!("{folder}/{}", entry.file_name().to_string_lossy());
        // A link leads to files that another folder holds.
        if entry.file_type().expect("the type of the entry").is_dir() {
            collect_sources(&path, found);
        } else if path.ends_with(".rs") {
            found.push(path);
        }
    }
}

/// What a crate includes must be in its package: a published crate has no files outside it.
#[test]
fn files_that_crates_include_are_in_their_packages() {
    let mut files = Vec::new();
    ["runtime", "actors", "apps"].iter().for_each(|room| collect_sources(room, &mut files));
    let included = |file: &str, text: &str| -> Vec<String> {
        let parts = ["include_str!(\"", "include_bytes!(\""].map(|start| text.split(start).skip(1));
        let paths = parts.into_iter().flatten().filter_map(|rest| rest.split('"').next());
        let folder = Path::new(file).parent().expect("a file lies in a folder");
        paths.map(|path| folder.join(path).to_string_lossy().into_owned()).collect()
    };
    let mut outside = Vec::new();
    let mut count = 0;
    for file in &files {
        let package = Path::new(file)
            .ancestors()
            .skip(1)
            .find(|folder| root().join(folder).join("Cargo.toml").exists());
        let package = package.expect("each source file belongs to a package");
        let text = fs::read_to_string(root().join(file)).unwrap_or_default();
        for path in included(file, &text) {
            count += 1;
            // Without the links of the file system, which a package replaces by what they name.
            let mut place = PathBuf::new();
            for part in Path::new(&path).components() {
                match part {
                    std::path::Component::ParentDir => drop(place.pop()),
                    part => place.push(part),
                }
            }
            if !place.starts_with(package) {
                outside.push(format!("{file}: {path}"));
            }
        }
    }
    assert!(count > 20, "{count} files are included");
    assert!(outside.is_empty(), "outside of their packages:\n{}", outside.join("\n"));
}

#[test]
fn violations_of_licences_and_sources_are_found() {
    let config: DenyConfig = read("deny.toml");
    let package = |name: &str, license: Option<&str>, source: Option<&str>| Package {
        name: name.to_owned(),
        license: license.map(str::to_owned),
        source: source.map(str::to_owned),
    };
    for allowed in ["MIT", "MIT/GPL-3.0", "(MIT OR GPL-3.0) AND Unicode-3.0", "(GPL-3.0) OR ISC"] {
        assert!(is_allowed(allowed, &config.licenses.allow), "{allowed}");
    }
    let wrong = ["GPL-3.0", "MIT AND GPL-3.0", "(MIT", "MIT AND", "Apache-2.0 WITH Other", ""];
    for denied in wrong {
        assert!(!is_allowed(denied, &config.licenses.allow), "{denied}");
    }
    let unlicensed = [package("a", None, None)];
    assert_eq!(licence_violations(&unlicensed, &config.licenses.allow), ["a: no licence"]);
    let crates_io = "registry+https://github.com/rust-lang/crates.io-index";
    let sources = [
        package("a", None, None),
        package("b", None, Some(crates_io)),
        package("c", None, Some("git+https://example.org/c?rev=1#2")),
        package("openssl-sys", None, Some(crates_io)),
    ];
    let found = source_violations(&sources, &config);
    assert_eq!(found, ["c: git+https://example.org/c?rev=1#2", "openssl-sys: banned"]);
}
