// Choosing an action: buttons, a searchable list where there are many, arrow keys.

import { h, put } from "./dom.js";

const MANY = 24; // more admissible actions than this become a searchable list
const LISTED = 200; // and this many of them are drawn at once
const ARROWS = {
  ArrowUp: ["up", "north"],
  ArrowDown: ["down", "south"],
  ArrowLeft: ["left", "west"],
  ArrowRight: ["right", "east"],
};

/** The admissible action that an arrow key means, if there is exactly one. */
export function arrowAction(key, admissible) {
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

/** Buttons for the admissible actions; `pick` gets the one chosen, `hint` is the one to point at. */
export function actionPanel(admissible, hint, pick) {
  const many = admissible.length > MANY;
  const list = h("div", { class: many ? "actions many" : "actions" });
  const button = (action, position) =>
    h(
      "button",
      {
        type: "button",
        class: `action-button ${action === hint ? "hinted" : ""}`,
        "data-action": action,
        onclick: () => pick(action),
      },
      action || "(empty)",
      !many && position < 9 && h("kbd", { "aria-hidden": "true" }, position + 1),
    );
  const fill = (needle) => {
    const fits = admissible.filter((action) => action.toLowerCase().includes(needle.toLowerCase()));
    // What the expert advises is among those shown, wherever it stands.
    if (many) fits.sort((a, b) => (b === hint) - (a === hint));
    const rest = fits.length - LISTED;
    put(
      list,
      fits.slice(0, LISTED).map(button),
      rest > 0 && h("p", { class: "muted small" }, `and ${rest} more: search to see them`),
    );
  };
  const search = h("input", {
    type: "search",
    "aria-label": "Search actions",
    placeholder: `Search ${admissible.length} actions`,
    oninput: (event) => fill(event.currentTarget.value),
  });
  fill("");
  return [h("h3", null, "Actions"), many && search, list];
}
