// Playing by hand: the board, the actions, the reply at turn level, the score and the transcript.

import { actionPanel, arrowAction, withAction } from "./actions.js";
import { environments } from "./api.js";
import { h, keepFocus, messageList, plural, problemBox, put, signed } from "./dom.js";
import { Game, observationText } from "./game.js";
import { setupForm } from "./setup.js";
import { outcomeOf, scorePanel, transcriptPanel, verdict } from "./transcript.js";

export async function playView(root, { id, params, go }) {
  const all = await environments();
  // What lacks something on the hub's machine can only fail; the list of environments says what.
  const cards = all.filter((one) => !one.needs || one.id === id);
  if (cards.length === 0)
    return put(root, problemBox({ detail: "This hub serves no environment.", hint: "Start it with `turngym serve`." }));
  const wanted = id || Game.all().find((record) => cards.some((one) => one.id === record.env))?.env || cards[0].id;
  const card = cards.find((one) => one.id === wanted);
  if (!card)
    return put(
      root,
      problemBox({
        detail: `This hub serves no environment "${id}".`,
        hint: `It serves: ${cards.map((one) => one.id).join(", ")}.`,
      }),
    );
  if (card.needs) return put(root, problemBox({ detail: `${card.id} cannot be played here.`, hint: card.needs }));
  const view = new PlayView(root, card, cards, params, go);
  await view.open();
  return () => view.dispose();
}

class PlayView {
  constructor(root, card, cards, params, go) {
    Object.assign(this, {
      card,
      params,
      go,
      game: null,
      busy: false,
      hint: null,
      draft: "",
      problem: null,
    });
    this.parts = Object.fromEntries(
      ["problems", "board", "actions", "reply", "tools", "score", "transcript"].map((name) => [
        name,
        h("div", { class: `play-${name}` }),
      ]),
    );
    this.picture = h("div");
    this.status = h("p", { class: "sr-only", role: "status" });
    this.stage = h(
      "div",
      { class: "split play", hidden: true },
      h(
        "section",
        { class: "panel", "aria-label": "Game" },
        this.parts.board,
        this.parts.actions,
        this.parts.reply,
        this.parts.tools,
      ),
      h("aside", { class: "side", "aria-label": "Score and transcript" }, this.parts.score, this.parts.transcript),
    );
    const choose = h(
      "select",
      { "aria-label": "Environment", onchange: (event) => go(`/play/${event.currentTarget.value}`) },
      cards.map((one) => h("option", { value: one.id, selected: one.id === card.id }, one.id)),
    );
    this.setup = h(
      "details",
      { class: "panel", open: true },
      h("summary", null, "New episode"),
      setupForm(card, params, (read) => this.run(() => this.start(read()))),
      earlierGames(card),
    );
    put(
      root,
      h(
        "header",
        { class: "row" },
        h("h1", null, "Play"),
        choose,
        h("a", { href: `#/env/${encodeURIComponent(card.id)}` }, "Rules and settings"),
      ),
      h("p", { class: "muted" }, card.summary),
      this.setup,
      this.parts.problems,
      this.status,
      this.stage,
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
    this.show(game);
  }

  /** Make a game the one on the screen, and its address the page's. */
  show(game) {
    this.game = game;
    this.hint = null;
    this.draft = "";
    this.setup.open = false;
    this.stage.hidden = false;
    this.draw();
  }

  async act(text) {
    await this.game.act(text);
    this.hint = null;
    this.draft = "";
    const turn = this.game.record.turns.at(-1);
    this.status.textContent = `${turn.action || "No action"}: reward ${signed(turn.reward)}.${this.game.done ? " The episode is over." : ""}`;
    this.draw();
  }

  get turnLevel() {
    return this.game.record.level === "turn";
  }

  async askExpert() {
    const advice = await this.game.expert();
    if (this.turnLevel) this.draft = advice;
    else this.hint = advice;
    this.draw();
  }

  async pick(action) {
    if (!this.turnLevel) return this.act(action);
    // At turn level a button writes the action into the reply, which is then the player's to send.
    const reply =
      withAction(this.draft, action) ?? (this.card.expert ? withAction(await this.game.expert(), action) : null);
    if (reply === null)
      this.game.notice = "The reply has no action block to write this into: write one first, as the prompt asks.";
    else this.draft = reply;
    this.draw();
    this.parts.reply.querySelector("textarea")?.focus();
  }

  key(event) {
    if (!this.game || event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select"))
      return;
    const admissible = this.game.reply.info?.admissible ?? [];
    const arrow = arrowAction(event.key, admissible);
    const tasks = {
      h: () => this.card.expert && !this.game.done && this.askExpert(),
      u: () => this.game.canUndo && this.undo(),
    };
    let task = tasks[event.key];
    if (arrow !== null) task = () => this.pick(arrow);
    else if (/^[1-9]$/.test(event.key) && admissible[event.key - 1] !== undefined)
      task = () => this.pick(admissible[event.key - 1]);
    if (!task) return;
    event.preventDefault();
    this.run(task);
  }

  async undo() {
    this.show(await this.game.undo());
  }

  /** Draw the whole game at once, but for its picture. */
  draw() {
    // A rebuilt session has another id: the address always names the one on the screen.
    this.go(`/play/${this.card.id}?session=${encodeURIComponent(this.game.session)}`, true);
    this.drawProblems();
    put(this.parts.score, scorePanel(this.game));
    put(this.parts.transcript, transcriptPanel(this.game));
    const turns = this.parts.transcript.querySelector("ol");
    if (turns) turns.scrollTop = turns.scrollHeight;
    keepFocus(this.parts.tools, () => this.drawTools());
    keepFocus(this.parts.reply, () => this.drawReply());
    this.drawActions();
    this.drawBoard();
    if (this.card.pictures) this.drawPicture();
  }

  drawProblems() {
    const catchUp = h(
      "button",
      { type: "button", onclick: () => this.run(async () => this.show(await Game.open(this.game.session))) },
      "Show the session as it is now",
    );
    put(
      this.parts.problems,
      this.problem && problemBox(this.problem, this.problem.code === "STEP_CONFLICT" && catchUp),
      this.game?.notice && h("p", { class: "notice", role: "status" }, this.game.notice),
    );
  }

  drawBoard() {
    const { record, reply } = this.game;
    put(
      this.parts.board,
      h(
        "header",
        { class: "row" },
        h("h2", null, `Task ${record.task}`),
        outcomeOf(reply),
        h("span", { class: "muted small" }, `noise seed ${record.seed}`),
      ),
      h(
        "div",
        { class: "board" },
        this.card.pictures && this.picture,
        h("pre", { class: "observation", tabindex: "0" }, observationText(reply)),
      ),
      this.turnLevel &&
        h(
          "details",
          { class: "prompt", open: true },
          h("summary", null, "Prompt for the next turn"),
          messageList(reply.observation),
        ),
    );
  }

  /** Ask for the state's picture; nothing else waits for it, and one that comes late is left out. */
  async drawPicture() {
    const { game } = this;
    const { reply } = game;
    const answer = await game.render().catch((problem) => ({ problem }));
    if (this.game !== game || game.reply !== reply) return;
    if (answer.problem) return put(this.picture, problemBox(answer.problem));
    // The same element again: a new one would flicker.
    const image = this.picture.querySelector("img") ?? h("img", { class: "picture", onload: enlarge });
    image.alt = "Picture of the state";
    image.src = `data:image/png;base64,${answer.png}`;
    put(this.picture, image);
  }

  drawActions() {
    const { game, parts } = this;
    const focused = document.activeElement?.dataset?.action;
    if (game.done) return put(parts.actions);
    const pick = (action) => this.run(() => this.pick(action));
    put(parts.actions, actionPanel(game.reply.info?.admissible ?? [], this.hint, pick));
    // The buttons are new ones: keep the keyboard where it was.
    if (focused !== undefined) {
      const buttons = [...parts.actions.querySelectorAll("button")];
      (buttons.find((one) => one.dataset.action === focused) ?? buttons[0])?.focus();
    }
  }

  drawReply() {
    const { game, parts } = this;
    if (game.done) return put(parts.reply);
    const send = (text) => this.run(() => this.act(text));
    if (this.turnLevel) return put(parts.reply, this.completionForm(send));
    const input = h("input", {
      name: "action",
      "aria-label": "Action as text",
      placeholder: "Any text",
      autocomplete: "off",
      spellcheck: "false",
    });
    const submit = (event) => {
      event.preventDefault();
      send(input.value);
    };
    put(
      parts.reply,
      h("form", { class: "row free", onsubmit: submit }, input, h("button", { type: "submit" }, "Send")),
      this.card.separator &&
        h(
          "p",
          { class: "muted small" },
          "Several actions in one step: join them with ",
          h("code", null, this.card.separator),
        ),
    );
  }

  completionForm(send) {
    const area = h("textarea", {
      name: "completion",
      rows: "5",
      "aria-label": "Completion",
      placeholder: "The model's raw reply, tags included",
      spellcheck: "false",
      oninput: (event) => (this.draft = event.currentTarget.value),
    });
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
      h(
        "p",
        { class: "row" },
        h("button", { type: "submit", class: "primary" }, "Send"),
        this.card.expert &&
          h("button", { type: "button", onclick: () => this.run(() => this.askExpert()) }, "Well-formed reply"),
        h(
          "span",
          { class: "muted small" },
          "Action buttons write into the reply. ",
          h("kbd", null, "Ctrl"),
          " ",
          h("kbd", null, "Enter"),
          " sends.",
        ),
      ),
    );
  }

  drawTools() {
    const { game, parts, card } = this;
    const button = (text, task, enabled = true, title = "") =>
      h("button", { type: "button", disabled: !enabled, title, onclick: () => this.run(task) }, text);
    const noUndo = game.record.log === null ? "The earlier turns are not known here" : "";
    const branches = game.branches;
    put(
      parts.tools,
      game.done && h("p", { class: `verdict ${game.reply.info?.won ? "good" : ""}` }, verdict(game)),
      h(
        "p",
        { class: "row tools" },
        card.expert && !this.turnLevel && button("Hint", () => this.askExpert(), !game.done),
        this.hint !== null && button(`Play “${this.hint}”`, () => this.act(this.hint)),
        button("Undo", () => this.undo(), game.canUndo, noUndo),
        button("Fork", async () => this.show(await game.fork())),
        button("Fork with new noise", async () =>
          this.show(await game.fork(crypto.getRandomValues(new Uint32Array(1))[0])),
        ),
        button(
          "Save episode",
          () => this.download(),
          game.canExport,
          game.canExport ? "As episodes.jsonl" : "Forks with noise of their own have no record that rebuilds them",
        ),
        game.done && button("Same task again", () => this.start(this.again())),
        button("Close", () => this.closeGame()),
      ),
      branches.length > 1 &&
        h(
          "p",
          { class: "row branches" },
          h("span", { class: "muted small" }, "Branches:"),
          branches.map((record) =>
            h(
              "button",
              {
                type: "button",
                class: "small",
                "aria-current": record.session === game.session && "true",
                onclick: () => this.run(async () => this.show(await Game.open(record.session))),
              },
              `${record.label} (${plural(record.turns.length, "turn")})`,
            ),
          ),
        ),
      h(
        "p",
        { class: "muted small keys" },
        "Keys: ",
        h("kbd", null, "↑↓←→"),
        " moves, ",
        h("kbd", null, "1"),
        "–",
        h("kbd", null, "9"),
        " actions, ",
        card.expert && [h("kbd", null, "h"), " hint, "],
        h("kbd", null, "u"),
        " undo",
      ),
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
}

/** Links to the games of this tab that can be taken up again. */
function earlierGames(card) {
  const records = Game.all().filter((record) => record.env === card.id);
  const link = ({ session, task, level, turns }) =>
    h(
      "a",
      { href: `#/play/${card.id}?session=${encodeURIComponent(session)}` },
      `${task}, ${level} level, ${plural(turns.length, "turn")}`,
    );
  return records.length > 0 && h("p", { class: "row small earlier" }, "Go on with:", records.slice(0, 5).map(link));
}

/** Show a small picture at a whole multiple of its size, so that its pixels stay even. */
function enlarge(event) {
  const image = event.currentTarget;
  image.style.width = `${image.naturalWidth * Math.max(1, Math.floor(400 / image.naturalWidth))}px`;
}
