//! A link in use: writers and readers of its three streams.
//!
//! The control class shares the stream of hello and welcome; steal and bulk have one stream each way, opened at once and
//! named by their first byte.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use quinn::{Connection, ConnectionError, RecvStream, SendStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::handshake::{cut, message};
use super::machine::{Conn, Event};
use super::parse::FrameReader;
use super::queue::{BATCH_FRAMES, Taken};
use super::relay;
use super::settings::UNI_STREAMS;
use super::{Code, Entry, Greeted, Shared};
use crate::id::Peer;
use crate::net::Class;
use crate::net::hello::{Goodbye, wire_version};
use crate::net::tls::Role;
use crate::wire::{self, Frame, Kind};

/// Bodies from this length on go to quinn as they are; shorter ones are copied together with their headers, for a copy
/// of a few hundred bytes costs less than one more segment to keep.
const COPY_MAX: usize = 4096;

/// Time for the last packet of a link through a gate to get into the queue to it: a few turns of this thread.
const LAST_PACKET: Duration = Duration::from_millis(20);

/// Chunks taken from a stream by one call.
const READ_CHUNKS: usize = 32;

pub(super) struct Live {
    pub conn: Connection,
    pub peer: Peer,
    pub role: Role,
    /// The minor version of the protocol that both speak.
    pub protocol: u16,
    /// Whether it goes through a gate.
    pub relayed: bool,
    /// Whether frames may still be taken from the queues for it, and handed out from it.
    alive: AtomicBool,
    /// Whether it ends in order as soon as nothing waits.
    ends: AtomicBool,
    /// The peer's goodbye.
    goodbye: Mutex<Option<String>>,
    /// Which one-way streams have come.
    seen: [AtomicBool; 3],
}

impl Live {
    pub fn new(conn: Connection, peer: Peer, role: Role, protocol: u16) -> Self {
        let (alive, ends) = (AtomicBool::new(true), AtomicBool::new(false));
        let goodbye = Mutex::default();
        let relayed = relay::is_stand_in(conn.remote_address());
        Self { conn, peer, role, protocol, relayed, alive, ends, goodbye, seen: Default::default() }
    }

    fn is_alive(&self) -> bool {
        self.alive.load(Ordering::Acquire)
    }

    /// Nothing more is taken for it or handed out from it; that it is closed follows.
    pub fn retire(&self) {
        self.alive.store(false, Ordering::Release);
    }

    /// Ends it at once: nothing more is taken for it or handed out from it. Whether it was in use until now.
    pub fn abandon(&self, code: Code, why: &str) -> bool {
        let was_alive = self.alive.swap(false, Ordering::AcqRel);
        self.conn.close(code.into(), why.as_bytes());
        was_alive
    }

    fn goodbye(&self) -> Option<String> {
        self.goodbye.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Runs a link until it ends; then every frame that came over it has been handed out, and the machine is told.
pub(super) async fn run(
    shared: Arc<Shared>,
    entry: Arc<Entry>,
    key: Conn,
    live: Arc<Live>,
    greeted: Greeted,
) {
    let Greeted { conn, send, recv, first, .. } = greeted;
    let mut writers = JoinSet::new();
    let mut readers = JoinSet::new();
    let ends = || End { shared: shared.clone(), entry: entry.clone(), live: live.clone() };
    writers.spawn(ends().write(Class::Control, send, first));
    for class in [Class::Steal, Class::Bulk] {
        writers.spawn(ends().open(class));
    }
    readers.spawn(ends().read(Class::Control, recv));
    for _ in 0..UNI_STREAMS {
        readers.spawn(ends().accept());
    }
    let mut closing = shared.close_reason.subscribe();
    let closes = async { drop(closing.wait_for(Option::is_some).await) };
    tokio::select! {
        biased;
        _ = conn.closed() => {}
        () = closes => {
            if !live.relayed {
                // They go through this one, perhaps.
                let gone = async {
                    while shared.has_relayed_links() {
                        sleep(Duration::from_millis(1)).await;
                    }
                };
                let _ = timeout(shared.config.close_grace(), gone).await;
            }
            live.ends.store(true, Ordering::Release);
            entry.queues.iter().for_each(|queue| queue.filled.notify_one());
            // Each writer ends when its queue is empty and the peer has acknowledged all.
            let flushed = async { while writers.join_next().await.is_some() {} };
            let _ = timeout(shared.config.close_grace(), flushed).await;
            let reason = shared.close_reason.borrow().clone().unwrap_or_default();
            conn.close(Code::Goodbye.into(), cut(reason).as_bytes());
            if live.relayed {
                // The link to the gate stays until this one is gone, and that must not be before its last packet is in the gate's queue.
                sleep(LAST_PACKET).await;
            }
        }
    }
    let error = conn.closed().await;
    writers.abort_all();
    // Nothing can come any more, so the readers end by themselves, after what has come is handed out.
    while readers.join_next().await.is_some() {}
    live.alive.store(false, Ordering::Release);
    let goodbye = live.goodbye();
    let said = match &error {
        ConnectionError::ApplicationClosed(close) => close.error_code == Code::Goodbye.into(),
        _ => false,
    };
    let orderly = said || goodbye.is_some() || matches!(error, ConnectionError::LocallyClosed);
    let why =
        goodbye.map_or_else(|| error.to_string(), |why| format!("the peer says goodbye: {why}"));
    let why = why.into();
    entry.lock().conns.remove(&key);
    let wanted = !entry.is_empty();
    shared.feed(&entry, Event::Lost { conn: key, why, orderly, wanted });
}

/// A one-way stream's first byte: part of the wire, whatever the order of the classes.
fn tag(class: Class) -> u8 {
    match class {
        Class::Control => 0,
        Class::Steal => 1,
        Class::Bulk => 2,
    }
}

/// What every reader and writer of a link holds.
struct End {
    shared: Arc<Shared>,
    entry: Arc<Entry>,
    live: Arc<Live>,
}

impl End {
    async fn open(self, class: Class) {
        let Ok(mut stream) = self.live.conn.open_uni().await else { return };
        if stream.write_all(&[tag(class)]).await.is_ok() {
            self.write(class, stream, None).await;
        }
    }

    /// Writes what is queued, in batches, until the connection ends or the endpoint closes.
    async fn write(self, class: Class, mut stream: SendStream, first: Option<Frame>) {
        // Steal before bulk: a large object must not delay a steal.
        let priority = match class {
            Class::Control => 2,
            Class::Steal => 1,
            Class::Bulk => 0,
        };
        let _ = stream.set_priority(priority); // fails only on a closed stream, and so will the write
        let mut writer = Writer::new(wire_version(self.live.protocol));
        if let Some(frame) = first {
            // The welcome: what it agrees on holds after it.
            let version = std::mem::replace(&mut writer.version, wire::WIRE_VERSION);
            writer.batch.push(frame);
            if writer.flush(&mut stream).await.is_err() {
                return;
            }
            writer.version = version;
        }
        let queue = self.entry.queue(class);
        loop {
            let ends = self.live.ends.load(Ordering::Acquire);
            if !self.live.is_alive() {
                return;
            }
            match queue.take(&mut writer.batch) {
                Taken::None if ends => break,
                Taken::None => queue.filled.notified().await,
                Taken::Some { drained } => {
                    if drained {
                        self.shared.events.drained(&self.entry.node, class);
                    }
                    if writer.flush(&mut stream).await.is_err() {
                        return; // the connection is gone, and with it what was written to it
                    }
                }
            }
        }
        if class == Class::Control {
            let reason = self.shared.close_reason.borrow().clone().unwrap_or_default();
            writer.batch.push(message(Kind::GOODBYE, &Goodbye { reason: cut(reason) }));
            if writer.flush(&mut stream).await.is_err() {
                return;
            }
        }
        if stream.finish().is_ok() {
            let _ = stream.stopped().await; // an error: the connection is gone already
        }
    }

    /// Takes one of the peer's one-way streams.
    async fn accept(self) {
        let Ok(mut stream) = self.live.conn.accept_uni().await else { return };
        let mut first = [0];
        if stream.read_exact(&mut first).await.is_err() {
            return;
        }
        let class = [Class::Steal, Class::Bulk].into_iter().find(|class| tag(*class) == first[0]);
        let Some(class) = class else {
            return self.broken(&format!("stream of unknown class {}", first[0]));
        };
        if self.live.seen[class as usize].swap(true, Ordering::Relaxed) {
            return self.broken(&format!("a second stream of class {class:?}"));
        }
        self.read(class, stream).await;
    }

    /// Hands out every frame of a stream until it ends.
    async fn read(self, class: Class, mut stream: RecvStream) {
        let mut reader = FrameReader::new(wire_version(self.live.protocol));
        let mut chunks: [Bytes; READ_CHUNKS] = Default::default();
        let live = &self.live;
        loop {
            let count = match stream.read_chunks(&mut chunks).await {
                Ok(Some(count)) => count,
                Ok(None) if reader.is_between_frames() => return,
                Ok(None) => return self.broken("a stream ends inside a frame"),
                Err(_) => return, // the connection is gone, or the peer has reset the stream to close it
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
                            fault = Some(format!("a {:?} frame inside a link", frame.kind));
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
                            if let Err(error) = self.shared.parcel(&live.peer, &frame.body) {
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
                    Err(error) => return self.broken(&error.to_string()),
                };
                if let Some(fault) = fault {
                    return self.broken(&fault);
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
                tracing::warn!(peer = %live.peer, frames = unknown, "frames of unknown kinds skipped");
            }
        }
    }

    fn broken(&self, why: &str) {
        self.shared.broken(&self.entry, &self.live, why);
    }
}

/// Puts frames together for one write.
struct Writer {
    /// The link's wire version.
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
        let small = |frame: &Frame| frame.body.len() < COPY_MAX;
        let copied: usize = self.batch.iter().filter(|f| small(f)).map(Frame::wire_len).sum();
        self.buffer.reserve(copied + self.batch.len() * wire::HEADER_LEN);
        for frame in self.batch.drain(..) {
            self.buffer.extend_from_slice(&frame.header_in(self.version));
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
