//! `completions`: completions for a shell.

use std::fmt::Write as _;

use clap::{Args, Command};
use clap_complete::Shell;
use springtide_cli::exit::Failed;
use springtide_cli::print::print;

/// The options of the command `completions`.
#[derive(Args, Clone, Debug)]
pub struct CompletionsArgs {
    /// Shell to complete for
    shell: Shell,
}

/// Executes `completions` for the whole `command`.
///
/// # Errors
/// The text cannot be written.
pub fn execute(
    args: &CompletionsArgs,
    name: &'static str,
    mut command: Command,
) -> Result<(), Failed> {
    let mut out = Vec::new();
    clap_complete::generate(args.shell, &mut command, name, &mut out);
    let mut text = String::from_utf8_lossy(&out).into_owned();
    text += &names_script(args.shell, name, &command);
    print(&text)
}

/// Commands whose arguments are names that only the program knows, with the kind of names.
fn named_commands(command: &Command) -> Vec<(String, &'static str)> {
    let kinds = [("node", "NODE", "nodes"), ("job", "JOB", "jobs"), ("wan", "NAME", "networks")];
    let mut found = Vec::new();
    for (group, value, kind) in kinds {
        let is_named = |arg: &clap::Arg| {
            let names = arg.get_value_names().unwrap_or_default();
            arg.is_positional() && names.iter().any(|name| name.as_str() == value)
        };
        let Some(commands) = command.find_subcommand(group) else { continue };
        for one in commands.get_subcommands() {
            // A topology that is shown is not a network that is up.
            let is_other = one.is_hide_set() || one.get_name() == "show";
            if !is_other && one.get_arguments().any(is_named) {
                found.push((format!("{group} {}", one.get_name()), kind));
            }
        }
    }
    found
}

/// The part of a shell's script that asks the program for names.
fn names_script(shell: Shell, name: &str, command: &Command) -> String {
    let commands = named_commands(command);
    match shell {
        Shell::Bash => bash(name, &commands),
        Shell::Zsh => zsh(name, &commands),
        Shell::Fish => fish(name, &commands),
        _ => String::new(),
    }
}

/// The branches that set `what`, for a text `words` of the words before the cursor.
fn branches(commands: &[(String, &'static str)]) -> String {
    let mut text = String::new();
    for (command, kind) in commands {
        let _ = writeln!(text, "        *\" {command} \"*) what={kind} ;;");
    }
    text
}

fn bash(name: &str, commands: &[(String, &'static str)]) -> String {
    let branches = branches(commands);
    format!(
        r#"
_{name}_names() {{
    local cur="${{COMP_WORDS[COMP_CWORD]}}" prev="${{COMP_WORDS[COMP_CWORD-1]}}" what= config= at
    case " ${{COMP_WORDS[*]:1:COMP_CWORD-1}} " in
{branches}    esac
    if [[ -z $what || $cur == -* || $prev == --* ]]; then
        _{name} "$@"
        return
    fi
    for ((at = 1; at < COMP_CWORD; at++)); do
        [[ ${{COMP_WORDS[at]}} == --config ]] && config="${{COMP_WORDS[at+1]}}"
    done
    local names="$({name} names "$what" ${{config:+--config "$config"}} 2> /dev/null)"
    COMPREPLY=($(compgen -W "$names" -- "$cur"))
}}
complete -F _{name}_names -o bashdefault -o default {name}
"#
    )
}

fn zsh(name: &str, commands: &[(String, &'static str)]) -> String {
    let branches = branches(commands);
    format!(
        r#"
_{name}_names() {{
    local what="" config="" at
    case " ${{words[2,CURRENT-1]}} " in
{branches}    esac
    if [[ -z $what || $words[CURRENT] == -* || $words[CURRENT-1] == --* ]]; then
        _{name} "$@"
        return
    fi
    for ((at = 2; at < CURRENT; at++)); do
        [[ $words[at] == --config ]] && config="$words[at+1]"
    done
    local names="$({name} names $what ${{config:+--config}} ${{config:+$config}} 2> /dev/null)"
    compadd -- ${{(f)names}}
}}
compdef _{name}_names {name}
"#
    )
}

fn fish(name: &str, commands: &[(String, &'static str)]) -> String {
    let mut text = String::from("\n");
    for (command, kind) in commands {
        let Some((group, one)) = command.split_once(' ') else { continue };
        let _ = writeln!(
            text,
            "complete -c {name} -f -n \"__fish_seen_subcommand_from {group}; and \
            __fish_seen_subcommand_from {one}\" -a \"({name} names {kind} 2> /dev/null)\""
        );
    }
    text
}
