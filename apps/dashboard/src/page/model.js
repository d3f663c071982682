// What the page makes of a tick: pure functions, without a page and without a clock.

export const STATES = ["free", "busy", "starting", "measuring", "draining", "drained", "broken", "off", "held", "closing"];
// Each state has a sign besides its colour.
export const SIGNS = ["", "", "…", "m", "▨", "▧", "✕", "·", "h", "▽"];
export const SHARES = ["work", "idle", "wait inside", "wait between", "benchmark"];
export const CLASSES = ["work", "idle", "near", "far", "bench"];

/// The names behind `1-3,7` of a cluster, or the names themselves.
export function names(cluster, told) {
  if (Array.isArray(told)) return told;
  if (!told) return [];
  return told.split(",").flatMap((part) => {
    const [from, to] = part.split("-").map(Number);
    return Array.from({ length: (to ?? from) - from + 1 }, (_, i) => `${cluster}-${from + i}`);
  });
}

/// A worker's row as an object.
export function worker(name, row) {
  const [work, idle, near, far, speed, state, job = 0, old = 0] = row;
  const sum = work + idle + near + far;
  return { name, shares: [work, idle, near, far, sum > 0 ? 100 - sum : 0], speed: speed < 0 ? null : speed, state, job, old };
}

/// Seconds as people say them.
export function time(s) {
  if (s == null || !isFinite(s)) return "–";
  const whole = Math.max(0, Math.round(s));
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)}:${String(whole % 60).padStart(2, "0")} min`;
  return `${Math.floor(whole / 3600)}:${String(Math.floor((whole % 3600) / 60)).padStart(2, "0")} h`;
}

/// The time of day in this browser, `ago` seconds before now.
export function clock(ago) { return new Date(Date.now() - ago * 1000).toLocaleTimeString(); }

/// A number with its noun.
export function plural(n, noun) { return `${n} ${noun}${n === 1 ? "" : "s"}`; }

/// A reason with a full stop at its end.
export function sentence(text) { return /[.!?:]$/.test(text) ? text : `${text}.`; }

export function micros(us) {
  if (us < 1000) return `${us} µs`;
  if (us < 1e6) return `${(us / 1e3).toPrecision(3)} ms`;
  return `${(us / 1e6).toPrecision(3)} s`;
}

export function count(n) {
  if (n < 1e4) return String(Math.round(n));
  const units = [["G", 1e9], ["M", 1e6], ["k", 1e3]];
  const [unit, of] = units.find(([, of]) => n >= of);
  return `${(n / of).toPrecision(3)} ${unit}`;
}

/// Why a job has no efficiency.
export function unmeasured(mode) {
  if (mode == null) return "efficiency is not known";
  return mode === "static" ? "efficiency is not measured: the job is static" : "efficiency is not yet measured";
}

/// How long a job takes still, by its progress: null where that is not known.
export function eta(progress, elapsed) {
  if (!progress || !progress[1] || !progress[0] || !elapsed) return null;
  return (elapsed * (progress[1] - progress[0])) / progress[0];
}

/// A line through points [x, y]; a gap where y is missing.
export function path(points, x, y) {
  let out = "", pen = false;
  for (const [a, b] of points) {
    if (b == null) { pen = false; continue; }
    out += `${pen ? "L" : "M"}${x(a).toFixed(1)} ${y(b).toFixed(1)}`;
    pen = true;
  }
  return out;
}

/// At most so many of many points: of each stretch the last.
export function thin(points, most) {
  if (points.length <= most) return points;
  const step = points.length / most;
  return Array.from({ length: most }, (_, i) => points[Math.min(points.length - 1, Math.floor((i + 1) * step) - 1)]);
}

/// How large tiles are drawn for so many workers.
export function size(workers) { return workers > 600 ? "tiny" : workers > 150 ? "small" : workers > 60 ? "" : "large"; }

/// Times from 0 up to a span of seconds, at most so many steps, of a length that people say.
export function round(span, most) {
  const lengths = [10, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400];
  const step = lengths.find((s) => span / s <= most) ?? 86400 * Math.ceil(span / 86400 / most);
  return Array.from({ length: Math.floor(span / step) + 1 }, (_, n) => n * step);
}

/// Bookings [processors, start, end] of one cluster as boxes, from which processor on: none over another.
export function stack(bookings) {
  const placed = [];
  for (const [processors, start, end] of bookings) {
    const beside = placed.filter((box) => box.start < end && start < box.end).sort((a, b) => a.from - b.from);
    let from = 0;
    for (const box of beside) { if (box.from >= from + processors) break; from = Math.max(from, box.from + box.processors); }
    placed.push({ processors, start, end, from });
  }
  return placed;
}

/// Sums of the grid.
export function sums(tick) {
  const by = new Array(STATES.length).fill(0);
  for (const cluster of tick.clusters) for (const row of cluster.w) by[row[5]] += 1;
  const all = by.reduce((a, b) => a + b, 0);
  return { clusters: tick.clusters.length, all, there: all - by[6] - by[7], busy: by[1], broken: by[6] };
}
