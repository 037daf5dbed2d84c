// Runs: folders that `turngym train` and `turngym eval` wrote. A training that goes on is read on as it grows.

import { get } from "./api.js";
import { chart, reads } from "./charts.js";
import { badge, duration, h, plural, problemBox, put } from "./dom.js";
import { openInstead } from "./viewer.js";

const EVERY = 2000; // milliseconds between two looks
const PIECE = 4 << 20; // bytes of episodes read at once

// The same figures as in a run's report: [title, {number: name of its line}, whether it is a share, whether it is left
// out while everything is 0].
const FIGURES = [
  ["Success", { eval_success: "held-out", success: "training" }, true],
  ["Reward", { eval_reward: "held-out", reward: "training" }],
  ["Reward std within groups", { reward_std: "training" }],
  ["Entropy", { policy_entropy: "trained weights", sampling_entropy: "as sampled" }],
  ["Gradient norm", { gradient_norm: "gradient" }],
  ["Response length, tokens", { eval_response_tokens: "held-out", response_tokens: "training" }],
  ["Invalid actions", { eval_invalid: "held-out", invalid: "training" }, true],
  ["Repeated actions", { eval_repetitive: "held-out", repetitive: "training" }, true],
  ["Tokens per successful trajectory", { eval_tokens_won: "held-out", tokens_won: "training" }],
  ["Turns per success", { eval_turns_won: "held-out", turns_won: "training" }],
  ["Thinking ended (TTI)", { interventions: "training" }, true, true],
  ["Turns sampled again (TDS)", { discarded: "training" }, true, true],
  ["KL", { kl: "to the reference", approx_kl: "from the sampling policy" }, false, true],
  ["Tokens without advantage", { advantage_zero: "training" }, true],
  [
    "Seconds of a step",
    { rollout_seconds: "rollout", measure_seconds: "measure", credit_seconds: "credit", update_seconds: "update" },
  ],
  ["Memory, MiB", { peak_memory_mb: "process" }],
];

const query = (values) => new URLSearchParams(values).toString();
const readText = (values) => get(`v1/runs/text?${query(values)}`);
const ago = (seconds) => `written ${duration(seconds)} ago`;

export async function runsView(root, { id, go }) {
  const view = id ? new RunView(root, id, go) : new ListView(root);
  return repeat(view);
}

/** Look again and again while somebody sees the page; resolves with the function that ends it. */
async function repeat(view) {
  let timer = 0;
  let stopped = false;
  const look = async () => {
    clearTimeout(timer);
    try {
      if (!document.hidden) {
        await view.refresh();
        put(view.problems);
      }
    } catch (problem) {
      put(view.problems, problemBox(problem));
    }
    if (!stopped) timer = setTimeout(look, EVERY);
  };
  const wake = () => !document.hidden && look();
  // What goes wrong at first is the whole view's problem.
  await view.refresh();
  timer = setTimeout(look, EVERY);
  document.addEventListener("visibilitychange", wake);
  return () => {
    stopped = true;
    clearTimeout(timer);
    document.removeEventListener("visibilitychange", wake);
  };
}

class ListView {
  constructor(root) {
    this.problems = h("div");
    this.list = h("div", { class: "panel" });
    put(root, h("h1", null, "Runs"), this.problems, this.list);
  }

  async refresh() {
    const runs = await get("v1/runs");
    if (this.list.contains(document.activeElement)) return;
    if (runs.length === 0)
      return put(this.list, h("p", { class: "muted" }, "No run yet: `turngym train` and `turngym eval` make them."));
    const heads = ["Run", "Kind", "Environment", "Step", "Held-out success", "Written"];
    const row = (run) => {
      const cells = [
        badge(run.kind, run.kind === "training" ? "role" : ""),
        shortened(run.envs),
        run.kind === "training" ? `${run.step}${run.steps ? ` of ${run.steps}` : ""}` : "",
        run.success === null ? "" : reads(run.success, true),
        `${duration(run.age_s)} ago`,
      ];
      return h(
        "tr",
        null,
        h(
          "th",
          { scope: "row" },
          h("a", { href: `#/runs/${encodeURIComponent(run.run)}` }, run.run),
          run.summary && h("p", { class: "muted small" }, run.summary),
        ),
        cells.map((cell, index) => h("td", { class: index > 1 && "number" }, cell)),
      );
    };
    put(
      this.list,
      h(
        "div",
        { class: "scroll-x" },
        h(
          "table",
          { class: "runs" },
          h("thead", null, h("tr", null, heads.map((name, index) => h("th", { scope: "col", class: index > 2 && "number" }, name)))),
          h("tbody", null, runs.map(row)),
        ),
      ),
    );
  }
}

const shortened = (names) => (names.length > 3 ? `${names.slice(0, 3).join(", ")} and ${names.length - 3} more` : names.join(", "));

class RunView {
  constructor(root, run, go) {
    Object.assign(this, { run, go, next: 0, tag: "", drawn: false, setUp: null });
    this.forget();
    this.problems = h("div");
    this.head = h("div");
    this.charts = h("div", { class: "chart-grid" });
    this.episodes = h("section", { class: "panel" });
    this.more = h("div");
    put(
      root,
      h("p", { class: "row" }, h("a", { href: "#/runs" }, "← Runs")),
      h("h1", null, run),
      this.problems,
      this.head,
      this.charts,
      this.episodes,
      this.more,
    );
  }

  forget() {
    this.steps = { train: new Map(), eval: new Map() };
  }

  async refresh() {
    const files = await get(`v1/runs/files?${query({ run: this.run })}`);
    const has = (name) => files.find((file) => file.name === name && file.size > 0);
    if (this.setUp === null) await this.readSetUp(files);
    const changed = has("metrics.jsonl") ? await this.readMetrics() : false;
    const age = Math.min(...files.map((file) => file.age_s));
    const sizes = files.map((file) => `${file.name} ${file.size}`).join();
    if (!changed && this.drawn && sizes === this.sizes) return this.drawHead(age);
    Object.assign(this, { sizes, drawn: true });
    this.drawHead(age);
    this.drawCharts();
    this.drawEpisodes(["eval.jsonl", "episodes.jsonl"].filter(has));
  }

  /** Read the recipe or the plan once, and an evaluation's numbers. */
  async readSetUp(files) {
    const read = async (name) => {
      if (!files.some((file) => file.name === name)) return null;
      const pieces = [];
      for (let start = 0; ; ) {
        const piece = await readText({ run: this.run, file: name, start, limit: PIECE });
        pieces.push(piece.text);
        if (piece.next >= piece.size || piece.next === start) break;
        start = piece.next;
      }
      return JSON.parse(pieces.join(""));
    };
    this.setUp = (await read("recipe.json")) ?? (await read("plan.json")) ?? {};
    this.numbers = await read("metrics.json");
    const machine = await read("machine.json");
    const fold = (name, value) =>
      value &&
      h(
        "details",
        null,
        h("summary", null, name),
        h("pre", { class: "code", tabindex: "0" }, JSON.stringify(value, null, 2)),
      );
    put(
      this.more,
      h(
        "section",
        { class: "panel" },
        h("h2", null, "Settings"),
        fold("Recipe or plan", this.setUp),
        fold("Machine", machine),
      ),
    );
  }

  /** Read what was written since the last look; true where there was something. */
  async readMetrics() {
    let changed = false;
    for (;;) {
      const piece = await readText({ run: this.run, file: "metrics.jsonl", start: this.next, tag: this.tag });
      // A run that was resumed rewrote the file without the steps that it takes again.
      if (this.tag && (piece.tag !== this.tag || piece.start !== this.next)) this.forget();
      Object.assign(this, { tag: piece.tag, next: piece.next });
      for (const line of piece.text.split("\n")) if (line) changed = this.take(line) || changed;
      if (!piece.text || piece.next >= piece.size) return changed;
    }
  }

  take(line) {
    try {
      const entry = JSON.parse(line);
      this.steps[entry.kind]?.set(entry.step, entry);
    } catch {
      return false; // a damaged line tells nothing; the report counts them
    }
    return true;
  }

  newest(kind) {
    return [...this.steps[kind].values()].at(-1) ?? {};
  }

  drawHead(age) {
    const [train, held] = [this.newest("train"), this.newest("eval")];
    const figure = (name, value, note = "") =>
      value !== "–" &&
      h(
        "div",
        null,
        h("dt", null, name),
        h("dd", { "data-figure": name.toLowerCase() }, value, note && h("span", { class: "muted small" }, ` ${note}`)),
      );
    const steps = this.setUp.run?.steps;
    const ends = held.eval_success_low !== undefined;
    const between = ends ? `${reads(held.eval_success_low, true)} to ${reads(held.eval_success_high, true)}` : "";
    put(
      this.head,
      this.setUp.summary && h("p", { class: "lead" }, this.setUp.summary),
      h(
        "div",
        { class: "panel" },
        h(
          "dl",
          { class: "figures" },
          figure("Step", train.step === undefined ? "–" : String(train.step), steps ? `of ${steps}` : ""),
          figure("Held-out success", reads(held.eval_success, true), between),
          figure("Training success", reads(train.success, true)),
          figure("Reward", reads(train.reward)),
          figure("Entropy", reads(train.policy_entropy ?? train.sampling_entropy)),
          figure("Tokens/s", reads(train.sampled_tokens / train.rollout_seconds)),
        ),
        h("p", { class: "muted small", role: "status" }, Number.isFinite(age) ? ago(age) : "nothing is written yet"),
      ),
    );
  }

  drawCharts() {
    const panels = FIGURES.map(([title, names, share = false, optional = false]) => {
      const lines = Object.entries(names).map(([name, label]) => ({ name: label, ...this.lineOf(name) }));
      const says = lines.some((line) => line.points.some(([, y]) => Math.abs(y) > 1e-6));
      return says || !optional ? chart({ title, lines, share }) : null;
    });
    put(this.charts, this.numbers ? resultsTable(this.numbers) : panels);
  }

  lineOf(name) {
    const entries = [...this.steps[name.startsWith("eval_") ? "eval" : "train"].values()];
    const points = entries.filter((entry) => typeof entry[name] === "number").map((entry) => [entry.step, entry[name]]);
    const [low, high] = [`${name}_low`, `${name}_high`];
    const bounded = entries.filter((entry) => typeof entry[low] === "number" && typeof entry[high] === "number");
    return { points, band: bounded.map((entry) => [entry.step, entry[low], entry[high]]) };
  }

  drawEpisodes(names) {
    if (this.episodes.contains(document.activeElement)) return;
    const button = (text, name, from) =>
      h("button", { type: "button", class: "small", onclick: (event) => this.open(event.currentTarget, name, from) }, text);
    const row = (name) => {
      // Training episodes bear the step that they led up from.
      const steps =
        name === "eval.jsonl" ? [...this.steps.eval.keys()] : [...this.steps.train.keys()].map((step) => step - 1);
      const title = name === "eval.jsonl" ? "Held-out tasks" : steps.length ? "Training" : "Episodes";
      const buttons = steps.length
        ? spread(steps, 8).map((step) => button(`Step ${step}`, name, { step }))
        : [button("The first", name, {}), button("The last", name, { start: -PIECE })];
      return h("p", { class: "row" }, h("b", null, title), buttons);
    };
    put(
      this.episodes,
      h("h2", null, "Episodes"),
      names.length ? names.map(row) : h("p", { class: "muted" }, "No episode was written yet."),
    );
  }

  /** Read a piece of a file's episodes, of one step alone where one is named, and show them in the viewer. */
  async open(button, name, from) {
    button.disabled = true;
    try {
      const first = await readText({ run: this.run, file: name, limit: 1 });
      const piece = await readText({ run: this.run, file: name, start: first.next, limit: PIECE, ...from });
      const all = piece.text.split("\n").filter((line) => line && line !== first.text.trimEnd());
      const lines = from.step === undefined ? all : all.filter((line) => stepOf(line) === from.step);
      const rest = piece.next < piece.size && (from.step === undefined || lines.at(-1) === all.at(-1));
      const what = [this.run, name, from.step !== undefined && `step ${from.step}`, (rest || from.start) && "a part"];
      const file = new File([first.text, lines.join("\n"), "\n"], what.filter(Boolean).join(", "));
      await openInstead([file]);
      this.go("/episodes");
    } catch (problem) {
      button.disabled = false;
      put(this.problems, problemBox(problem));
    }
  }
}

/** The step in an episode's id, without reading the whole line. */
function stepOf(line) {
  const match = /^\{"id":"[es](\d+)\./.exec(line);
  return match ? Number(match[1]) : null;
}

/** The first, the last, and some between. */
function spread(steps, most) {
  if (steps.length <= most) return steps;
  return [...Array(most).keys()].map((n) => steps[Math.round((n * (steps.length - 1)) / (most - 1))]);
}

/** The table of an evaluation. */
function resultsTable(numbers) {
  const heads = ["Environment", "Policy", "Episodes", "Success", "Reward", "Turns"];
  const rows = numbers.rows.filter((row) => row.by === "env");
  const cells = (row) => [row.policy, row.episodes, reads(row.success?.mean, true), reads(row.reward?.mean), reads(row.turns)];
  return h(
    "section",
    { class: "panel" },
    h("h2", null, "Results"),
    h(
      "div",
      { class: "scroll-x" },
      h(
        "table",
        { class: "wide" },
        h("thead", null, h("tr", null, heads.map((name, index) => h("th", { scope: "col", class: index > 1 && "number" }, name)))),
        h(
          "tbody",
          null,
          rows.map((row) =>
            h(
              "tr",
              null,
              h("th", { scope: "row" }, row.env),
              cells(row).map((cell, index) => h("td", { class: index > 0 && "number" }, cell ?? "–")),
            ),
          ),
        ),
      ),
    ),
  );
}
