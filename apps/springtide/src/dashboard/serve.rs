//! The dashboard's HTTP server: the page, its stream, the same numbers for programs. Read-only; every request is judged first.
//!
//! Must not know what the numbers mean.

use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;

use actix_web::body::{BoxBody, EitherBody, MessageBody};
use actix_web::dev::{ServerHandle, Service as _, ServiceRequest, ServiceResponse};
use actix_web::http::header::{self, HeaderName, HeaderValue};
use actix_web::http::{Method, StatusCode};
use actix_web::{App, HttpRequest, HttpResponse, HttpServer, Route, guard, web};
use bytes::{BufMut, Bytes, BytesMut};
use futures_util::future::{Either, ready};
use futures_util::stream::{Stream, unfold};
use tokio::sync::watch;
use tokio::time::{Instant, interval, timeout};

use super::connections::{Close, Connection, Connections, Limits, Serving};
use super::guard::{COOKIE, Facts, Guard, Verdict};
use super::metrics;
use super::model::{Model, Seen};
use super::page;
use crate::up::held;

/// Streams that are open at once at most.
const STREAMS: u64 = 64;
/// An idle stream says so this often, or a browser that has gone would not be noticed.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// Events in one piece of a stream.
const BATCH: usize = 200;
/// Events of one answer.
const ANSWER: usize = 1000;
/// Who asks for metrics or a snapshot watches for so long.
const WATCHES: Duration = Duration::from_secs(15);
/// A connection whose other side takes nothing for so long is closed by the system.
const STALLED: Duration = Duration::from_secs(30);
/// What the system keeps of what a slow reader does not take, in bytes.
const SEND_BUFFER: usize = 128 << 10;

/// Connections there are at once at most: more than may wait and be served, so that new ones are always
/// looked at.
const CONNECTIONS: usize = 1024;
/// How many connections wait, and how long.
const LIMITS: Limits = Limits {
    waiting: 96,
    at_once: 320,
    moment: Duration::from_secs(1),
    of_host: 32,
    patience: Duration::from_secs(10),
    refusal: Duration::from_secs(1),
};
/// How often connections that wait too long are closed.
const SWEEP: Duration = Duration::from_millis(250);

const CSP: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; \
                   base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// What is shown, for all who look.
pub(super) struct Board {
    model: Mutex<Model>,
    guard: Guard,
    began: Instant,
    tick: watch::Sender<Bytes>,
    streams: AtomicU64,
    /// Milliseconds since the start until which somebody watches who has no stream.
    until: AtomicU64,
    left_out: AtomicU64,
    closed: watch::Sender<bool>,
}

impl Board {
    pub fn new(grid: &str, guard: Guard) -> Self {
        let model = Model::new(grid, false);
        let tick = Bytes::from(model.tick().to_string());
        Self {
            model: Mutex::new(model),
            guard,
            began: Instant::now(),
            tick: watch::Sender::new(tick),
            streams: AtomicU64::new(0),
            until: AtomicU64::new(0),
            left_out: AtomicU64::new(0),
            closed: watch::Sender::new(false),
        }
    }

    /// What was seen just now. A tick is made of it once for all.
    pub fn see(&self, seen: Seen) {
        let at = self.began.elapsed().as_secs_f64();
        let tick = {
            let mut model = self.model();
            model.see(at, seen);
            model.tick()
        };
        self.tick.send_replace(Bytes::from(tick.to_string()));
    }

    /// Whether anybody looks.
    pub fn is_watched(&self) -> bool {
        let now = self.began.elapsed().as_millis();
        self.streams.load(Ordering::Relaxed) > 0
            || u128::from(self.until.load(Ordering::Relaxed)) > now
    }

    fn watched_for_a_while(&self) {
        let until = (self.began.elapsed() + WATCHES).as_millis();
        self.until.store(u64::try_from(until).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Records that there was no room for.
    pub fn left_out(&self, records: u64) {
        self.left_out.fetch_add(records, Ordering::Relaxed);
    }

    pub fn close(&self) {
        self.closed.send_replace(true);
    }

    fn model(&self) -> MutexGuard<'_, Model> {
        // It is whole after each step.
        self.model.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A stream that counts as long as it is there.
struct Seat(Arc<Board>);

impl Seat {
    fn take(board: &Arc<Board>) -> Option<Self> {
        let taken = board.streams.fetch_add(1, Ordering::Relaxed);
        let seat = Self(board.clone());
        (taken < STREAMS).then_some(seat)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.streams.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Serves on a thread of its own, which also takes in what is seen.
pub(super) fn start(
    listener: TcpListener,
    board: Arc<Board>,
    mut seen: tokio::sync::mpsc::Receiver<Seen>,
) -> io::Result<(ServerHandle, std::thread::JoinHandle<()>)> {
    let (told, tell) = mpsc::channel();
    let thread = std::thread::Builder::new().name("dashboard".to_owned()).spawn(move || {
        let served = actix_web::rt::System::new().block_on(async move {
            let shown = board.clone();
            actix_web::rt::spawn(async move {
                while let Some(seen) = seen.recv().await {
                    shown.see(seen);
                }
            });
            let connections = Connections::new(LIMITS);
            let swept = connections.clone();
            actix_web::rt::spawn(async move {
                let mut sweeps = interval(SWEEP);
                loop {
                    sweeps.tick().await;
                    swept.sweep(Instant::now());
                }
            });
            let server = HttpServer::new(move || {
                let board = board.clone();
                let judge = board.clone();
                App::new()
                    .app_data(web::Data::from(board))
                    .wrap_fn(move |request, service| {
                        let mut verdict = judge.guard.judge(&facts(&request));
                        if !matches!(verdict, Verdict::Refuse(..)) && has_body(&request) {
                            verdict = Verdict::Refuse(413, "a request here has no body");
                        }
                        if matches!(verdict, Verdict::Refuse(..))
                            && let Some(connection) = request.conn_data::<Connection>()
                        {
                            connection.refuse(Instant::now());
                        }
                        match refused(&request, verdict) {
                            Some(answer) => {
                                let answer = request.into_response(sealed(answer));
                                Either::Left(ready(Ok(answer.map_into_right_body())))
                            }
                            None => {
                                let serving =
                                    request.conn_data::<Connection>().map(Connection::serve);
                                Either::Right(finished(service.call(request), serving))
                            }
                        }
                    })
                    .route("/", reads().to(html))
                    .route("/app.js", reads().to(script))
                    .route("/model.js", reads().to(shapes))
                    .route("/style.css", reads().to(style))
                    .route("/api/v1/snapshot", reads().to(snapshot))
                    .route("/api/v1/history", reads().to(history))
                    .route("/api/v1/events", reads().to(events))
                    .route("/api/v1/stream", reads().to(stream))
                    .route("/metrics", reads().to(prometheus))
                    .route("/healthz", reads().to(healthy))
                    .route("/readyz", reads().to(is_ready))
            })
            .workers(1)
            .max_connections(CONNECTIONS)
            .backlog(1024)
            .client_request_timeout(Duration::from_secs(5))
            .client_disconnect_timeout(Duration::from_secs(1))
            .disable_signals()
            .shutdown_timeout(1)
            .on_connect(move |connection, data| {
                if let Some(stream) = connection.downcast_ref::<actix_web::rt::net::TcpStream>() {
                    let fd = stream.as_fd();
                    let socket = socket2::SockRef::from(&fd);
                    let host =
                        stream.peer_addr().map_or(Ipv4Addr::UNSPECIFIED.into(), |at| at.ip());
                    let handle = socket.try_clone().ok();
                    let handle = handle.map(|socket| Box::new(socket) as Box<dyn Close>);
                    data.insert(connections.open(host, handle, Instant::now()));
                    // Best effort: without them a stalled reader costs more, and stays longer.
                    let _ = socket.set_send_buffer_size(SEND_BUFFER);
                    #[cfg(target_os = "linux")]
                    let _ = socket.set_tcp_user_timeout(Some(STALLED));
                }
            })
            .listen(listener)?
            .run();
            let _ = told.send(server.handle());
            server.await
        });
        if let Err(error) = served {
            tracing::error!(%error, "the dashboard ended");
        }
    })?;
    let ended = || io::Error::other("its server did not start");
    Ok((tell.recv().map_err(|_| ended())?, thread))
}

/// The methods that read.
fn reads() -> Route {
    web::route().guard(guard::Any(guard::Get()).or(guard::Head()))
}

/// Whether a request says that more follows its head.
fn has_body(request: &ServiceRequest) -> bool {
    let headers = request.headers();
    let length = headers.get(header::CONTENT_LENGTH).map(HeaderValue::as_bytes);
    headers.contains_key(header::TRANSFER_ENCODING) || length.is_some_and(|length| length != b"0")
}

/// Answers a request; it is served meanwhile. What takes longer than the answer's head holds a
/// [`Serving`] of its own.
async fn finished<B: MessageBody + 'static>(
    call: impl Future<Output = Result<ServiceResponse<B>, actix_web::Error>>,
    _serving: Option<Serving>,
) -> Result<ServiceResponse<EitherBody<B, BoxBody>>, actix_web::Error> {
    let mut answer = call.await?;
    seal(answer.headers_mut());
    Ok(answer.map_into_left_body())
}

/// What every answer says.
fn seal(headers: &mut header::HeaderMap) {
    let mut set = |name: HeaderName, value: &'static str| {
        headers.insert(name, HeaderValue::from_static(value));
    };
    set(header::CONTENT_SECURITY_POLICY, CSP);
    set(header::X_CONTENT_TYPE_OPTIONS, "nosniff");
    set(header::REFERRER_POLICY, "no-referrer");
    set(header::CACHE_CONTROL, "no-store");
    set(header::X_FRAME_OPTIONS, "DENY");
}

fn sealed(mut answer: HttpResponse) -> HttpResponse {
    seal(answer.headers_mut());
    answer
}

/// What a query says of a name.
fn asked<'a>(query: &'a str, name: &str) -> Option<&'a str> {
    query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
}

fn cookie(request: &ServiceRequest) -> Option<&str> {
    let cookies = request.headers().get_all(header::COOKIE).filter_map(|value| value.to_str().ok());
    let mut pairs = cookies.flat_map(|value| value.split(';'));
    pairs.find_map(|pair| pair.trim().strip_prefix(COOKIE)?.strip_prefix('='))
}

fn facts(request: &ServiceRequest) -> Facts<'_> {
    let text = |name: HeaderName| request.headers().get(name).map(|v| v.to_str().unwrap_or("?"));
    let authority = request.uri().authority().map(|authority| authority.as_str());
    Facts {
        method: request.method().as_str(),
        host: authority.or_else(|| text(header::HOST)),
        origin: text(header::ORIGIN),
        fetch_site: text(HeaderName::from_static("sec-fetch-site")),
        authorization: text(header::AUTHORIZATION),
        cookie: cookie(request),
        query: asked(request.query_string(), "token"),
    }
}

/// The answer to a request that does not get further.
fn refused(request: &ServiceRequest, verdict: Verdict) -> Option<HttpResponse> {
    match verdict {
        Verdict::Pass => None,
        Verdict::Enter => {
            let token = asked(request.query_string(), "token").unwrap_or_default();
            // Without a path the browser takes that of the address as it sees it, and the new address is
            // relative: a reverse proxy may serve this under another path.
            let cookie = format!("{COOKIE}={token}; HttpOnly; SameSite=Strict");
            let last = request.path().rsplit('/').next().unwrap_or_default();
            let mut answer = HttpResponse::SeeOther();
            Some(
                answer
                    .insert_header((header::LOCATION, format!("./{last}")))
                    .insert_header((header::SET_COOKIE, cookie))
                    .finish(),
            )
        }
        Verdict::Refuse(status, why) => {
            let status = StatusCode::from_u16(status).unwrap_or(StatusCode::FORBIDDEN);
            let mut answer = HttpResponse::build(status);
            if status == StatusCode::UNAUTHORIZED {
                answer.insert_header((header::WWW_AUTHENTICATE, "Bearer realm=\"springtide\""));
            }
            if status == StatusCode::METHOD_NOT_ALLOWED {
                answer.insert_header((header::ALLOW, "GET, HEAD"));
            }
            // What follows a request that is refused is not read.
            answer.force_close();
            Some(answer.content_type("text/plain; charset=utf-8").body(format!("{why}\n")))
        }
    }
}

type Shared = web::Data<Board>;

fn text(kind: &'static str, body: impl MessageBody + 'static) -> HttpResponse {
    HttpResponse::Ok().content_type(kind).body(body)
}

async fn html() -> HttpResponse {
    text("text/html; charset=utf-8", page::HTML)
}

async fn script() -> HttpResponse {
    text("text/javascript; charset=utf-8", page::SCRIPT)
}

async fn shapes() -> HttpResponse {
    text("text/javascript; charset=utf-8", page::SHAPES)
}

async fn style() -> HttpResponse {
    text("text/css; charset=utf-8", page::STYLE)
}

async fn snapshot(board: Shared) -> HttpResponse {
    board.watched_for_a_while();
    let tick = board.tick.borrow().clone();
    text("application/json", tick)
}

async fn history(board: Shared) -> HttpResponse {
    let history = board.model().history();
    text("application/json", history.to_string())
}

fn number(request: &HttpRequest, name: &str) -> Option<u64> {
    asked(request.query_string(), name)?.parse().ok()
}

async fn events(board: Shared, request: HttpRequest) -> HttpResponse {
    let after = number(&request, "after").unwrap_or(0);
    let model = board.model();
    let told: Vec<_> = model.events(after).take(ANSWER).collect();
    let more = told.last().is_some_and(|last| last.id < model.newest());
    let first = model.events(0).next().map_or(1, |told| told.id);
    let body = serde_json::json!({ "v": 1, "events": told, "more": more, "first": first });
    text("application/json", body.to_string())
}

async fn prometheus(board: Shared) -> HttpResponse {
    board.watched_for_a_while();
    let left_out = board.left_out.load(Ordering::Relaxed);
    let streams = board.streams.load(Ordering::Relaxed);
    match metrics::render(&board.model(), left_out, streams) {
        Ok(body) => text("application/openmetrics-text; version=1.0.0; charset=utf-8", body),
        Err(error) => HttpResponse::InternalServerError().body(format!("{error}\n")),
    }
}

async fn healthy() -> HttpResponse {
    text("text/plain; charset=utf-8", "ok\n")
}

/// Ready is a grid that has nodes, or gets them when jobs need them.
async fn is_ready(board: Shared) -> HttpResponse {
    let model = board.model();
    let status = model.status();
    if status.superseded {
        return HttpResponse::ServiceUnavailable().body("another head has taken over\n");
    }
    let there = status.sites.values().any(|site| site.on_demand || held(site).0 > 0);
    match there {
        true => text("text/plain; charset=utf-8", "ready\n"),
        false => HttpResponse::ServiceUnavailable().body("no node is there yet\n"),
    }
}

async fn stream(board: Shared, request: HttpRequest) -> HttpResponse {
    let board = board.into_inner();
    if request.method() == Method::HEAD {
        return HttpResponse::Ok().content_type("text/event-stream").finish();
    }
    let Some(seat) = Seat::take(&board) else {
        let why = format!("{STREAMS} dashboards are open already: close one\n");
        return HttpResponse::ServiceUnavailable().body(why);
    };
    let last =
        request.headers().get("last-event-id").and_then(|value| value.to_str().ok()?.parse().ok());
    let after = last.or_else(|| number(&request, "after")).unwrap_or(0);
    HttpResponse::Ok()
        .content_type("text/event-stream")
        .insert_header(("x-accel-buffering", "no"))
        .streaming(ticks((seat, request.conn_data::<Connection>().map(Connection::serve)), after))
}

/// Ticks as they come, the newest alone for who is slow, and events after the one that is known.
fn ticks(
    (seat, serving): (Seat, Option<Serving>),
    after: u64,
) -> impl Stream<Item = Result<Bytes, io::Error>> {
    let tick = seat.0.tick.subscribe();
    let closed = seat.0.closed.subscribe();
    struct State {
        seat: Seat,
        _serving: Option<Serving>,
        tick: watch::Receiver<Bytes>,
        closed: watch::Receiver<bool>,
        after: u64,
        first: bool,
    }
    let state = State { seat, _serving: serving, tick, closed, after, first: true };
    unfold(state, |mut state| async move {
        if !std::mem::take(&mut state.first) {
            let next = async {
                tokio::select! {
                    biased;
                    _ = state.closed.wait_for(|closed| *closed) => false,
                    changed = state.tick.changed() => changed.is_ok(),
                }
            };
            match timeout(HEARTBEAT, next).await {
                Ok(true) => {}
                Ok(false) => return None,
                Err(_) => return Some((Ok(Bytes::from_static(b": still here\n\n")), state)),
            }
        }
        let mut out = BytesMut::new();
        {
            let model = state.seat.0.model();
            let mut told = model.events(state.after).peekable();
            if let Some(first) = told.peek().filter(|first| first.id > state.after + 1) {
                let gone = first.id - state.after - 1;
                out.put(format!("event: gap\ndata: {gone}\n\n").as_bytes());
            }
            for told in told.take(BATCH) {
                state.after = told.id;
                let data = serde_json::to_string(told).unwrap_or_default();
                out.put(format!("event: told\nid: {}\ndata: {data}\n\n", told.id).as_bytes());
            }
        }
        let tick = state.tick.borrow_and_update().clone();
        out.put(&b"event: tick\ndata: "[..]);
        out.put(tick);
        out.put(&b"\n\n"[..]);
        Some((Ok(out.freeze()), state))
    })
}
