// Reading episodes.jsonl in the browser: the schema of records.py, where an absent field means its default.
// A damaged line is reported by number and the good lines are kept.

import { Problem } from "./api.js";

const SCHEMA = "turngym.episodes";
const VERSION = 1;
const ZSTD_MAGIC = [0x28, 0xb5, 0x2f, 0xfd];
const STATUSES = ["running", "terminated", "truncated", "failed"];

// Field -> type, and default where it may be absent.
const EPISODE = {
  id: ["string"],
  env: ["string"],
  task: ["string"],
  seed: ["number"],
  config: ["object", {}],
  level: ["string", "turn"],
  style: ["object", {}],
  split: ["string", ""],
  group: ["string", ""],
  member: ["number", 0],
  parent: ["string", ""],
  fork_turn: ["number", 0],
  reseeds: ["array", []],
  status: ["string", "running"],
  error: ["object", null],
  turns: ["array", []],
  final_observation: ["string", ""],
  reward: ["number", 0],
  won: ["boolean", false],
  score: ["number", 0],
  task_type: ["string", ""],
  policy: ["string", ""],
  metrics: ["object", {}],
  seconds: ["number", 0],
  attempt: ["number", 0],
};
const TURN = {
  index: ["number"],
  observation: ["string"],
  completion: ["object"],
  action: ["string", ""],
  anchor: ["string", ""],
  next_anchor: ["string", ""],
  action_valid: ["boolean", true],
  format_valid: ["boolean", null],
  void: ["boolean", false],
  tag: ["string", ""],
  reward: ["number", 0],
  rewards: ["object", {}],
  revised: ["array", []],
  steps: ["number", 1],
  prompt: ["array", null],
  info: ["object", {}],
};
const COMPLETION = {
  text: ["string"],
  finish_reason: ["string", "stop"],
  prompt_tokens: ["number", null],
  completion_tokens: ["number", null],
  cost: ["number", null],
  policy_version: ["number", null],
  info: ["object", {}],
};

// A test holds these against records.py.
export const SCHEMAS = { Episode: EPISODE, Turn: TURN, Completion: COMPLETION };

function kind(value) {
  return value === null ? "null" : Array.isArray(value) ? "array" : typeof value;
}

/** Copy the fields of a schema out of a value; says which field is wrong. */
function decode(schema, value, where) {
  if (kind(value) !== "object") throw new Error(`${where} is ${kind(value)}, expected object`);
  const result = {};
  for (const [name, [type, fallback]] of Object.entries(schema)) {
    const field = Object.hasOwn(value, name) ? value[name] : undefined;
    if (field === undefined || (field === null && fallback === null)) {
      if (fallback === undefined) throw new Error(`${where}.${name} is missing`);
      result[name] = structuredClone(fallback);
    } else if (kind(field) !== type) {
      throw new Error(`${where}.${name} is ${kind(field)}, expected ${type}`);
    } else {
      result[name] = field;
    }
  }
  return result;
}

function decodeTurn(value, position) {
  const where = `turns[${position}]`;
  const turn = decode(TURN, value, where);
  const sampled = turn.completion.token_ids;
  turn.completion = decode(COMPLETION, turn.completion, `${where}.completion`);
  // The ids themselves are for training; the viewer shows how many there are.
  turn.completion.completion_tokens ??= Array.isArray(sampled) ? sampled.length : null;
  turn.prompt =
    turn.prompt?.map((message) => decode({ role: ["string"], content: ["string"] }, message, `${where}.prompt`)) ??
    null;
  for (const [name, reward] of Object.entries(turn.rewards)) {
    if (typeof reward !== "number") throw new Error(`${where}.rewards.${name} is ${kind(reward)}, expected number`);
  }
  return turn;
}

/** Decode one episode line, defaults filled in. */
function decodeEpisode(line) {
  const episode = decode(EPISODE, JSON.parse(line), "episode");
  if (!STATUSES.includes(episode.status))
    throw new Error(`episode.status is "${episode.status}", expected ${STATUSES.join(", ")}`);
  episode.turns = episode.turns.map(decodeTurn);
  episode.split ||= episode.task.split("/")[0];
  return episode;
}

function checkHeader(file, line) {
  let header;
  try {
    header = JSON.parse(line);
  } catch (error) {
    throw new Problem({
      detail: `${file}, line 1: not a turngym records file (${error.message}).`,
      hint: "Open the episodes.jsonl that `turngym eval` wrote.",
    });
  }
  if (header?.schema !== SCHEMA) {
    throw new Problem({
      detail: `${file}, line 1: schema ${JSON.stringify(header?.schema)}, expected "${SCHEMA}".`,
      hint: "Open the episodes.jsonl that `turngym eval` wrote.",
    });
  }
  if (header.version !== VERSION) {
    throw new Problem({
      detail: `${file}, line 1: schema version ${JSON.stringify(header.version)}, this console reads ${VERSION}.`,
      hint: "Open it in the console of the turngym release that wrote it.",
    });
  }
}

async function* linesOf(file) {
  const reader = file.stream().pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    const pieces = (rest + value).split("\n");
    rest = pieces.pop();
    yield* pieces;
  }
  if (rest) yield rest;
}

/** Read a File: `{episodes, damaged}`, where `damaged` holds messages that name the line. */
export async function readEpisodes(file, onProgress = () => {}) {
  const start = new Uint8Array(await file.slice(0, 4).arrayBuffer());
  if (ZSTD_MAGIC.every((byte, position) => start[position] === byte)) {
    throw new Problem({
      detail: `${file.name} is compressed with zstandard, which browsers cannot read from a file.`,
      hint: `Run: zstd -d ${file.name}, and open the result.`,
    });
  }
  const episodes = [];
  const damaged = [];
  let number = 0;
  for await (const line of linesOf(file)) {
    number += 1;
    if (number === 1) checkHeader(file.name, line);
    else if (line.trim()) {
      try {
        const episode = decodeEpisode(line);
        episode.file = file.name;
        episodes.push(episode);
      } catch (error) {
        damaged.push(`${file.name}, line ${number}: ${error.message}.`);
      }
      if (episodes.length % 200 === 0) onProgress(episodes.length);
    }
  }
  if (number === 0)
    throw new Problem({ detail: `${file.name} is empty.`, hint: "Run the evaluation that writes it again." });
  return { episodes, damaged };
}
