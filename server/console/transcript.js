// What was played, as the player shows it: score, reward components, what the grammar found, every turn.

import { badge, h, plural, rewardTable, signed } from "./dom.js";
import { sum } from "./game.js";

/** The figures of a game, and the components of its last reward. */
export function scorePanel(game) {
  const { record, reply } = game;
  const last = record.turns.at(-1);
  const total = record.turns.reduce((all, turn) => all + sum({ ...turn.rewards, ...turn.revised }), 0);
  const figure = (name, value) =>
    h("div", null, h("dt", null, name), h("dd", { "data-figure": name.toLowerCase() }, value));
  return h(
    "div",
    { class: "panel" },
    h("h3", null, "Score"),
    h(
      "dl",
      { class: "figures" },
      figure("Turns", record.turns.length),
      figure("Reward", last ? signed(last.reward) : "–"),
      figure("Return", signed(total)),
      figure("Score", reply.info?.score === undefined ? "–" : +reply.info.score.toFixed(3)),
    ),
    last && rewardTable(last.rewards),
    last && record.level === "turn" && parseBox(last),
  );
}

/** The turns played so far. */
export function transcriptPanel(game) {
  const { turns, level } = game.record;
  const items = turns.map((turn) => transcriptItem(turn, level === "turn"));
  return h(
    "div",
    { class: "panel" },
    h("h3", null, "Transcript"),
    items.length === 0 && h("p", { class: "muted" }, "No turn played yet."),
    items.length > 0 && h("ol", { class: "transcript", tabindex: "0", "aria-label": "Transcript" }, items),
  );
}

/** A badge for where a game stands. */
export function outcomeOf(reply) {
  if (reply.info?.won) return badge("won", "good");
  if (reply.truncated) return badge("truncated", "warn");
  return reply.terminated ? badge("over", "bad") : badge("running");
}

/** One sentence about how a game ended. */
export function verdict(game) {
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
    ]
      .filter(Boolean)
      .map(([name, value]) => h("div", null, h("dt", null, name), h("dd", null, value))),
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
        h("code", null, turn.action || "(none)"),
        " ",
        h("span", { class: "number" }, signed(sum({ ...turn.rewards, ...turn.revised }))),
        " ",
        !turn.action_valid && badge("invalid", "bad"),
        turn.format_valid === false && badge("malformed", "bad"),
        revised && badge("revised", "warn"),
      ),
      h("p", { class: "muted small" }, "Observation"),
      h("pre", { tabindex: "0" }, turn.before),
      turnLevel && [h("p", { class: "muted small" }, "Completion"), h("pre", { tabindex: "0" }, turn.sent)],
      (turnLevel || revised) && rewardTable(turn.rewards, turn.revised),
    ),
  );
}
