//! The dashboard's HTTP server: the page, its stream, and the same numbers for programs. Read-only;
//! every request is judged first.
//!
//! This module does not know the meaning of the numbers.

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
use springtide_runtime::id::JobId;
use tokio::sync::watch;
use tokio::time::{Instant, interval, timeout};

use crate::changes::held_and_requested;
use crate::connections::{Close, Connection, ConnectionLimits, Connections, Serving};
use crate::guard::{AccessVerdict, COOKIE, Guard, RequestFacts};
use crate::metrics;
use crate::model::{DashboardModel, GridSnapshot};
use crate::page;

/// Maximum number of open streams.
const STREAMS_MAX: u64 = 64;
/// Interval between keep-alive messages of an idle stream, which detect closed browsers.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// Maximum number of events in one message of a stream.
const BATCH_EVENTS: usize = 200;
/// Maximum number of events in one answer.
const ANSWER_EVENTS: usize = 1000;
/// Time for which a request for metrics or a snapshot counts as watching.
const WATCH_TIME: Duration = Duration::from_secs(15);
/// Time after which the system closes a connection whose client does not read.
const STALL_TIMEOUT: Duration = Duration::from_secs(30);
/// Size of the system's buffer for a slow reader, in bytes.
const SEND_BUFFER: usize = 128 << 10;

/// Maximum number of connections: more than may wait and be served, so that new ones are always
/// accepted.
const CONNECTIONS_MAX: usize = 1024;
/// The limits on waiting connections.
const LIMITS: ConnectionLimits = ConnectionLimits {
    waiting: 96,
    at_once: 320,
    moment: Duration::from_secs(1),
    of_host: 32,
    patience: Duration::from_secs(10),
    refusal: Duration::from_secs(1),
};
/// Interval between closings of connections that have waited too long.
const SWEEP_INTERVAL: Duration = Duration::from_millis(250);

const CSP: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
img-src 'self' data:; \
base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The state that all clients share.
pub(super) struct DashboardState {
    model: Mutex<DashboardModel>,
    guard: Guard,
    began: Instant,
    tick: watch::Sender<Bytes>,
    streams: AtomicU64,
    /// The time until which a client without a stream counts as watching, in milliseconds since the
    /// start.
    until: AtomicU64,
    dropped_records: AtomicU64,
    closed: watch::Sender<bool>,
}

impl DashboardState {
    pub fn new(grid: &str, guard: Guard) -> Self {
        let model = DashboardModel::new(grid, false);
        let tick = Bytes::from(model.tick().to_string());
        Self {
            model: Mutex::new(model),
            guard,
            began: Instant::now(),
            tick: watch::Sender::new(tick),
            streams: AtomicU64::new(0),
            until: AtomicU64::new(0),
            dropped_records: AtomicU64::new(0),
            closed: watch::Sender::new(false),
        }
    }

    /// Applies a snapshot and makes its tick, once for all clients.
    pub fn apply(&self, snapshot: GridSnapshot) {
        let at = self.began.elapsed().as_secs_f64();
        let tick = {
            let mut model = self.model();
            model.apply(at, snapshot);
            model.tick()
        };
        self.tick.send_replace(Bytes::from(tick.to_string()));
    }

    /// Whether any client watches.
    pub fn is_watched(&self) -> bool {
        let now = self.began.elapsed().as_millis();
        self.streams.load(Ordering::Relaxed) > 0
            || u128::from(self.until.load(Ordering::Relaxed)) > now
    }

    /// The number of the job's picture that is shown; 0 if there is none.
    pub fn picture_number(&self, job: JobId) -> u64 {
        self.model().picture(job).map_or(0, |picture| picture.number)
    }

    fn watched_for_a_while(&self) {
        let until = (self.began.elapsed() + WATCH_TIME).as_millis();
        self.until.store(u64::try_from(until).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Counts records that were dropped.
    pub fn dropped_records(&self, records: u64) {
        self.dropped_records.fetch_add(records, Ordering::Relaxed);
    }

    pub fn close(&self) {
        self.closed.send_replace(true);
    }

    fn model(&self) -> MutexGuard<'_, DashboardModel> {
        // The model is consistent after each step.
        self.model.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A stream that counts as open as long as it lives.
struct StreamGuard(Arc<DashboardState>);

impl StreamGuard {
    fn take(shared: &Arc<DashboardState>) -> Option<Self> {
        let taken = shared.streams.fetch_add(1, Ordering::Relaxed);
        let stream_guard = Self(shared.clone());
        (taken < STREAMS_MAX).then_some(stream_guard)
    }
}

impl Drop for StreamGuard {
    fn drop(&mut self) {
        self.0.streams.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Starts the server on a thread of its own, which also applies snapshots.
pub(super) fn start(
    listener: TcpListener,
    shared: Arc<DashboardState>,
    mut snapshots: tokio::sync::mpsc::Receiver<GridSnapshot>,
) -> io::Result<(ServerHandle, std::thread::JoinHandle<()>)> {
    let (sender, receiver) = mpsc::channel();
    let thread = std::thread::Builder::new().name("dashboard".to_owned()).spawn(move || {
        let served = actix_web::rt::System::new().block_on(async move {
            let shown = shared.clone();
            actix_web::rt::spawn(async move {
                while let Some(snapshot) = snapshots.recv().await {
                    shown.apply(snapshot);
                }
            });
            let connections = Connections::new(LIMITS);
            let swept = connections.clone();
            actix_web::rt::spawn(async move {
                let mut sweeps = interval(SWEEP_INTERVAL);
                loop {
                    sweeps.tick().await;
                    swept.sweep(Instant::now());
                }
            });
            let server = HttpServer::new(move || {
                let shared = shared.clone();
                let judge = shared.clone();
                App::new()
                    .app_data(web::Data::from(shared))
                    .wrap_fn(move |request, service| {
                        let mut verdict = judge.guard.judge(&facts(&request));
                        if !matches!(verdict, AccessVerdict::Refuse(..)) && has_body(&request) {
                            verdict = AccessVerdict::Refuse(413, "a request here has no body");
                        }
                        if matches!(verdict, AccessVerdict::Refuse(..))
                            && let Some(connection) = request.conn_data::<Connection>()
                        {
                            connection.refuse(Instant::now());
                        }
                        match refusal_answer(&request, verdict) {
                            Some(answer) => {
                                let answer = request.into_response(sealed(answer));
                                Either::Left(ready(Ok(answer.map_into_right_body())))
                            }
                            None => {
                                let serving =
                                    request.conn_data::<Connection>().map(Connection::serve);
                                Either::Right(answer_request(service.call(request), serving))
                            }
                        }
                    })
                    .route("/", read_methods().to(html))
                    .route("/app.js", read_methods().to(script))
                    .route("/model.js", read_methods().to(shapes))
                    .route("/style.css", read_methods().to(style))
                    .route("/api/v1/snapshot", read_methods().to(snapshot))
                    .route("/api/v1/history", read_methods().to(history))
                    .route("/api/v1/events", read_methods().to(events))
                    .route("/api/v1/picture", read_methods().to(picture))
                    .route("/api/v1/stream", read_methods().to(stream))
                    .route("/metrics", read_methods().to(prometheus))
                    .route("/healthz", read_methods().to(healthy))
                    .route("/readyz", read_methods().to(is_ready))
            })
            .workers(1)
            .max_connections(CONNECTIONS_MAX)
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
                    // Best effort: without these options a stalled reader costs more and stays
                    // longer.
                    let _ = socket.set_send_buffer_size(SEND_BUFFER);
                    #[cfg(target_os = "linux")]
                    let _ = socket.set_tcp_user_timeout(Some(STALL_TIMEOUT));
                }
            })
            .listen(listener)?
            .run();
            let _ = sender.send(server.handle());
            server.await
        });
        if let Err(error) = served {
            tracing::error!(%error, "the dashboard ended");
        }
    })?;
    let ended = || io::Error::other("its server did not start");
    Ok((receiver.recv().map_err(|_| ended())?, thread))
}

/// The methods of read requests.
fn read_methods() -> Route {
    web::route().guard(guard::Any(guard::Get()).or(guard::Head()))
}

/// Whether a request announces a body.
fn has_body(request: &ServiceRequest) -> bool {
    let headers = request.headers();
    let length = headers.get(header::CONTENT_LENGTH).map(HeaderValue::as_bytes);
    headers.contains_key(header::TRANSFER_ENCODING) || length.is_some_and(|length| length != b"0")
}

/// Answers a request, which is served meanwhile. Longer answers hold a [`Serving`] of their own.
async fn answer_request<B: MessageBody + 'static>(
    call: impl Future<Output = Result<ServiceResponse<B>, actix_web::Error>>,
    _serving: Option<Serving>,
) -> Result<ServiceResponse<EitherBody<B, BoxBody>>, actix_web::Error> {
    let mut answer = call.await?;
    set_headers(answer.headers_mut());
    Ok(answer.map_into_left_body())
}

/// Sets the headers of every answer.
fn set_headers(headers: &mut header::HeaderMap) {
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
    set_headers(answer.headers_mut());
    answer
}

/// The value of a parameter in a query.
fn parameter<'a>(query: &'a str, name: &str) -> Option<&'a str> {
    query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
}

fn cookie(request: &ServiceRequest) -> Option<&str> {
    let cookies = request.headers().get_all(header::COOKIE).filter_map(|value| value.to_str().ok());
    let mut pairs = cookies.flat_map(|value| value.split(';'));
    pairs.find_map(|pair| pair.trim().strip_prefix(COOKIE)?.strip_prefix('='))
}

fn facts(request: &ServiceRequest) -> RequestFacts<'_> {
    let text = |name: HeaderName| request.headers().get(name).map(|v| v.to_str().unwrap_or("?"));
    let authority = request.uri().authority().map(|authority| authority.as_str());
    RequestFacts {
        method: request.method().as_str(),
        host: authority.or_else(|| text(header::HOST)),
        origin: text(header::ORIGIN),
        fetch_site: text(HeaderName::from_static("sec-fetch-site")),
        authorization: text(header::AUTHORIZATION),
        cookie: cookie(request),
        query: parameter(request.query_string(), "token"),
    }
}

/// The answer to a request that is not passed on.
fn refusal_answer(request: &ServiceRequest, verdict: AccessVerdict) -> Option<HttpResponse> {
    match verdict {
        AccessVerdict::Pass => None,
        AccessVerdict::Enter => {
            let token = parameter(request.query_string(), "token").unwrap_or_default();
            // Without a path, the browser takes the path of the address that it sees. The new
            // address is relative: a reverse proxy may use another path.
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
        AccessVerdict::Refuse(status, why) => {
            let status = StatusCode::from_u16(status).unwrap_or(StatusCode::FORBIDDEN);
            let mut answer = HttpResponse::build(status);
            if status == StatusCode::UNAUTHORIZED {
                answer.insert_header((header::WWW_AUTHENTICATE, "Bearer realm=\"springtide\""));
            }
            if status == StatusCode::METHOD_NOT_ALLOWED {
                answer.insert_header((header::ALLOW, "GET, HEAD"));
            }
            // Data after a refused request is not read.
            answer.force_close();
            Some(answer.content_type("text/plain; charset=utf-8").body(format!("{why}\n")))
        }
    }
}

type ServerData = web::Data<DashboardState>;

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

async fn snapshot(shared: ServerData) -> HttpResponse {
    shared.watched_for_a_while();
    let tick = shared.tick.borrow().clone();
    text("application/json", tick)
}

async fn history(shared: ServerData) -> HttpResponse {
    let history = shared.model().history();
    text("application/json", history.to_string())
}

fn number(request: &HttpRequest, name: &str) -> Option<u64> {
    parameter(request.query_string(), name)?.parse().ok()
}

async fn events(shared: ServerData, request: HttpRequest) -> HttpResponse {
    let after = number(&request, "after").unwrap_or(0);
    let model = shared.model();
    let events: Vec<_> = model.events(after).take(ANSWER_EVENTS).collect();
    let more = events.last().is_some_and(|last| last.id < model.newest());
    let first = model.events(0).next().map_or(1, |event| event.id);
    let body = serde_json::json!({ "v": 1, "events": events, "more": more, "first": first });
    text("application/json", body.to_string())
}

/// The latest picture of the job with this number.
async fn picture(shared: ServerData, request: HttpRequest) -> HttpResponse {
    let job = number(&request, "job").map(JobId);
    match job.and_then(|job| shared.model().picture(job).map(|picture| picture.bytes.clone())) {
        Some(bytes) => text("image/png", bytes),
        None => HttpResponse::NotFound().body("the job has no picture\n"),
    }
}

async fn prometheus(shared: ServerData) -> HttpResponse {
    shared.watched_for_a_while();
    let dropped_records = shared.dropped_records.load(Ordering::Relaxed);
    let streams = shared.streams.load(Ordering::Relaxed);
    match metrics::render(&shared.model(), dropped_records, streams) {
        Ok(body) => text("application/openmetrics-text; version=1.0.0; charset=utf-8", body),
        Err(error) => HttpResponse::InternalServerError().body(format!("{error}\n")),
    }
}

async fn healthy() -> HttpResponse {
    text("text/plain; charset=utf-8", "ok\n")
}

/// A grid is ready if it has nodes, or gets them when jobs need them.
async fn is_ready(shared: ServerData) -> HttpResponse {
    let model = shared.model();
    let status = model.status();
    if status.superseded {
        return HttpResponse::ServiceUnavailable().body("another head has taken over\n");
    }
    let there = status.sites.values().any(|site| site.on_demand || held_and_requested(site).0 > 0);
    if there {
        text("text/plain; charset=utf-8", "ready\n")
    } else {
        HttpResponse::ServiceUnavailable().body("no node is there yet\n")
    }
}

async fn stream(shared: ServerData, request: HttpRequest) -> HttpResponse {
    let shared = shared.into_inner();
    if request.method() == Method::HEAD {
        return HttpResponse::Ok().content_type("text/event-stream").finish();
    }
    let Some(stream_guard) = StreamGuard::take(&shared) else {
        let why = format!("{STREAMS_MAX} dashboards are open already: close one\n");
        return HttpResponse::ServiceUnavailable().body(why);
    };
    let last =
        request.headers().get("last-event-id").and_then(|value| value.to_str().ok()?.parse().ok());
    let after = last.or_else(|| number(&request, "after")).unwrap_or(0);
    HttpResponse::Ok()
        .content_type("text/event-stream")
        .insert_header(("x-accel-buffering", "no"))
        .streaming(ticks(
            (stream_guard, request.conn_data::<Connection>().map(Connection::serve)),
            after,
        ))
}

/// Ticks as they arrive, for slow clients only the newest, and events after the given number.
fn ticks(
    (stream_guard, serving): (StreamGuard, Option<Serving>),
    after: u64,
) -> impl Stream<Item = Result<Bytes, io::Error>> {
    let tick = stream_guard.0.tick.subscribe();
    let closed = stream_guard.0.closed.subscribe();
    struct ServerState {
        stream_guard: StreamGuard,
        _serving: Option<Serving>,
        tick: watch::Receiver<Bytes>,
        closed: watch::Receiver<bool>,
        after: u64,
        first: bool,
    }
    let state = ServerState { stream_guard, _serving: serving, tick, closed, after, first: true };
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
            let model = state.stream_guard.0.model();
            let mut events = model.events(state.after).peekable();
            if let Some(first) = events.peek().filter(|first| first.id > state.after + 1) {
                let gone = first.id - state.after - 1;
                out.put(format!("event: gap\ndata: {gone}\n\n").as_bytes());
            }
            for event in events.take(BATCH_EVENTS) {
                state.after = event.id;
                let data = serde_json::to_string(event).unwrap_or_default();
                out.put(format!("event: occurred\nid: {}\ndata: {data}\n\n", event.id).as_bytes());
            }
        }
        let tick = state.tick.borrow_and_update().clone();
        out.put(&b"event: tick\ndata: "[..]);
        out.put(tick);
        out.put(&b"\n\n"[..]);
        Some((Ok(out.freeze()), state))
    })
}
