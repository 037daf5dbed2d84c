// The form that starts a game: level, split, task, seed, settings of the environment and of the turn level.

import { Problem } from "./api.js";
import { h, plural, put } from "./dom.js";

// Settings that mean nothing in the browser.
const HIDDEN = ["render_mode"];

/** One input for a setting; its `read()` gives the value, or undefined where the default stands. */
function setting(name, fallback) {
  const id = `setting-${name}`;
  const label = (control, note = "") =>
    h("label", { for: id }, name, control, note && h("span", { class: "muted small" }, note));
  if (typeof fallback === "boolean") {
    const input = h("input", { id, type: "checkbox", checked: fallback });
    return {
      node: h("label", { for: id, class: "check" }, input, name),
      read: () => (input.checked === fallback ? undefined : input.checked),
    };
  }
  if (typeof fallback === "number") {
    const input = h("input", { id, type: "number", step: "any", placeholder: String(fallback) });
    return { node: label(input), read: () => (input.value.trim() === "" ? undefined : Number(input.value)) };
  }
  const isText = typeof fallback === "string";
  const input = h("input", {
    id,
    type: "text",
    placeholder: isText ? fallback : JSON.stringify(fallback),
    spellcheck: "false",
    autocomplete: "off",
  });
  const read = () => (input.value.trim() === "" ? undefined : isText ? input.value : loose(input.value));
  return { node: label(input, isText ? "" : "text or JSON"), read };
}

/** Read JSON where it is JSON, else take the text itself; something that begins like JSON must be JSON. */
function loose(text) {
  try {
    return JSON.parse(text);
  } catch {
    if (/^\s*[[{"]/.test(text))
      throw new Problem({
        detail: `This is no valid JSON: ${text.slice(0, 80)}`,
        hint: "Check the brackets and quotes.",
      });
    return text.trim();
  }
}

function integer(input, name) {
  const text = input.value.trim();
  if (text === "") return null;
  if (!/^\d{1,16}$/.test(text) || Number(text) > Number.MAX_SAFE_INTEGER) {
    throw new Problem({
      detail: `${name} "${text.slice(0, 40)}" is no integer from 0 to 2^53 − 1.`,
      hint: "Leave it empty to have one drawn.",
    });
  }
  return Number(text);
}

function field(label, control, note) {
  return h("label", null, label, control, note && h("span", { class: "muted small" }, note));
}

/** Build the form for one environment; `start(options)` gets what `Game.start` takes. */
export function setupForm(card, params, start) {
  const splits = Object.entries(card.splits);
  const wanted = params.get("split") ?? (Object.hasOwn(card.splits, "test") ? "test" : splits[0]?.[0]);
  const split = h(
    "select",
    { name: "split", onchange: () => drawRange() },
    splits.map(([name, size]) =>
      h("option", { value: name, selected: name === wanted }, `${name} (${size.toLocaleString("en")})`),
    ),
  );
  const task = h("input", { name: "task", inputmode: "numeric", value: params.get("task") ?? "", autocomplete: "off" });
  const seed = h("input", {
    name: "seed",
    inputmode: "numeric",
    placeholder: "random",
    value: params.get("seed") ?? "",
    autocomplete: "off",
  });
  const drawRange = () => {
    task.placeholder = `drawn (0 to ${(card.splits[split.value] ?? 1) - 1})`;
  };
  drawRange();
  const level = h(
    "select",
    { name: "level", onchange: () => drawTurn() },
    h("option", { value: "text", selected: params.get("level") !== "turn" }, "text: actions"),
    h("option", { value: "turn", selected: params.get("level") === "turn" }, "turn: prompts and completions"),
  );
  const settings = Object.entries(card.settings)
    .filter(([name]) => !HIDDEN.includes(name))
    .map(([name, value]) => [name, setting(name, value)]);
  const style = h(
    "select",
    { name: "style" },
    card.styles.map((name) =>
      h("option", { value: name, selected: name === card.style }, name === card.style ? `${name} (default)` : name),
    ),
  );
  const memory = h("input", {
    name: "memory",
    inputmode: "numeric",
    placeholder: "the style's own",
    autocomplete: "off",
  });
  const maxTurns = h("input", {
    name: "max_turns",
    inputmode: "numeric",
    placeholder: "no limit",
    autocomplete: "off",
  });
  const hooks = h("input", {
    name: "hooks",
    placeholder: '{"format-penalty": {"penalty": 0.1}}',
    spellcheck: "false",
    autocomplete: "off",
  });
  const strict = h("input", { name: "strict", type: "checkbox" });
  const turnFields = h("fieldset", null);
  const drawTurn = () => {
    turnFields.hidden = level.value !== "turn";
  };
  put(
    turnFields,
    h("legend", null, "Turn level"),
    h(
      "div",
      { class: "form-grid" },
      field("Prompt style", style),
      field("Memory", memory, "turns in the prompt, −1 for all"),
      field("Most turns", maxTurns),
      field("Reward hooks", hooks, "JSON: name → settings"),
      h("label", { class: "check" }, strict, "strict: never execute a malformed reply"),
    ),
  );
  drawTurn();

  const read = () => {
    const config = {};
    for (const [name, { read: value }] of settings) if (value() !== undefined) config[name] = value();
    const turn = {};
    if (style.value !== card.style) turn.style = style.value;
    if (memory.value.trim()) turn.memory = loose(memory.value.replace("−", "-"));
    if (maxTurns.value.trim()) turn.max_turns = loose(maxTurns.value);
    if (hooks.value.trim()) turn.hooks = loose(hooks.value);
    if (strict.checked) turn.strict = true;
    return {
      env: card.id,
      level: level.value,
      config,
      turn,
      split: split.value,
      task: integer(task, "Task"),
      seed: integer(seed, "Seed"),
    };
  };
  return h(
    "form",
    {
      class: "setup",
      onsubmit: (event) => {
        event.preventDefault();
        start(read);
      },
    },
    h(
      "div",
      { class: "form-grid" },
      field("Level", level),
      field("Split", split),
      field("Task", task),
      field("Seed", seed),
    ),
    turnFields,
    settings.length > 0 &&
      h(
        "details",
        null,
        h("summary", null, plural(settings.length, "setting")),
        h(
          "div",
          { class: "form-grid" },
          settings.map(([, { node }]) => node),
        ),
      ),
    h("p", { class: "row" }, h("button", { type: "submit", class: "primary" }, "Start episode")),
  );
}
