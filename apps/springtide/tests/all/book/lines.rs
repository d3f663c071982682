//! Command lines as people write them, and whether the program accepts them. Nothing is run.

use clap::Command;
use springtide::App;

/// The program's commands in a shell line, as words: after `springtide`, or after `cargo run ...
/// --`.
pub fn of_program(line: &str) -> Vec<Vec<String>> {
    let mut all = Vec::new();
    for words in simple_commands(line) {
        // VARIABLE=VALUE before a command is its environment.
        let assigned = |word: &String| {
            word.split_once('=').is_some_and(|(name, _)| {
                name.chars().all(|c| c.is_ascii_uppercase() || c == '_') && !name.is_empty()
            })
        };
        let mut words: Vec<String> = words.into_iter().skip_while(assigned).collect();
        while let Some("exec" | "sudo" | "eval") = words.first().map(String::as_str) {
            words.remove(0);
        }
        let cargo = words.len() > 1 && words[0] == "cargo" && words[1] == "run";
        let example = words.iter().any(|word| word == "--example");
        if words.first().is_some_and(|word| word == "springtide") {
            all.push(words.split_off(1));
        } else if cargo
            && !example
            && let Some(at) = words.iter().position(|word| word == "--")
        {
            all.push(words.split_off(at + 1));
        }
    }
    all
}

/// The words of each command that a shell would start, without redirections.
fn simple_commands(line: &str) -> Vec<Vec<String>> {
    let (mut all, mut words, mut word) = (Vec::new(), Vec::new(), None::<String>);
    let mut quote = None;
    let mut chars = line.chars().peekable();
    while let Some(c) = chars.next() {
        if let Some(end) = quote {
            if c == end {
                quote = None;
            } else {
                word.get_or_insert_default().push(c);
            }
            continue;
        }
        match c {
            '\'' | '"' => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            '\\' => word.get_or_insert_default().extend(chars.next()),
            '#' if word.is_none() => break,
            c if c.is_whitespace() => words.extend(word.take()),
            '|' | ';' | '&' | '(' | ')' => {
                words.extend(word.take());
                all.push(std::mem::take(&mut words));
            }
            '>' | '<' => {
                // The file of a redirection is not a word of the command.
                if word.as_ref().is_some_and(|word| word.parse::<u8>().is_ok()) {
                    word = None;
                }
                words.extend(word.take());
                while chars.next_if(|c| c.is_whitespace() || *c == '>' || *c == '&').is_some() {}
                while chars.next_if(|c| !c.is_whitespace() && !"|;&()".contains(*c)).is_some() {}
            }
            c => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    all.push(words);
    all.retain(|words| !words.is_empty());
    all
}

/// Checks that the program accepts this line.
pub fn parse(command: &Command, line: &[String]) -> Result<(), String> {
    let words = std::iter::once("springtide").chain(line.iter().map(String::as_str));
    let words = App::complete_line(words.map(Into::into).collect());
    match command.clone().try_get_matches_from(words) {
        Ok(_) => Ok(()),
        // Help and version are valid, too.
        Err(error) if !error.use_stderr() => Ok(()),
        Err(error) => Err(format!("springtide {}\n{error}", line.join(" "))),
    }
}

#[test]
fn lines_are_found_as_a_shell_finds_them() {
    let of = |line| of_program(line).into_iter().map(|words| words.join("|")).collect::<Vec<_>>();
    assert_eq!(of("springtide run fib --json | head -1"), ["run|fib|--json"]);
    assert_eq!(of("cargo run --release -- run fib"), ["run|fib"]);
    assert!(of("cargo run --example heat -- run heat").is_empty());
    assert_eq!(of("A=1 springtide why 'a b' > out 2>&1 && springtide dev &"), ["why|a b", "dev"]);
    assert_eq!(of("ls # springtide nothing"), Vec::<String>::new());
}
