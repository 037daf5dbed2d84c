// The episode viewer: local episodes.jsonl files, filters, one turn at a time. Nothing is uploaded.

import {
  badge,
  duration,
  h,
  keepFocus,
  messageList,
  plural,
  problemBox,
  put,
  reveal,
  rewardTable,
  signed,
} from "./dom.js";
import { readEpisodes } from "./records.js";

const PAGE = 200; // list entries drawn at once

const NO_FILTERS = { env: "", policy: "", status: "", won: "", text: "" };
// Kept while the page lives, so that looking at another view loses nothing.
const state = {
  episodes: [],
  damaged: [],
  problems: [],
  filters: { ...NO_FILTERS },
  current: 0,
  turn: 0,
  limit: PAGE,
  loading: "",
};

function outcome(episode) {
  if (episode.won) return badge("won", "good");
  if (episode.status === "failed") return badge("failed", "bad");
  return badge(
    episode.status === "terminated" ? "not won" : episode.status,
    episode.status === "truncated" ? "warn" : "",
  );
}

function shown() {
  const { env, policy, status, won, text } = state.filters;
  const needle = text.toLowerCase();
  return state.episodes.filter(
    (episode) =>
      (!env || episode.env === env) &&
      (!policy || episode.policy === policy) &&
      (!status || episode.status === status) &&
      (!won || episode.won === (won === "yes")) &&
      (!needle ||
        [episode.id, episode.task, episode.task_type, episode.group].some((value) =>
          value.toLowerCase().includes(needle),
        )),
  );
}

/** Read files for the viewer; a file that is opened again replaces what it held before. */
export async function openFiles(files, onProgress = () => {}) {
  state.problems = [];
  for (const file of files) {
    const progress = (text) => {
      state.loading = `Reading ${file.name}${text}`;
      onProgress();
    };
    progress(" …");
    try {
      const { episodes, damaged } = await readEpisodes(file, (count) => progress(`: ${plural(count, "episode")} …`));
      state.episodes = [...state.episodes.filter((episode) => episode.file !== file.name), ...episodes];
      state.damaged = [...state.damaged.filter((line) => !line.startsWith(`${file.name}, line `)), ...damaged];
    } catch (problem) {
      state.problems.push(problem);
    }
  }
  Object.assign(state, { loading: "", current: 0, turn: 0, limit: PAGE, filters: { ...NO_FILTERS } });
}

/** Open these files and close those before. */
export async function openInstead(files) {
  Object.assign(state, { episodes: [], damaged: [] });
  await openFiles(files);
}

export function viewerView(root) {
  const view = new Viewer(root);
  const listeners = {
    keydown: (event) => view.key(event),
    dragover: (event) => view.drag(event, true),
    dragleave: (event) => view.drag(event, false),
    drop: (event) => {
      view.drag(event, false);
      view.load([...event.dataTransfer.files]);
    },
  };
  for (const [name, listener] of Object.entries(listeners)) document.addEventListener(name, listener);
  return () => {
    for (const [name, listener] of Object.entries(listeners)) document.removeEventListener(name, listener);
  };
}

class Viewer {
  constructor(root) {
    this.intake = h("div");
    this.list = h("div", { class: "episode-list" });
    this.detail = h("article", { class: "panel episode", "aria-label": "Episode" });
    this.body = h("div", { class: "split" });
    put(root, h("h1", null, "Episodes"), this.intake, this.body);
    this.draw();
  }

  draw() {
    this.drawIntake();
    if (state.episodes.length === 0) return put(this.body);
    const side = h(
      "div",
      { class: "panel side" },
      filterForm(() => this.drawChoice()),
      this.list,
    );
    put(this.body, side, this.detail);
    this.drawChoice();
  }

  async load(files) {
    await openFiles(files, () => this.drawIntake());
    this.draw();
  }

  drawIntake() {
    const files = [...new Set(state.episodes.map((episode) => episode.file))];
    const opened = (event) => this.load([...event.currentTarget.files]);
    const advice =
      "or drop files on this page: what `turngym eval` writes, or an episode saved in the player. Nothing is uploaded.";
    put(
      this.intake,
      h(
        "div",
        { class: `drop ${files.length ? "compact" : ""}` },
        h("label", { for: "episodes-file" }, files.length ? "Open another file" : "Open an episodes.jsonl"),
        h("input", {
          type: "file",
          id: "episodes-file",
          accept: ".jsonl,.json,.ndjson",
          multiple: true,
          onchange: opened,
        }),
        h("span", { class: "muted" }, files.length ? `Open: ${files.join(", ")}` : advice),
        files.length > 0 && h("button", { type: "button", class: "small", onclick: () => this.clear() }, "Close files"),
      ),
      state.problems.map((problem) => problemBox(problem)),
      state.damaged.length > 0 &&
        h(
          "details",
          { class: "problem" },
          h("summary", null, `${plural(state.damaged.length, "damaged line")} left out`),
          h(
            "ul",
            null,
            state.damaged.slice(0, 100).map((line) => h("li", null, line)),
          ),
        ),
      state.loading && h("p", { role: "status" }, state.loading),
    );
  }

  clear() {
    Object.assign(state, { episodes: [], damaged: [], problems: [] });
    this.draw();
  }

  /** Draw the list and the episode chosen in it. */
  drawChoice() {
    keepFocus(this.list, () => drawList(this.list, (position) => this.select(position)));
    this.drawDetail();
  }

  drawDetail() {
    keepFocus(this.detail, () => drawEpisode(this.detail, (turn) => this.turnTo(turn)));
  }

  select(position) {
    state.current = position;
    state.turn = 0;
    this.drawChoice();
    reveal(this.list.querySelector("ol"), this.list.querySelector("[aria-current]"));
  }

  turnTo(turn) {
    state.turn = turn;
    this.drawDetail();
  }

  drag(event, over) {
    event.preventDefault();
    document.body.classList.toggle("dropping", over);
  }

  key(event) {
    if (event.target.closest("input, textarea, select") || event.ctrlKey || event.metaKey || event.altKey) return;
    const episodes = shown();
    const turns = episodes[state.current]?.turns.length ?? 0;
    const moves = {
      ArrowRight: () => state.turn < turns && this.turnTo(state.turn + 1),
      ArrowLeft: () => state.turn > 0 && this.turnTo(state.turn - 1),
      n: () => state.current + 1 < episodes.length && this.select(state.current + 1),
      p: () => state.current > 0 && this.select(state.current - 1),
    };
    if (!Object.hasOwn(moves, event.key) || episodes.length === 0) return;
    event.preventDefault();
    moves[event.key]();
  }
}

function filterForm(changed) {
  const { filters } = state;
  const choose = (name, label, values) => {
    const options = [["", "all"], ...values].map(([value, text]) =>
      h("option", { value, selected: filters[name] === value }, text),
    );
    const set = (event) => update(name, event.currentTarget.value);
    return h("label", null, label, h("select", { name, onchange: set }, options));
  };
  const update = (name, value) => {
    filters[name] = value;
    Object.assign(state, { current: 0, turn: 0, limit: PAGE });
    changed();
  };
  const found = (field) =>
    [...new Set(state.episodes.map((episode) => episode[field]))].sort().map((value) => [value, value || "(none)"]);
  return h(
    "form",
    { class: "filters", onsubmit: (event) => event.preventDefault() },
    choose("env", "Environment", found("env")),
    choose(
      "policy",
      "Policy",
      found("policy").filter(([value]) => value),
    ),
    choose("won", "Won", [
      ["yes", "won"],
      ["no", "not won"],
    ]),
    choose("status", "Status", found("status")),
    h(
      "label",
      { class: "wide" },
      "Task, id or group",
      h("input", {
        type: "search",
        name: "text",
        value: filters.text,
        oninput: (event) => update("text", event.currentTarget.value),
      }),
    ),
  );
}

function drawList(list, select) {
  const episodes = shown();
  const wins = episodes.filter((episode) => episode.won).length;
  const mean = (value) => episodes.reduce((total, episode) => total + value(episode), 0) / episodes.length;
  const summary = episodes.length
    ? `${episodes.length === state.episodes.length ? "" : `${episodes.length} of `}${plural(state.episodes.length, "episode")} · ${((100 * wins) / episodes.length).toFixed(1)} % won · mean reward ${signed(mean((e) => e.reward))} · ${mean((e) => e.turns.length).toFixed(1)} turns`
    : `None of ${plural(state.episodes.length, "episode")} fits these filters.`;
  const row = (episode, position) =>
    h(
      "li",
      null,
      h(
        "button",
        {
          type: "button",
          class: "episode-row",
          "data-key": `row ${position}`,
          "aria-current": position === state.current && "true",
          onclick: () => select(position),
        },
        h("span", { class: "episode-name" }, `${episode.env} ${episode.task}`),
        outcome(episode),
        h(
          "span",
          { class: "muted small episode-more" },
          `${episode.policy || "no policy"} · ${plural(episode.turns.length, "turn")} · ${signed(episode.reward)}${episode.attempt ? ` · attempt ${episode.attempt + 1}` : ""}`,
        ),
      ),
    );
  const top = list.querySelector("ol")?.scrollTop ?? 0;
  const rest = episodes.length - state.limit;
  const more = () => {
    state.limit += PAGE;
    drawList(list, select);
  };
  put(
    list,
    h("p", { class: "muted small", role: "status" }, summary),
    h("ol", { class: "episodes" }, episodes.slice(0, state.limit).map(row)),
    rest > 0 && h("button", { type: "button", onclick: more }, `Show ${Math.min(rest, PAGE)} more`),
  );
  list.querySelector("ol").scrollTop = top;
}

function facts(pairs) {
  return h(
    "dl",
    { class: "facts" },
    pairs
      .filter(([, value]) => value !== "" && value !== null && value !== undefined)
      .map(([name, value]) => h("div", null, h("dt", null, name), h("dd", null, value))),
  );
}

/** A problem out of a file: its members may be of any type there. */
function asText(problem) {
  const text = (name) => (problem[name] === undefined ? "" : String(problem[name]));
  return {
    detail: text("detail") || text("title") || "The episode failed.",
    hint: text("hint"),
    code: text("code"),
    status: text("status"),
  };
}

const filled = (object) => (Object.keys(object).length ? JSON.stringify(object) : "");

function drawEpisode(detail, turnTo) {
  const episode = shown()[state.current];
  if (!episode) return put(detail, h("p", { class: "muted" }, "No episode."));
  const { turns } = episode;
  state.turn = Math.min(state.turn, turns.length);
  const metrics = Object.entries(episode.metrics).map(
    ([name, value]) => `${name} ${typeof value === "number" ? +value.toFixed(4) : JSON.stringify(value)}`,
  );
  const chip = (turn, position) => {
    const bad = !turn.action_valid || turn.format_valid === false || turn.void;
    const label = `Turn ${position + 1}, reward ${signed(turn.reward)}${bad ? ", not valid" : ""}`;
    return h(
      "button",
      {
        type: "button",
        class: `chip ${bad ? "bad" : turn.reward > 0 ? "good" : ""}`,
        title: label,
        "aria-label": label,
        "aria-current": position === state.turn && "true",
        onclick: () => turnTo(position),
      },
      position + 1,
    );
  };
  const end = h(
    "button",
    {
      type: "button",
      class: "chip",
      "aria-current": state.turn === turns.length && "true",
      onclick: () => turnTo(turns.length),
    },
    "End",
  );
  put(
    detail,
    h("header", { class: "row" }, h("h2", null, `${episode.env} ${episode.task}`), outcome(episode)),
    facts([
      ["Policy", episode.policy],
      ["Reward", signed(episode.reward)],
      ["Score", +episode.score.toFixed(4)],
      ["Status", episode.status],
      ["Seed", episode.seed],
      ["Level", episode.level],
      ["Kind", episode.task_type],
      ["Turns", turns.length],
      ["Time", episode.seconds ? duration(episode.seconds) : ""],
      ["Group", episode.group && `${episode.group} #${episode.member}`],
      ["Id", episode.id],
      ["Settings", filled(episode.config)],
      ["Turn level", filled(episode.style)],
      ["Metrics", metrics.join(", ")],
      ["File", episode.file],
    ]),
    episode.error && problemBox(asText(episode.error)),
    h("nav", { class: "chips", "aria-label": "Turns" }, turns.map(chip), end),
    h(
      "p",
      { class: "row" },
      h("button", { type: "button", onclick: () => state.turn > 0 && turnTo(state.turn - 1) }, "← Previous"),
      h("button", { type: "button", onclick: () => state.turn < turns.length && turnTo(state.turn + 1) }, "Next →"),
      h(
        "span",
        { class: "muted small" },
        h("kbd", null, "←"),
        " ",
        h("kbd", null, "→"),
        " turns, ",
        h("kbd", null, "n"),
        " ",
        h("kbd", null, "p"),
        " episodes",
      ),
    ),
    state.turn < turns.length ? turnPanel(turns[state.turn], state.turn, turns.length) : endPanel(episode),
  );
  reveal(detail.querySelector(".chips"), detail.querySelector(".chips [aria-current]"));
}

function turnPanel(turn, position, count) {
  const { completion } = turn;
  const flags = [
    turn.action_valid ? badge("valid action", "good") : badge("invalid action", "bad"),
    turn.format_valid === null ? null : turn.format_valid ? badge("well formed", "good") : badge("malformed", "bad"),
    turn.void && badge("void turn", "bad"),
    turn.tag && badge(turn.tag, "role"),
    completion.finish_reason !== "stop" && badge(completion.finish_reason, "warn"),
  ];
  const revised = Object.fromEntries(turn.revised.map((name) => [String(name), turn.rewards[name]]));
  const tokens = [
    completion.prompt_tokens !== null && `${completion.prompt_tokens} prompt`,
    completion.completion_tokens !== null && `${completion.completion_tokens} reply`,
  ].filter(Boolean);
  return h(
    "section",
    { class: "turn" },
    h("h3", null, `Turn ${position + 1} of ${count}`),
    h(
      "div",
      { class: "columns" },
      h("div", null, h("h4", null, "Observation"), h("pre", { class: "observation", tabindex: "0" }, turn.observation)),
      h(
        "div",
        null,
        h("h4", null, "Action"),
        h("p", null, h("code", { class: "action" }, turn.action || "(none)")),
        h("p", { class: "row" }, flags),
        Object.keys(turn.rewards).length > 0
          ? rewardTable(turn.rewards, revised)
          : h("p", null, `Reward ${signed(turn.reward)}`),
        h("p", { class: "muted small" }, [
          `Turn reward ${signed(turn.reward)}`,
          turn.steps !== 1 && ` · ${plural(turn.steps, "step")}`,
          tokens.length > 0 && ` · tokens: ${tokens.join(", ")}`,
          completion.cost !== null && ` · cost ${completion.cost}`,
          completion.policy_version !== null && ` · weights ${completion.policy_version}`,
        ]),
      ),
    ),
    h("h4", null, "Completion"),
    h("pre", { class: "completion", tabindex: "0" }, completion.text),
    turn.prompt && [h("h4", null, "Prompt"), messageList(turn.prompt, false)],
    Object.keys(turn.info).length > 0 &&
      h(
        "details",
        null,
        h("summary", null, "Further info"),
        h("pre", { tabindex: "0" }, JSON.stringify(turn.info, null, 2)),
      ),
  );
}

function endPanel(episode) {
  return h(
    "section",
    { class: "turn" },
    h("h3", null, "After the last turn"),
    h("h4", null, "Final observation"),
    h("pre", { class: "observation", tabindex: "0" }, episode.final_observation || "(not recorded)"),
  );
}
