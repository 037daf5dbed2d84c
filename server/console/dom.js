// Building elements. Text always goes in as text nodes: no function here parses markup, and the page's
// Content-Security-Policy (require-trusted-types-for) makes the browser refuse any that would.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value") element.value = value;
    else if (name === "checked" || name === "selected") element[name] = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(
    ...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false),
  );
  return element;
}

/** Make an HTML element: `on…` props are listeners, other props attributes, strings among the children text. */
export function h(tag, props, ...children) {
  return fill(document.createElement(tag), props, children);
}

/** Make an SVG element. */
export function s(tag, props, ...children) {
  return fill(document.createElementNS(SVG, tag), props, children);
}

/** Replace an element's children; null and false among them are left out. */
export function put(element, ...children) {
  element.replaceChildren();
  return fill(element, null, children);
}

const keyOf = (element) => element.dataset.key || element.name || element.textContent;

/** Draw a box anew and give the focus back to the control that had it: the same data-key, name or text. */
export function keepFocus(box, redraw) {
  const focused = box.contains(document.activeElement) ? keyOf(document.activeElement) : null;
  redraw();
  if (focused !== null)
    [...box.querySelectorAll("button, input, textarea")]
      .find((control) => keyOf(control) === focused)
      ?.focus({ preventScroll: true });
}

/** Scroll a box, and nothing around it, so that one of its descendants can be seen. */
export function reveal(box, element) {
  if (!box || !element) return;
  const outer = box.getBoundingClientRect();
  const inner = element.getBoundingClientRect();
  if (inner.top < outer.top) box.scrollTop -= outer.top - inner.top;
  else if (inner.bottom > outer.bottom) box.scrollTop += inner.bottom - outer.bottom;
}

/** "+1", "−0.1", "0": a reward, rounded to four decimals. */
export function signed(value) {
  const rounded = Math.round(value * 1e4) / 1e4;
  if (rounded === 0) return "0";
  return (rounded > 0 ? "+" : "−") + String(Math.abs(rounded));
}

export function plural(count, noun) {
  return `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;
}

/** "12 s", "3 min", "2.5 h". */
export function duration(seconds) {
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return `${(seconds / 3600).toFixed(1)} h`;
}

export function badge(text, kind = "") {
  return h("span", { class: `badge ${kind}` }, text);
}

/** A box that says what went wrong and what to do next. */
export function problemBox(problem, ...actions) {
  const buttons = actions.filter(Boolean);
  return h(
    "div",
    { class: "problem", role: "alert" },
    h("p", { class: "problem-detail" }, problem.detail || problem.message || String(problem)),
    problem.hint && h("p", { class: "problem-hint" }, problem.hint),
    problem.code &&
      h("p", { class: "muted small" }, problem.status ? `${problem.code} (${problem.status})` : problem.code),
    buttons.length > 0 && h("p", { class: "row" }, buttons),
  );
}

/** A table of reward components; those that a hook rewrote later are marked. */
export function rewardTable(rewards, revised = {}) {
  const names = [...new Set([...Object.keys(rewards), ...Object.keys(revised)])];
  const rows = names.map((name) => {
    const rewritten = Object.hasOwn(revised, name);
    const first = Object.hasOwn(rewards, name) ? rewards[name] : 0;
    const now = rewritten && typeof revised[name] === "number" ? revised[name] : first;
    return h(
      "tr",
      { class: rewritten && "revised" },
      h("th", { scope: "row" }, name, rewritten && [" ", badge("revised", "warn")]),
      h(
        "td",
        { class: "number" },
        signed(now),
        rewritten && now !== first && h("span", { class: "muted" }, ` was ${signed(first)}`),
      ),
    );
  });
  return h("table", { class: "rewards" }, h("caption", null, "Reward components"), h("tbody", null, rows));
}

/** Chat messages, each in a box that folds; of a long chat only the last one is open. */
export function messageList(messages, open = true) {
  return h(
    "div",
    { class: "messages" },
    messages.map((message, position) =>
      h(
        "details",
        { class: "message", open: open && (messages.length < 3 || position === messages.length - 1) },
        h(
          "summary",
          null,
          badge(String(message.role), "role"),
          h("span", { class: "muted small" }, ` ${plural(String(message.content).length, "character")}`),
        ),
        h("pre", { tabindex: "0" }, String(message.content)),
      ),
    ),
  );
}

/** A code block with a button that copies it. */
export function codeBlock(title, code) {
  const pre = h("pre", { class: "code", tabindex: "0" }, code);
  const copy = async (event) => {
    const button = event.currentTarget;
    // The clipboard API exists on https and loopback only; elsewhere the text is selected for Ctrl+C.
    if (navigator.clipboard) {
      await navigator.clipboard.writeText(code);
      button.textContent = "Copied";
    } else {
      getSelection().selectAllChildren(pre);
      button.textContent = "Selected: press Ctrl+C";
    }
    setTimeout(() => (button.textContent = "Copy"), 2000);
  };
  return h(
    "figure",
    { class: "snippet" },
    h("figcaption", null, title, h("button", { type: "button", class: "small", onclick: copy }, "Copy")),
    pre,
  );
}
