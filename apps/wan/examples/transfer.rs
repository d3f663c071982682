//! One QUIC transfer between two processes, as nodes send bulk data: its throughput, handshake and
//! slow start included.
//!
//! `transfer serve DIR` on one node of a network (`wan exec b-1 ...`), then `transfer send DIR
//! BYTES` on another. Both need access to DIR, which gets keys and the address.

use std::env;
use std::error::Error;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use springtide_runtime::id::{Incarnation, Peer};
use springtide_runtime::net::tls::{Ca, EPHEMERAL_VALIDITY, NodeIdentity};
use springtide_runtime::net::{Address, Class, Contact, Net, NetConfig, NetworkHandler};
use springtide_runtime::wire::Kind;
use tokio::sync::mpsc;

type AnyResult<T> = Result<T, Box<dyn Error>>;

const TIMEOUT: Duration = Duration::from_secs(300);

fn main() -> AnyResult<()> {
    let args: Vec<String> = env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    match args[..] {
        ["serve", dir] => runtime.block_on(serve(Path::new(dir))),
        ["send", dir, bytes] => runtime.block_on(send(Path::new(dir), bytes.parse()?)),
        _ => Err("usage: transfer serve DIR | transfer send DIR BYTES".into()),
    }
}

/// Reports each frame's sender and length.
struct FrameReporter(mpsc::UnboundedSender<(Peer, usize)>);

impl NetworkHandler for FrameReporter {
    fn frame(&self, from: &Peer, _kind: Kind, body: Bytes) {
        // The receiver may have ended.
        let _ = self.0.send((from.clone(), body.len()));
    }
}

fn net(identity: &NodeIdentity) -> AnyResult<(Net, mpsc::UnboundedReceiver<(Peer, usize)>)> {
    let own: IpAddr =
        env::var("SPRINGTIDE_WAN_ADDRESS").map_or(Ok("127.0.0.1".parse()?), |ip| ip.parse())?;
    let config = NetConfig { bind: SocketAddr::new(own, 0), ..NetConfig::default() };
    let net = Net::quic(config, identity, Incarnation(1))?;
    let (sender, receiver) = mpsc::unbounded_channel();
    net.start(Arc::new(FrameReporter(sender)));
    Ok((net, receiver))
}

async fn serve(dir: &Path) -> AnyResult<()> {
    let ca = Ca::ephemeral("transfer")?;
    for node in ["sender", "receiver"] {
        let own = dir.join(node);
        std::fs::create_dir_all(&own)?;
        ca.issue(&node.into(), &node.into(), "node", EPHEMERAL_VALIDITY)?.save(&own)?;
    }
    let (net, mut received) = net(&NodeIdentity::load(&dir.join("receiver"))?)?;
    let Address::Socket(address) = net.address() else { return Err("no socket".into()) };
    // Renamed when complete, for the other process waits for it.
    std::fs::write(dir.join("address.new"), address.to_string())?;
    std::fs::rename(dir.join("address.new"), dir.join("address"))?;
    let (from, len) = tokio::time::timeout(TIMEOUT, received.recv()).await?.ok_or("it ended")?;
    net.send(&from.node, Class::Steal, Kind::TASK_RESULT, len.to_le_bytes().to_vec())?;
    // The other process closes the link after it has received this.
    while net.links().iter().any(|link| link.state == springtide_runtime::net::LinkState::Up) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    net.close("done").await;
    Ok(())
}

async fn send(dir: &Path, bytes: usize) -> AnyResult<()> {
    let begun = Instant::now();
    let address: SocketAddr = loop {
        match std::fs::read_to_string(dir.join("address")) {
            Ok(text) => break text.parse()?,
            Err(error) if begun.elapsed() > TIMEOUT => return Err(error.into()),
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    };
    let (net, mut received) = net(&NodeIdentity::load(&dir.join("sender"))?)?;
    let address = Address::Socket(address);
    net.learn(Contact { node: "receiver".into(), cluster: "receiver".into(), address });
    let began = Instant::now();
    net.send(&"receiver".into(), Class::Bulk, Kind::TASK_RESULT, vec![7; bytes])?;
    tokio::time::timeout(TIMEOUT, received.recv()).await?.ok_or("it ended")?;
    let took = began.elapsed().as_secs_f64();
    println!("{:.1} kB/s, {bytes} bytes in {took:.3} s", bytes as f64 / took / 1e3);
    net.close("done").await;
    Ok(())
}
