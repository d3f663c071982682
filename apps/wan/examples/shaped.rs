//! Precision of shaped sockets: the lateness of datagrams, and the throughput of three processes
//! that share an uplink.
//!
//! `cargo run --release -p springtide-wan --example shaped [MEGABYTES]`. Prints a table for
//! BENCHMARKS.md. Linux only.

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
    use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
    use std::path::Path;
    use std::process::{Child, Command};
    use std::sync::{Arc, Mutex};
    use std::thread;
    use std::time::{Duration, Instant};

    use bytes::Bytes;
    use springtide_runtime::config::{Sources, TopologyConfig, load};
    use springtide_runtime::id::{Incarnation, Peer};
    use springtide_runtime::net::tls::{Ca, EPHEMERAL_VALIDITY, NodeIdentity};
    use springtide_runtime::net::{Address, Class, Contact, Net, NetConfig, NetworkHandler};
    use springtide_runtime::topology::Topology;
    use springtide_runtime::wire::Kind;
    use springtide_wan::shaped::Shaped;
    use springtide_wan::sys;
    use springtide_wan::table::LinkTable;

    type AnyResult<T> = Result<T, Box<dyn Error>>;

    const DATAGRAMS: usize = 1000;
    const PROCESSES: u8 = 3;
    const UPLINK: f64 = 1e6;

    pub fn main() -> AnyResult<()> {
        let args: Vec<String> = env::args().skip(1).collect();
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        match args[..] {
            ["send", dir, node, to, bytes] => {
                runtime.block_on(sender(Path::new(dir), node, to.parse()?, bytes.parse()?))
            }
            [] | [_] => {
                let megabytes: f64 = args.first().map_or(Ok(3.0), |text| text.parse())?;
                let dir = tempfile::tempdir()?;
                runtime.block_on(lateness(dir.path()))?;
                runtime.block_on(sharing(dir.path(), (megabytes * 1e6) as usize))
            }
            _ => Err("usage: shaped [MEGABYTES]".into()),
        }
    }

    fn topology(rest: &str) -> AnyResult<Topology> {
        let text = format!("name = \"example\"\nnet = \"127.77.0.0/16\"\n{rest}");
        Ok(Topology::from_config(
            &load::<TopologyConfig>(&Sources::of_text("example", &text))?.value,
        ))
    }

    /// Single datagrams, two milliseconds apart, each with the time at which it was sent.
    async fn lateness(dir: &Path) -> AnyResult<()> {
        println!("| one-way delay | arrived late by: p50 | p99 | most |\n|---|---|---|---|");
        for delay_us in [500u64, 10_000, 50_000] {
            let two = "[[cluster]]\nname = \"a\"\n[[cluster]]\nname = \"b\"\n";
            let topology = topology(&format!("[wide]\nrtt = \"{}us\"\n{two}", 2 * delay_us))?;
            let table = Arc::new(LinkTable::create(&dir.join("late.links"), &topology, 1)?);
            let far = UdpSocket::bind((Ipv4Addr::new(127, 77, 2, 1), 0))?;
            far.set_read_timeout(Some(Duration::from_secs(5)))?;
            let to = far.local_addr()?;
            let receiver = thread::spawn(move || {
                let (mut late, mut buffer) = (Vec::new(), [0; 2000]);
                while late.len() < DATAGRAMS && far.recv_from(&mut buffer).is_ok() {
                    let now = sys::now_ns();
                    let sent = u64::from_le_bytes(buffer[..8].try_into().expect("eight bytes"));
                    late.push(now.saturating_sub(sent + delay_us * 1000) as f64 * 1e-3);
                }
                late
            });
            let own = UdpSocket::bind((Ipv4Addr::new(127, 77, 1, 1), 0))?;
            let own = Shaped::wrap(own, table)?;
            for _ in 0..DATAGRAMS {
                let mut contents = [0; 1200];
                contents[..8].copy_from_slice(&sys::now_ns().to_le_bytes());
                own.try_send(&quinn::udp::Transmit {
                    destination: to,
                    ecn: None,
                    contents: &contents,
                    segment_size: None,
                    src_ip: None,
                })?;
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            let mut late = receiver.join().map_err(|_| "the receiver panicked")?;
            late.sort_by(f64::total_cmp);
            let at = |share: f64| late[((late.len() - 1) as f64 * share) as usize];
            let (count, delay_ms) = (late.len(), delay_us as f64 * 1e-3);
            println!(
                "| {delay_ms} ms | {:.0} us | {:.0} us | {:.0} us | ({count} of {DATAGRAMS})",
                at(0.5),
                at(0.99),
                at(1.0)
            );
        }
        Ok(())
    }

    /// The received frames, with the time of each.
    #[derive(Default)]
    struct ReceivedFrames(Mutex<Vec<(Peer, usize, Instant)>>);

    impl NetworkHandler for ReceivedFrames {
        fn frame(&self, from: &Peer, _kind: Kind, body: Bytes) {
            let mut received = self.0.lock().expect("no thread panicked");
            received.push((from.clone(), body.len(), Instant::now()));
        }
    }

    fn net(dir: &Path, identity: &NodeIdentity, ip: Ipv4Addr) -> AnyResult<Net> {
        let table = Arc::new(LinkTable::open(&dir.join("uplink.links"))?);
        let config = NetConfig { bind: SocketAddr::from((ip, 0)), ..NetConfig::default() };
        let wrap = |socket| Shaped::wrap(socket, table);
        Ok(Net::quic_over(config, identity, Incarnation(1), wrap)?)
    }

    /// Processes that send the same amount each over one uplink, by QUIC.
    async fn sharing(dir: &Path, bytes: usize) -> AnyResult<()> {
        let topology = topology(&format!(
            "[wide]\nrtt = \"20ms\"\n\
             [[cluster]]\nname = \"a\"\nnodes = {PROCESSES}\nuplink = \"{}kB/s\"\n\
             [[cluster]]\nname = \"b\"\n",
            UPLINK / 1e3
        ))?;
        let table = LinkTable::create(&dir.join("uplink.links"), &topology, 1)?;
        let ca = Ca::ephemeral("example")?;
        let issue = |node: &str, cluster: &str| {
            ca.issue(&node.into(), &cluster.into(), "node", EPHEMERAL_VALIDITY)
        };
        let receiver = net(dir, &issue("b-1", "b")?, Ipv4Addr::new(127, 77, 2, 1))?;
        let received = Arc::new(ReceivedFrames::default());
        receiver.start(received.clone());
        let Address::Socket(to) = receiver.address() else { return Err("no socket".into()) };
        let began = Instant::now();
        let mut children: Vec<Child> = Vec::new();
        for n in 1..=PROCESSES {
            let node = format!("a-{n}");
            let own = dir.join(&node);
            std::fs::create_dir(&own)?;
            issue(&node, "a")?.save(&own)?;
            let mut command = Command::new(env::current_exe()?);
            command.arg("send").arg(dir).args([&node, &to.to_string(), &bytes.to_string()]);
            children.push(command.spawn()?);
        }
        let all = async {
            while received.0.lock().expect("no thread panicked").len() < children.len() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let within = Duration::from_secs_f64(60.0 + 10.0 * bytes as f64 / UPLINK);
        let done = tokio::time::timeout(within, all).await;
        let took = began.elapsed();
        println!("\n| process | bytes | took |\n|---|---|---|");
        for (from, len, at) in received.0.lock().expect("no thread panicked").iter() {
            println!("| {} | {len} | {:.2} s |", from.node, (*at - began).as_secs_f64());
        }
        let sum = bytes as f64 * f64::from(PROCESSES);
        let uplink = table.stubs().find(|(_, up, ..)| *up).map(|(.., counts)| counts);
        let uplink = uplink.ok_or("no uplink")?;
        println!(
            "\n{PROCESSES} processes over one uplink of {:.0} kB/s: {:.0} kB/s of payload \
             together in {:.2} s (handshakes and slow start included); the uplink took {} \
             datagrams of {} bytes with their headers, and {} of these found no room",
            UPLINK / 1e3,
            sum / took.as_secs_f64() / 1e3,
            took.as_secs_f64(),
            uplink.packets,
            uplink.bytes,
            uplink.lost,
        );
        receiver.close("done").await;
        for mut child in children {
            if done.is_err() {
                let _ = child.kill();
            }
            child.wait()?;
        }
        done.map_err(|_| "not all came in time".into())
    }

    async fn sender(dir: &Path, node: &str, to: SocketAddr, bytes: usize) -> AnyResult<()> {
        let identity = NodeIdentity::load(&dir.join(node))?;
        let table = LinkTable::open(&dir.join("uplink.links"))?;
        let ip = table.address(node).ok_or("no such node")?;
        let net = net(dir, &identity, ip)?;
        net.start(Arc::new(ReceivedFrames::default()));
        let there = "b-1".into();
        let address = Address::Socket(to);
        net.learn(Contact { node: "b-1".into(), cluster: "b".into(), address });
        net.send(&there, Class::Bulk, Kind::TASK_RESULT, vec![7; bytes])?;
        // `close` waits only two seconds for transfers under way, which are longer here.
        while net.links().iter().all(|link| link.state != springtide_runtime::net::LinkState::Up) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        while net.links().iter().any(|link| link.state == springtide_runtime::net::LinkState::Up) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        net.close("done").await;
        Ok(())
    }
}
