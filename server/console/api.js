// Talking to the hub: JSON over fetch, errors as problems, the API key in sessionStorage.

const BASE = new URL("./", document.baseURI);
const KEY = "turngym.key";

/** What the hub (or the way to it) answered instead of a result: RFC 9457 members plus code and hint. */
export class Problem extends Error {
  constructor({ detail, hint = "", code = "", status = 0, title = "" }) {
    super(detail || title || "Unknown error.");
    this.detail = this.message;
    this.hint = hint;
    this.code = code;
    this.status = status;
  }
}

let askKey = null;
let asking = null;

/** Set the function that asks the person for a key; it gets the problem and returns a key or null. */
export function onKeyNeeded(ask) {
  askKey = ask;
}

export const getKey = () => sessionStorage.getItem(KEY) ?? "";

export function setKey(key) {
  if (key) sessionStorage.setItem(KEY, key);
  else sessionStorage.removeItem(KEY);
}

/** The hub's address for a path, as scripts use it. */
export function address(path = "") {
  return new URL(path, BASE).href.replace(/\/$/, "");
}

async function once(method, path, body, plain) {
  const headers = { Accept: plain ? "text/plain" : "application/json" };
  if (getKey()) headers.Authorization = `Bearer ${getKey()}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(new URL(path, BASE), {
      method,
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      cache: "no-store",
    });
  } catch {
    throw new Problem({
      code: "SERVER_UNAVAILABLE",
      detail: `The hub at ${address()} does not answer.`,
      hint: "Check that `turngym serve` is running, then try again.",
    });
  }
  const text = await response.text();
  if (plain && response.ok) return text;
  let value;
  try {
    value = JSON.parse(text);
  } catch {
    throw new Problem({
      status: response.status,
      detail: `The hub answered ${response.status} without JSON: ${text.slice(0, 200)}`,
      hint: "Check that this address belongs to a turngym hub.",
    });
  }
  if (!response.ok) throw new Problem({ status: response.status, ...value });
  return value;
}

async function request(method, path, body, plain = false) {
  for (;;) {
    const used = getKey();
    try {
      return await once(method, path, body, plain);
    } catch (problem) {
      if (problem.status !== 401 || askKey === null) throw problem;
      // Requests that fail together wait for one answer; a key given meanwhile is tried without asking.
      if (getKey() !== used) continue;
      asking ??= askKey(problem, used !== "").finally(() => (asking = null));
      const key = await asking;
      if (key === null) throw problem;
      setKey(key);
    }
  }
}

export const get = (path) => request("GET", path);
export const getText = (path) => request("GET", path, undefined, true);

/** Run one operation on one item; an error of the item is thrown as a Problem. */
export async function op(name, item) {
  const answer = await request("POST", `v1/${name}`, { items: [item] });
  const reply = answer.items[0];
  if (reply.error) throw new Problem(reply.error);
  return { session: item.session ?? "", step_index: 0, reward: 0, terminated: false, truncated: false, ...reply };
}

let cards = null;

/** The environments of the hub (asked once). */
export function environments() {
  cards ??= get("v1/envs").catch((problem) => {
    cards = null;
    throw problem;
  });
  return cards;
}
