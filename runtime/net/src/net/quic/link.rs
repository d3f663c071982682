//! A link in use: the writers and readers of its three streams.
//!
//! The control class shares the stream of hello and welcome. Steal and bulk have one stream in each
//! direction, opened at the start and identified by their first byte.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use quinn::{Connection, ConnectionError, RecvStream, SendStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::handshake::{message, truncate_text};
use super::machine::{Conn, ConnectionEvent};
use super::parse::FrameReader;
use super::queue::{BATCH_FRAMES, TakeResult};
use super::relay;
use super::settings::UNI_STREAMS;
use super::{Code, EndpointState, Greeted, PeerEntry};
use crate::id::Peer;
use crate::net::Class;
use crate::net::hello::{Goodbye, wire_version};
use crate::net::tls::Role;
use crate::wire::{self, Frame, Kind};

/// Bodies of this length and more are passed to quinn without a copy. Shorter ones are copied
/// together with their headers, which costs less than an additional segment.
const NO_COPY_MIN: usize = 4096;

/// Time for the last packet of a relayed link to reach the queue to the relay: a few iterations of
/// this thread's event loop.
const LAST_PACKET: Duration = Duration::from_millis(20);

/// Maximum number of chunks read from a stream by one call.
const READ_CHUNKS: usize = 32;

/// The state of a link in use.
pub(super) struct LiveLink {
    pub conn: Connection,
    pub peer: Peer,
    pub role: Role,
    /// Minor protocol version of the link.
    pub protocol: u16,
    /// Whether a relay forwards the link.
    pub relayed: bool,
    /// Whether frames may still be taken from its queues, and delivered from it.
    alive: AtomicBool,
    /// Whether the link closes in an orderly way once its queues are empty.
    closing: AtomicBool,
    /// The peer's goodbye.
    goodbye: Mutex<Option<String>>,
    /// The one-way streams that the peer has opened.
    opened: [AtomicBool; 3],
}

impl LiveLink {
    pub fn new(conn: Connection, peer: Peer, role: Role, protocol: u16) -> Self {
        let (alive, closing) = (AtomicBool::new(true), AtomicBool::new(false));
        let goodbye = Mutex::default();
        let relayed = relay::is_stand_in(conn.remote_address());
        Self {
            conn,
            peer,
            role,
            protocol,
            relayed,
            alive,
            closing,
            goodbye,
            opened: Default::default(),
        }
    }

    fn is_alive(&self) -> bool {
        self.alive.load(Ordering::Acquire)
    }

    /// Stops taking and delivering frames; the connection is closed later.
    pub fn retire(&self) {
        self.alive.store(false, Ordering::Release);
    }

    /// Closes the link at once, without taking or delivering more frames. Returns whether it was in
    /// use.
    pub fn abandon(&self, code: Code, why: &str) -> bool {
        let was_alive = self.alive.swap(false, Ordering::AcqRel);
        self.conn.close(code.into(), why.as_bytes());
        was_alive
    }

    fn goodbye(&self) -> Option<String> {
        self.goodbye.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Runs a link until it ends. Then all received frames have been delivered, and the state machine
/// is notified.
pub(super) async fn run(
    shared: Arc<EndpointState>,
    entry: Arc<PeerEntry>,
    key: Conn,
    live: Arc<LiveLink>,
    greeted: Greeted,
) {
    let Greeted { conn, send, recv, first, .. } = greeted;
    let mut writers = JoinSet::new();
    let mut readers = JoinSet::new();
    let context =
        || StreamContext { shared: shared.clone(), entry: entry.clone(), live: live.clone() };
    writers.spawn(context().write(Class::Control, send, first));
    for class in [Class::Steal, Class::Bulk] {
        writers.spawn(context().open(class));
    }
    readers.spawn(context().read(Class::Control, recv));
    for _ in 0..UNI_STREAMS {
        readers.spawn(context().accept());
    }
    let mut closing = shared.close_reason.subscribe();
    let close_requested = async { drop(closing.wait_for(Option::is_some).await) };
    tokio::select! {
        biased;
        _ = conn.closed() => {}
        () = close_requested => {
            if !live.relayed {
                // Relayed links may use this one.
                let relayed_closed = async {
                    while shared.has_relayed_links() {
                        sleep(Duration::from_millis(1)).await;
                    }
                };
                let _ = timeout(shared.config.close_grace(), relayed_closed).await;
            }
            live.closing.store(true, Ordering::Release);
            entry.queues.iter().for_each(|queue| queue.filled.notify_one());
            // Each writer ends when its queue is empty and the peer has acknowledged everything.
            let flushed = async { while writers.join_next().await.is_some() {} };
            let _ = timeout(shared.config.close_grace(), flushed).await;
            let reason = shared.close_reason.borrow().clone().unwrap_or_default();
            conn.close(Code::Goodbye.into(), truncate_text(reason).as_bytes());
            if live.relayed {
                // The link to the relay stays up until this one is gone, so its last packet must be
                // in the relay's queue first.
                sleep(LAST_PACKET).await;
            }
        }
    }
    let error = conn.closed().await;
    writers.abort_all();
    // No more data can arrive, so the readers end after they have delivered what they have.
    while readers.join_next().await.is_some() {}
    live.alive.store(false, Ordering::Release);
    let goodbye = live.goodbye();
    let closed_by_peer = match &error {
        ConnectionError::ApplicationClosed(close) => close.error_code == Code::Goodbye.into(),
        _ => false,
    };
    let orderly =
        closed_by_peer || goodbye.is_some() || matches!(error, ConnectionError::LocallyClosed);
    let why =
        goodbye.map_or_else(|| error.to_string(), |why| format!("the peer says goodbye: {why}"));
    let why = why.into();
    entry.lock().conns.remove(&key);
    let pending = !entry.is_empty();
    shared.handle_event(&entry, ConnectionEvent::Lost { conn: key, why, orderly, pending });
}

/// The first byte of a one-way stream. Part of the wire format, independent of the order of the
/// classes.
fn tag(class: Class) -> u8 {
    match class {
        Class::Control => 0,
        Class::Steal => 1,
        Class::Bulk => 2,
    }
}

/// The shared state of all readers and writers of a link.
struct StreamContext {
    shared: Arc<EndpointState>,
    entry: Arc<PeerEntry>,
    live: Arc<LiveLink>,
}

impl StreamContext {
    async fn open(self, class: Class) {
        let Ok(mut stream) = self.live.conn.open_uni().await else { return };
        if stream.write_all(&[tag(class)]).await.is_ok() {
            self.write(class, stream, None).await;
        }
    }

    /// Writes queued frames in batches until the connection ends or the endpoint closes.
    async fn write(self, class: Class, mut stream: SendStream, first: Option<Frame>) {
        // Steals precede bulk, so that a large object does not delay a steal.
        let priority = match class {
            Class::Control => 2,
            Class::Steal => 1,
            Class::Bulk => 0,
        };
        // Fails only on a closed stream, on which the write fails as well.
        let _ = stream.set_priority(priority);
        let mut writer = Writer::new(wire_version(self.live.protocol));
        if let Some(frame) = first {
            // The welcome uses the first version; the agreed one applies after it.
            let version = std::mem::replace(&mut writer.version, wire::WIRE_VERSION);
            writer.batch.push(frame);
            if writer.flush(&mut stream).await.is_err() {
                return;
            }
            writer.version = version;
        }
        let queue = self.entry.queue(class);
        loop {
            let closing = self.live.closing.load(Ordering::Acquire);
            if !self.live.is_alive() {
                return;
            }
            match queue.take(&mut writer.batch) {
                TakeResult::Empty if closing => break,
                TakeResult::Empty => queue.filled.notified().await,
                TakeResult::Frames { drained } => {
                    if drained {
                        self.shared.events.drained(&self.entry.node, class);
                    }
                    if writer.flush(&mut stream).await.is_err() {
                        return; // the connection is lost, with the frames written to it
                    }
                }
            }
        }
        if class == Class::Control {
            let reason = self.shared.close_reason.borrow().clone().unwrap_or_default();
            writer.batch.push(message(Kind::GOODBYE, &Goodbye { reason: truncate_text(reason) }));
            if writer.flush(&mut stream).await.is_err() {
                return;
            }
        }
        if stream.finish().is_ok() {
            let _ = stream.stopped().await; // an error means that the connection is closed
        }
    }

    /// Accepts one of the peer's one-way streams.
    async fn accept(self) {
        let Ok(mut stream) = self.live.conn.accept_uni().await else { return };
        let mut first = [0];
        if stream.read_exact(&mut first).await.is_err() {
            return;
        }
        let class = [Class::Steal, Class::Bulk].into_iter().find(|class| tag(*class) == first[0]);
        let Some(class) = class else {
            return self.report_violation(&format!("stream of unknown class {}", first[0]));
        };
        if self.live.opened[class as usize].swap(true, Ordering::Relaxed) {
            return self.report_violation(&format!("a second stream of class {class:?}"));
        }
        self.read(class, stream).await;
    }

    /// Delivers every frame of a stream until it ends.
    async fn read(self, class: Class, mut stream: RecvStream) {
        let mut reader = FrameReader::new(wire_version(self.live.protocol));
        let mut chunks: [Bytes; READ_CHUNKS] = Default::default();
        let live = &self.live;
        loop {
            let count = match stream.read_chunks(&mut chunks).await {
                Ok(Some(count)) => count,
                Ok(None) if reader.is_between_frames() => return,
                Ok(None) => return self.report_violation("a stream ends inside a frame"),
                // The connection is lost, or the peer reset the stream to close it.
                Err(_) => return,
            };
            let (mut frames, mut bytes, mut unknown) = (0, 0, 0);
            let receiver = self.shared.events.receiver();
            let events = receiver.as_deref().unwrap_or(&*self.shared.events);
            for chunk in &mut chunks[..count] {
                let data = std::mem::take(chunk);
                let mut fault = None;
                let read = reader.feed(&data, |frame| {
                    if !live.is_alive() {
                        return false;
                    }
                    match frame.kind {
                        Kind::HELLO | Kind::WELCOME | Kind::REFUSE => {
                            fault = Some(format!("a {:?} frame after the handshake", frame.kind));
                            return false;
                        }
                        Kind::GOODBYE => {
                            match wire::decode::<Goodbye>(Kind::GOODBYE, &frame.body) {
                                Ok(goodbye) => {
                                    let said = &live.goodbye;
                                    *said.lock().unwrap_or_else(PoisonError::into_inner) =
                                        Some(goodbye.reason);
                                }
                                Err(error) => {
                                    fault = Some(error.to_string());
                                    return false;
                                }
                            }
                        }
                        Kind::RELAY => {
                            if let Err(error) = self.shared.receive_relayed(&live.peer, &frame.body)
                            {
                                fault = Some(error);
                                return false;
                            }
                        }
                        _ => events.frame(&live.peer, class, frame),
                    }
                    true
                });
                let read = match read {
                    Ok(read) => read,
                    Err(error) => return self.report_violation(&error.to_string()),
                };
                if let Some(fault) = fault {
                    return self.report_violation(&fault);
                }
                if !live.is_alive() {
                    return;
                }
                frames += read.frames;
                bytes += read.bytes;
                unknown += read.unknown;
            }
            self.entry.queue(class).count_in(frames, bytes);
            if unknown > 0 {
                self.entry.unknown_kinds.fetch_add(unknown, Ordering::Relaxed);
                tracing::warn!(
                    peer = %live.peer,
                    frames = unknown,
                    "frames of unknown kinds are skipped"
                );
            }
        }
    }

    fn report_violation(&self, why: &str) {
        self.shared.report_violation(&self.entry, &self.live, why);
    }
}

/// Assembles frames for one write.
struct Writer {
    /// Wire version of the link.
    version: u8,
    batch: Vec<Frame>,
    buffer: BytesMut,
    chunks: Vec<Bytes>,
}

impl Writer {
    fn new(version: u8) -> Self {
        Self { version, batch: Vec::new(), buffer: BytesMut::new(), chunks: Vec::new() }
    }

    async fn flush(&mut self, stream: &mut SendStream) -> Result<(), quinn::WriteError> {
        debug_assert!(self.batch.len() <= BATCH_FRAMES);
        let small = |frame: &Frame| frame.body.len() < NO_COPY_MIN;
        let copied: usize = self.batch.iter().filter(|f| small(f)).map(Frame::wire_len).sum();
        self.buffer.reserve(copied + self.batch.len() * wire::HEADER_LEN);
        for frame in self.batch.drain(..) {
            self.buffer.extend_from_slice(&frame.header_version(self.version));
            if small(&frame) {
                self.buffer.extend_from_slice(&frame.body);
            } else {
                self.chunks.push(self.buffer.split().freeze());
                self.chunks.push(frame.body);
            }
        }
        if !self.buffer.is_empty() {
            self.chunks.push(self.buffer.split().freeze());
        }
        let written = stream.write_all_chunks(&mut self.chunks).await;
        self.chunks.clear();
        written
    }
}
