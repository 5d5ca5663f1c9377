// Elements and words. Whatever comes from a dataset becomes text, never markup.

export function el(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

export function svg(name, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
}

function fill(element, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else element.setAttribute(key, value === true ? "" : String(value));
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

export function table(caption, columns, rows) {
  const head = columns.map((column) => el("th", { scope: "col", class: kind(column) }, column.name));
  const body = rows.map((row) =>
    el("tr", {}, ...row.map((cell, n) => el("td", { class: kind(columns[n]) }, cell))));
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    el("table", { "aria-label": caption },
      el("thead", {}, el("tr", {}, ...head)), el("tbody", {}, ...body)));
}

function kind(column) {
  return [column.number && "number", column.wide && "wide", column.word && "word"].filter(Boolean).join(" ") || null;
}

// The way to a view and its heading. Steps are texts with their links; the last one is the view itself.
export function heading(title, ...steps) {
  const [here] = steps.at(-1);
  return el("div", {}, el("nav", { class: "crumbs", "aria-label": "Path" },
    ...[["Repositories", "#/"], ...steps.slice(0, -1)].flatMap(([text, href]) => [el("a", { class: "path", href }, text), " / "]),
    el("span", { class: "path", "aria-current": "page" }, here)), el("h1", {}, title));
}

export function card(title, ...children) {
  return el("section", { class: "card" }, el("h2", {}, title), ...children);
}

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

export function bytes(count) {
  if (count === null || count === undefined) return "–";
  let unit = 0;
  while (count >= 1023.5 && unit < UNITS.length - 1) {
    count /= 1024;
    unit += 1;
  }
  return `${unit && count < 99.5 ? count.toFixed(1) : Math.round(count)} ${UNITS[unit]}`;
}

export function number(count) {
  return count === null || count === undefined ? "–" : count.toLocaleString("en-US");
}

export function counted(count, one, many) {
  return `${number(count)} ${count === 1 ? one : many}`;
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  if (seconds < 129600) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} days`;
}

export function when(time_s) {
  const date = new Date(time_s * 1000);
  if (Number.isNaN(date.getTime())) return el("span", {}, "–");
  const text = date.toISOString().replace("T", " ").slice(0, 16);
  return el("time", { datetime: date.toISOString(), title: "UTC" }, text);
}

export function replace(place, ...children) {
  place.replaceChildren(...children.filter((child) => child !== null && child !== undefined));
}
