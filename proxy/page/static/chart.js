// Throughput by source as lines over the last minutes, with the same figures in words.
import { bytes, el, replace, svg } from "./dom.js";

const WIDTH_MIN = 320;
const HEIGHT = 220;
const LEFT = 76;
const BOTTOM = 24;
const SPAN_S = 300;
const LABELS = 4;

export class Chart {
  constructor(sources) {
    this.sources = sources;
    this.title = svg("title", {}, "Throughput by source");
    this.description = svg("desc", {});
    this.plot = svg("g");
    this.picture = svg("svg", { class: "chart", role: "img" },
      this.title, this.description, this.plot);
    this.legend = el("ul", { class: "legend" });
    this.element = el("div", {}, this.legend, this.picture);
  }

  draw(samples) {
    const rates = ratesOf(samples);
    const now = rates.at(-1) ?? { values: this.sources.map(() => 0) };
    const lines = this.sources.map((source, n) => `${source}: ${bytes(now.values[n])}/s`);
    this.description.textContent = `Now ${lines.join(", ")}.`;
    replace(this.legend, ...this.sources.map((source, n) => el("li", {},
      svg("svg", { viewBox: "0 0 28 8", "aria-hidden": "true" },
        svg("path", { class: `l${n}`, d: "M0 4H28" })),
      `${source} `, el("b", {}, `${bytes(now.values[n])}/s`))));
    const end = rates.at(-1)?.time ?? 0;
    const shown = rates.filter((rate) => rate.time > end - SPAN_S);
    const width = Math.max(WIDTH_MIN, this.element.clientWidth);
    this.picture.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    const top = niceTop(Math.max(1024, ...shown.flatMap((rate) => rate.values)));
    const x = (time) => LEFT + (1 - (end - time) / SPAN_S) * (width - LEFT - 8);
    const y = (value) => 8 + (1 - value / top) * (HEIGHT - BOTTOM - 8);
    const parts = [];
    for (let n = 0; n <= LABELS; n += 1) {
      const value = (top / LABELS) * n;
      parts.push(svg("line", { class: "grid", x1: LEFT, x2: width - 8, y1: y(value), y2: y(value) }));
      parts.push(svg("text", { x: LEFT - 8, y: y(value) + 4, "text-anchor": "end" }, `${bytes(value)}/s`));
    }
    for (const minutes of width < 560 ? [5, 0] : [5, 4, 3, 2, 1, 0]) {
      const text = minutes ? `−${minutes} min` : "now";
      parts.push(svg("text", { x: x(end - minutes * 60), y: HEIGHT - 6,
        "text-anchor": minutes === 5 ? "start" : minutes ? "middle" : "end" }, text));
    }
    for (let n = 0; n < this.sources.length; n += 1) {
      const points = shown.map((rate) => `${x(rate.time).toFixed(1)} ${y(rate.values[n]).toFixed(1)}`);
      if (points.length > 1) parts.push(svg("path", { class: `l${n}`, d: `M${points.join("L")}` }));
    }
    replace(this.plot, ...parts);
    return now.values;
  }
}

// Sums become rates; a proxy that began anew begins at nothing.
export function ratesOf(samples) {
  const rates = [];
  for (let n = 1; n < samples.length; n += 1) {
    const [before, ...old] = samples[n - 1];
    const [time, ...sums] = samples[n];
    if (time <= before) continue;
    rates.push({ time, values: sums.map((sum, k) => Math.max(0, sum - old[k]) / (time - before)) });
  }
  return rates;
}

function niceTop(most) {
  let top = 1024;
  while (top < most) top *= 2;
  return top;
}
