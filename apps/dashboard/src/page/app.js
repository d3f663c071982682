// The page: what comes is drawn, nothing is sent. All text goes into the page as text, never as markup.

import { CLASSES, SHARES, SIGNS, STATES, clock, count, eta, micros, names, path, plural, round, sentence, size, stack, sums, thin, time, unmeasured, worker } from "./model.js";

const $ = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
// The style sheet has a set for each theme.
const HUES = [0, 1, 2, 3, 4, 5, 6].map((i) => `var(--hue-${i})`);
const KEEP = 10000, SHOW = 300, HEIGHT = 170;
const KINDS = { all: () => true, failed: (e) => e.kind === "failed", adapt: (e) => e.kind === "adapt", member: (e) => e.kind === "member",
  jobs: (e) => e.kind === "job" || e.kind === "schedule", security: (e) => e.kind === "security" };

const state = { tick: null, history: new Map(), events: [], gone: 0, job: null, chosen: false, paused: false, received: 0, filter: "all",
  tiles: new Map(), worker: null, open: new Set(), width: 1200, run: null, last: 0, dirty: false };

function svg(name, attributes, ...children) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

function el(name, properties = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key in node) node[key] = value; else node.setAttribute(key, value);
  }
  node.append(...children.filter((child) => child != null));
  return node;
}

function text(node, value) { if (node.textContent !== value) node.textContent = value; }

// What comes in.

function take(tick) {
  state.tick = tick;
  state.received = performance.now();
  const running = tick.jobs.filter((job) => job.clusters);
  if (!state.chosen || !tick.jobs.some((job) => job.id === state.job)) {
    state.chosen = false;
    state.job = running[0]?.id ?? state.job;
  }
  for (const job of state.run ? [] : running) {
    const points = state.history.get(job.id) ?? [];
    const last = points.at(-1);
    const working = {};
    let nodes = 0;
    for (const [name, of] of Object.entries(job.clusters)) { if (of.n > 0) working[name] = of.t[0] / 100; nodes += of.n; }
    if (!last || tick.at - last[0] >= 0.9) points.push([tick.at, job.eff, nodes, working]);
    if (points.length > 7200) points.splice(0, points.length - 7200);
    state.history.set(job.id, points);
  }
  stale();
  draw();
}

function tell(event) {
  state.last = event.id;
  state.events.push(event);
  if (state.events.length > KEEP) { state.events.shift(); state.gone += 1; }
  state.dirty = true;
}

// What is drawn.

function draw() {
  if (state.paused || document.hidden || !state.tick) return;
  const began = performance.now();
  const tick = state.tick;
  const job = tick.jobs.find((job) => job.id === state.job && job.clusters);
  head(tick, job);
  chart(tick, job);
  columns(tick, job);
  if (state.dirty) { logs(); state.dirty = false; }
  matrix(job);
  latencies(job);
  phases(job);
  picture(job);
  jobs(tick);
  slots(tick.slots);
  drawer(tick);
  document.body.dataset.ready = tick.seq;
  document.body.dataset.drawn = (performance.now() - began).toFixed(2);
}

function slots(told) {
  const section = $("slots"), chart = $("gantt");
  section.hidden = !told;
  const as = told ? JSON.stringify([told, state.width]) : "";
  if (!told || chart.dataset.of === as) return;
  chart.dataset.of = as;
  const taken = told.reservations.length, more = told.more ? `, ${told.more} more bookings not shown` : "";
  text($("slots-now"), taken ? `what is reserved from now on${more} · springtide slots list` : "nothing is reserved · springtide reserve");
  // Rows of clusters, as high as they have processors; time to the right, of which the last booking ends three quarters in.
  const left = Math.min(140, state.width / 4), WIDTH = state.width, ROW = 34;
  const last = told.bookings.reduce((most, booking) => Math.max(most, booking[3]), 0);
  const span = Math.max(60, last * 1.1), x = (s) => left + ((WIDTH - left - 10) * s) / span;
  const high = told.sites.length * (ROW + 6) + 20;
  const all = [];
  told.sites.forEach((site, at) => {
    const top = at * (ROW + 6);
    all.push(svg("rect", { x: left, y: top, width: WIDTH - left - 10, height: ROW, class: "lane" }),
      svg("text", { x: 0, y: top + 14, class: "name" }, site.n),
      svg("text", { x: 0, y: top + 28 }, site.none ? "no slots" : `${site.free} of ${site.p} free now`));
    const here = told.bookings.filter((booking) => booking[0] === at);
    stack(here.map(([, processors, start, end]) => [processors, start, end])).forEach((box, n) => {
      const [id, name, phase, cost] = told.reservations[here[n][4]];
      const unit = ROW / Math.max(1, site.p, box.from + box.processors), from = x(box.start), wide = Math.max(2, x(box.end) - from);
      const g = svg("g", { class: `booking ${phase}`, "data-reservation": id },
        svg("rect", { x: from, y: top + ROW - (box.from + box.processors) * unit, width: wide, height: Math.max(1.5, box.processors * unit - 1),
          fill: HUES[id % HUES.length] }),
        svg("title", {}, `reservation ${id} (${name}), ${phase}: ${box.processors} of ${site.n} ${box.start ? `in ${time(box.start)}` : "now"} until in ${time(box.end)}, costs ${cost}`));
      if (wide > 60 && box.processors * unit > 12) g.append(svg("text", { x: from + 4, y: top + ROW - (box.from + box.processors) * unit + 11 }, `${id} ${name}`.slice(0, wide / 7)));
      all.push(g);
    });
  });
  for (const s of round(span, Math.max(3, Math.min(8, Math.floor(WIDTH / 150))))) {
    if (x(s) < WIDTH - 60) all.push(svg("text", { x: x(s), y: high - 4 }, s ? `in ${time(s)}` : "now"));
  }
  chart.replaceChildren(svg("svg", { viewBox: `0 0 ${WIDTH} ${high}`, role: "img",
    "aria-label": `${taken} reservations on ${told.sites.length} clusters` }, ...all));
}

function head(tick, job) {
  text($("grid"), tick.grid);
  document.title = `${tick.grid} · Springtide`;
  const of = sums(tick);
  const broken = of.broken ? `, ${of.broken} broken` : "";
  // A grid that runs started this long before now.
  const up = state.run ? "" : ` · up ${time(tick.at)}, since ${clock(tick.at)}`;
  text($("counts"), `${plural(of.clusters, "cluster")}, ${of.there}/${of.all} ${of.all === 1 ? "worker" : "workers"}, ${of.busy} busy${broken}${up}`);
  const picker = $("jobs"), running = tick.jobs.filter((job) => job.clusters);
  const options = running.map((job) => `${job.id} ${job.name}`);
  if (picker.dataset.options !== options.join("\n")) {
    picker.replaceChildren(...running.map((job) => el("option", { value: job.id }, `${job.id} ${job.name}`)));
    picker.dataset.options = options.join("\n");
  }
  picker.parentElement.hidden = running.length < 2;
  if (state.job != null) picker.value = state.job;
  const line = $("progress");
  if (!job) { line.replaceChildren(tick.jobs.length ? (tick.jobs.length === 1 ? "1 job waits" : `${tick.jobs.length} jobs wait`) : "no job runs"); line.dataset.of = ""; return; }
  if (line.dataset.of !== String(job.id)) {
    line.replaceChildren(el("span"), " ", el("progress", { max: 1, "aria-label": "progress" }), " ", el("span"));
    line.dataset.of = job.id;
  }
  const [name, bar, rest] = line.querySelectorAll("span, progress");
  text(name, `job ${job.id} ${job.name}`);
  const p = job.progress;
  bar.hidden = !(p && p[1]);
  if (p && p[1]) bar.value = p[0] / p[1];
  const left = eta(p, job.elapsed);
  const parts = [p && `${count(p[0])}${p[1] ? ` of ${count(p[1])}` : ""} ${p[2]}`, `${time(job.elapsed)} so far`, left != null && `${time(left)} to go`,
    job.epoch > 1 && `epoch ${job.epoch}`];
  text(rest, parts.filter(Boolean).join(" · "));
}

function chart(tick, job) {
  const now = $("eff-now"), points = job ? state.history.get(job.id) ?? [] : [];
  text(now, !job ? (state.run ? "no job runs at this moment" : "The chart fills while a job runs.") : job.eff == null ? `${unmeasured(job.mode)}: lines are the part of time that is work`
    : `${job.eff.toFixed(2)} weighted average · band ${job.band[0]} to ${job.band[1]} · ${job.mode}, every ${time(job.period)}`);
  if (!job || points.length === 0) { $("chart").replaceChildren(); $("eff-legend").replaceChildren(); return; }
  // In points of the screen, so that letters keep their form.
  const WIDTH = state.width;
  const left = 34, right = WIDTH - 56, top = 8, bottom = HEIGHT - 20;
  const from = points[0][0], to = Math.max(state.run ? state.run.ticks.at(-1).at : tick.at, from + 10);
  const x = (t) => left + ((t - from) / (to - from)) * (right - left), y = (v) => bottom - v * (bottom - top);
  const most = Math.max(1, ...points.map((p) => p[2])), yn = (n) => bottom - (n / most) * (bottom - top) * 0.95;
  const shown = thin(points, 800), clusters = Object.keys(job.clusters);
  const out = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img",
    "aria-label": `efficiency over ${time(to - from)}` });
  out.append(svg("rect", { class: "band", x: left, width: right - left, y: y(job.band[1]), height: y(job.band[0]) - y(job.band[1]) }));
  for (const v of [0, 0.5, 1]) {
    out.append(svg("line", { class: "axis", x1: left, x2: right, y1: y(v), y2: y(v) }), svg("text", { x: left - 5, y: y(v) + 4, "text-anchor": "end" }, v.toFixed(1)));
  }
  for (const bound of job.band) out.append(svg("line", { class: "bound", x1: left, x2: right, y1: y(bound), y2: y(bound) }));
  out.append(svg("path", { class: "nodes", d: path(shown.map((p) => [p[0], p[2]]), x, yn) }), svg("text", { x: WIDTH - 2, y: yn(most) + 4, "text-anchor": "end" }, plural(most, "node")));
  clusters.forEach((name, i) => out.append(svg("path", { class: "thin", stroke: HUES[i % HUES.length], d: path(shown.map((p) => [p[0], p[3][name]]), x, y) })));
  out.append(svg("path", { class: "wae", d: path(shown.map((p) => [p[0], p[1]]), x, y) }));
  out.append(svg("text", { x: left, y: HEIGHT - 5 }, time(from)), svg("text", { x: right, y: HEIGHT - 5, "text-anchor": "end" }, time(to)));
  const axes = WIDTH > 500 ? "time since the grid's start; to the left a share from 0 to 1, to the right nodes" : WIDTH > 280 ? "time; share; nodes" : "time";
  out.append(svg("text", { x: (left + right) / 2, y: HEIGHT - 5, "text-anchor": "middle" }, axes));
  for (const event of state.events) {
    if (event.kind !== "adapt" || event.job !== job.id || event.at < from) continue;
    const mark = svg("text", { class: `mark ${event.sign > 0 ? "up" : "down"}`, x: x(event.at), y: event.sign > 0 ? bottom - 3 : top + 11, "text-anchor": "middle" },
      event.sign > 0 ? "▲" : event.sign < 0 ? "▼" : "◆", svg("title", {}, event.text));
    mark.addEventListener("click", () => find(event.id));
    out.append(mark);
  }
  if (state.run) out.append(svg("line", { class: "cursor", x1: x(tick.at), x2: x(tick.at), y1: top, y2: bottom }));
  $("chart").replaceChildren(out);
  const key = clusters.join("\n") + (job.eff == null);
  if ($("eff-legend").dataset.key !== key) {
    const line = (cls, stroke) => el("span", { className: "chart" }, svg("svg", { viewBox: "0 0 22 8" }, svg("path", { class: cls, d: "M0 4L22 4", ...(stroke && { stroke }) })));
    $("eff-legend").replaceChildren(
      ...(job.eff == null ? [] : [el("li", {}, line("wae"), "weighted average efficiency")]),
      ...clusters.map((name, i) => el("li", {}, line("thin", HUES[i % HUES.length]), `${name}: part of time that is work`)),
      el("li", {}, line("nodes"), "nodes (right)"), el("li", {}, "▲ adds  ▼ removes  ◆ moves"));
    $("eff-legend").dataset.key = key;
  }
}

function shares(of) {
  const out = svg("svg", { viewBox: "0 0 100 12", preserveAspectRatio: "none", class: "bar", role: "img" });
  let at = 0;
  of.forEach((share, i) => { out.append(svg("rect", { class: CLASSES[i], x: at, width: share, y: 0, height: 12 })); at += share; });
  out.setAttribute("aria-label", of.map((share, i) => `${SHARES[i]} ${share} %`).join(", "));
  out.append(svg("title", {}, out.getAttribute("aria-label")));
  return out;
}

function columns(tick, job) {
  const box = $("columns"), all = sums(tick).all, how = size(all), seen = new Set();
  if (!$("shades").firstChild) {
    SHARES.forEach((name, i) => $("shades").append(el("span", {}, svgKey(CLASSES[i]), ` ${name}`), " "));
  }
  for (const cluster of tick.clusters) {
    seen.add(cluster.name);
    let column = state.tiles.get(cluster.name);
    if (!column) {
      column = { box: el("div", { className: "column" }, el("h3"), el("p"), el("div"), el("p", { className: "bad" }), el("div", { className: "tiles" })), tiles: new Map() };
      column.box.setAttribute("role", "group");
      state.tiles.set(cluster.name, column);
      box.append(column.box);
    }
    const [title, line, bar, bad, tiles] = column.box.children;
    const of = job?.clusters[cluster.name], workers = names(cluster.name, cluster.names).map((name, i) => worker(name, cluster.w[i]));
    const there = workers.filter((w) => w.state !== 6 && w.state !== 7).length;
    text(title, `${cluster.name} ${there}/${workers.length}`);
    column.box.setAttribute("aria-label", `cluster ${cluster.name}`);
    const speeds = workers.filter((w) => w.speed != null).map((w) => w.speed / 100);
    const link = job?.links.find((l) => l.slice(0, 2).includes(cluster.name) && l[2] != null);
    text(line, of ? [`${of.n} of this job`, of.n && `${of.t[0]} % work`, speeds.length && `speed ${speeds.reduce((a, b) => a + b, 0).toFixed(1)}`,
      of.tasks != null && `${count(of.tasks)} ${of.tasks === 1 ? "task" : "tasks"}`, link && `RTT ${link[2]} ms`, link && link[3] && `${count(link[3])}B/s`].filter(Boolean).join(" · ") : job ? "nothing of this job" : "");
    const key = of ? of.t.join() : "";
    if (bar.dataset.key !== key) { bar.replaceChildren(...(of && of.n ? [shares(of.t)] : [])); bar.dataset.key = key; }
    const why = Object.entries(cluster.why ?? {}).map(([node, why]) => `${node}: ${why}`);
    text(bad, [cluster.failing, ...why].filter(Boolean).join("; "));
    const known = new Set();
    for (const w of workers) {
      known.add(w.name);
      let tile = column.tiles.get(w.name);
      if (!tile) {
        tile = el("button", { type: "button" }, svg("svg", { viewBox: "0 0 22 22" }, svg("rect", { class: "work", x: 0, width: 22, y: 22, height: 0 }), svg("rect", { class: "near", x: 0, width: 22, y: 22, height: 0 }),
          svg("rect", { class: "far", x: 0, width: 22, y: 22, height: 0 }), svg("text", { x: 11, y: 15 })));
        tile.addEventListener("click", () => open(w.name));
        tile.addEventListener("pointerenter", () => { tile.title = tile.getAttribute("aria-label"); });
        column.tiles.set(w.name, tile);
        tiles.append(tile);
      }
      const mark = `${w.shares}/${w.speed}/${w.state}/${w.old}/${w.job}/${how}`;
      if (tile.dataset.mark === mark) continue;
      tile.dataset.mark = mark;
      if (tile.className !== `tile ${how}`) tile.className = `tile ${how}`;
      const [work, near, far, sign] = tile.firstChild.children;
      const heights = w.state === 1 || w.state === 4 ? [w.shares[0], w.shares[2], w.shares[3]] : [0, 0, 0];
      let y = 22;
      [work, near, far].forEach((rect, i) => { const h = heights[i] * 0.22; y -= h; rect.setAttribute("y", y); rect.setAttribute("height", h); });
      text(sign, SIGNS[w.state] || (how === "large" ? w.name.slice(w.name.lastIndexOf("-") + 1) : ""));
      if (tile.dataset.state !== STATES[w.state]) tile.dataset.state = STATES[w.state];
      tile.toggleAttribute("data-old", w.old > 0 || w.state === 7);
      tile.setAttribute("aria-label", label(w));
    }
    for (const [name, tile] of column.tiles) if (!known.has(name)) { tile.remove(); column.tiles.delete(name); }
  }
  for (const [name, column] of state.tiles) if (!seen.has(name)) { column.box.remove(); state.tiles.delete(name); }
}

// The key of a colour.
function svgKey(cls) { return svg("svg", { viewBox: "0 0 10 10", width: 10, height: 10, "aria-hidden": "true" }, svg("rect", { class: cls, width: 10, height: 10 })); }

function label(w) {
  const parts = [w.name, STATES[w.state]];
  if (w.job) parts.push(`job ${w.job}`);
  if (w.state === 1 || w.state === 4) parts.push(w.shares.map((s, i) => (s ? `${SHARES[i]} ${s} %` : "")).filter(Boolean).join(", "));
  if (w.speed != null) parts.push(`speed ${w.speed} % of the fastest`);
  if (w.old) parts.push(`no report for ${w.old} s`);
  return parts.filter(Boolean).join(" · ");
}

function entry(event) {
  const cls = event.sign > 0 ? "up" : event.sign < 0 ? "down" : event.kind === "failed" ? "failed" : "";
  const line = [el("time", state.run || !state.tick ? {} : { title: clock(state.tick.at - event.at) }, time(event.at)), el("span", { className: cls }, event.text)];
  const why = event.why ?? [];
  if (why.length === 0) return el("li", { id: `e${event.id}` }, ...line);
  const more = el("details", { open: state.open.has(event.id) }, el("summary", {}, ...line, why.length > 1 ? el("span", { className: "dim" }, ` ${why.length} reasons`) : null), ...why.map((why) => el("span", { className: "why" }, sentence(why))));
  // What is open stays so when more comes.
  more.addEventListener("toggle", () => { if (more.open) state.open.add(event.id); else state.open.delete(event.id); });
  return el("li", { id: `e${event.id}` }, more);
}

function list(box, events, none) {
  // A decision arrives a moment after its consequences.
  const shown = events.slice(-SHOW).sort((a, b) => b.at - a.at || b.id - a.id);
  const items = shown.map(entry);
  if (events.length > SHOW) items.push(el("li", { className: "dim" }, `${events.length - SHOW} older are not shown`));
  box.replaceChildren(...(items.length ? items : [el("li", { className: "dim" }, none)]));
}

function logs() {
  list($("decision-log"), state.events.filter((event) => event.kind === "adapt"), "nothing was changed yet");
  list($("event-log"), state.events.filter(KINDS[state.filter]), "nothing of this kind");
  // The same id must not be twice on the page.
  for (const item of $("event-log").children) item.removeAttribute("id");
  const dropped = state.tick?.dropped ?? 0;
  text($("gaps"), [state.gone && `${state.gone} older were dropped`, dropped && `${dropped} facts were left out where they happened`].filter(Boolean).join(" · "));
}

function find(id) {
  document.querySelectorAll(".found").forEach((item) => item.classList.remove("found"));
  const item = $(`e${id}`);
  if (item) { item.querySelector("details")?.setAttribute("open", ""); item.classList.add("found"); item.scrollIntoView({ block: "nearest" }); }
}

function rows(table, head, body) {
  const key = JSON.stringify([head, body]);
  if (table.dataset.key === key) return;
  table.dataset.key = key;
  const cell = (tag, value, i) => el(tag, { className: typeof value === "string" && (i === 0 || value.length > 14) ? "t" : "" }, String(value ?? "–"));
  table.replaceChildren(el("thead", {}, el("tr", {}, ...head.map((h, i) => cell("th", h, i)))), el("tbody", {}, ...body.map((row) => el("tr", {}, ...row.map((c, i) => cell(i === 0 ? "th" : "td", c, i))))));
}

function matrix(job) {
  const clusters = job ? Object.keys(job.clusters) : [];
  const shown = clusters.slice(0, 12);
  const by = new Map((job?.steals ?? []).map(([from, to, n]) => [`${from}\n${to}`, n]));
  const more = clusters.length > shown.length ? [[`${clusters.length - shown.length} more`, ...shown.map(() => "")]] : [];
  text($("h-steals").querySelector("small"), job ? "victim (row) to thief (column)" : state.run ? "" : "Steals are counted while a job runs.");
  rows($("matrix"), job ? ["", ...shown] : [], [...shown.map((from) => [from, ...shown.map((to) => count(by.get(`${from}\n${to}`) ?? 0))]), ...more]);
}

function latencies(job) {
  const titles = { steal_local: "steal inside", steal_wide: "steal between", task: "task from elsewhere", round_trip: "message round trip", join_delay: "result to use", wake: "work to thread" };
  const told = Object.entries(job?.lat ?? {});
  rows($("latencies"), told.length ? ["", "p50", "p90", "p99", "most", "count"] : [], told.map(([name, l]) => [titles[name] ?? name, micros(l[1]), micros(l[2]), micros(l[3]), micros(l[4]), count(l[0])]));
  const empty = job?.period ? `Latencies come every tenth period: the first after ${time(10 * job.period)} of the job.` : "Latencies come while a job with periods runs.";
  text($("h-lat").querySelector("small"), told.length ? "since the job's start" : empty);
}

function phases(job) {
  const all = job?.phases ?? [];
  const steps = Math.max(1, job?.iter?.[0] ?? 1);
  const sum = (of) => all.reduce((s, phase) => s + of(phase), 0);
  const wall = sum((phase) => phase[1]);
  $("phases").hidden = !(wall > 0);
  if (!(wall > 0)) return;
  const percent = (part, whole) => (whole > 0 ? `${(100 * part / whole).toFixed(1)} %` : "–");
  const processors = (cpu, s) => (cpu == null || !(s > 0) ? "–" : (cpu / s).toFixed(1));
  const row = ([name, s, cpu, serial]) => [name, micros(Math.round(1e6 * s / steps)), percent(s, wall), processors(cpu, s), percent(serial, s)];
  rows($("phase-table"), ["", "mean", "share", "processors", "on one thread"], all.map(row));
  text($("h-phases").querySelector("small"), `on the root's node; ${percent(sum((phase) => phase[3]), wall)} ran on one thread`);
}

function picture(job) {
  const [number, name] = job?.picture ?? [];
  $("picture").hidden = !number;
  if (!number) return;
  const source = `api/v1/picture?job=${job.id}&n=${number}`;
  const shown = $("picture-now").firstElementChild;
  if (shown?.getAttribute("src") !== source) {
    if (shown) shown.setAttribute("src", source);
    else $("picture-now").append(el("img", { src: source, alt: "the job's latest picture" }));
  }
  text($("h-picture").querySelector("small"), name);
}

function jobs(tick) {
  rows($("job-table"), tick.jobs.length ? ["job", "state", "processors", "why"] : [], tick.jobs.map((job) => [`${job.id} ${job.name}`, job.state, job.processors, job.waits ?? ""]));
  text($("more-jobs"), tick.more_jobs ? `${tick.more_jobs} more are not shown` : tick.jobs.length ? "" : "No job was submitted yet.");
  const job = tick.jobs.find((job) => job.id === state.job);
  const decided = state.events.some((event) => event.kind === "adapt");
  const next = state.run || (job && !job.period) ? "" : !job ? "Decisions come while a job runs." : job.mode === "static" ? "A static job makes no decisions." : `The job decides every ${time(job.period)}.`;
  text($("thought"), job?.thought?.length ? `now: ${sentence(job.thought.join("; "))}` : decided ? "" : next);
}

function open(name) { state.worker = name; drawer(state.tick); $("drawer").showModal(); }

function drawer(tick) {
  if (!state.worker) return;
  const cluster = tick.clusters.find((cluster) => names(cluster.name, cluster.names).includes(state.worker));
  text($("drawer-name"), state.worker);
  if (!cluster) { $("drawer-body").replaceChildren("It is not there any more."); return; }
  const at = names(cluster.name, cluster.names).indexOf(state.worker);
  const w = worker(state.worker, cluster.w[at]);
  const job = tick.jobs.find((job) => job.id === w.job);
  const runs = (job?.running ?? []).filter(([node]) => node === w.name).map(([, name, path, from]) => `${name} ${path} from ${from}`);
  if (job?.root === w.name) runs.unshift("the root of the job");
  const key = JSON.stringify([w, runs]);
  if ($("drawer-body").dataset.key === key) return;
  $("drawer-body").dataset.key = key;
  const said = state.events.filter((event) => event.text.includes(state.worker)).slice(-8).reverse();
  $("drawer-body").replaceChildren(el("p", {}, label(w)), w.job ? shares(w.shares) : "", el("p", {}, runs.length ? `Runs ${runs.join(", ")}.` : ""), el("p", {}, "To take it out of service, and to put it back:"),
    el("code", {}, `springtide node drain ${w.name} --config GRID.toml`), el("code", {}, `springtide node undrain ${w.name} --config GRID.toml`),
    el("p", {}, said.length ? "Lately:" : ""), el("ol", { className: "log" }, ...said.map(entry)));
}

// How it is kept going.

function stale() {
  if (state.run) return;
  const age = (performance.now() - state.received) / 1000, box = $("live");
  const how = !state.tick ? "wait" : state.paused ? "paused" : age > 2 ? "stale" : "live";
  box.dataset.state = how;
  document.body.dataset.stale = how === "stale";
  text(box, how === "wait" ? "connecting" : how === "paused" ? "paused" : how === "stale" ? `stale: no data for ${time(age)}` : "live");
}

let source = null;

function connect() {
  source?.close();
  source = new EventSource(`api/v1/stream?after=${state.last}`);
  source.addEventListener("tick", (message) => take(JSON.parse(message.data)));
  source.addEventListener("occurred", (message) => tell(JSON.parse(message.data)));
  source.addEventListener("gap", (message) => { state.gone += Number(message.data); });
  source.onerror = () => {
    // A refusal ends it for good: it is begun again.
    if (state.received) state.received = Math.min(state.received, performance.now() - 2100);
    stale();
    if (source.readyState === EventSource.CLOSED) setTimeout(connect, 2000);
  };
}

/// A run that is over: all of it is here.
function replay(run) {
  $("pause").hidden = true;
  $("player").hidden = false;
  $("live").dataset.state = "replay";
  run.events.forEach(tell);
  state.gone = run.more_events;
  // For the lines: nothing is drawn of them one by one.
  state.paused = true;
  run.ticks.forEach(take);
  state.paused = false;
  state.run = run;
  text($("live"), run.gap ? `replay · ${run.gap}` : "replay");
  const at = $("at"), play = $("play");
  at.max = run.ticks.length - 1;
  const show = (i) => { at.value = i; const tick = run.ticks[i]; at.setAttribute("aria-valuetext", time(tick.at)); take(tick); };
  at.addEventListener("input", () => show(Number(at.value)));
  let timer = null;
  play.addEventListener("click", () => {
    if (timer) { clearInterval(timer); timer = null; }
    else {
      if (Number(at.value) >= run.ticks.length - 1) show(0);
      timer = setInterval(() => { const i = Number(at.value) + 1; if (i < run.ticks.length) show(i); else { clearInterval(timer); timer = null; play.setAttribute("aria-pressed", false); } }, 100);
    }
    play.setAttribute("aria-pressed", Boolean(timer));
  });
  show(run.ticks.length - 1);
}

async function begin() {
  for (const name of Object.keys(KINDS)) {
    const button = el("button", { type: "button" }, name);
    button.setAttribute("aria-pressed", name === "all");
    button.addEventListener("click", () => {
      state.filter = name;
      for (const other of $("filters").children) other.setAttribute("aria-pressed", other === button);
      logs();
    });
    $("filters").append(button);
  }
  // Asked while drawing, the browser would have to lay everything out anew at once.
  new ResizeObserver(([entry]) => { state.width = Math.max(200, Math.round(entry.contentRect.width)); draw(); }).observe($("efficiency"));
  $("pause").addEventListener("click", () => {
    state.paused = !state.paused;
    $("pause").setAttribute("aria-pressed", state.paused);
    stale();
    draw();
  });
  $("jobs").addEventListener("change", () => { state.job = Number($("jobs").value); state.chosen = true; draw(); });
  $("drawer").addEventListener("close", () => { state.worker = null; $("drawer-body").dataset.key = ""; });
  document.addEventListener("visibilitychange", draw);
  const told = $("run");
  if (told) return replay(JSON.parse(told.textContent));
  setInterval(stale, 1000);
  try {
    const history = await (await fetch("api/v1/history")).json();
    for (const [job, points] of Object.entries(history.jobs)) state.history.set(Number(job), points);
  } catch { /* It begins with what comes. */ }
  connect();
}

begin();

// For tests, and for who wants to feed it by hand.
window.springtide = { take, tell };
