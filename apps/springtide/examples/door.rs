//! A program that exercises the door of embedded grids; the tests run it.
//!
//! `door check` prints a line for each thing that it checks. `door sleep` and `door panic` end in
//! other ways, and `door connect FILE` uses a grid that is up. `door bring FILE [TOKEN]` removes
//! its own file first, so that no host has it, and prints what the job waits for.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use springtide::prelude::*;
use springtide::{Error, JobEvent};

#[task(name = "door.square")]
fn square(n: u64) -> u64 {
    n * n
}

/// A task with an output of many bytes.
#[task(name = "door.fill")]
fn fill(bytes: usize) -> String {
    "x".repeat(bytes)
}

#[task(name = "door.fail")]
fn fail(panics: bool) -> Result<(), Stop> {
    assert!(!panics, "no reason");
    Err(Stop::fail("on purpose"))
}

/// A task that lasts until it is halted.
#[derive(Serialize, Deserialize)]
struct Sleep;

impl Task for Sleep {
    type Output = ();
    const NAME: &'static str = "door.sleep";

    fn run(self, cx: &Context) -> Result<(), Stop> {
        println!("a task sleeps");
        loop {
            cx.spend_modelled_time(Duration::from_millis(5))?;
        }
    }
}

/// A task that is not registered, and one that creates it.
#[derive(Serialize, Deserialize)]
struct Unknown;

impl Task for Unknown {
    type Output = ();
    const NAME: &'static str = "door.unknown";

    fn run(self, _: &Context) -> Result<(), Stop> {
        Ok(())
    }
}

#[derive(Serialize, Deserialize)]
struct Forgets;

impl Task for Forgets {
    type Output = ();
    const NAME: &'static str = "door.forgets";

    fn run(self, cx: &Context) -> Result<(), Stop> {
        cx.join(Unknown, Unknown).map(drop)
    }
}

/// A job that reports what it does.
#[derive(Serialize, Deserialize)]
struct Report;

impl Job for Report {
    const NAME: &'static str = "door.report";
    const ABOUT: &'static str = "Reports";

    fn register(_: &mut Registry) {}

    fn run(self, cx: &Context) -> Result<Outcome, Stop> {
        cx.progress(1, 2, "halves");
        cx.report_text("half");
        Ok(Outcome { checksum: 7, result: 7.into() })
    }
}

/// Waits until a job has started, or has ended.
async fn start_of<T>(job: &mut JobHandle<T>) {
    let mut events = job.events();
    while let Some(event) = events.next().await {
        if matches!(event, JobEvent::Started { .. }) {
            return;
        }
    }
}

async fn check() -> Result<(), Error> {
    let grid = Grid::start("2x1").await?;
    let squares: Vec<_> = (0..6).map(|n| grid.submit(square(n)).max(1)).collect();
    let mut handles = Vec::new();
    for square in squares {
        handles.push(square.await?);
    }
    let mut shown = Vec::new();
    for handle in handles {
        shown.push(handle.await?.to_string());
    }
    println!("many at once: {}", shown.join(", "));
    println!("a longer output: {} bytes", grid.run(fill(3_000_000)).await?.len());
    let sized = grid.submit(square(7)).min(1).max(1).clusters(["del"]).await?;
    println!("sized: {}", sized.await?);

    let mut job = grid.submit(Report).await?;
    let mut events = job.events();
    let outcome = job.await?;
    let mut shown = Vec::new();
    while let Some(event) = events.next().await {
        match event {
            JobEvent::Started { .. } => shown.push("started".to_owned()),
            JobEvent::Progress(at) => shown.push(format!("progress {} of {}", at.done, at.total)),
            JobEvent::Text(text) => shown.push(format!("text {text}")),
            _ => {}
        }
    }
    println!("events: {}", shown.join(", "));
    println!("outcome: {}", outcome.result);

    let failed = grid.run(fail(false)).await;
    println!("failed: {}", failed.map_or_else(|error| error.to_string(), |()| "no".to_owned()));
    let failed = grid.run(fail(true)).await;
    println!("panicked: {}", failed.map_or_else(|error| error.to_string(), |()| "no".to_owned()));
    if let Err(Error::NotRegistered { name }) = grid.run(Unknown).await {
        println!("not registered: {name}");
    }
    if let Err(error) = grid.run(Forgets).await {
        println!("forgotten: {error}");
    }

    let mut sleeping = grid.submit(Sleep).await?;
    start_of(&mut sleeping).await;
    sleeping.cancel();
    if let Err(error @ Error::Cancelled { .. }) = sleeping.await {
        println!("cancelled: {error}");
    }
    let mut sleeping = grid.submit(Sleep).await?;
    start_of(&mut sleeping).await;
    drop(sleeping);
    println!("dropped, and the grid is free: {}", grid.run(square(2)).await?);
    let late = grid.submit(Sleep).deadline(Duration::from_millis(200)).await?;
    if let Err(error @ Error::Deadline { .. }) = late.await {
        println!("deadline: {error}");
    }
    if let Err(Error::NotPlaced { .. }) = grid.submit(square(1)).min(50).max(50).await?.await {
        println!("too large: NotPlaced");
    }

    let blocking = grid.blocking();
    let handle = blocking.submit(square(6)).wait()?;
    println!("blocking: {}", handle.wait()?);
    let other = grid.clone();
    grid.close().await;
    if let Err(error) = other.run(square(1)).await {
        println!("ended: {error:?}");
    }
    Ok(())
}

async fn connect(file: &str) -> Result<String, Error> {
    let grid = Grid::connect(file).await?;
    let square = grid.run(square(9)).await?;
    let nodes: Vec<_> = grid.nodes().await?.iter().map(ToString::to_string).collect();
    Ok(format!("{square} on {}", nodes.join(", ")))
}

/// Runs a job on a grid whose hosts do not have this program's file.
async fn bring(file: &str, token: Option<String>) -> Result<String, Error> {
    let own =
        std::env::current_exe().map_err(|error| Error::Start { reason: error.to_string() })?;
    std::fs::remove_file(own).map_err(|error| Error::Start { reason: error.to_string() })?;
    let connector = Grid::connector(file);
    let connector = match token {
        Some(token) => connector.token(token),
        None => connector,
    };
    let grid = connector.start().await?;
    let mut job = grid.submit(Report).await?;
    let mut events = job.events();
    let outcome = job.await?;
    while let Some(event) = events.next().await {
        match event {
            JobEvent::Waiting(reason) => println!("waiting: {reason}"),
            JobEvent::Started { nodes, .. } => println!("started on {nodes} nodes"),
            _ => {}
        }
    }
    Ok(format!("outcome: {}", outcome.result))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let mut words = std::env::args().skip(1);
    let (what, file, token) = (words.next().unwrap_or_default(), words.next(), words.next());
    if what == "node" && std::env::var_os("DOOR_LACKS_A_LIBRARY").is_some() {
        eprintln!("door: libtide.so.2: cannot open shared object file");
        std::process::exit(127);
    }
    if what == "check"
        && let Err(error) = Grid::start("1x1").await
    {
        println!("not yet: {error:?}");
    }
    springtide::node(tasks![square, fill, fail, Sleep, Forgets].job::<Report>());
    match (what.as_str(), file) {
        ("check", _) => check().await,
        ("connect", Some(file)) => {
            match connect(&file).await {
                Ok(line) => println!("{line}"),
                Err(error) => println!("{error:?}"),
            }
            Ok(())
        }
        ("bring", Some(file)) => {
            match bring(&file, token).await {
                Ok(line) => println!("{line}"),
                Err(error) => println!("{error:?}: {error}"),
            }
            Ok(())
        }
        (what, _) => {
            let grid = Grid::start("1x2").await?;
            println!("up");
            assert!(what != "panic", "as ordered");
            grid.run(Sleep).await
        }
    }
}
