// Live sessions and rates, from /metrics and /v1/sessions.

import { get, getText, op } from "./api.js";
import { badge, duration, h, plural, problemBox, put, s } from "./dom.js";

const EVERY = 1500; // milliseconds between two looks at the hub
const SAMPLES = 120; // looks kept for the curve
const LISTED = 100; // sessions drawn

/** Parse Prometheus text: [{name, labels: Map, value}]. */
function parseMetrics(text) {
  const samples = [];
  for (const line of text.split("\n")) {
    const match = /^([A-Za-z_:][\w:]*)(?:\{(.*)\})? (\S+)/.exec(line);
    if (!match) continue;
    const labels = new Map();
    for (const [, name, value] of (match[2] ?? "").matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)) {
      labels.set(
        name,
        value.replace(/\\(.)/g, (_, letter) => (letter === "n" ? "\n" : letter)),
      );
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
const whole = (value) => value.toLocaleString("en");
const rate = (value) => (value >= 100 ? whole(Math.round(value)) : value.toFixed(1));
const span = (seconds) => (seconds < 1e-3 ? `${(seconds * 1e6).toFixed(0)} µs` : `${(seconds * 1e3).toFixed(1)} ms`);
// Counters fall when a hub is restarted: that is no negative rate.
const perSecond = (count, before, now) => Math.max(0, (1000 * count) / (now.at - before.at));

/** The hub's counters at one time, in milliseconds of the page. */
function countersOf(samples, at) {
  const single = (name) => samples.find((sample) => sample.name === name)?.value ?? 0;
  return {
    at,
    live: byEnv(samples, "turngym_sessions"),
    created: byEnv(samples, "turngym_sessions_created_total"),
    evicted: byEnv(samples, "turngym_sessions_evicted_total"),
    steps: byEnv(samples, "turngym_steps_total"),
    errors: byEnv(samples, "turngym_errors_total"),
    seconds: byEnv(samples, "turngym_step_seconds_sum"),
    max: single("turngym_sessions_max"),
    sockets: single("turngym_sockets"),
    draining: single("turngym_draining") > 0,
    memory: single("process_resident_memory_bytes"),
    cpu: single("process_cpu_seconds_total"),
  };
}

export async function liveView(root) {
  const view = new LiveView(root);
  document.addEventListener("visibilitychange", view.wake);
  await view.refresh();
  return () => view.dispose();
}

class LiveView {
  constructor(root) {
    Object.assign(this, { looks: [], sessions: [], sessionsDue: 0, filter: "", stopped: false, timer: 0 });
    this.problems = h("div");
    this.head = h("div");
    this.environments = h("div", { class: "panel" });
    this.list = h("div");
    this.wake = () => !document.hidden && this.refresh();
    const searched = (event) => {
      this.filter = event.currentTarget.value.toLowerCase();
      this.drawSessions();
    };
    const search = h("input", {
      type: "search",
      "aria-label": "Search sessions",
      placeholder: "Search sessions",
      oninput: searched,
    });
    put(
      root,
      h("h1", null, "Live"),
      this.problems,
      this.head,
      this.environments,
      h("section", { class: "panel" }, h("header", { class: "row" }, h("h2", null, "Sessions"), search), this.list),
    );
  }

  dispose() {
    this.stopped = true;
    clearTimeout(this.timer);
    document.removeEventListener("visibilitychange", this.wake);
  }

  /** Look at the hub, draw, and come back in a while; a page that nobody sees does not ask. */
  async refresh() {
    clearTimeout(this.timer);
    try {
      if (!document.hidden) await this.look();
    } catch (problem) {
      put(this.problems, problemBox(problem));
    }
    if (!this.stopped) this.timer = setTimeout(() => this.refresh(), EVERY);
  }

  async look() {
    this.looks.push(countersOf(parseMetrics(await getText("metrics")), performance.now()));
    if (this.looks.length > SAMPLES) this.looks.shift();
    const begun = performance.now();
    if (begun >= this.sessionsDue) {
      this.sessions = await get("v1/sessions");
      // A hub with very many sessions is asked for the list less often than for its counters.
      this.sessionsDue = begun + 20 * (performance.now() - begun);
    }
    put(this.problems);
    this.drawHead();
    this.drawEnvironments();
    this.drawSessions();
  }

  drawHead() {
    const { looks } = this;
    const now = looks.at(-1);
    const before = looks.at(-2);
    const rates = looks
      .slice(1)
      .map((one, index) => perSecond(total(one.steps) - total(looks[index].steps), looks[index], one));
    const cpu = before && now.cpu > 0 ? `${(100 * perSecond(now.cpu - before.cpu, before, now)).toFixed(0)} %` : null;
    const figure = (name, value, note) =>
      h(
        "div",
        null,
        h("dt", null, name),
        h("dd", { "data-figure": name.toLowerCase() }, value, note && h("span", { class: "muted small" }, ` ${note}`)),
      );
    put(
      this.head,
      now.draining && h("p", { class: "notice" }, "This hub is shutting down: it takes no new sessions."),
      h(
        "div",
        { class: "panel rates-panel" },
        h(
          "dl",
          { class: "figures" },
          figure("Sessions", whole(total(now.live)), `of ${whole(now.max)}`),
          figure("Steps/s", rates.length ? rate(rates.at(-1)) : "–"),
          figure("Steps", whole(total(now.steps))),
          figure("Sockets", whole(now.sockets)),
          figure("Errors", whole(total(now.errors))),
          now.memory > 0 && figure("Memory", `${whole(Math.round(now.memory / 2 ** 20))} MiB`),
          cpu && figure("CPU", cpu),
        ),
        curve(rates),
      ),
    );
  }

  drawEnvironments() {
    const now = this.looks.at(-1);
    const before = this.looks.at(-2);
    const busy = (env) => now.live.get(env) * 1e12 + now.steps.get(env);
    const names = [...now.live.keys()].sort((a, b) => busy(b) - busy(a) || a.localeCompare(b));
    const of = (counts, env) => counts.get(env) ?? 0;
    const row = (env) => {
      const steps = of(now.steps, env);
      const speed = before ? perSecond(steps - of(before.steps, env), before, now) : 0;
      const cost = steps ? span(of(now.seconds, env) / steps) : "–";
      const cells = [
        whole(of(now.live, env)),
        rate(speed),
        whole(steps),
        cost,
        ...[now.created, now.evicted, now.errors].map((counts) => whole(of(counts, env))),
      ];
      return h(
        "tr",
        null,
        h("th", { scope: "row" }, h("a", { href: `#/env/${encodeURIComponent(env)}` }, env)),
        cells.map((cell) => h("td", { class: "number" }, cell)),
      );
    };
    const heads = ["Environment", "Live", "Steps/s", "Steps", "Mean step", "Created", "Evicted", "Errors"];
    put(
      this.environments,
      h("h2", null, "Environments"),
      h(
        "div",
        { class: "scroll-x" },
        h(
          "table",
          { class: "wide" },
          h(
            "thead",
            null,
            h(
              "tr",
              null,
              heads.map((name, index) => h("th", { scope: "col", class: index > 0 && "number" }, name)),
            ),
          ),
          h("tbody", null, names.map(row)),
        ),
      ),
    );
  }

  drawSessions() {
    const { sessions, filter, list } = this;
    // A focused button would vanish under the hand of whoever is about to press it.
    if (list.contains(document.activeElement) && document.activeElement.matches("button:not(:disabled)")) return;
    const fits = sessions
      .filter((one) => `${one.session} ${one.env} ${one.task}`.toLowerCase().includes(filter))
      .sort((a, b) => a.idle_s - b.idle_s);
    const heads = ["Session", "Environment", "Level", "Task", "Seed", "Step", "State", "Age", "Idle", ""];
    const numbers = ["Seed", "Step"];
    put(
      list,
      fits.length === 0 &&
        h("p", { class: "muted" }, sessions.length ? "No session fits." : "No session is open under this key."),
      fits.length > 0 &&
        h(
          "div",
          { class: "scroll-x" },
          h(
            "table",
            { class: "wide sessions" },
            h(
              "thead",
              null,
              h(
                "tr",
                null,
                heads.map((name) => h("th", { scope: "col", class: numbers.includes(name) && "number" }, name)),
              ),
            ),
            h(
              "tbody",
              null,
              fits.slice(0, LISTED).map((one) => this.sessionRow(one)),
            ),
          ),
        ),
      fits.length > LISTED &&
        h("p", { class: "muted small" }, `The ${LISTED} used last of ${plural(fits.length, "session")}.`),
    );
  }

  sessionRow(one) {
    const place = `#/play/${encodeURIComponent(one.env)}?session=${encodeURIComponent(one.session)}`;
    const state = one.done ? badge("over") : badge("running", "good");
    const cells = [
      one.env,
      one.level,
      one.task || "–",
      one.seed,
      one.step_index,
      state,
      duration(one.age_s),
      duration(one.idle_s),
    ];
    return h(
      "tr",
      null,
      h("th", { scope: "row", class: "session-id" }, h("a", { href: place, title: "Open in the player" }, one.session)),
      cells.map((cell) => h("td", { class: typeof cell === "number" && "number" }, cell)),
      h(
        "td",
        null,
        h(
          "button",
          { type: "button", class: "small", onclick: (event) => this.close(event.currentTarget, one.session) },
          "Close",
        ),
      ),
    );
  }

  async close(button, session) {
    button.disabled = true;
    try {
      await op("close", { session });
    } catch (problem) {
      if (problem.code !== "SESSION_NOT_FOUND") return put(this.problems, problemBox(problem));
    }
    this.sessions = this.sessions.filter((one) => one.session !== session);
    this.drawSessions();
  }
}

/** The rate over the last looks as a curve. */
function curve(rates) {
  const [width, height] = [600, 90];
  const top = Math.max(1, ...rates);
  const points = rates.map(
    (value, index) =>
      `${((index + SAMPLES - rates.length) / (SAMPLES - 1)) * width},${height - 2 - (value / top) * (height - 12)}`,
  );
  return h(
    "figure",
    { class: "curve" },
    h(
      "figcaption",
      { class: "muted small" },
      `Steps/s over the last ${Math.round((SAMPLES * EVERY) / 60000)} minutes, peak ${rate(Math.max(0, ...rates))}`,
    ),
    s(
      "svg",
      {
        viewBox: `0 0 ${width} ${height}`,
        preserveAspectRatio: "none",
        role: "img",
        "aria-label": "Curve of steps per second",
      },
      points.length > 1 &&
        s("polygon", { points: `${points[0].split(",")[0]},${height} ${points.join(" ")} ${width},${height}` }),
      points.length > 1 &&
        s("polyline", { points: points.join(" "), fill: "none", "vector-effect": "non-scaling-stroke" }),
    ),
  );
}
