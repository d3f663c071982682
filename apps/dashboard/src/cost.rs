//! The cost of open dashboards. A measurement for an otherwise idle host, not run by default:
//! `cargo test --release -p springtide --lib dashboard::cost -- --ignored --nocapture`

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::guard::Guard;
use crate::model::{GridSnapshot, tests::snapshot};
use crate::serve::{self, DashboardState};
use tokio::sync::mpsc::Sender;

/// Processor time of this process in seconds.
fn cpu_s() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    let ticks: u64 = [fields[11], fields[12]].iter().map(|n| n.parse::<u64>().unwrap()).sum();
    ticks as f64 / 100.0
}

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Feeds 400 workers in 4 clusters twice a second, for this time.
async fn feed(sender: &Sender<GridSnapshot>, began: Instant, for_s: f64) {
    let until = Instant::now() + Duration::from_secs_f64(for_s);
    while Instant::now() < until {
        sender.send(snapshot(4, 100, began.elapsed().as_secs_f64())).await.unwrap();
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

fn subscribe(at: &str) -> TcpStream {
    let mut stream = TcpStream::connect(at).unwrap();
    write!(stream, "GET /api/v1/stream HTTP/1.1\r\nHost: {at}\r\n\r\n").unwrap();
    stream
}

#[actix_rt::test]
#[ignore = "it measures"]
async fn twenty_that_read_and_forty_that_do_not() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let shared = Arc::new(DashboardState::new("cost", Guard::new(at, None, None).unwrap()));
    let (sender, snapshots) = tokio::sync::mpsc::channel(1);
    let (server, thread) = serve::start(listener, shared.clone(), snapshots).unwrap();
    let at = at.to_string();
    let began = Instant::now();
    let stretch = 20.0;
    feed(&sender, began, 12.0).await;
    let measured = async || {
        let before = cpu_s();
        feed(&sender, began, stretch).await;
        (cpu_s() - before) / stretch * 100.0
    };
    let alone = measured().await;
    let readers: Vec<_> = (0..20)
        .map(|_| {
            let mut stream = subscribe(&at);
            std::thread::spawn(move || {
                let (mut buffer, mut bytes) = ([0; 1 << 16], 0);
                while let Ok(n @ 1..) = stream.read(&mut buffer) {
                    bytes += n;
                }
                bytes
            })
        })
        .collect();
    let watched = measured().await;
    println!(
        "of a core: {alone:.2} % unwatched, {watched:.2} % with 20 readers (their own reading \
        counted)"
    );
    let before = resident_kib();
    let stalled: Vec<_> = (0..40).map(|_| subscribe(&at)).collect();
    let mut most = 0;
    for _ in 0..12 {
        feed(&sender, began, 5.0).await;
        most = most.max(resident_kib().saturating_sub(before));
    }
    println!("40 that take nothing for 60 s: {} KiB each at most", most / 40);
    drop(stalled);
    drop(server.stop(false));
    shared.close();
    thread.join().unwrap();
    let bytes: usize = readers.into_iter().map(|reader| reader.join().unwrap()).sum();
    println!("{:.1} kB a second to each reader", bytes as f64 / 20.0 / (stretch + 60.0) / 1e3);
}
