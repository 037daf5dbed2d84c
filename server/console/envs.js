// The environments of the hub: a list, and a page of documentation for each.

import { address, environments, getKey } from "./api.js";
import { badge, codeBlock, h, problemBox, put } from "./dom.js";

const link = (card, page) => `#/${page}/${encodeURIComponent(card.id)}`;

function abilities(card) {
  return [
    card.expert && badge("expert"),
    card.pictures && badge("pictures"),
    card.separator && badge(`joins actions with ${card.separator}`),
  ];
}

/** What the hub's machine lacks for an environment, and how to get it. */
const needsBox = (card) => card.needs && h("p", { class: "notice" }, h("strong", null, "Needs: "), card.needs);

export async function listView(root) {
  const cards = await environments();
  const grid = h("ul", { class: "cards" });
  const draw = (needle) => {
    const fits = cards.filter((card) => `${card.id} ${card.summary}`.toLowerCase().includes(needle.toLowerCase()));
    put(grid, fits.map(cardItem), fits.length === 0 && h("li", { class: "muted" }, "No environment fits."));
  };
  put(
    root,
    h(
      "header",
      { class: "row" },
      h("h1", null, "Environments"),
      h("span", { class: "muted" }, `${cards.length} served here`),
      cards.length > 3 &&
        h("input", {
          type: "search",
          "aria-label": "Search environments",
          placeholder: "Search",
          oninput: (event) => draw(event.currentTarget.value),
        }),
    ),
    grid,
  );
  draw("");
}

function cardItem(card) {
  return h(
    "li",
    { class: "panel card" },
    h("h2", null, h("a", { href: link(card, "env") }, card.id)),
    h("p", null, card.summary),
    needsBox(card),
    h("p", { class: "row badges" }, abilities(card)),
    h(
      "p",
      { class: "muted small" },
      Object.entries(card.splits)
        .map(([name, size]) => `${name} ${size.toLocaleString("en")}`)
        .join(" · "),
    ),
    h(
      "p",
      { class: "row card-foot" },
      !card.needs && h("a", { class: "button primary", href: link(card, "play") }, "Play"),
      h("a", { class: "button", href: link(card, "env"), "aria-label": `Documentation of ${card.id}` }, "Docs"),
    ),
  );
}

export async function envView(root, { id }) {
  const cards = await environments();
  const card = cards.find((one) => one.id === id);
  if (!card)
    return put(
      root,
      problemBox({
        detail: `This hub serves no environment "${id}".`,
        hint: `It serves: ${cards.map((one) => one.id).join(", ")}.`,
      }),
    );
  const crumbs = h("p", { class: "small" }, h("a", { href: "#/" }, "Environments"), " / ", card.id);
  if (card.needs)
    return put(root, crumbs, h("h1", null, card.id), h("p", { class: "lead" }, card.summary), needsBox(card));
  const { paragraphs, meanings } = readDoc(card.doc);
  put(
    root,
    crumbs,
    h(
      "header",
      { class: "row" },
      h("h1", null, card.id),
      h("a", { class: "button primary", href: link(card, "play") }, "Play"),
      abilities(card),
    ),
    h("p", { class: "lead" }, card.summary),
    h(
      "div",
      { class: "split docs" },
      h(
        "div",
        null,
        card.instructions && section("Rules, as a player gets them", h("p", { class: "prose" }, card.instructions)),
        paragraphs.length > 0 &&
          section(
            "Description",
            paragraphs.map((text) => h("p", { class: "prose" }, plainCode(text))),
          ),
        section("Settings", settingsTable(card, meanings)),
        section("Connect", snippets(card)),
      ),
      h(
        "aside",
        { class: "side" },
        section(
          "Splits",
          table(
            ["Split", "Tasks"],
            Object.entries(card.splits).map(([name, size]) => [name, size.toLocaleString("en")]),
          ),
        ),
        section(
          "At the turn level",
          h(
            "p",
            null,
            "Prompt styles: ",
            card.styles.map((style, position) => [
              position > 0 && ", ",
              h("code", null, style),
              style === card.style && " (default)",
            ]),
          ),
        ),
        section(
          "Addresses",
          h(
            "ul",
            { class: "plain" },
            h("li", null, "gymnasium id ", h("code", null, card.gymnasium_id)),
            h(
              "li",
              null,
              "OpenEnv prefix ",
              h("code", null, `/${card.id}`),
              ": ",
              h("a", { href: address(`${card.id}/metadata`) }, "metadata"),
              ", ",
              h("a", { href: address(`${card.id}/schema`) }, "schema"),
            ),
            h(
              "li",
              null,
              "this entry as JSON: ",
              h("a", { href: address(`v1/envs/${card.id}`) }, `/v1/envs/${card.id}`),
            ),
          ),
          getKey() &&
            h(
              "p",
              { class: "muted small" },
              "These addresses need the API key as a header; a browser tab does not send it.",
            ),
        ),
      ),
    ),
  );
}

function section(title, ...children) {
  return h("section", { class: "panel" }, h("h2", null, title), children);
}

function table(head, rows) {
  return h(
    "div",
    { class: "scroll-x" },
    h(
      "table",
      null,
      h(
        "thead",
        null,
        h(
          "tr",
          null,
          head.map((name) => h("th", { scope: "col" }, name)),
        ),
      ),
      h(
        "tbody",
        null,
        rows.map((row) =>
          h(
            "tr",
            null,
            row.map((cell) => h("td", null, cell)),
          ),
        ),
      ),
    ),
  );
}

/** Split a Google-style docstring into its paragraphs and the meanings of the settings under "Args:". */
function readDoc(doc) {
  const paragraphs = [];
  const meanings = new Map();
  for (const block of doc.trim().split(/\n\s*\n/)) {
    if (!block.startsWith("Args:\n")) {
      paragraphs.push(block.replace(/\s*\n\s*/g, " "));
      continue;
    }
    const lines = block.split("\n").slice(1);
    const indent = lines[0].search(/\S/);
    let last = null;
    for (const line of lines) {
      const entry = line.search(/\S/) === indent ? /^\s*(\w+): (.*)$/.exec(line) : null;
      if (entry) meanings.set((last = entry[1]), entry[2]);
      else if (last !== null) meanings.set(last, `${meanings.get(last)} ${line.trim()}`);
    }
  }
  return { paragraphs, meanings };
}

function settingsTable(card, meanings) {
  const rows = Object.entries(card.settings).map(([name, value]) => [
    h("code", null, name),
    h("code", null, JSON.stringify(value)),
    plainCode(meanings.get(name) ?? ""),
  ]);
  return rows.length ? table(["Setting", "Default", "Meaning"], rows) : h("p", { class: "muted" }, "None.");
}

/** Set ``code`` of a docstring as code. */
function plainCode(text) {
  return text
    .split(/(``[^`]+``)/)
    .map((piece) =>
      piece.startsWith("``") && piece.length > 4
        ? h("code", null, piece.slice(2, -2))
        : piece.replace(/:\w+:`([^`]+)`/g, "$1"),
    );
}

function snippets(card) {
  const url = address();
  const split = Object.hasOwn(card.splits, "test") ? "test" : Object.keys(card.splits)[0];
  const keyArgument = getKey() ? ", api_key=KEY" : "";
  const keyHeader = getKey() ? `-H "Authorization: Bearer $KEY" ` : "";
  const openenvHeaders = getKey() ? `, headers={"Authorization": f"Bearer {KEY}"}` : "";
  const send = (op, item) =>
    `curl -s ${keyHeader}-H "Content-Type: application/json" ${url}/v1/${op} \\\n  -d '${JSON.stringify({ items: [item] })}'`;
  return [
    codeBlock(
      "turngym",
      `import turngym\n\nenv = turngym.connect("${url}", "${card.id}"${keyArgument})\nobservation, info = env.reset(seed=7, options={"split": "${split}"})\nobservation, reward, terminated, truncated, info = env.step(info["admissible"][0])`,
    ),
    codeBlock(
      "Stock OpenEnv client",
      `from openenv import GenericEnvClient  # pip install "turngym[openenv]"\n\nwith GenericEnvClient(base_url="${url}/${card.id}"${openenvHeaders}).sync() as env:\n    result = env.reset(seed=7, split="${split}", index=0)\n    result = env.step({"action": result.observation["admissible"][0]})`,
    ),
    codeBlock(
      "curl",
      `${send("create", { env: card.id, session: "demo", reset: true, seed: 7, split })}\n\n${send("step", { session: "demo", action: "…" })}\n\n${send("close", { session: "demo" })}`,
    ),
    h("p", { class: "muted small" }, 'Many sessions go in one request: put one item for each into "items".'),
  ];
}
