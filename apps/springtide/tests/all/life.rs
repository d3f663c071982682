//! The life of a grid in the background: start, state, use, end, and what goes wrong at the start.

use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::support::{CommandOutput, RunningCommand, finish, nodes, program, text, until};

/// A directory with the config of a grid, which ends with this value.
struct GridDir(tempfile::TempDir);

impl GridDir {
    fn new(text: &str) -> Self {
        let temp = tempfile::tempdir().unwrap();
        std::fs::write(temp.path().join("grid.toml"), text).unwrap();
        Self(temp)
    }

    fn state(&self) -> PathBuf {
        self.0.path().join(".springtide/first")
    }

    fn command(&self, dir: &Path, line: &[&str]) -> Command {
        let mut command = program(line);
        command.current_dir(dir).env("XDG_CONFIG_HOME", self.0.path().join("config"));
        command
    }

    /// Runs the program in the directory of the config.
    fn run(&self, line: &[&str]) -> CommandOutput {
        finish(self.command(self.0.path(), line))
    }
}

impl Drop for GridDir {
    fn drop(&mut self) {
        self.run(&["down", "--force"]);
    }
}

fn assert_has(ended: &CommandOutput, code: i32, parts: &[&str]) {
    let CommandOutput { code: found, out, err } = ended;
    assert_eq!(*found, Some(code), "{out}\n{err}");
    for part in parts {
        assert!(out.contains(part) || err.contains(part), "{part} is not in:\n{out}\n{err}");
    }
}

#[test]
fn a_grid_in_the_background_is_found_used_and_ended() {
    let two = "grid = \"first\"\n[[cluster]]\nname = \"ams\"\nnodes = 2\n";
    let grid = GridDir::new(two);
    let deep = grid.0.path().join("a/b");
    std::fs::create_dir_all(&deep).unwrap();
    assert_has(&grid.run(&["status"]), 1, &["state       down: no head runs"]);
    assert_has(&grid.run(&["down"]), 0, &["no grid runs for grid.toml"]);
    let early = grid.run(&["run", "fib", "--n", "20", "--wait", "300ms"]);
    assert_has(&early, 4, &["the grid of grid.toml is not up after 300.0 ms", "start it with"]);

    // A job and a list that wait for the grid.
    let logs = tempfile::tempdir().unwrap();
    let waiting = grid.command(&deep, &["run", "fib", "--n", "21", "--wait", "1m", "--json"]);
    let mut waiting = RunningCommand::start(waiting, logs.path());
    let up = grid.run(&["up", "--detach"]);
    let expected = ["cluster ams: 2 of 2 nodes", "the dashboard is at http", "end the grid with:"];
    assert_has(&up, 0, &expected);
    let listed = grid.run(&["job", "list", "--wait-grid", "1m"]);
    assert_has(&listed, 0, &["no jobs"]);
    assert_eq!(waiting.wait().code(), Some(0), "{}", text(&logs.path().join("stderr.log")));
    let result: Value = serde_json::from_str(&text(&logs.path().join("stdout.log"))).unwrap();
    assert_eq!(
        (&result["result"]["fib"], &result["clusters"][0]["workers"]),
        (&10946.into(), &2.into())
    );

    let parts = ["grid        first", "state       up\n", "cluster ams: 2 of 2 nodes"];
    assert_has(&grid.run(&["status"]), 0, &parts);
    let object = finish(grid.command(&deep, &["status", "--json"])).out;
    let object: Value = serde_json::from_str(&object).unwrap();
    assert_eq!((&object["state"], &object["clusters"]["ams"]["idle"]), (&"up".into(), &2.into()));
    let pid = object["head"]["pid"].as_u64().unwrap();
    assert_has(&grid.run(&["up", "--detach"]), 1, &["up already", &pid.to_string()]);

    // A shell completes the names of nodes and jobs.
    let script = format!(
        "PATH={:?}:$PATH; source <(springtide completions bash); \
        names() {{ COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); \
        _springtide_names \"$1\" \"${{@: -1}}\" \"${{@: -2:1}}\"; \
        echo \"${{COMPREPLY[*]}}\"; }}; \
        names springtide node drain ams-; names springtide job why --config grid.toml j; \
        names springtide dow",
        Path::new(env!("CARGO_BIN_EXE_springtide")).parent().unwrap()
    );
    let mut bash = Command::new("bash");
    bash.args(["-c", &script]).current_dir(grid.0.path());
    let submitted = grid.run(&["job", "submit", "fib", "--n", "20"]);
    assert_has(&submitted, 0, &["job-"]);
    let job = submitted.out.trim();
    if bash.arg("bash").output().is_ok_and(|ended| ended.status.success()) {
        let said = String::from_utf8(bash.output().unwrap().stdout).unwrap();
        assert_eq!(said, format!("ams-1 ams-2\n{job}\ndown\n"));
    } else {
        println!("skipped: no bash here");
    }

    // Found from below, and from elsewhere by the environment.
    let near = finish(grid.command(&deep, &["run", "fib", "--n", "20"]));
    assert_has(&near, 0, &["on the grid of /", "in 1 cluster"]);
    let mut named = grid.command(logs.path(), &["run", "fib", "--n", "20"]);
    named.env("SPRINGTIDE_CONFIG", grid.0.path().join("grid.toml"));
    assert_has(&finish(named), 0, &["on the grid of /"]);
    let own = grid.run(&["run", "fib", "--n", "20", "--clusters", "1x1"]);
    assert!(own.code == Some(0) && !own.err.contains("on the grid"), "{}", own.err);
    let lost = finish(grid.command(logs.path(), &["node", "list"]));
    assert_has(&lost, 2, &["no config of a grid is at grid.toml", "SPRINGTIDE_CONFIG"]);

    assert_eq!(nodes(&grid.state()).len(), 2);
    assert_has(&grid.run(&["down"]), 0, &["the grid of grid.toml has ended"]);
    assert_eq!(nodes(&grid.state()), []);
    assert_has(&grid.run(&["status", "--json"]), 1, &["\"state\":\"down\""]);
}

/// A port of UDP at which nothing listens.
fn free_port() -> u16 {
    UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Grids over IPv6, of a head with two addresses, and of a head that nodes do not reach.
#[test]
fn a_head_is_reached_at_its_addresses_or_the_reason_is_said() {
    let cluster = "[[cluster]]\nname = \"ams\"\n[dashboard]\non = false\n";
    if UdpSocket::bind("[::1]:0").is_ok() {
        let six = "grid = \"first\"\n[head]\nbind = \"[::1]:0\"\n";
        let six = GridDir::new(&format!("{six}{cluster}"));
        assert_has(&six.run(&["up", "--detach"]), 0, &["cluster ams: 1 of 1"]);
        assert_has(&six.run(&["status"]), 0, &["at [::1]:"]);
        assert_has(&six.run(&["run", "fib", "--n", "20"]), 0, &["by 1 worker in 1 cluster"]);
        let four = format!(
            "grid = \"first\"\n[head]\nbind = \"[::1]:0\"\n{cluster}\
            [net]\nbind = \"127.0.0.1:0\"\n"
        );
        let both = ["`net.bind` 127.0.0.1:0 (IPv4)", "`head.bind` [::1]:0 (IPv6)"];
        assert_has(&GridDir::new(&four).run(&["up", "--detach"]), 2, &both);
    } else {
        println!("skipped: this host has no IPv6 on loopback");
    }
    // Its first address is one of documentation, which no host has.
    let port = free_port();
    let two = GridDir::new(&format!(
        "grid = \"first\"\n[head]\nbind = \"127.0.0.1:{port}\"\n\
        advertise = [\"192.0.2.1:{port}\", \"127.0.0.1:{port}\"]\n{cluster}"
    ));
    assert_has(&two.run(&["up", "--detach"]), 0, &["cluster ams: 1 of 1"]);
    assert_has(&two.run(&["run", "fib", "--n", "20"]), 0, &["by 1 worker in 1 cluster"]);
    assert_has(&two.run(&["down"]), 0, &["has ended"]);

    let (port, other) = (free_port(), free_port());
    let lost = GridDir::new(&format!(
        "grid = \"first\"\n[head]\nbind = \"127.0.0.1:{port}\"\n\
        advertise = \"127.0.0.1:{other}\"\n{cluster}"
    ));
    let logs = tempfile::tempdir().unwrap();
    let mut up = RunningCommand::start(lost.command(lost.0.path(), &["up"]), logs.path());
    let expected = format!("nothing listens at 127.0.0.1:{other}");
    until("the reason is said", || text(&logs.path().join("stderr.log")).contains(&expected));
    up.signal("TERM");
    up.wait();
}

#[test]
fn a_grid_that_cannot_start_says_why() {
    let used = UdpSocket::bind("127.0.0.1:0").unwrap();
    let cluster = "[[cluster]]\nname = \"ams\"\n";
    let port = used.local_addr().unwrap().port();
    let taken =
        GridDir::new(&format!("grid = \"first\"\n[head]\nbind = \"127.0.0.1:{port}\"\n{cluster}"));
    assert_has(&taken.run(&["up", "--detach"]), 1, &[&format!("127.0.0.1:{port}"), "in use"]);
    assert_has(&taken.run(&["status"]), 1, &["down"]);
    assert_has(&GridDir::new("gird = 1\n").run(&["up", "--detach"]), 2, &["grid.toml:1:1"]);
    let partly = GridDir::new(&format!(
        "grid = \"first\"\n{cluster}[[cluster]]\nname = \"del\"\nprogram = \"/bin/false\"\n"
    ));
    let broken = "node del-1 does not start";
    let expected = ["the grid is up without a part of its nodes", broken, "cluster ams: 1 of 1"];
    assert_has(&partly.run(&["up", "--detach"]), 3, &expected);
    assert_has(&partly.run(&["status"]), 3, &["up, without a part of its nodes", "del-1"]);
    assert_has(&partly.run(&["down", "--force"]), 0, &["has ended"]);
    until("no node is left", || nodes(&partly.state()).is_empty());

    // A unit of systemd, in the user's directory; not over one of another program.
    let written = partly.run(&["up", "--install-unit"]);
    let unit = partly.0.path().join("config/systemd/user/springtide-first.service");
    assert_has(&written, 0, &["systemctl --user enable --now springtide-first.service"]);
    let start = format!("\" up \"{}\"", partly.0.path().join("grid.toml").display());
    assert!(text(&unit).contains(&start), "{}", text(&unit));
    assert_has(&partly.run(&["up", "--install-unit"]), 0, &[]);
    std::fs::write(&unit, "[Unit]\n").unwrap();
    assert_has(&partly.run(&["up", "--install-unit"]), 1, &["was not written by this command"]);
}
