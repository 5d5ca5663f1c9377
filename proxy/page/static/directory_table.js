// The entries of a directory: name, type, last change, size.
import { get } from "./api.js";
import { bytes, el, replace, svg, table, when } from "./dom.js";
import { hasThumbnail, typeOf } from "./file_types.js";
import { behind } from "./paths.js";

const FOLDER = "M2 5.5A1.5 1.5 0 0 1 3.5 4H8l2 2.5h6.5A1.5 1.5 0 0 1 18 8v7.5a1.5 1.5 0 0 1-1.5 1.5h-13A1.5 1.5 0 0 1 2 15.5z";
const FILE = "M5 2.5h6.5L15.5 7v10.5H5z M11.5 2.5V7h4";
const LINK = "M8 12l4-4 M7 9l-2 2a2.8 2.8 0 0 0 4 4l2-2 M13 11l2-2a2.8 2.8 0 0 0-4-4L9 7";
const COLUMNS = [{ name: "Name" }, { name: "Type", wide: true }, { name: "Last change" }, { name: "Size", number: true }];

export class DirectoryTable {
  // ``dated``: whether times of last changes are asked for, for which there is a column then.
  constructor(spec, path, { dated }) {
    this.spec = spec;
    this.path = path;
    this.dated = dated;
    this.cells = new Map(); // of last changes, by name as it stands in URLs
    this.dates = null;
    this.element = null;
  }

  add(found) {
    const columns = this.dated ? COLUMNS : COLUMNS.filter((one) => one.name !== "Last change");
    const made = table("Entries", columns, found.map((one) => this.row(one)));
    if (this.element === null) this.element = made;
    else this.element.querySelector("tbody").append(...made.querySelectorAll("tbody tr"));
    if (this.dates !== null) this.fill();
    return this.element;
  }

  row(one) {
    const { spec } = this;
    const path = behind(one.href);
    const link = el("a", { class: "path", href: `#/browse/${spec}/${path}` },
      one.name + (one.kind === "directory" ? "/" : ""));
    const name = el("span", { class: "entry" }, icon(one, spec, path), link);
    const size = one.kind === "file" ? bytes(one.size_bytes) : "";
    if (!this.dated) return [name, typeOf(one), size];
    const place = el("span", { class: "soft" }, "…");
    this.cells.set(path.split("/").at(-1), place);
    return [name, typeOf(one), place, size];
  }

  // Times come after the names: looking through history may take a moment.
  async date(signal) {
    try {
      this.dates = await get(`/page/dates/${this.spec}/${this.path}`, signal);
    } catch (error) {
      if (error.name === "AbortError") return;
      this.dates = { commits: [], entries: {}, is_complete: false };
    }
    this.fill();
  }

  fill() {
    for (const [name, place] of this.cells) {
      const number = Object.hasOwn(this.dates.entries, name) ? this.dates.entries[name] : null;
      replace(place, ...(number === null ? ["unknown"] : lastChange(this.spec, this.dates.commits[number])));
    }
    this.cells.clear();
  }
}

export function lastChange(spec, commit) {
  const [repo] = spec.split("@");
  const [subject] = commit.message.split("\n");
  return [el("a", { class: "when", href: `#/repository/${repo}@${commit.commit}` }, when(commit.time_s)),
    el("span", { class: "subject wide" }, subject)];
}

function icon(one, spec, path) {
  const drawn = svg("svg", { class: `icon ${one.kind}`, viewBox: "0 0 20 20", "aria-hidden": "true" },
    svg("path", { d: { directory: FOLDER, symlink: LINK }[one.kind] ?? FILE }));
  if (!hasThumbnail(one)) return drawn;
  const image = el("img", { class: "thumb", width: 44, height: 44, src: `/page/image/${spec}/${path}`, alt: "", loading: "lazy",
    decoding: "async", onerror: () => image.replaceWith(drawn) });
  return image;
}
