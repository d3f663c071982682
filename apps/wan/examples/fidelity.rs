//! Precision of the router while nodes compute and communicate: the lateness of packets, the rate
//! of a link, and its losses.
//!
//! `cargo run --release -p springtide-wan --example fidelity [NODES] [SECONDS] [asleep]`. It needs
//! root, or a system where users may have network namespaces. A virtual machine's processors are
//! kept awake, as by `wan run`, except with `asleep`. Prints a table for BENCHMARKS.md. Linux only.

#[cfg(target_os = "linux")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    linux::main()
}

#[cfg(not(target_os = "linux"))]
fn main() {
    println!("Linux only");
}

#[cfg(target_os = "linux")]
mod linux {
    use std::env;
    use std::error::Error;
    use std::net::UdpSocket;
    use std::os::fd::AsFd;
    use std::process::{Child, Command};
    use std::thread;
    use std::time::{Duration, Instant};

    use springtide_runtime::config::{Sources, TopologyConfig, load};
    use springtide_runtime::topology::Topology;
    use springtide_wan::awake::{self, BusyThreads};
    use springtide_wan::fabric::{Namespaces, Port, RouterThread};
    use springtide_wan::router::{PortKind, Router};
    use springtide_wan::sys::{self, Namespace};

    type AnyResult<T> = Result<T, Box<dyn Error + Send + Sync>>;

    /// The share of a core that each busy node uses.
    const SHARE: f64 = 0.04;
    const LOSS: f64 = 0.02;
    const RATE: f64 = 1e6;
    /// Bytes of the IPv4 and UDP headers.
    const HEADERS: usize = 28;
    const TEXT: &str = r#"
        name = "fidelity"
        [wide]
        rtt = "20ms"
        [[cluster]]
        name = "a"
        nodes = 60
        [[cluster]]
        name = "b"
        nodes = 60
        [[cluster]]
        name = "c"
        nodes = 60
        [[cluster]]
        name = "d"
        nodes = 60
        [[link]]
        between = ["a", "c"]
        rtt = "20ms"
        bandwidth = "1MB/s"
        queue = 50000
        [[link]]
        between = ["a", "d"]
        rtt = "20ms"
        jitter = "2ms"
        loss = 0.02
    "#;

    pub fn main() -> Result<(), Box<dyn Error>> {
        let args: Vec<String> = env::args().skip(1).collect();
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        match args[..] {
            ["busy", own, to] => busy(own, to).map_err(|error| error as Box<dyn Error>),
            [] | [_] | [_, _] | [_, _, "asleep"] => {
                let nodes = args.first().map_or(Ok(36), |text| text.parse())?;
                let seconds = args.get(1).map_or(Ok(10), |text| text.parse())?;
                let asleep = args.len() == 3;
                measure(nodes, seconds, asleep).map_err(|error| error as Box<dyn Error>)
            }
            _ => Err("usage: fidelity [NODES] [SECONDS] [asleep]".into()),
        }
    }

    /// A node: computes for its share of a core, in steps of a millisecond, and sends to another
    /// cluster.
    fn busy(own: &str, to: &str) -> AnyResult<()> {
        let socket = UdpSocket::bind(own)?;
        let (part, pause) = (1e-3, 1e-3 / SHARE);
        let begin = Instant::now();
        for turn in 1u64.. {
            let until = Instant::now() + Duration::from_secs_f64(part);
            while Instant::now() < until {
                std::hint::spin_loop();
            }
            // Neither a full socket nor a missing receiver matters to the others.
            let _ = socket.send_to(&[7; 200], to);
            let next = begin + Duration::from_secs_f64(turn as f64 * pause);
            thread::sleep(next.saturating_duration_since(Instant::now()));
        }
        Ok(())
    }

    struct BusyThread(Vec<Child>);

    impl Drop for BusyThread {
        fn drop(&mut self) {
            for child in &mut self.0 {
                let _ = child.kill();
                let _ = child.wait();
            }
        }
    }

    /// Runs a function in a namespace, in a thread of its own.
    fn inside<T: Send>(port: &Port, what: impl FnOnce() -> T + Send) -> AnyResult<T> {
        thread::scope(|scope| {
            let there = scope.spawn(|| {
                sys::enter(port.net.as_fd(), Namespace::Net)?;
                Ok(what())
            });
            there.join().map_err(|_| "a thread panicked")?
        })
    }

    fn bind(port: &Port, address: &str) -> AnyResult<UdpSocket> {
        let socket = inside(port, || UdpSocket::bind(address))??;
        socket.set_read_timeout(Some(Duration::from_secs(2)))?;
        Ok(socket)
    }

    fn measure(nodes: usize, seconds: u64, asleep: bool) -> AnyResult<()> {
        sys::become_root()?;
        let topology = Topology::from_config(
            &load::<TopologyConfig>(&Sources::of_text("fidelity", TEXT))?.value,
        );
        let fabric = Namespaces::new(&topology, PortKind::Cluster)?;
        let routing = RouterThread::start(Router::new(topology, PortKind::Cluster, 1), &fabric)?;
        if let Some(why) = &routing.ordinary {
            println!("the router has no real-time priority: {why}");
        }
        let mut children = BusyThread(Vec::new());
        for node in 0..nodes {
            let (site, number) = (node % 4, 10 + node / 4);
            let mut command = Command::new(env::current_exe()?);
            let to = format!("10.77.{}.{number}:4000", (site + 1) % 4 + 1);
            command.args(["busy", &format!("10.77.{}.{number}:4000", site + 1), &to]);
            sys::run_in_namespaces(
                &mut command,
                vec![(fabric.ports[site].net.try_clone()?, Namespace::Net)],
                None,
            );
            children.0.push(command.spawn()?);
        }
        let awake =
            (awake::is_virtual() && !asleep).then(|| BusyThreads::start(|| Ok(()))).transpose()?;
        thread::sleep(Duration::from_secs(2));
        routing.core().late.reset();
        let [a, b, c, d] = &fabric.ports[..] else { return Err("four clusters".into()) };
        let far =
            [bind(b, "10.77.2.1:5000")?, bind(c, "10.77.3.1:5000")?, bind(d, "10.77.4.1:5000")?];
        let near = bind(a, "10.77.1.1:5000")?;
        let (late, rate, lost) = probe(&near, &far, seconds)?;
        let core = routing.core();
        let us = |share| core.late.value_at_quantile(share) as f64 * 1e-3;
        println!(
            "{nodes} nodes, each busy for {} % of a core sending 40 datagrams a second; \
             {seconds} s; processors {}kept awake",
            SHARE * 100.0,
            if awake.is_some() { "" } else { "not " }
        );
        println!("| what | asked | found |\n|---|---|---|");
        println!(
            "| packets leave the router late by | | half {:.0} us, 99 of 100 {:.0} us, the latest \
             {:.0} us ({} packets) |",
            us(0.5),
            us(0.99),
            us(1.0),
            core.late.len()
        );
        drop(core);
        let at = |share: f64| late[((late.len() - 1) as f64 * share) as usize];
        println!(
            "| a datagram's way, 10 ms, seen by programs: late by | | half {:.0} us, 99 of 100 \
             {:.0} us ({} datagrams) |",
            at(0.5),
            at(0.99),
            late.len()
        );
        println!(
            "| rate with headers, offered 1.5 times as much | {:.0} kB/s | {:.1} kB/s |",
            RATE / 1e3,
            rate / 1e3
        );
        let (sent, gone) = lost;
        // Half the width of the 99 % interval is 2.576 standard deviations.
        let sd = (sent as f64 * LOSS * (1.0 - LOSS)).sqrt();
        let (least, most) = (sent as f64 * LOSS - 2.576 * sd, sent as f64 * LOSS + 2.576 * sd);
        println!("| lost of {sent} | {least:.0} to {most:.0} (99 of 100) | {gone} |");
        Ok(())
    }

    /// Sorted lateness of single datagrams in microseconds, the rate of a flood in bytes a second,
    /// and the numbers of sent and lost datagrams.
    fn probe(
        near: &UdpSocket,
        far: &[UdpSocket; 3],
        seconds: u64,
    ) -> AnyResult<(Vec<f64>, f64, (u64, u64))> {
        let seconds_f = seconds as f64;
        thread::scope(|scope| {
            let late = scope.spawn(|| {
                let (mut late, mut buffer) = (Vec::new(), [0; 2000]);
                while far[0].recv_from(&mut buffer).is_ok() {
                    let now = sys::now_ns();
                    let sent = u64::from_le_bytes(buffer[..8].try_into().expect("eight bytes"));
                    late.push(now.saturating_sub(sent + 10_000_000) as f64 * 1e-3);
                }
                late.sort_by(f64::total_cmp);
                late
            });
            let flood = scope.spawn(|| {
                let mut buffer = [0; 2000];
                let (mut first, mut last, mut bytes) = (None, Instant::now(), 0);
                while let Ok((len, _)) = far[1].recv_from(&mut buffer) {
                    last = Instant::now();
                    match first {
                        // The first arrival starts the count.
                        None => first = Some(last),
                        Some(_) => bytes += len + HEADERS,
                    }
                }
                bytes as f64 / (last - first.unwrap_or(last)).as_secs_f64().max(1e-9)
            });
            let arrived = scope.spawn(|| {
                let (mut arrived, mut buffer) = (0u64, [0; 2000]);
                while far[2].recv_from(&mut buffer).is_ok() {
                    arrived += 1;
                }
                arrived
            });
            let begin = Instant::now();
            let (mut probes, mut floods, mut dice) = (0u64, 0u64, 0u64);
            let each = (1400 + HEADERS) as f64;
            while begin.elapsed().as_secs_f64() < seconds_f {
                let now = begin.elapsed().as_secs_f64();
                while (probes as f64) < now * 250.0 {
                    let mut contents = [0; 200];
                    contents[..8].copy_from_slice(&sys::now_ns().to_le_bytes());
                    near.send_to(&contents, "10.77.2.1:5000")?;
                    probes += 1;
                }
                while floods as f64 * each < now * 1.5 * RATE {
                    near.send_to(&[0; 1400], "10.77.3.1:5000")?;
                    floods += 1;
                }
                while (dice as f64) < now * 1000.0 {
                    near.send_to(&[0; 100], "10.77.4.1:5000")?;
                    dice += 1;
                }
                thread::sleep(Duration::from_millis(1));
            }
            let join = |_| "a thread panicked";
            let (late, rate) = (late.join().map_err(join)?, flood.join().map_err(join)?);
            let arrived = arrived.join().map_err(join)?;
            Ok((late, rate, (dice, dice.saturating_sub(arrived))))
        })
    }
}
