// Playing by hand: the board, the actions, the reply at turn level, the score and the transcript.

import { environments } from "./api.js";
import { badge, h, keepFocus, messageList, plural, problemBox, put, rewardTable, signed } from "./dom.js";
import { Game, observationText, sum } from "./game.js";
import { setupForm } from "./setup.js";

const MANY = 24; // more admissible actions than this become a searchable list
const LISTED = 200; // and this many of them are drawn at once
const ARROWS = {
  ArrowUp: ["up", "north"],
  ArrowDown: ["down", "south"],
  ArrowLeft: ["left", "west"],
  ArrowRight: ["right", "east"],
};

/** The admissible action that an arrow key means, if there is exactly one. */
function arrowAction(key, admissible) {
  for (const word of ARROWS[key] ?? []) {
    const fits = admissible.filter((action) => [word, `move ${word}`, `go ${word}`].includes(action.toLowerCase()));
    if (fits.length === 1) return fits[0];
  }
  return null;
}

/** Put an action into the last action or answer block of a reply; null where there is none. */
export function withAction(reply, action) {
  const blocks = [...reply.matchAll(/<(action|answer)>[\s\S]*?<\/\1>/gi)];
  const last = blocks.at(-1);
  if (!last) return null;
  return `${reply.slice(0, last.index)}<${last[1]}>${action}</${last[1]}>${reply.slice(last.index + last[0].length)}`;
}

export async function playView(root, { id, params, go }) {
  const cards = await environments();
  if (cards.length === 0) return put(root, problemBox({ detail: "This hub serves no environment.", hint: "Start it with `turngym serve`." }));
  const card = cards.find((one) => one.id === id) ?? (id ? null : cards[0]);
  if (!card) return put(root, problemBox({ detail: `This hub serves no environment "${id}".`, hint: `It serves: ${cards.map((one) => one.id).join(", ")}.` }));
  const view = new PlayView(root, card, cards, params, go);
  await view.open();
  return () => view.dispose();
}

class PlayView {
  constructor(root, card, cards, params, go) {
    Object.assign(this, { card, params, go, game: null, busy: false, hint: null, draft: "", search: "", problem: null });
    this.parts = Object.fromEntries(["problems", "board", "actions", "reply", "tools", "score", "transcript"].map((name) => [name, h("div", { class: `play-${name}` })]));
    this.status = h("p", { class: "sr-only", role: "status" });
    this.stage = h(
      "div",
      { class: "split play", hidden: true },
      h("section", { class: "panel", "aria-label": "Game" }, this.parts.board, this.parts.actions, this.parts.reply, this.parts.tools),
      h("aside", { class: "side", "aria-label": "Score and transcript" }, this.parts.score, this.parts.transcript),
    );
    const choose = h(
      "select",
      { "aria-label": "Environment", onchange: (event) => go(`/play/${event.currentTarget.value}`) },
      cards.map((one) => h("option", { value: one.id, selected: one.id === card.id }, one.id)),
    );
    this.setup = h("details", { class: "panel", open: true }, h("summary", null, "New episode"), setupForm(card, params, (read) => this.run(() => this.start(read()))));
    put(
      root,
      h("header", { class: "row" }, h("h1", null, "Play"), choose, h("a", { href: `#/env/${encodeURIComponent(card.id)}` }, "Rules and settings")),
      h("p", { class: "muted" }, card.summary),
      this.setup, this.parts.problems, this.status, this.stage,
    );
    this.onKey = (event) => this.key(event);
    document.addEventListener("keydown", this.onKey);
  }

  dispose() {
    document.removeEventListener("keydown", this.onKey);
  }

  async open() {
    const session = this.params.get("session");
    if (session) await this.run(async () => this.show(await Game.open(session)));
  }

  /** Run one task at a time; what goes wrong is shown. */
  async run(task) {
    if (this.busy) return;
    this.busy = true;
    this.stage.setAttribute("aria-busy", "true");
    if (this.game) this.game.notice = "";
    try {
      await task();
      this.problem = null;
    } catch (problem) {
      this.problem = problem;
      // A bug in this page must not pass for a refusal of the hub.
      if (problem.constructor.name !== "Problem") console.error(problem);
    } finally {
      this.busy = false;
      this.stage.removeAttribute("aria-busy");
    }
    this.drawProblems();
  }

  async start(options) {
    const last = this.game;
    const game = await Game.start(options);
    await last?.close();
    await this.show(game);
  }

  /** Make a game the one on the screen, and its address the page's. */
  async show(game) {
    this.game = game;
    this.hint = null;
    this.draft = "";
    this.setup.open = false;
    this.stage.hidden = false;
    await this.draw();
  }

  async act(text) {
    await this.game.act(text);
    this.hint = null;
    this.draft = "";
    const turn = this.game.record.turns.at(-1);
    this.status.textContent = `${turn.action || "No action"}: reward ${signed(turn.reward)}.${this.game.done ? " The episode is over." : ""}`;
    await this.draw();
  }

  get turnLevel() {
    return this.game.record.level === "turn";
  }

  async askExpert() {
    const advice = await this.game.expert();
    if (this.turnLevel) this.draft = advice;
    else this.hint = advice;
    await this.draw();
  }

  async pick(action) {
    if (!this.turnLevel) return this.act(action);
    // At turn level a button writes the action into the reply, which is then the player's to send.
    const reply = withAction(this.draft, action) ?? (this.card.expert ? withAction(await this.game.expert(), action) : null);
    if (reply === null) this.game.notice = "The reply has no action block to write this into: write one first, as the prompt asks.";
    else this.draft = reply;
    await this.draw();
    this.parts.reply.querySelector("textarea")?.focus();
  }

  key(event) {
    if (!this.game || event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select")) return;
    const admissible = this.game.reply.info?.admissible ?? [];
    const arrow = arrowAction(event.key, admissible);
    const tasks = {
      h: () => this.card.expert && !this.game.done && this.askExpert(),
      u: () => this.game.canUndo && this.undo(),
    };
    let task = tasks[event.key];
    if (arrow !== null) task = () => this.pick(arrow);
    else if (/^[1-9]$/.test(event.key) && admissible[event.key - 1] !== undefined) task = () => this.pick(admissible[event.key - 1]);
    if (!task) return;
    event.preventDefault();
    this.run(task);
  }

  async undo() {
    await this.show(await this.game.undo());
  }

  async draw() {
    // A rebuilt session has another id: the address always names the one on the screen.
    this.go(`/play/${this.card.id}?session=${encodeURIComponent(this.game.session)}`, true);
    this.drawProblems();
    this.drawScore();
    this.drawTranscript();
    keepFocus(this.parts.tools, () => this.drawTools());
    keepFocus(this.parts.reply, () => this.drawReply());
    this.drawActions();
    await this.drawBoard();
  }

  drawProblems() {
    const catchUp = h("button", { type: "button", onclick: () => this.run(async () => this.show(await Game.open(this.game.session))) }, "Show the session as it is now");
    put(
      this.parts.problems,
      this.problem && problemBox(this.problem, this.problem.code === "STEP_CONFLICT" && catchUp),
      this.game?.notice && h("p", { class: "notice", role: "status" }, this.game.notice),
    );
  }

  async drawBoard() {
    const { game, card } = this;
    const { record, reply } = game;
    const text = observationText(reply);
    let picture = null;
    if (card.pictures) {
      try {
        const { png } = await game.render();
        // The same element again: a new one would flicker.
        picture = this.parts.board.querySelector("img") ?? h("img", { class: "picture", onload: enlarge });
        picture.alt = "Picture of the state";
        picture.src = `data:image/png;base64,${png}`;
      } catch (problem) {
        picture = problemBox(problem);
      }
    }
    put(
      this.parts.board,
      h("header", { class: "row" }, h("h2", null, `Task ${record.task}`), outcomeOf(reply), h("span", { class: "muted small" }, `noise seed ${record.seed}`)),
      h("div", { class: "board" }, picture, h("pre", { class: "observation", tabindex: "0" }, text)),
      this.turnLevel && h("details", { class: "prompt", open: true }, h("summary", null, "Prompt for the next turn"), messageList(reply.observation)),
    );
  }

  drawActions() {
    const { game, parts } = this;
    const admissible = game.reply.info?.admissible ?? [];
    const focused = document.activeElement?.dataset?.action;
    if (game.done) return put(parts.actions);
    const button = (action, position) =>
      h(
        "button",
        { type: "button", class: `action-button ${action === this.hint ? "hinted" : ""}`, "data-action": action, onclick: () => this.run(() => this.pick(action)) },
        action || "(empty)",
        position < 9 && admissible.length <= MANY && h("kbd", { "aria-hidden": "true" }, position + 1),
      );
    const list = h("div", { class: admissible.length > MANY ? "actions many" : "actions" });
    const fill = () => {
      const needle = this.search.toLowerCase();
      const fits = admissible.filter((action) => action.toLowerCase().includes(needle));
      put(list, fits.slice(0, LISTED).map(button), fits.length > LISTED && h("p", { class: "muted small" }, `and ${fits.length - LISTED} more: search to see them`));
    };
    const search = admissible.length > MANY &&
      h("input", { type: "search", "aria-label": "Search actions", placeholder: `Search ${admissible.length} actions`, value: this.search, oninput: (event) => { this.search = event.currentTarget.value; fill(); } });
    put(parts.actions, h("h3", null, "Actions"), search, list);
    if (admissible.length <= MANY) this.search = "";
    fill();
    // The buttons are new ones: keep the keyboard where it was.
    if (focused !== undefined) {
      const buttons = [...list.querySelectorAll("button")];
      (buttons.find((one) => one.dataset.action === focused) ?? buttons[0])?.focus();
    }
  }

  drawReply() {
    const { game, parts } = this;
    if (game.done) return put(parts.reply);
    const send = (text) => this.run(() => this.act(text));
    if (this.turnLevel) return put(parts.reply, this.completionForm(send));
    const input = h("input", { name: "action", "aria-label": "Action as text", placeholder: "Any text", autocomplete: "off", spellcheck: "false" });
    const submit = (event) => {
      event.preventDefault();
      send(input.value);
    };
    put(
      parts.reply,
      h("form", { class: "row free", onsubmit: submit }, input, h("button", { type: "submit" }, "Send")),
      this.card.separator && h("p", { class: "muted small" }, "Several actions in one step: join them with ", h("code", null, this.card.separator)),
    );
  }

  completionForm(send) {
    const area = h("textarea", { name: "completion", rows: "5", "aria-label": "Completion", placeholder: "The model's raw reply, tags included", spellcheck: "false", oninput: (event) => (this.draft = event.currentTarget.value) });
    area.value = this.draft;
    const submit = (event) => {
      event.preventDefault();
      send(area.value);
    };
    const quick = (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) submit(event);
    };
    area.addEventListener("keydown", quick);
    return h(
      "form",
      { onsubmit: submit },
      h("h3", null, "Completion"),
      area,
      h("p", { class: "row" },
        h("button", { type: "submit", class: "primary" }, "Send"),
        this.card.expert && h("button", { type: "button", onclick: () => this.run(() => this.askExpert()) }, "Well-formed reply"),
        h("span", { class: "muted small" }, "Action buttons write into the reply. ", h("kbd", null, "Ctrl"), " ", h("kbd", null, "Enter"), " sends."),
      ),
    );
  }

  drawTools() {
    const { game, parts, card } = this;
    const button = (text, task, enabled = true, title = "") => h("button", { type: "button", disabled: !enabled, title, onclick: () => this.run(task) }, text);
    const noUndo = game.record.log === null ? "The earlier turns are not known here" : "";
    const branches = game.branches;
    put(
      parts.tools,
      game.done && h("p", { class: `verdict ${game.reply.info?.won ? "good" : ""}` }, verdict(game)),
      h("p", { class: "row tools" },
        card.expert && !this.turnLevel && button("Hint", () => this.askExpert(), !game.done),
        this.hint !== null && button(`Play “${this.hint}”`, () => this.act(this.hint)),
        button("Undo", () => this.undo(), game.canUndo, noUndo),
        button("Fork", async () => this.show(await game.fork())),
        button("Fork with new noise", async () => this.show(await game.fork(crypto.getRandomValues(new Uint32Array(1))[0]))),
        button("Save episode", () => this.download(), game.canExport, game.canExport ? "As episodes.jsonl" : "Forks with noise of their own have no record that rebuilds them"),
        game.done && button("Same task again", () => this.start(this.again())),
        button("Close", () => this.closeGame()),
      ),
      branches.length > 1 && h("p", { class: "row branches" }, h("span", { class: "muted small" }, "Branches:"), branches.map((record) =>
        h("button", { type: "button", class: "small", "aria-current": record.session === game.session && "true", onclick: () => this.run(async () => this.show(await Game.open(record.session))) }, `${record.label} (${plural(record.turns.length, "turn")})`))),
      h("p", { class: "muted small keys" }, "Keys: ", h("kbd", null, "↑↓←→"), " moves, ", h("kbd", null, "1"), "–", h("kbd", null, "9"), " actions, ", card.expert && [h("kbd", null, "h"), " hint, "], h("kbd", null, "u"), " undo"),
    );
  }

  again() {
    const { env, level, config, turn, task, seed } = this.game.record;
    const [split, index] = [task.slice(0, task.lastIndexOf("/")), Number(task.slice(task.lastIndexOf("/") + 1))];
    return { env, level, config: config ?? {}, turn: turn ?? {}, split, task: index, seed };
  }

  async closeGame() {
    await this.game.close();
    this.game = null;
    this.stage.hidden = true;
    this.setup.open = true;
    this.go(`/play/${this.card.id}`, true);
  }

  download() {
    const url = URL.createObjectURL(new Blob([this.game.export()], { type: "application/jsonl" }));
    h("a", { href: url, download: `${this.card.id}-${this.game.record.task.replace("/", "-")}.jsonl` }).click();
    setTimeout(() => URL.revokeObjectURL(url), 10_000);
  }

  drawScore() {
    const { record, reply } = this.game;
    const total = record.turns.reduce((all, turn) => all + sum({ ...turn.rewards, ...turn.revised }), 0);
    const last = record.turns.at(-1);
    const figure = (name, value) => h("div", null, h("dt", null, name), h("dd", { "data-figure": name.toLowerCase() }, value));
    put(
      this.parts.score,
      h("div", { class: "panel" },
        h("h3", null, "Score"),
        h("dl", { class: "figures" },
          figure("Turns", record.turns.length), figure("Reward", last ? signed(last.reward) : "–"), figure("Return", signed(total)), figure("Score", reply.info?.score === undefined ? "–" : +reply.info.score.toFixed(3))),
        last && rewardTable(last.rewards),
        last && this.turnLevel && parseBox(last),
      ),
    );
  }

  drawTranscript() {
    const { turns } = this.game.record;
    const list = h("ol", { class: "transcript", tabindex: "0", "aria-label": "Transcript" }, turns.map((turn) => transcriptItem(turn, this.turnLevel)));
    put(this.parts.transcript, h("div", { class: "panel" }, h("h3", null, "Transcript"), turns.length ? list : h("p", { class: "muted" }, "No turn played yet.")));
    list.scrollTop = list.scrollHeight;
  }
}

/** Show a small picture at a whole multiple of its size, so that its pixels stay even. */
function enlarge(event) {
  const image = event.currentTarget;
  image.style.width = `${image.naturalWidth * Math.max(1, Math.floor(400 / image.naturalWidth))}px`;
}

function outcomeOf(reply) {
  if (reply.info?.won) return badge("won", "good");
  if (reply.truncated) return badge("truncated", "warn");
  return reply.terminated ? badge("over", "bad") : badge("running");
}

function verdict(game) {
  const { reply, record } = game;
  const how = reply.info?.won ? "Won" : reply.truncated ? "Stopped by the limit" : "Over, not won";
  return `${how} after ${plural(record.turns.length, "turn")}.`;
}

/** What the tag grammar made of the last reply. */
function parseBox(turn) {
  return h(
    "dl",
    { class: "facts parse" },
    [
      ["Action taken", h("code", null, turn.action || "(none)")],
      ["Format", turn.format_valid ? badge("well formed", "good") : badge("malformed", "bad")],
      turn.parse_error && ["Why", turn.parse_error],
      turn.void && ["Void", badge("neither action nor answer", "bad")],
      turn.tag && ["Tag", badge(turn.tag, "role")],
    ].filter(Boolean).map(([name, value]) => h("div", null, h("dt", null, name), h("dd", null, value))),
  );
}

function transcriptItem(turn, turnLevel) {
  const revised = Object.keys(turn.revised).length > 0;
  return h(
    "li",
    null,
    h(
      "details",
      null,
      h(
        "summary",
        null,
        h("code", null, turn.action || "(none)"), " ",
        h("span", { class: "number" }, signed(sum({ ...turn.rewards, ...turn.revised }))), " ",
        !turn.action_valid && badge("invalid", "bad"), turn.format_valid === false && badge("malformed", "bad"), revised && badge("revised", "warn"),
      ),
      h("p", { class: "muted small" }, "Observation"),
      h("pre", { tabindex: "0" }, turn.before),
      turnLevel && [h("p", { class: "muted small" }, "Completion"), h("pre", { tabindex: "0" }, turn.sent)],
      (turnLevel || revised) && rewardTable(turn.rewards, turn.revised),
    ),
  );
}
