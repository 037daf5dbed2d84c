// Live sessions and rates, from /metrics and /v1/sessions.

import { get, getText, op } from "./api.js";
import { badge, duration, h, plural, problemBox, put, s } from "./dom.js";

const EVERY = 1500; // milliseconds between two looks at the hub
const SAMPLES = 120; // looks kept for the curve
const LISTED = 100; // sessions drawn

/** Parse Prometheus text: [{name, labels: Map, value}]. */
export function parseMetrics(text) {
  const samples = [];
  for (const line of text.split("\n")) {
    const match = /^([A-Za-z_:][\w:]*)(?:\{(.*)\})? (\S+)/.exec(line);
    if (!match) continue;
    const labels = new Map();
    for (const [, name, value] of (match[2] ?? "").matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)) {
      labels.set(name, value.replace(/\\(.)/g, (_, letter) => (letter === "n" ? "\n" : letter)));
    }
    samples.push({ name: match[1], labels, value: Number(match[3]) });
  }
  return samples;
}

function byEnv(samples, name) {
  const totals = new Map();
  for (const sample of samples) {
    if (sample.name !== name) continue;
    const env = sample.labels.get("env") ?? "";
    totals.set(env, (totals.get(env) ?? 0) + sample.value);
  }
  return totals;
}

const total = (counts) => [...counts.values()].reduce((sum, value) => sum + value, 0);
const rate = (value) => (value >= 100 ? Math.round(value).toLocaleString("en") : value.toFixed(1));

/** What one look at the hub saw. */
function look(samples, at) {
  const single = (name) => samples.find((sample) => sample.name === name)?.value ?? 0;
  return {
    at,
    live: byEnv(samples, "turngym_sessions"), created: byEnv(samples, "turngym_sessions_created_total"),
    evicted: byEnv(samples, "turngym_sessions_evicted_total"), steps: byEnv(samples, "turngym_steps_total"),
    errors: byEnv(samples, "turngym_errors_total"), seconds: byEnv(samples, "turngym_step_seconds_sum"),
    max: single("turngym_sessions_max"), sockets: single("turngym_sockets"), draining: single("turngym_draining") > 0,
    memory: single("process_resident_memory_bytes"), cpu: single("process_cpu_seconds_total"),
  };
}

export async function liveView(root) {
  const looks = [];
  let stopped = false;
  let timer = 0;
  let sessionsDue = 0;
  let filter = "";
  let sessions = [];
  const head = h("div");
  const environments = h("div", { class: "panel" });
  const list = h("div");
  const problems = h("div");
  const search = h("input", { type: "search", "aria-label": "Search sessions", placeholder: "Search sessions", oninput: (event) => { filter = event.currentTarget.value.toLowerCase(); drawSessions(); } });
  put(root, h("h1", null, "Live"), problems, head, environments,
    h("section", { class: "panel" }, h("header", { class: "row" }, h("h2", null, "Sessions"), search), list));

  async function refresh() {
    clearTimeout(timer);
    try {
      if (!document.hidden) {
        looks.push(look(parseMetrics(await getText("metrics")), performance.now()));
        if (looks.length > SAMPLES) looks.shift();
        const begun = performance.now();
        if (begun >= sessionsDue) {
          sessions = await get("v1/sessions");
          // A hub with very many sessions is asked for the list less often than for its counters.
          sessionsDue = begun + 20 * (performance.now() - begun);
        }
        put(problems);
        drawHead();
        drawEnvironments();
        drawSessions();
      }
    } catch (problem) {
      put(problems, problemBox(problem));
    }
    if (!stopped) timer = setTimeout(refresh, EVERY);
  }

  function drawHead() {
    const now = looks.at(-1);
    const rates = looks.slice(1).map((one, index) => (1000 * (total(one.steps) - total(looks[index].steps))) / (one.at - looks[index].at)).map((value) => Math.max(0, value));
    const before = looks.at(-2);
    const cpu = before ? (1e5 * (now.cpu - before.cpu)) / (now.at - before.at) : null;
    const figure = (name, value, note) => h("div", null, h("dt", null, name), h("dd", { "data-figure": name.toLowerCase() }, value, note && h("span", { class: "muted small" }, ` ${note}`)));
    put(
      head,
      now.draining && h("p", { class: "notice" }, "This hub is shutting down: it takes no new sessions."),
      h("div", { class: "panel rates-panel" },
        h("dl", { class: "figures" },
          figure("Sessions", total(now.live).toLocaleString("en"), `of ${now.max.toLocaleString("en")}`),
          figure("Steps/s", rates.length ? rate(rates.at(-1)) : "–"),
          figure("Steps", total(now.steps).toLocaleString("en")),
          figure("Sockets", now.sockets),
          figure("Errors", total(now.errors).toLocaleString("en")),
          now.memory > 0 && figure("Memory", `${Math.round(now.memory / 2 ** 20).toLocaleString("en")} MiB`),
          cpu !== null && now.cpu > 0 && figure("CPU", `${Math.max(0, cpu).toFixed(0)} %`),
        ),
        curve(rates)),
    );
  }

  function drawEnvironments() {
    const now = looks.at(-1);
    const before = looks.at(-2);
    const names = [...now.live.keys()].sort((a, b) => now.live.get(b) - now.live.get(a) || now.steps.get(b) - now.steps.get(a) || a.localeCompare(b));
    const row = (env) => {
      const steps = now.steps.get(env) ?? 0;
      const speed = before ? (1000 * (steps - (before.steps.get(env) ?? 0))) / (now.at - before.at) : 0;
      const cost = steps ? ((now.seconds.get(env) ?? 0) / steps) * 1e6 : 0;
      const cells = [now.live.get(env), rate(Math.max(0, speed)), steps, steps ? (cost < 1000 ? `${cost.toFixed(0)} µs` : `${(cost / 1000).toFixed(1)} ms`) : "–", now.created.get(env) ?? 0, now.evicted.get(env) ?? 0, now.errors.get(env) ?? 0];
      return h("tr", null, h("th", { scope: "row" }, h("a", { href: `#/env/${encodeURIComponent(env)}` }, env)), cells.map((cell) => h("td", { class: "number" }, typeof cell === "number" ? cell.toLocaleString("en") : cell)));
    };
    put(
      environments,
      h("h2", null, "Environments"),
      h("div", { class: "scroll-x" }, h("table", { class: "wide" },
        h("thead", null, h("tr", null, ["Environment", "Live", "Steps/s", "Steps", "Mean step", "Created", "Evicted", "Errors"].map((name, index) => h("th", { scope: "col", class: index && "number" }, name)))),
        h("tbody", null, names.map(row)))),
    );
  }

  function drawSessions() {
    const fits = sessions.filter((one) => `${one.session} ${one.env} ${one.task}`.toLowerCase().includes(filter)).sort((a, b) => a.idle_s - b.idle_s);
    const close = async (event, session) => {
      event.currentTarget.disabled = true;
      try {
        await op("close", { session });
      } catch (problem) {
        if (problem.code !== "SESSION_NOT_FOUND") return put(problems, problemBox(problem));
      }
      sessions = sessions.filter((one) => one.session !== session);
      drawSessions();
    };
    const row = (one) =>
      h("tr", null,
        h("th", { scope: "row", class: "session-id" }, h("a", { href: `#/play/${encodeURIComponent(one.env)}?session=${encodeURIComponent(one.session)}`, title: "Open in the player" }, one.session)),
        [one.env, one.level, one.task || "–", one.seed, one.step_index, one.done ? badge("over") : badge("running", "good"), duration(one.age_s), duration(one.idle_s)].map((cell) => h("td", { class: typeof cell === "number" && "number" }, cell)),
        h("td", null, h("button", { type: "button", class: "small", onclick: (event) => close(event, one.session) }, "Close")));
    // A focused button would vanish under the hand of whoever is about to press it.
    if (list.contains(document.activeElement) && document.activeElement.matches("button:not(:disabled)")) return;
    put(
      list,
      fits.length === 0 && h("p", { class: "muted" }, sessions.length ? "No session fits." : "No session is open under this key."),
      fits.length > 0 && h("div", { class: "scroll-x" }, h("table", { class: "wide sessions" },
        h("thead", null, h("tr", null, ["Session", "Environment", "Level", "Task", "Seed", "Step", "State", "Age", "Idle", ""].map((name) => h("th", { scope: "col" }, name)))),
        h("tbody", null, fits.slice(0, LISTED).map(row)))),
      fits.length > LISTED && h("p", { class: "muted small" }, `The ${LISTED} used last of ${plural(fits.length, "session")}.`),
    );
  }

  const wake = () => !document.hidden && refresh();
  document.addEventListener("visibilitychange", wake);
  await refresh();
  return () => {
    stopped = true;
    clearTimeout(timer);
    document.removeEventListener("visibilitychange", wake);
  };
}

/** The rate over the last looks as a curve. */
function curve(rates) {
  const [width, height] = [600, 90];
  const top = Math.max(1, ...rates);
  const points = rates.map((value, index) => `${((index + SAMPLES - rates.length) / (SAMPLES - 1)) * width},${height - 2 - (value / top) * (height - 12)}`);
  return h(
    "figure",
    { class: "curve" },
    h("figcaption", { class: "muted small" }, `Steps/s over the last ${Math.round((SAMPLES * EVERY) / 60000)} minutes, peak ${rate(Math.max(0, ...rates))}`),
    s("svg", { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": "Curve of steps per second" },
      points.length > 1 && s("polygon", { points: `${points[0].split(",")[0]},${height} ${points.join(" ")} ${width},${height}` }),
      points.length > 1 && s("polyline", { points: points.join(" "), fill: "none", "vector-effect": "non-scaling-stroke" })),
  );
}
