// One game on the hub: its session, the log that can rebuild it, and the turns played so far. No DOM here.
//
// Every game lies in sessionStorage, so that a reload finds it again, and so that a session the hub has
// evicted (or one step before the last) can be rebuilt by replay.

import { get, op, Problem } from "./api.js";

const PREFIX = "turngym.game.";

function newId() {
  return (
    "console-" +
    Array.from(crypto.getRandomValues(new Uint8Array(9)), (byte) => byte.toString(16).padStart(2, "0")).join("")
  );
}

/** The raw text of what is seen now, at either level. */
export function observationText(reply) {
  if (typeof reply.observation === "string") return reply.observation;
  if (typeof reply.info?.observation === "string") return reply.info.observation;
  return reply.observation?.at(-1)?.content ?? "";
}

export class Game {
  /** `record` is what is stored; `reply` the hub's last reply. */
  constructor(record, reply) {
    this.record = record;
    this.reply = reply;
    this.notice = "";
    this.save();
  }

  static async start({ env, level, config, turn, seed, split, task }) {
    const session = newId();
    const item = { env, level, config, session, reset: true };
    if (level === "turn") item.turn = turn;
    if (seed !== null) item.seed = seed;
    if (split) item.split = split;
    if (task !== null) item.task = task;
    const reply = await op("create", item);
    const record = {
      session,
      env,
      level,
      config,
      turn: level === "turn" ? turn : {},
      task: reply.info.task,
      seed: reply.info.seed,
      log: [],
      turns: [],
      game: session,
      label: "Main line",
      started: Date.now(),
    };
    return new Game(record, reply);
  }

  /** Find a session again: on the hub, else by replaying the stored log. */
  static async open(session) {
    const record = Game.stored(session);
    let reply;
    try {
      reply = await op("state", { session });
    } catch (problem) {
      if (problem.code !== "SESSION_NOT_FOUND" || !record?.log) throw problem;
      return Game.rebuild(record, record.log, "The session had ended on the hub; it was rebuilt by replay.");
    }
    if (record) {
      const behind = record.log !== null && steps(record.log) !== reply.step_index;
      const game = new Game(behind ? { ...record, log: null } : record, reply);
      if (behind) {
        game.notice =
          "The session was played on from elsewhere: turns are missing from the transcript, and undo is off.";
      }
      return game;
    }
    const card = await get(`v1/sessions/${encodeURIComponent(session)}`);
    const game = new Game(
      {
        session,
        env: card.env,
        level: card.level,
        config: null,
        turn: null,
        task: card.task,
        seed: card.seed,
        log: null,
        turns: [],
        game: session,
        label: "Main line",
        started: Date.now(),
      },
      reply,
    );
    game.notice = "This session was started elsewhere: its earlier turns are not known here, and undo is off.";
    return game;
  }

  /** Replay `log` into a new session of the same game. */
  static async rebuild(record, log, notice = "") {
    const session = newId();
    const { env, level, config, turn, task, seed } = record;
    const item = { env, level, config, task, seed, log, session };
    if (level === "turn") item.turn = turn;
    const reply = await op("restore", item);
    const game = new Game({ ...record, session, log: [...log], turns: record.turns.slice(0, steps(log)) }, reply);
    Game.forget(record.session);
    game.notice = notice;
    return game;
  }

  static stored(session) {
    const text = sessionStorage.getItem(PREFIX + session);
    return text === null ? null : JSON.parse(text);
  }

  static forget(session) {
    sessionStorage.removeItem(PREFIX + session);
  }

  /** All stored records, newest first. */
  static all() {
    return Object.keys(sessionStorage)
      .filter((key) => key.startsWith(PREFIX))
      .map((key) => JSON.parse(sessionStorage.getItem(key)))
      .sort((a, b) => b.started - a.started);
  }

  get session() {
    return this.record.session;
  }

  get done() {
    return this.reply.terminated || this.reply.truncated;
  }

  get canUndo() {
    return this.record.log !== null && steps(this.record.log) > 0;
  }

  /** Episodes that (task, seed, actions) rebuild can be kept as a record. */
  get canExport() {
    return this.record.log !== null && this.record.log.every((entry) => typeof entry === "string");
  }

  get branches() {
    return Game.all()
      .filter((record) => record.game === this.record.game)
      .sort((a, b) => a.started - b.started);
  }

  save() {
    const text = JSON.stringify(this.record);
    const key = PREFIX + this.session;
    try {
      sessionStorage.setItem(key, text);
    } catch {
      // The tab's storage is full: give up the games that are not on the screen.
      for (const record of Game.all()) if (record.game !== this.record.game) Game.forget(record.session);
      try {
        sessionStorage.setItem(key, text);
      } catch {
        this.notice = "This tab's storage is full: the game goes on, but a reload will not find its latest turns.";
      }
    }
  }

  /** Run an operation on the session; one the hub has evicted is rebuilt first. */
  async call(name, item) {
    try {
      return await op(name, { session: this.session, ...item });
    } catch (problem) {
      if (problem.code !== "SESSION_NOT_FOUND" || this.record.log === null) throw problem;
      const twin = await Game.rebuild(this.record, this.record.log);
      this.record = twin.record;
      this.reply = twin.reply;
      this.notice = "The session had ended on the hub; it was rebuilt by replay.";
      return op(name, { session: this.session, ...item });
    }
  }

  /** Play one turn: an action, or a whole completion at turn level. */
  async act(text) {
    const before = observationText(this.reply);
    const anchor = this.reply.info?.anchor ?? "";
    const reply = await this.call("step", { action: text, step_index: this.reply.step_index });
    const info = reply.info ?? {};
    this.record.turns.push({
      before,
      anchor,
      next_anchor: info.anchor ?? "",
      sent: text,
      action: info.action ?? text,
      reward: reply.reward,
      rewards: info.rewards ?? { env: reply.reward },
      revised: {},
      action_valid: info.action_valid ?? true,
      format_valid: info.format_valid ?? null,
      parse_error: info.parse_error ?? "",
      void: info.void ?? false,
      tag: info.tag ?? "",
      steps: info.steps ?? 1,
    });
    for (const [index, components] of Object.entries(info.revised ?? {})) {
      const turn = this.record.turns[Number(index)];
      if (turn) turn.revised = components;
    }
    this.record.log?.push(text);
    this.reply = reply;
    this.save();
  }

  async expert() {
    return (await this.call("expert", {})).action;
  }

  /** A picture of the state; a session that has ended is not rebuilt for it. */
  render() {
    return op("render", { session: this.session, picture: true });
  }

  /** Take the last action back; returns the game as it was before it, in a session of its own. */
  async undo() {
    const log = [...this.record.log];
    while (typeof log.at(-1) === "number") log.pop();
    log.pop();
    const game = await Game.rebuild(this.record, log);
    // What hooks rewrote at the episode's end never happened now.
    for (const turn of game.record.turns) turn.revised = {};
    game.save();
    await closeQuietly(this.session);
    return game;
  }

  /** Copy the game in its state; with `seed` the copy gets noise of its own. */
  async fork(seed = null) {
    const to = newId();
    const item = { to };
    if (seed !== null) item.seed = seed;
    const reply = await this.call("fork", item);
    const log = this.record.log === null ? null : seed === null ? [...this.record.log] : [...this.record.log, seed];
    const label = `Fork ${this.branches.length} at ${this.record.turns.length}${seed === null ? "" : ", noise " + seed}`;
    return new Game({ ...structuredClone(this.record), session: to, log, label, started: Date.now() }, reply);
  }

  /** Close every session of the game and forget it. */
  async close() {
    for (const record of this.branches) {
      Game.forget(record.session);
      await closeQuietly(record.session);
    }
  }

  /** The game as a records file of one episode (records.py), policy "human". */
  export() {
    const { record, reply } = this;
    const info = reply.info ?? {};
    const turns = record.turns.map((turn, index) => {
      const rewards = { ...turn.rewards, ...turn.revised };
      return {
        index,
        observation: turn.before,
        completion: { text: turn.sent },
        action: turn.action,
        anchor: turn.anchor,
        next_anchor: turn.next_anchor,
        action_valid: turn.action_valid,
        format_valid: turn.format_valid,
        void: turn.void,
        tag: turn.tag,
        reward: sum(rewards),
        rewards,
        revised: Object.keys(turn.revised),
        steps: turn.steps,
      };
    });
    const episode = {
      id: record.session,
      env: record.env,
      task: record.task,
      seed: record.seed,
      config: record.config,
      level: record.level,
      style: record.turn,
      split: record.task.split("/")[0],
      status: reply.terminated ? "terminated" : reply.truncated ? "truncated" : "running",
      turns,
      final_observation: observationText(reply),
      reward: turns.reduce((total, turn) => total + turn.reward, 0),
      won: info.won ?? false,
      score: info.score ?? 0,
      policy: "human",
      seconds: (Date.now() - record.started) / 1000,
    };
    return JSON.stringify({ schema: "turngym.episodes", version: 1 }) + "\n" + JSON.stringify(episode) + "\n";
  }
}

export function sum(components) {
  return Object.values(components).reduce((total, value) => total + value, 0);
}

function steps(log) {
  return log.filter((entry) => typeof entry === "string").length;
}

async function closeQuietly(session) {
  try {
    await op("close", { session });
  } catch (problem) {
    if (!(problem instanceof Problem) || problem.code !== "SESSION_NOT_FOUND") throw problem;
  }
}
