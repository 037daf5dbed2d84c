// The shell: which view the address names, the API key, the hub's state in the header.

import { getKey, onKeyNeeded, Problem, setKey } from "./api.js";
import { h, problemBox, put } from "./dom.js";
import { envView, listView } from "./envs.js";
import { liveView } from "./live.js";
import { playView } from "./play.js";
import { runsView } from "./runs.js";
import { viewerView } from "./viewer.js";

const VIEWS = { "": listView, env: envView, play: playView, live: liveView, runs: runsView, episodes: viewerView };
const TITLES = {
  "": "Environments",
  env: "Environments",
  play: "Play",
  live: "Live",
  runs: "Runs",
  episodes: "Episodes",
};

const main = document.querySelector("main");
const keyButton = document.querySelector("#key-button");
let dispose = null;
let ticket = 0;

/** Go to an address of the console; with `quietly` only the address bar changes. */
function go(address, quietly = false) {
  if (quietly) history.replaceState(null, "", `#${address}`);
  else location.hash = address;
}

async function route() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [name, id = ""] = path.split("/").map(decodePart);
  const mine = ++ticket;
  dispose?.();
  dispose = null;
  for (const link of document.querySelectorAll("header nav a")) {
    const here = link.dataset.view === (name === "env" ? "" : name);
    if (here) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${id ? `${id} · ` : ""}${TITLES[name] ?? "Not found"} · turngym`;
  const root = h("div", { class: `view view-${TITLES[name] ? name || "list" : "missing"}` });
  put(main, root);
  if (!Object.hasOwn(VIEWS, name))
    return put(
      root,
      problemBox({ detail: `This console has no page "${name}".`, hint: "Choose one in the menu above." }),
    );
  try {
    const leave = await VIEWS[name](root, { id, params: new URLSearchParams(query), go });
    // Somebody may have gone elsewhere while the view was loading.
    if (typeof leave === "function") mine === ticket ? (dispose = leave) : leave();
  } catch (problem) {
    if (!(problem instanceof Problem)) console.error(problem);
    if (mine === ticket) put(root, problemBox(problem, h("button", { type: "button", onclick: route }, "Try again")));
  }
  showKey();
}

function decodePart(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

function showKey() {
  keyButton.hidden = getKey() === "";
}

/** Ask for the API key; resolves with it, or with null where the person declines. */
function askKey(problem, wrong) {
  const dialog = document.querySelector("#key-dialog");
  const form = dialog.querySelector("form");
  const input = form.querySelector("input");
  const message = form.querySelector(".dialog-message");
  put(
    message,
    wrong
      ? problemBox({
          detail: "The hub refused this API key.",
          hint: "Check it for typing errors, or ask whoever runs the hub.",
          code: problem.code,
        })
      : h("p", null, "This hub asks for an API key. It is kept in this tab only, until the tab is closed."),
  );
  input.value = "";
  return new Promise((resolve) => {
    const finish = (key) => {
      form.onsubmit = dialog.oncancel = form.querySelector(".decline").onclick = null;
      dialog.close();
      resolve(key);
    };
    form.onsubmit = (event) => {
      event.preventDefault();
      const key = input.value.trim();
      // A header carries nothing else; fetch would fail without saying why.
      if (!/^[\x21-\x7e]+$/.test(key))
        put(
          message,
          problemBox({
            detail: "An API key consists of printable ASCII characters without spaces.",
            hint: "Copy it again.",
          }),
        );
      else finish(key);
    };
    dialog.oncancel = form.querySelector(".decline").onclick = () => finish(null);
    dialog.showModal();
    input.focus();
  });
}

// Its address is a place on this page, not a view.
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
onKeyNeeded(askKey);
keyButton.addEventListener("click", () => {
  setKey("");
  location.reload();
});
addEventListener("hashchange", route);
route();
