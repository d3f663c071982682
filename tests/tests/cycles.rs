//! The files of a crate import each other in few and small cycles, so that a reader can understand
//! one file after the other.
//!
//! Sources are read as text. A module and its parents are one concept, so imports between them do
//! not count. Neither do re-exports: an import of a re-exported item counts where the item stands.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use crate::tidy::{code, sources};

/// The most files of a cycle.
const FILES_MAX: usize = 4;

/// Crates with a longer cycle, the number of its files, and the reason.
const EXCEPTIONS: &[(&str, usize, &str)] = &[(
    "runtime/forkjoin",
    8,
    "the scheduler calls a layer by the hooks of a trait; their arguments are the scheduler's \
     frames, slots, scopes and threads, each of which is generic over that trait",
)];

/// The path of a module in its crate; empty for the root.
type Module = Vec<String>;

/// By module: the modules that it imports, with the names of the items.
type Imports = BTreeMap<Module, BTreeMap<Module, BTreeSet<String>>>;

/// The `use` declarations of a text, each with whether it is a re-export, and the other code.
fn split_uses(code: &str) -> (Vec<(bool, String)>, String) {
    let (mut uses, mut rest) = (Vec::new(), String::new());
    let mut lines = code.lines();
    while let Some(line) = lines.next() {
        let after_pub = line.trim_start().strip_prefix("pub").map(|after| {
            let visible = after.strip_prefix('(').and_then(|after| after.split_once(')'));
            visible.map_or(after, |(_, after)| after).trim_start()
        });
        let Some(tree) = after_pub.unwrap_or(line.trim_start()).strip_prefix("use ") else {
            rest.push_str(line);
            rest.push('\n');
            continue;
        };
        let mut tree = tree.to_owned();
        while !tree.contains(';') {
            let Some(line) = lines.next() else { break };
            tree.push_str(line.trim());
        }
        tree.truncate(tree.find(';').unwrap_or(tree.len()));
        uses.push((after_pub.is_some(), tree));
    }
    (uses, rest)
}

/// The paths of a `use` declaration.
fn expand(prefix: &str, tree: &str, paths: &mut Vec<Vec<String>>) {
    let tree = tree.trim();
    let Some((before, group)) = tree.split_once('{') else {
        let path = format!("{prefix}{}", tree.split(" as ").next().unwrap_or(tree));
        let names = path.split("::").map(|name| name.trim().to_owned());
        return paths.push(names.filter(|name| !name.is_empty()).collect());
    };
    let prefix = format!("{prefix}{before}");
    let (mut depth, mut from) = (0, 0);
    let group = group.strip_suffix('}').unwrap_or(group);
    for (at, letter) in group.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                expand(&prefix, &group[from..at], paths);
                from = at + 1;
            }
            _ => {}
        }
    }
    if !group[from..].trim().is_empty() {
        expand(&prefix, &group[from..], paths);
    }
}

/// The paths from `crate` or `super` in code that is no `use` declaration.
fn inline_paths(code: &str) -> Vec<Vec<String>> {
    let is_path = |letter: char| letter.is_alphanumeric() || letter == '_' || letter == ':';
    let words = code.split(|letter: char| !is_path(letter));
    let paths = words.filter(|word| word.starts_with("crate::") || word.starts_with("super::"));
    let names = |path: &str| -> Vec<String> {
        path.split("::").filter(|name| !name.is_empty()).map(str::to_owned).collect()
    };
    paths.map(names).collect()
}

/// The path from the root of the crate; `None` for an item of another crate.
fn absolute(
    module: &Module,
    path: &[String],
    modules: &BTreeMap<Module, String>,
) -> Option<Module> {
    match path.first()?.as_str() {
        "crate" => Some(path[1..].to_vec()),
        "self" => Some([module, &path[1..]].concat()),
        "super" => {
            let ups = path.iter().take_while(|name| *name == "super").count();
            let base = &module[..module.len().saturating_sub(ups)];
            Some([base, &path[ups..]].concat())
        }
        child => {
            let inside = [module.as_slice(), &[child.to_owned()]].concat();
            modules.contains_key(&inside).then(|| [module, path].concat())
        }
    }
}

/// The module where an item stands, and its name there.
fn resolve(
    path: &[String],
    modules: &BTreeMap<Module, String>,
    exports: &BTreeMap<Module, BTreeMap<String, Module>>,
    hops: usize,
) -> (Module, String) {
    // The root is a module.
    let depth = (0..=path.len()).rev().find(|&depth| modules.contains_key(&path[..depth]));
    let (module, item) = path.split_at(depth.unwrap_or(0));
    if let Some(name) = item.first()
        && let Some(target) = exports.get(module).and_then(|names| names.get(name))
        && hops > 0
        && target != path
    {
        return resolve(&[target, &item[1..]].concat(), modules, exports, hops - 1);
    }
    (module.to_vec(), item.join("::"))
}

/// The imports between modules with this code.
fn imports(modules: &BTreeMap<Module, String>) -> Imports {
    let (mut exports, mut paths) = (BTreeMap::<_, BTreeMap<_, _>>::new(), Vec::new());
    for (module, code) in modules {
        let (uses, rest) = split_uses(code);
        for (is_export, tree) in uses {
            let mut expanded = Vec::new();
            expand("", &tree, &mut expanded);
            for path in expanded.iter().filter_map(|path| absolute(module, path, modules)) {
                match path.last().cloned() {
                    Some(name) if is_export => {
                        exports.entry(module.clone()).or_default().insert(name, path);
                    }
                    _ => paths.push((module, path)),
                }
            }
        }
        let inline = inline_paths(&rest);
        let inline = inline.iter().filter_map(|path| absolute(module, path, modules));
        paths.extend(inline.map(|path| (module, path)));
    }
    let mut imports: Imports =
        modules.keys().map(|module| (module.clone(), BTreeMap::new())).collect();
    for (module, path) in paths {
        let (target, item) = resolve(&path, modules, &exports, 6);
        if !module.starts_with(&target) && !target.starts_with(module) {
            let of_module = imports.entry(module.clone()).or_default();
            of_module.entry(target).or_default().insert(item);
        }
    }
    imports
}

/// The sets of several modules that reach each other.
fn components(imports: &Imports) -> BTreeSet<BTreeSet<Module>> {
    let reach = |start: &Module| {
        let (mut reached, mut next) = (BTreeSet::new(), vec![start]);
        while let Some(module) = next.pop() {
            let targets = imports.get(module).into_iter().flat_map(BTreeMap::keys);
            next.extend(targets.filter(|target| reached.insert((*target).clone())));
        }
        reached
    };
    let reached: BTreeMap<&Module, BTreeSet<Module>> =
        imports.keys().map(|module| (module, reach(module))).collect();
    let of = |module: &Module| -> BTreeSet<Module> {
        let mutual = |other: &&Module| reached[other].contains(module);
        reached[module].iter().filter(mutual).cloned().collect()
    };
    imports.keys().map(of).filter(|component| component.len() > 1).collect()
}

/// The imports within a component, a line each.
fn describe(component: &BTreeSet<Module>, imports: &Imports) -> String {
    let mut text = String::new();
    for module in component {
        let targets = imports[module].iter().filter(|(target, _)| component.contains(*target));
        for (target, items) in targets {
            let items: Vec<&str> = items.iter().map(String::as_str).collect();
            let (module, target) = (module.join("::"), target.join("::"));
            text += &format!("  {module} -> {target}: {}\n", items.join(", "));
        }
    }
    text
}

/// The module of a file, relative to the sources of its crate. `None` for a program and for tests.
fn module_of(file: &Path) -> Option<Module> {
    let path = file.with_extension("");
    let mut names: Module = path.iter().map(|name| name.to_string_lossy().into_owned()).collect();
    let is_test = |name: &String| {
        ["tests", "stubs"].contains(&name.as_str())
            || name.starts_with("tests_")
            || name.ends_with("_tests")
    };
    if names.iter().any(is_test) || names.last().is_some_and(|name| name == "main") {
        return None;
    }
    names.pop_if(|name| name == "mod" || name == "lib");
    Some(names)
}

/// The directories of the crates of the workspace, relative to its root.
fn crates(root: &Path) -> Vec<String> {
    let text = fs::read_to_string(root.join("Cargo.toml")).expect("the manifest");
    let manifest: toml::Table = text.parse().expect("a manifest in TOML");
    let members = manifest["workspace"]["members"].as_array().expect("a list of crates");
    members.iter().filter_map(|member| member.as_str().map(str::to_owned)).collect()
}

#[test]
fn files_import_each_other_in_small_cycles_only() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let (mut found, mut count) = (String::new(), 0);
    for name in crates(&root) {
        let source = root.join(&name).join("src");
        let mut files: Vec<PathBuf> = Vec::new();
        if source.is_dir() {
            sources(&source, &mut files);
        }
        count += files.len();
        let module = |path: &PathBuf| {
            let module = module_of(path.strip_prefix(&source).expect("under it"))?;
            Some((module, code(&fs::read_to_string(path).expect("a source file"))))
        };
        let mut modules: BTreeMap<Module, String> = files.iter().filter_map(module).collect();
        modules.entry(Module::new()).or_default();
        let imports = imports(&modules);
        let components = components(&imports);
        let most = components.iter().map(BTreeSet::len).max().unwrap_or(0);
        let exception = EXCEPTIONS.iter().find(|(of, _, _)| *of == name);
        if let Some((_, files, _)) = exception.filter(|(_, files, _)| *files > most) {
            found += &format!("{name}: an exception allows {files} files, and {most} suffice\n");
        }
        let max = exception.map_or(FILES_MAX, |(_, files, _)| *files);
        for component in components.iter().filter(|component| component.len() > max) {
            found += &format!("{name}: a cycle of {} files, at most {max}:\n", component.len());
            found += &describe(component, &imports);
        }
    }
    assert!(count > 500, "{count} files");
    assert!(found.is_empty(), "\n{found}Move what both need into a lower file.");
}

#[test]
fn a_cycle_is_found_and_its_imports_are_named() {
    let modules = |texts: &[(&str, &str)]| -> BTreeMap<Module, String> {
        let module = |&(file, text): &(&str, &str)| Some((module_of(Path::new(file))?, code(text)));
        texts.iter().filter_map(module).collect()
    };
    let texts = [
        ("lib.rs", "mod a;\nmod b;\nmod c;\n"),
        ("a/mod.rs", "pub mod inner;\npub use inner::Inner;\nuse crate::b::{\n    self, B,\n};\n"),
        ("a/inner.rs", "use super::super::c::C as Other;\n"),
        ("b.rs", "pub(crate) use crate::c::C;\nfn f(of: &crate::a::Inner) {}\n"),
        ("c.rs", "use crate::{a::inner, b};\n"),
        ("d.rs", "// use crate::a::A;\nuse crate::b::C;\n\n#[cfg(test)]\nmod tests {\n"),
        ("tests_of_a.rs", "use crate::a::Inner;\n"),
    ];
    let imports = imports(&modules(&texts));
    let components = components(&imports);
    let names = |component: &BTreeSet<Module>| -> Vec<String> {
        component.iter().map(|module| module.join("::")).collect()
    };
    let found: Vec<_> = components.iter().map(names).collect();
    assert_eq!(found, [["a::inner", "b", "c"]]);
    let expected = "  a::inner -> c: C\n  b -> a::inner: Inner\n  c -> a::inner: \n  c -> b: \n";
    assert_eq!(describe(components.first().expect("one"), &imports), expected);
    // The item stands in `c`, although `b` exports it.
    let of_d: Vec<String> = imports[&vec!["d".to_owned()]].keys().map(|to| to.join("::")).collect();
    assert_eq!(of_d, ["c"]);
}
