const data = JSON.parse(document.getElementById("data").textContent);
const stateOf = {"won": "won", "lost": "lost", "truncated": "cut", "context overflow": "over", "failed": "bad"};

// Episodes: a case is one attempt at one task; it holds one episode a policy.
const cases = [];
const known = new Map();
for (const episode of data.episodes) {
  const key = [episode.env, episode.task, episode.attempt].join("\u0000");
  if (!known.has(key)) {
    known.set(key, {env: episode.env, task: episode.task, attempt: episode.attempt, type: episode.type, by: new Map()});
    cases.push(known.get(key));
  }
  known.get(key).by.set(episode.policy, episode);
}
const attempts = cases.some((each) => each.attempt > 0);
const shownPolicies = new Set(data.policies.slice(0, 4));
let visible = [];
let current = null;

const played = (each) => [...each.by.values()];
const flawed = (episode) => episode.turns.some((turn) => turn.invalid || turn.malformed);
const filters = {
  all: () => true,
  unsolved: (each) => played(each).some((episode) => episode.outcome !== "won"),
  solved: (each) => played(each).every((episode) => episode.outcome === "won"),
  differ: (each) => new Set(played(each).map((episode) => episode.outcome === "won")).size > 1,
  flawed: (each) => played(each).some(flawed),
  failed: (each) => played(each).some((episode) => episode.outcome === "failed"),
};
function has(each, words) {
  const texts = (episode) => [episode.task, episode.type, episode.final, ...episode.turns.flatMap((turn) => [turn.o, turn.a, turn.t ?? ""])];
  return played(each).some((episode) => texts(episode).some((text) => text.toLowerCase().includes(words)));
}
const label = (each) => each.task + (attempts ? " · attempt " + (each.attempt + 1) : "");
const hashOf = (each) => "#" + encodeURIComponent([each.env, each.task, each.attempt].join(" "));

function refresh() {
  const words = $("find").value.trim().toLowerCase();
  visible = cases.filter((each) => each.env === $("env").value && filters[$("outcome").value](each) && (!words || has(each, words)));
  $("list").replaceChildren(...visible.map((each) => {
    const dots = make("span", "dots");
    for (const policy of data.policies) {
      const episode = each.by.get(policy);
      const dot = make("i", episode ? stateOf[episode.outcome] : "");
      dot.title = policy + ": " + (episode ? episode.outcome : "not here");
      dots.append(dot);
    }
    const button = make("button", "", make("span", "", label(each)), dots);
    button.addEventListener("click", () => show(each));
    each.button = button;
    return button;
  }));
  if (!visible.length) $("list").append(make("div", "nothing", "No such episodes."));
  show(visible.includes(current) ? current : visible[0] ?? null);
}

function show(each) {
  current?.button?.removeAttribute("aria-current");
  current = each;
  $("view").replaceChildren();
  if (!each) return;
  each.button.setAttribute("aria-current", "true");
  // Scrolls the list alone, never the page.
  const [list, button] = [$("list"), each.button];
  if (button.offsetTop < list.scrollTop || button.offsetTop + button.offsetHeight > list.scrollTop + list.clientHeight)
    list.scrollTop = button.offsetTop - list.clientHeight / 2;
  history.replaceState(null, "", hashOf(each));
  const episodes = data.policies.filter((policy) => shownPolicies.has(policy) && each.by.has(policy)).map((policy) => each.by.get(policy));
  const sides = make("div", "sides");
  sides.style.gridTemplateColumns = `repeat(${Math.max(episodes.length, 1)}, minmax(${episodes.length > 1 ? 245 : 320}px, ${episodes.length > 1 ? "1fr" : "760px"}))`;
  for (const episode of episodes) sides.append(head(episode));
  const turns = Math.max(0, ...episodes.map((episode) => episode.turns.length));
  // Row by row, so that equal turns of all policies stand beside each other.
  for (let n = 0; n < turns; n++)
    for (const episode of episodes) sides.append(episode.turns[n] ? turnCard(episode, n) : make("div", "empty"));
  for (const episode of episodes) sides.append(end(episode));
  $("view").append(sides);
}

function number(value) { return (value > 0 ? "+" : "") + String(+value.toPrecision(4)).replace("-", "−"); }
function chip(css, text) { return make("span", "chip " + css, text); }

function head(episode) {
  const swatch = make("i", "swatch p" + (data.policies.indexOf(episode.policy) % 8));
  const facts = [`reward ${number(episode.reward)}`, `${episode.turns.length} turn${episode.turns.length === 1 ? "" : "s"}`];
  if (![0, 1].includes(episode.score)) facts.push(`score ${episode.score}`);
  if (episode.type) facts.push(episode.type);
  facts.push(episode.seconds < 0.1 ? `${(1000 * episode.seconds).toFixed(1)} ms` : `${episode.seconds.toFixed(1)} s`, `seed ${episode.seed}`);
  const node = make("div", "side", make("h3", "", make("span", "", swatch, episode.policy), chip("state " + stateOf[episode.outcome], episode.outcome)), make("p", "", facts.join(" · ")));
  if (episode.prompt) {
    const text = episode.prompt.map((message) => `[${message.role}]\n${message.content}`).join("\n\n");
    node.append(make("details", "", make("summary", "", "first prompt"), make("pre", "", text)));
  }
  return node;
}

// Reasoning is set apart from the rest of a reply.
function reply(text) {
  const node = make("pre", "reply");
  const pattern = /<(think|planning|explore|reflection|monitor)>[\s\S]*?(?:<\/\1>|$)/gi;
  let from = 0;
  for (const match of text.matchAll(pattern)) {
    node.append(text.slice(from, match.index), make("span", "thought", match[0]));
    from = match.index + match[0].length;
  }
  node.append(text.slice(from));
  return node;
}

function turnCard(episode, n) {
  const turn = episode.turns[n];
  const header = make("header", "", make("b", "", `Turn ${n + 1}`));
  if (turn.tag) header.append(chip("", turn.tag));
  if (turn.malformed) header.append(chip("wrong", turn.malformed === "malformed" ? "malformed" : "malformed: " + turn.malformed));
  if (turn.invalid) header.append(chip("wrong", "invalid action"));
  if (turn.void) header.append(chip("warn", "void"));
  if (turn.finish) header.append(chip("warn", {length: "cut at the token limit", context_overflow: "context overflow"}[turn.finish] ?? turn.finish));
  if (turn.tokens) header.append(make("span", "", `${turn.tokens} tokens`));
  if (turn.forced) header.append(chip("warn", "thinking was ended"));
  if (turn.discarded) header.append(chip("", `sampled again ${turn.discarded}×`));
  for (const [name, value] of Object.entries(turn.rs ?? {})) {
    if (!value && !turn.revised?.includes(name)) continue;
    const mark = chip("", `${name} ${number(value)}`);
    if (turn.revised?.includes(name)) { mark.append(" ↺"); mark.title = "rewritten at the end of the episode"; }
    header.append(mark);
  }
  if (!turn.rs || Object.values(turn.rs).filter(Boolean).length !== 1) header.append(chip("", `reward ${number(turn.r ?? 0)}`));
  const node = make("div", "turn", header, make("pre", "seen", turn.o));
  if (turn.t !== undefined) node.append(reply(turn.t));
  node.append(make("pre", "deed", turn.a || "(no action)"));
  return node;
}

function end(episode) {
  if (episode.error) {
    const text = [episode.error.title, episode.error.detail, episode.error.hint].filter(Boolean).join("\n");
    return make("div", "turn error", make("header", "", make("b", "", "Failed")), make("pre", "", text));
  }
  return make("div", "turn", make("header", "", make("b", "", "End"), chip("state " + stateOf[episode.outcome], episode.outcome)), make("pre", "seen", episode.final));
}

function move(by) {
  const next = visible[visible.indexOf(current) + by];
  if (next) show(next);
}

$("env").append(...[...new Set(cases.map((each) => each.env))].map((env) => make("option", "", env)));
if (data.policies.length > 1)
  for (const policy of data.policies) {
    const box = document.createElement("input");
    box.type = "checkbox";
    box.checked = shownPolicies.has(policy);
    box.addEventListener("change", () => { shownPolicies[box.checked ? "add" : "delete"](policy); show(current); });
    const words = make("label", "", box, " " + policy);
    words.style.marginRight = "10px";
    $("policies").append(words);
  }
for (const id of ["env", "outcome"]) $(id).addEventListener("change", refresh);
$("find").addEventListener("input", refresh);
$("prev").addEventListener("click", () => move(-1));
$("next").addEventListener("click", () => move(1));
document.addEventListener("keydown", (event) => {
  if (event.target.matches("input, select") || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "j") move(1);
  if (event.key === "k") move(-1);
});
const wanted = cases.find((each) => hashOf(each) === location.hash);
if (wanted) { $("env").value = wanted.env; current = wanted; }
refresh();
