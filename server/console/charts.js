// Lines over a whole number as SVG: axes, ticks, and as many lines as are told.

import { h, s } from "./dom.js";

const [WIDTH, HEIGHT] = [400, 190];
const [LEFT, RIGHT, TOP, BOTTOM] = [50, 390, 10, 150];
const POINTS = 400; // drawn of one line
const DOTS = 40; // lines of more points have no dots

/** How a number reads: three digits, or per cent. */
export function reads(value, share = false) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  if (share) return `${+(100 * value).toPrecision(3)} %`;
  if (Math.abs(value) >= 1000) return Math.round(value).toLocaleString("en");
  return Math.abs(value) < 1e-6 ? "0" : String(+value.toPrecision(3)).replace("-", "−");
}

/** [low, high, distance of ticks] of an axis that holds the values. */
function scale(values, share) {
  let [low, high] = [Math.min(...values), Math.max(...values)];
  if (low > 0 && (share || low < 0.6 * high)) low = 0;
  if (high - low <= 2e-3 * Math.max(Math.abs(high), Math.abs(low)))
    [low, high] = low === 0 ? [0, 1] : [low - Math.abs(low) / 2, high + Math.abs(high) / 2];
  const rough = (high - low) / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  const every = [1, 2, 2.5, 5, 10].map((step) => step * power).find((step) => step >= 0.999 * rough);
  low = Math.floor(low / every + 1e-9) * every;
  high = Math.ceil(high / every - 1e-9) * every;
  return share && high > 1 ? [Math.min(low, 0), 1, 0.25] : [low, high, every];
}

/** Of each stretch the least and the greatest, so that spikes stay. */
function fewer(points) {
  if (points.length <= POINTS) return points;
  const size = Math.ceil((2 * points.length) / POINTS);
  const kept = [];
  for (let from = 0; from < points.length; from += size) {
    const stretch = points.slice(from, from + size);
    const byValue = [...stretch].sort((a, b) => a[1] - b[1]);
    kept.push(...[...new Set([byValue[0], byValue.at(-1)])].sort((a, b) => a[0] - b[0]));
  }
  return kept;
}

/**
 * A figure of lines: `{title, lines: [{name, points: [[x, y], …], band: [[x, low, high], …]}], share, xLabel}`.
 * A line's colour is that of its place.
 */
export function chart({ title, lines, share = false, xLabel = "step" }) {
  const known = lines.map((line) => ({ ...line, points: line.points.filter(([, y]) => Number.isFinite(y)) }));
  const all = known.flatMap((line) => line.points);
  if (all.length === 0) return null;
  const edges = known.flatMap((line) => (line.band ?? []).flatMap(([, low, high]) => [low, high]));
  const xs = all.map(([x]) => x);
  const [first, last] = [Math.min(...xs), Math.max(...xs)];
  const [low, high, every] = scale([...all.map(([, y]) => y), ...edges], share);
  const place = ([x, y]) => [
    LEFT + ((x - first) / (last - first || 1)) * (RIGHT - LEFT),
    BOTTOM - ((y - low) / (high - low)) * (BOTTOM - TOP),
  ];
  const path = (points) => `M${points.map((point) => place(point).map((n) => n.toFixed(1)).join(" ")).join("L")}`;
  const ticks = [...Array(Math.round((high - low) / every) + 1).keys()].map((n) => low + n * every);
  const newest = known.filter((line) => line.points.length).map((line) => `${line.name} ${reads(line.points.at(-1)[1], share)}`);
  return h(
    "figure",
    { class: "chart" },
    h("figcaption", null, title),
    h(
      "p",
      { class: "chart-keys small" },
      known.map((line, index) => line.points.length > 0 && h("span", { class: `key line-${index}` }, newest.shift())),
    ),
    s(
      "svg",
      { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `${title} over ${xLabel}s` },
      ticks.map((y, index) => [
        s("path", { class: index === 0 ? "axis" : "grid", d: `M${LEFT} ${place([first, y])[1].toFixed(1)}H${RIGHT}` }),
        s("text", { class: "end", x: LEFT - 6, y: place([first, y])[1] + 4 }, reads(y, share)),
      ]),
      wholeTicks(first, last).map((x) => s("text", { class: "middle", x: place([x, low])[0], y: BOTTOM + 15 }, String(x))),
      s("text", { class: "middle", x: (LEFT + RIGHT) / 2, y: BOTTOM + 32 }, xLabel),
      // The first line lies on top.
      known.map((line, index) => drawn(line, index, place, path, share, xLabel)).reverse(),
    ),
  );
}

function drawn(line, index, place, path, share, xLabel) {
  if (line.points.length === 0) return null;
  const band = line.band ?? [];
  const around = [...band.map(([x, , high]) => [x, high]), ...band.map(([x, low]) => [x, low]).reverse()];
  const dots = line.points.length <= DOTS ? line.points : [line.points.at(-1)];
  return s(
    "g",
    { class: `line-${index}` },
    band.length > 1 && s("path", { class: "band", d: `${path(around)}Z` }),
    s("path", { class: "curve-line", d: path(fewer(line.points)) }),
    dots.map((point) => {
      const [cx, cy] = place(point);
      const title = s("title", null, `${line.name}: ${reads(point[1], share)} at ${xLabel} ${point[0]}`);
      return s("circle", { cx: cx.toFixed(1), cy: cy.toFixed(1), r: 2.6 }, title);
    }),
  );
}

function wholeTicks(first, last) {
  const rough = Math.max((last - first) / 6, 1e-9);
  const power = 10 ** Math.floor(Math.log10(rough));
  const every = Math.max(1, [1, 2, 5, 10].map((step) => step * power).find((step) => step >= rough));
  const ticks = [];
  for (let x = Math.ceil(first / every) * every; x <= last; x += every) ticks.push(x);
  return ticks;
}
