//! The dashboard: access control, the stream and the metrics, and the page in a real browser.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::{LONG, RunningCommand, program, run};

/// A running grid with its dashboard.
struct TestDashboard {
    up: RunningCommand,
    dir: tempfile::TempDir,
    at: String,
}

impl TestDashboard {
    fn start(clusters: &[(&str, u32)], more: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let config = config(dir.path(), clusters, more);
        let up = RunningCommand::start(program(&["up", config.to_str().unwrap()]), dir.path());
        let log = dir.path().join("stderr.log");
        let said = "the dashboard is at http://";
        let text = wait("the dashboard's address", || {
            let text = std::fs::read_to_string(&log).unwrap();
            text.contains(said).then_some(text)
        });
        let rest = &text[text.find(said).unwrap() + said.len()..];
        let at = rest[..rest.find('/').unwrap()].to_owned();
        Self { up, dir, at }
    }

    fn config(&self) -> PathBuf {
        self.dir.path().join("grid.toml")
    }

    fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)]) -> HttpAnswer {
        ask(&self.at, method, path, headers)
    }

    fn snapshot(&self) -> Value {
        serde_json::from_str(&self.ask("GET", "/api/v1/snapshot", &[]).body).unwrap()
    }

    /// Submits a job that takes some seconds.
    fn submit(&self, line: &[&str]) {
        let config = self.config();
        let mut words = vec!["job", "submit"];
        words.extend(line);
        words.extend(["--config", config.to_str().unwrap()]);
        let ended = run(&words);
        assert_eq!(ended.code, Some(0), "{}", ended.err);
    }

    fn end(mut self) {
        self.up.signal("TERM");
        self.up.wait();
    }
}

fn config(dir: &Path, clusters: &[(&str, u32)], more: &str) -> PathBuf {
    let mut text = "config_version = 1\n[stats]\nperiod = \"1s\"\n".to_owned();
    for (name, nodes) in clusters {
        text += &format!("[[cluster]]\nname = \"{name}\"\nnodes = {nodes}\nthreads = 1\n");
    }
    if !more.contains("bind") {
        text += "[dashboard]\nbind = \"127.0.0.1:0\"\n";
    }
    text += more;
    let file = dir.join("grid.toml");
    std::fs::write(&file, text).unwrap();
    file
}

fn wait<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    while start.elapsed() < LONG {
        if let Some(found) = look() {
            return found;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("{what}: not there after {LONG:?}");
}

struct HttpAnswer {
    status: u16,
    head: String,
    body: String,
}

impl HttpAnswer {
    fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines();
        lines.find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(": ")?.trim()))
    }
}

fn connect(at: &str, method: &str, path: &str, headers: &[(&str, &str)]) -> TcpStream {
    let mut stream = TcpStream::connect(at).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    let mut text = format!("{method} {path} HTTP/1.1\r\n");
    let has = |name: &str| headers.iter().any(|(known, _)| *known == name);
    if !has("Host") {
        text += &format!("Host: {at}\r\n");
    }
    for (name, value) in headers {
        text += &format!("{name}: {value}\r\n");
    }
    text += "Connection: close\r\n\r\n";
    stream.write_all(text.as_bytes()).unwrap();
    stream
}

fn ask(at: &str, method: &str, path: &str, headers: &[(&str, &str)]) -> HttpAnswer {
    let mut text = String::new();
    connect(at, method, path, headers).read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = head.split(' ').nth(1).and_then(|word| word.parse().ok()).unwrap_or(0);
    HttpAnswer { status, head: head.to_owned(), body: body.to_owned() }
}

const ROUTES: [&str; 13] = [
    "/",
    "/app.js",
    "/model.js",
    "/style.css",
    "/api/v1/snapshot",
    "/api/v1/history",
    "/api/v1/events",
    "/api/v1/picture",
    "/api/v1/stream",
    "/metrics",
    "/healthz",
    "/readyz",
    "/no/such/thing",
];
const METHODS: [&str; 8] = ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"];

/// Reliability bar 6 of the specification, the part on the dashboard.
#[test]
fn every_route_and_method_requires_the_token_and_none_writes() {
    let secret = tempfile::tempdir().unwrap();
    let file = secret.path().join("token");
    let token = "a-token-of-more-than-16-characters";
    std::fs::write(&file, token).unwrap();
    let more = format!("[dashboard]\nbind = \"127.0.0.1:0\"\ntoken_file = {file:?}\n");
    // Others can read the file.
    set_mode(&file, 0o644);
    let open = tempfile::tempdir().unwrap();
    let refused = run(&["up", config(open.path(), &[("ams", 1)], &more).to_str().unwrap()]);
    assert_eq!(refused.code, Some(2), "{}", refused.err);
    assert!(refused.err.contains("chmod 600"), "{}", refused.err);
    set_mode(&file, 0o600);

    let dashboard = TestDashboard::start(&[("ams", 1)], &more);
    let bearer = format!("Bearer {token}");
    for route in ROUTES {
        for method in METHODS {
            let none = dashboard.ask(method, route, &[]);
            assert_eq!(none.status, 401, "{method} {route}");
            let wrong =
                dashboard.ask(method, route, &[("Authorization", "Bearer a-token-of-more")]);
            assert_eq!(wrong.status, 401, "{method} {route}");
            assert!(wrong.header("www-authenticate").is_some());
            if !matches!(method, "GET" | "HEAD") {
                let known = dashboard.ask(method, route, &[("Authorization", &bearer)]);
                assert_eq!(known.status, 405, "{method} {route}");
            }
        }
    }
    let page = dashboard.ask("GET", "/", &[("Authorization", &bearer)]);
    assert_eq!(page.status, 200);
    for (name, value) in [
        ("x-content-type-options", "nosniff"),
        ("cache-control", "no-store"),
        ("x-frame-options", "DENY"),
    ] {
        assert_eq!(page.header(name), Some(value));
    }
    assert!(page.header("content-security-policy").unwrap().starts_with("default-src 'none'"));
    // A browser enters by an address with the token, and continues without it.
    let entered = dashboard.ask("GET", &format!("/?token={token}"), &[]);
    assert_eq!((entered.status, entered.header("location")), (303, Some("./")));
    let cookie = entered.header("set-cookie").unwrap();
    assert!(cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict"), "{cookie}");
    assert!(!cookie.contains("Path"), "it is for the path that the browser sees: {cookie}");
    let cookie = cookie.split(';').next().unwrap();
    assert_eq!(dashboard.ask("GET", "/api/v1/snapshot", &[("Cookie", cookie)]).status, 200);
    dashboard.end();
}

#[test]
fn head_works_wherever_get_does() {
    let dashboard = TestDashboard::start(&[("ams", 1)], "");
    wait("readiness", || (dashboard.ask("GET", "/readyz", &[]).status == 200).then_some(()));
    for route in ROUTES.into_iter().filter(|route| *route != "/api/v1/stream") {
        let (get, head) = (dashboard.ask("GET", route, &[]), dashboard.ask("HEAD", route, &[]));
        assert_eq!((head.status, head.body.as_str()), (get.status, ""), "{route}");
        assert_eq!(head.header("content-type"), get.header("content-type"), "{route}");
    }
    // By GET it has no end.
    let head = dashboard.ask("HEAD", "/api/v1/stream", &[]);
    assert_eq!((head.status, head.body.as_str()), (200, ""));
    assert_eq!(head.header("content-type"), Some("text/event-stream"));
    for (name, value) in [("Content-Length", "5"), ("Transfer-Encoding", "chunked")] {
        assert_eq!(dashboard.ask("GET", "/", &[(name, value)]).status, 413, "{name}");
    }
    dashboard.end();
}

/// The state of a connection that a client keeps slow.
struct SlowConnection {
    stream: TcpStream,
    /// The rest of the head, sent byte by byte.
    rest: std::vec::IntoIter<u8>,
}

#[test]
fn slow_clients_without_a_token_exclude_no_other_client() {
    let secret = tempfile::tempdir().unwrap();
    let file = secret.path().join("token");
    let token = "a-token-of-more-than-16-characters";
    std::fs::write(&file, token).unwrap();
    set_mode(&file, 0o600);
    let more = format!("[dashboard]\nbind = \"127.0.0.1:0\"\ntoken_file = {file:?}\n");
    let dashboard = TestDashboard::start(&[("ams", 1)], &more);
    let bearer = format!("Bearer {token}");
    let healthy = |dashboard: &TestDashboard| {
        dashboard.ask("GET", "/healthz", &[("Authorization", &bearer)]).status
    };
    let mut streams: Vec<_> = (0..2)
        .map(|_| connect(&dashboard.at, "GET", "/api/v1/stream", &[("Authorization", &bearer)]))
        .collect();
    for stream in &mut streams {
        assert!(stream.read(&mut [0; 64]).unwrap() > 0, "the stream begins");
    }
    // A third sends a body in chunks, a third its head, and a third nothing.
    let mut slow: Vec<SlowConnection> = (0..300)
        .filter_map(|n| {
            let mut stream = TcpStream::connect(&dashboard.at).ok()?;
            let method = ["POST", "GET"][n % 2];
            let head = format!(
                "{method} /healthz HTTP/1.1\r\nHost: {}\r\nTransfer-Encoding: chunked\r\n\r\n",
                dashboard.at
            );
            let rest = match n % 3 {
                0 => {
                    stream.write_all(head.as_bytes()).ok()?;
                    b"5000\r\n".iter().copied().chain([b'x'; 200]).collect::<Vec<u8>>()
                }
                1 => head.into_bytes(),
                _ => Vec::new(),
            };
            Some(SlowConnection { stream, rest: rest.into_iter() })
        })
        .collect();
    assert!(slow.len() > 200, "{}", slow.len());
    let began = Instant::now();
    let mut asked = 0;
    while began.elapsed() < Duration::from_secs(4) {
        assert_eq!(healthy(&dashboard), 200);
        asked += 1;
        for SlowConnection { stream, rest } in &mut slow {
            // Most have been closed.
            let _ = rest.next().map(|byte| stream.write_all(&[byte]));
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    assert!(asked > 3, "{asked}");
    // Clients with the token keep their streams meanwhile.
    for stream in &mut streams {
        let mut bytes = [0; 4096];
        let len = wait("ticks", || stream.read(&mut bytes).ok());
        assert!(len > 0, "the stream ended");
    }
    // All slow connections are closed soon, although they continue to send.
    wait("the end of the slow ones", || {
        slow.retain_mut(|SlowConnection { stream, .. }| {
            stream.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
            match stream.read(&mut [0; 4096]) {
                Ok(0) => false,
                Ok(_) => true,
                Err(error) => matches!(
                    error.kind(),
                    std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut
                ),
            }
        });
        slow.is_empty().then_some(())
    });
    dashboard.end();
}

/// A reverse proxy that forwards `/grid/` to `to` without the prefix. Returns its address.
fn proxy(to: String) -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let (mut client, to) = (client.unwrap(), to.clone());
            std::thread::spawn(move || {
                let mut head = BufReader::new(client.try_clone().unwrap());
                let mut text = String::new();
                while !text.ends_with("\r\n\r\n") && head.read_line(&mut text).unwrap_or(0) > 0 {}
                let Some((method, path)) = text.split_once(" /grid/") else {
                    return drop(
                        client.write_all(b"HTTP/1.1 404 Not Found\r\nConnection: close\r\n\r\n"),
                    );
                };
                let text = format!("{method} /{path}");
                // One request per connection: this proxy reads only the first.
                let lines = text.lines().map(|line| match line.split_once(':') {
                    Some(("Host", _)) => format!("Host: {to}\r\n"),
                    Some(("Connection", _)) => "Connection: close\r\n".to_owned(),
                    _ => format!("{line}\r\n"),
                });
                let mut server = TcpStream::connect(&to).unwrap();
                server.write_all(lines.collect::<String>().as_bytes()).unwrap();
                let _ = std::io::copy(&mut server, &mut client);
                let _ = client.shutdown(std::net::Shutdown::Both);
            });
        }
    });
    at
}

/// Resolves a relative address of a page.
fn resolve(page: &str, relative: &str) -> String {
    assert!(
        !relative.starts_with('/') && !relative.contains(':'),
        "it is not relative: {relative}"
    );
    let dir = &page[..=page.rfind('/').unwrap()];
    format!("{dir}{}", relative.strip_prefix("./").unwrap_or(relative))
}

#[test]
fn the_page_works_under_a_path_of_a_reverse_proxy() {
    let secret = tempfile::tempdir().unwrap();
    let file = secret.path().join("token");
    let token = "a-token-of-more-than-16-characters";
    std::fs::write(&file, token).unwrap();
    set_mode(&file, 0o600);
    let more = format!("[dashboard]\nbind = \"127.0.0.1:0\"\ntoken_file = {file:?}\n");
    let dashboard = TestDashboard::start(&[("ams", 1)], &more);
    let at = proxy(dashboard.at.clone());
    assert_eq!(ask(&at, "GET", "/", &[]).status, 404);
    // A browser enters by the token and is redirected to the page, with a cookie for that path.
    let entered = ask(&at, "GET", &format!("/grid/?token={token}"), &[]);
    assert_eq!(entered.status, 303);
    let page = resolve("/grid/", entered.header("location").unwrap());
    assert_eq!(page, "/grid/");
    let cookie = entered.header("set-cookie").unwrap();
    assert!(!cookie.contains("Path"), "{cookie}");
    let cookie = [("Cookie", cookie.split(';').next().unwrap())];
    let html = ask(&at, "GET", &page, &cookie);
    assert_eq!(html.status, 200);
    // All resources of page and script exist.
    let script = ask(&at, "GET", "/grid/app.js", &cookie).body;
    let named = |text: &str, before: &str, after: char| -> Vec<String> {
        let parts = text.split(before).skip(1);
        parts.map(|rest| rest.split(after).next().unwrap().to_owned()).collect()
    };
    let mut addresses = named(&html.body, "src=\"", '"');
    addresses.extend(named(&html.body, "rel=\"stylesheet\" href=\"", '"'));
    addresses.extend(named(&script, "fetch(\"", '"'));
    addresses.extend(named(&script, "from \"", '"'));
    addresses.extend(named(&script, "EventSource(`", '?'));
    assert!(addresses.len() >= 5, "{addresses:?}");
    for address in addresses {
        let head = ask(&at, "HEAD", &resolve(&page, &address), &cookie);
        assert_eq!(head.status, 200, "{address}");
    }
    let mut stream = BufReader::new(connect(&at, "GET", "/grid/api/v1/stream?after=0", &cookie));
    let mut line = String::new();
    while !line.starts_with("event: tick") {
        line.clear();
        assert!(stream.read_line(&mut line).unwrap() > 0, "the stream ended");
    }
    dashboard.end();
    let Some(browser) = Browser::start() else { return };
    let dashboard = TestDashboard::start(&[("ams", 1)], "");
    let at = proxy(dashboard.at.clone());
    browser.open(&format!("http://{at}/grid/"));
    wait("the page", || {
        browser.js("return document.body.dataset.ready ?? null").as_str().map(|_| ())
    });
    assert_eq!(browser.complaints(), [""; 0]);
    dashboard.end();
}

fn set_mode(file: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(file, std::fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn a_dashboard_open_to_everybody_does_not_start() {
    let dir = tempfile::tempdir().unwrap();
    let file = config(dir.path(), &[("ams", 1)], "[dashboard]\nbind = \"0.0.0.0:0\"\n");
    let refused = run(&["up", file.to_str().unwrap()]);
    assert_eq!(refused.code, Some(2), "{}", refused.err);
    assert!(refused.err.contains("dashboard.token_file"), "{}", refused.err);
}

#[test]
fn snapshot_stream_and_metrics_contain_a_running_job() {
    let dashboard = TestDashboard::start(&[("ams", 2), ("del", 1)], "");
    // Other pages that lead here.
    for (header, value, status) in [
        ("Host", "evil.example.org", 421),
        ("Origin", "http://evil.example.org", 403),
        ("Origin", "null", 403),
    ] {
        assert_eq!(dashboard.ask("GET", "/api/v1/snapshot", &[(header, value)]).status, status);
    }
    wait("readiness", || (dashboard.ask("GET", "/readyz", &[]).status == 200).then_some(()));
    dashboard.submit(&["queens", "--size", "19", "--min", "1", "--max", "3", "--spread"]);
    let job = wait("a job with workers that work", || {
        let tick = dashboard.snapshot();
        let job = tick["jobs"][0].clone();
        let works = |cluster: &Value| {
            cluster["w"].as_array().unwrap().iter().all(|row| row[0].as_u64() > Some(0))
        };
        tick["clusters"].as_array().unwrap().iter().all(works).then_some(job)
    });
    assert_eq!(
        (&job["name"], &job["state"], &job["processors"]),
        (&json!("queens"), &json!("running"), &json!(3))
    );
    let shares: u64 =
        job["clusters"]["ams"]["t"].as_array().unwrap().iter().filter_map(Value::as_u64).sum();
    assert_eq!(shares, 100);
    // A stream starts with known events, and continues.
    let mut stream = BufReader::new(connect(&dashboard.at, "GET", "/api/v1/stream?after=0", &[]));
    let (mut ticks, mut output, mut line) = (0, Vec::new(), String::new());
    while ticks < 3 {
        line.clear();
        assert!(stream.read_line(&mut line).unwrap() > 0, "the stream ended");
        ticks += u32::from(line.starts_with("event: tick"));
        output.extend(line.strip_prefix("id: ").map(|id| id.trim().parse::<u64>().unwrap()));
    }
    assert!(output.len() > 1 && output.windows(2).all(|pair| pair[0] < pair[1]), "{output:?}");
    let last = output.last().unwrap().to_string();
    let again = connect(&dashboard.at, "GET", "/api/v1/stream", &[("Last-Event-ID", &last)]);
    let mut again = BufReader::new(again);
    loop {
        line.clear();
        again.read_line(&mut line).unwrap();
        assert!(!line.starts_with("id: 1\n"), "known events were sent again");
        if line.starts_with("event: tick") {
            break;
        }
    }
    let metrics = dashboard.ask("GET", "/metrics", &[]);
    let body = &metrics.body;
    let of = |name: &str| -> f64 {
        let line = body
            .lines()
            .find(|line| line.starts_with(name))
            .unwrap_or_else(|| panic!("{name}: {body}"));
        line.rsplit(' ').next().unwrap().parse().unwrap()
    };
    assert!(metrics.header("content-type").unwrap().contains("openmetrics-text"));
    assert_eq!(of("springtide_nodes{cluster=\"ams\",state=\"busy\"}"), 2.0);
    assert!(of("springtide_worker_time_seconds_total{cluster=\"ams\",state=\"work\"}") > 0.0);
    assert!(of("springtide_tasks_total{state=\"executed\"}") > 0.0);
    assert_eq!(of("springtide_dashboard_streams"), 2.0);
    assert!(body.ends_with("# EOF\n") || body.trim_end().ends_with("# EOF"));
    // The metrics that Grafana's file uses exist.
    let file = include_str!("../../packaging/grafana.json");
    let names = file.split("springtide_").skip(1);
    let names: BTreeSet<&str> = names
        .map(|rest| rest.split(|c: char| !c.is_ascii_lowercase() && c != '_').next().unwrap())
        .collect();
    assert!(names.len() > 10);
    for name in names {
        let family = name.strip_suffix("_total").unwrap_or(name);
        assert!(body.contains(&format!("# TYPE springtide_{family} ")), "{name}: {body}");
    }
    // The number of series is independent of nodes and jobs.
    assert!(!body.contains("ams-1") && !body.contains("job="), "{body}");
    dashboard.end();
}

/// A browser under chromedriver.
struct Browser {
    driver: RunningCommand,
    at: String,
    session: String,
    _dir: tempfile::TempDir,
}

impl Browser {
    fn start() -> Option<Self> {
        let there = |name: &str| std::process::Command::new(name).arg("--version").output().is_ok();
        if !there("chromedriver") || !there("chromium") {
            println!(
                "skipped: there is no chromium with chromedriver here, and the page is not looked \
                at"
            );
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let mut command = std::process::Command::new("chromedriver");
        command.args(["--port=0"]);
        let driver = RunningCommand::start(command, dir.path());
        let log = dir.path().join("stdout.log");
        let port = wait("chromedriver's port", || {
            let text = std::fs::read_to_string(&log).unwrap();
            let rest = text.split("started successfully on port ").nth(1)?;
            Some(rest.split('.').next()?.trim().to_owned())
        });
        let at = format!("127.0.0.1:{port}");
        let args =
            json!(["--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1280,900"]);
        let wanted = json!({ "capabilities": { "alwaysMatch": {
            "goog:chromeOptions": { "args": args }, "goog:loggingPrefs": { "browser": "ALL" },
        } } });
        let answer = drive(&at, "POST", "/session", &wanted);
        let session = answer["sessionId"].as_str().unwrap().to_owned();
        Some(Self { driver, at, session, _dir: dir })
    }

    fn call(&self, method: &str, path: &str, body: &Value) -> Value {
        drive(&self.at, method, &format!("/session/{}{path}", self.session), body)
    }

    fn open(&self, url: &str) {
        self.call("POST", "/url", &json!({ "url": url }));
    }

    fn js(&self, script: &str) -> Value {
        self.call("POST", "/execute/sync", &json!({ "script": script, "args": [] }))
    }

    /// The value of the body of an async function.
    fn later(&self, body: &str) -> Value {
        let script = format!(
            "const done = arguments[arguments.length - 1]; (async () => {{ {body} }})().then(done, \
            (error) => done(String(error)))"
        );
        self.call("POST", "/execute/async", &json!({ "script": script, "args": [] }))
    }

    /// The errors that the page has logged.
    fn complaints(&self) -> Vec<String> {
        let log = self.call("POST", "/se/log", &json!({ "type": "browser" }));
        let severe = |entry: &Value| entry["level"] == "SEVERE" || entry["level"] == "WARNING";
        log.as_array().unwrap().iter().filter(|entry| severe(entry)).map(Value::to_string).collect()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.call("DELETE", "", &json!({}));
        }
        self.driver.signal("TERM");
    }
}

fn drive(at: &str, method: &str, path: &str, body: &Value) -> Value {
    let body = if method == "GET" { String::new() } else { body.to_string() };
    let mut stream = TcpStream::connect(at).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: {at}\r\nContent-Type: application/json\r\n\
        Content-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(body.as_bytes()).unwrap();
    // It keeps the connection open in spite of the header.
    let (mut stream, mut length) = (BufReader::new(stream), 0);
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).unwrap();
        let line = line.trim().to_ascii_lowercase();
        if let Some(bytes) = line.strip_prefix("content-length:") {
            length = bytes.trim().parse().unwrap();
        }
        if line.is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).unwrap();
    let answer: Value = serde_json::from_slice(&body).unwrap();
    assert!(answer["value"]["error"].is_null(), "{method} {path}: {answer}");
    answer["value"].clone()
}

#[test]
fn the_page_shows_the_grid_and_reports_a_lost_connection() {
    let Some(browser) = Browser::start() else { return };
    let mut dashboard = TestDashboard::start(&[("ams", 2), ("del", 1), ("lyon", 1)], "");
    // Reserved before a job that may use it without an end.
    let config = dashboard.config();
    let line = [
        "reserve",
        "--on",
        "lyon",
        "--processors",
        "1",
        "--in",
        "1h",
        "--for",
        "30m",
        "--name",
        "a lecture",
    ];
    let reserved = run(&[&line[..], &["--config", config.to_str().unwrap()]].concat());
    assert_eq!(reserved.code, Some(0), "{}", reserved.err);
    dashboard.submit(&["queens", "--size", "19", "--min", "1", "--max", "3", "--spread"]);
    browser.open(&format!("http://{}/", dashboard.at));
    let text = |script: &str| browser.js(script).as_str().unwrap_or_default().to_owned();
    wait("the page", || {
        browser.js("return document.body.dataset.ready ?? null").as_str().map(|_| ())
    });
    assert_eq!(browser.js("return document.querySelectorAll('.tile').length"), 4);
    wait("workers that work", || {
        let label = text("return document.querySelector('.tile').getAttribute('aria-label')");
        (label.starts_with("ams-1 · busy · job 1 · work")).then_some(())
    });
    assert_eq!(text("return document.getElementById('live').textContent"), "live");
    assert!(text("return document.getElementById('job-table').textContent").contains("1 queens"));
    // The job grows into the free processors.
    wait("all nodes at work", || {
        let counts = text("return document.getElementById('counts').textContent");
        counts.contains("4/4 workers, 3 busy").then_some(())
    });
    let booking = wait("the reservation", || {
        let found = text(
            "return document.querySelector('#gantt [data-reservation] title')?.textContent ?? ''",
        );
        (!found.is_empty()).then_some(found)
    });
    assert!(booking.contains("(a lecture)") && booking.contains("1 of lyon in"), "{booking}");
    // The page's functions by themselves.
    let computed = browser.later(
        "const m = await import('/model.js'); \
        return { boxes: m.stack([[2, 0, 10], [1, 5, 8], [1, 10, 12], [1, 6, 7]]).map((box) => \
        box.from), \
        names: m.names('a', '1-3,7'), few: m.thin([...Array(100).keys()], 10).length, round: \
        [m.round(60, 8), m.round(4000, 3), m.round(1e6, 3)], \
        times: [0, 59.6, 75, 3700, null].map(m.time), counts: [9999, 12345, 4e7].map(m.count), \
        micros: [5, 5000, 5e6].map(m.micros), line: m.path([[0, 1], [1, null], [2, 3]], (x) => x, \
        (y) => y), \
        left: [m.eta([5, 10], 20), m.eta([0, 10], 20), m.eta([5, null], 20)] }",
    );
    let expected = json!({
        "boxes": [0, 2, 0, 3], "names": ["a-1", "a-2", "a-3", "a-7"], "few": 10,
        "round": [[0, 10, 20, 30, 40, 50, 60], [0, 1800, 3600], [0, 345_600, 691_200]],
        "times": ["0 s", "1:00 min", "1:15 min", "1:01 h", "–"],
        "counts": ["9999", "12.3 k", "40.0 M"], "micros": ["5 µs", "5.00 ms", "5.00 s"],
        "line": "M0.0 1.0M2.0 3.0", "left": [20, null, null],
    });
    assert_eq!(computed, expected);
    // A worker by keyboard alone.
    browser.js("document.querySelector('.tile').focus(); document.activeElement.click()");
    assert!(
        text("return document.getElementById('drawer').textContent").contains("node drain ams-1")
    );
    browser.js("document.getElementById('drawer').close()");
    // Names and reasons of other processes are text.
    let hostile = r#"<img src=x onerror="document.body.dataset.pwned=1">"#;
    let job = json!({
        "id": 9, "name": hostile, "state": hostile, "nodes": 1, "waits": hostile,
    });
    let cluster = json!({
        "name": hostile, "names": [hostile], "w": [[1, 1, 1, 1, 1, 1]], "failing": hostile,
    });
    let tick = json!({
        "v": 1, "seq": 1, "at": 1, "grid": hostile, "jobs": [job], "more_jobs": 0, "event": 0,
        "dropped": 0, "clusters": [cluster],
        "slots": {
            "sites": [{ "n": hostile, "p": 1, "free": 1 }], "bookings": [[0, 1, 0, 9, 0]],
            "more": 0, "reservations": [[1, hostile, hostile, 1]],
        },
    });
    let output = json!({
        "id": 1_000_000, "at": 1, "kind": "adapt", "text": hostile, "why": [hostile, hostile],
    });
    browser.js(&format!("window.springtide.tell({output}); window.springtide.take({tick})"));
    assert_eq!(browser.js("return document.querySelectorAll('main img').length"), 0);
    assert_eq!(browser.js("return document.body.dataset.pwned ?? null"), Value::Null);
    assert!(text("return document.getElementById('decision-log').textContent").contains(hostile));
    // On a narrow screen nothing is wider than the screen.
    browser.call(
        "POST",
        "/goog/cdp/execute",
        &json!({ "cmd": "Emulation.setDeviceMetricsOverride",
        "params": { "width": 360, "height": 800, "deviceScaleFactor": 1, "mobile": false } }),
    );
    let wide = browser.js("return document.documentElement.scrollWidth").as_u64();
    assert!(wide <= Some(360), "{wide:?}");
    assert_eq!(browser.complaints(), [""; 0]);
    // The head is killed.
    dashboard.up.signal("KILL");
    wait("staleness", || {
        (text("return document.getElementById('live').dataset.state") == "stale").then_some(())
    });
    assert_eq!(text("return document.body.dataset.stale"), "true");
    assert!(
        browser.js("return document.querySelectorAll('.tile').length").as_u64() > Some(0),
        "what is known stays"
    );
    dashboard.up.wait();
}

#[test]
fn a_run_that_is_over_is_one_page_that_needs_no_server() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("run");
    let run_dir = out.to_str().unwrap();
    let line = [
        "run",
        "barnes-hut",
        "--bodies",
        "2000",
        "--steps",
        "60",
        "--clusters",
        "2x2@1",
        "--mode",
        "monitor",
    ];
    let ended = run(&[&line[..], &["--period", "200ms", "--out", run_dir]].concat());
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    let output = run(&["report", run_dir]);
    assert_eq!(output.code, Some(0), "{}", output.err);
    let file = out.join("report.html");
    assert_eq!(output.out.trim(), file.to_str().unwrap());
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(text.len() < 2 << 20, "{} bytes", text.len());
    let data = text.split("id=\"run\">").nth(1).unwrap().split("</script>").next().unwrap();
    let data: Value = serde_json::from_str(data).unwrap();
    let ticks = data["ticks"].as_array().unwrap();
    let last = &ticks[ticks.len() - 1];
    let nodes: usize =
        last["clusters"].as_array().unwrap().iter().map(|c| c["w"].as_array().unwrap().len()).sum();
    assert_eq!(nodes, 4);
    let job = &last["jobs"][0];
    assert_eq!((&job["name"], &job["iter"][0]), (&json!("barnes-hut"), &json!(60)));
    let steals = job["steals"].as_array().unwrap();
    assert!(steals.iter().any(|steal| steal[2].as_u64() > Some(0)), "{job}");
    // Its figures exist without a script, and it can be compared with another run.
    assert!(text.contains("<h2>Iterations</h2>") && text.contains("<h2>Thread time by state</h2>"));
    let compared = dir.path().join("compared.html");
    let both = ["report", "--compare", run_dir, run_dir, "--out", compared.to_str().unwrap()];
    let output = run(&both);
    assert_eq!(output.code, Some(0), "{}", output.err);
    let text = std::fs::read_to_string(&compared).unwrap();
    assert!(
        text.contains("Their results are equal.")
            && text.contains("run (2)")
            && !text.contains("<script")
    );
    let alone = run(&["report", "--compare", run_dir]);
    assert_eq!(alone.code, Some(2), "{}", alone.err);
    // Its stolen tasks form a timeline, and each has an end.
    let output = run(&["trace", run_dir]);
    assert_eq!(output.code, Some(0), "{}", output.err);
    let timeline: Value =
        serde_json::from_str(&std::fs::read_to_string(output.out.trim()).unwrap()).unwrap();
    let events = timeline["traceEvents"].as_array().unwrap();
    let tasks: Vec<_> = events.iter().filter(|event| event["cat"] == "task").collect();
    let ended = tasks.iter().filter(|task| !task["args"]["outcome"].is_null()).count();
    assert!(
        !tasks.is_empty() && ended * 10 >= tasks.len() * 9,
        "{ended} of {} tasks ended",
        tasks.len()
    );
    assert!(events.iter().any(|event| event["name"] == "iteration 60"));
    let nothing = run(&["report", dir.path().to_str().unwrap()]);
    assert_eq!(nothing.code, Some(2), "{}", nothing.err);

    let Some(browser) = Browser::start() else { return };
    browser.open(&format!("file://{}", file.display()));
    wait("the page", || {
        browser.js("return document.body.dataset.ready ?? null").as_str().map(|_| ())
    });
    assert_eq!(browser.js("return document.querySelectorAll('.tile').length"), 4);
    let at = "const at = document.getElementById('at'); at.value = 0; at.dispatchEvent(new \
    Event('input')); \
    return document.body.dataset.ready";
    assert_eq!(browser.js(at), "1");
    assert_eq!(browser.js("return document.getElementById('live').textContent"), "replay");
    assert_eq!(browser.complaints(), [""; 0]);
}

#[test]
fn top_shows_the_same_in_a_terminal() {
    let mut dashboard = TestDashboard::start(&[("ams", 2)], "");
    dashboard.submit(&["queens", "--size", "19", "--min", "2", "--max", "2"]);
    let config = dashboard.config();
    let line = ["top", "--once", "--config", config.to_str().unwrap()];
    let text = wait("workers that work", || {
        let ended = run(&line);
        assert_eq!(ended.code, Some(0), "{}", ended.err);
        ended.out.contains("% work, 2 nodes").then_some(ended.out)
    });
    assert!(text.starts_with("local · 1 cluster · 2/2 workers, 2 busy · up "), "{text}");
    assert!(text.contains("job 1 queens") && !text.contains('\u{1b}'), "{text}");
    dashboard.up.signal("TERM");
    dashboard.up.wait();
    let nothing = run(&line);
    assert_eq!(nothing.code, Some(1), "{}", nothing.err);
    assert!(nothing.err.contains("no grid is up there"), "{}", nothing.err);
}
