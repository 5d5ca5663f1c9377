// Directories and files of a version. Links hold paths as the API encodes them, byte by byte.
import { get } from "./api.js";
import { bytes, card, el, number, replace, table } from "./dom.js";
import { commands } from "./commands.js";
import { problem } from "./repositories_view.js";

const PAGE = 200;

export class BrowseView {
  constructor() {
    this.element = el("div");
  }

  async show(target, signal) {
    const { spec, path } = split(target);
    this.signal = signal;
    replace(this.element, crumbs(spec, path), el("p", { class: "soft", role: "status" }, "Loading …"));
    try {
      const stat = await get(`/stat/${spec}/${path}`, signal);
      if (stat.entry.kind === "directory") await this.directory(spec, path);
      else if (stat.entry.kind === "symlink") {
        replace(this.element, crumbs(spec, path), card("A symbolic link", el("p", { class: "path" }, stat.entry.target)));
      } else await this.file(spec, path, stat.entry);
    } catch (error) {
      if (error.name !== "AbortError") replace(this.element, crumbs(spec, path), problem(error));
    }
  }

  async directory(spec, path) {
    const place = el("div");
    const more = el("button", { type: "button", hidden: true }, "Show more");
    const root = path ? null : await this.facts(spec);
    replace(this.element, crumbs(spec, path), root, this.finder(spec, path, place),
      el("section", { class: "card", "aria-label": "Directory" }, place, more));
    const rows = await get(`/list/${spec}/${path}?limit=${PAGE}`, this.signal);
    const shown = entries(rows.entries);
    if (place.childElementCount) return; // what was looked for was found first
    replace(place, rows.entries.length ? shown : el("p", { class: "soft" }, "The directory is empty."));
    let { next } = rows;
    more.hidden = next === null;
    more.addEventListener("click", async () => {
      const page = await get(next);
      shown.querySelector("tbody").append(...entries(page.entries).querySelectorAll("tbody tr"));
      next = page.next;
      more.hidden = next === null;
    });
  }

  async facts(spec) {
    const snapshot = await get(`/snapshots/${spec}`, this.signal);
    const [repo] = spec.split("@");
    return el("div", {}, el("p", { class: "soft" }, `Commit ${snapshot.commit.slice(0, 12)}: `
      + `${number(snapshot.files)} files in ${number(snapshot.directories)} directories, ${bytes(snapshot.size_bytes)}. `,
      el("a", { href: `#/repository/${spec}` }, "Versions")), commands(repo, spec.split("@")[1]));
  }

  finder(spec, path, place) {
    const field = el("input", { type: "search", id: "find", placeholder: "Name holds …", maxlength: 200, autocomplete: "off" });
    const note = el("span", { class: "soft", role: "status" });
    const find = async (event) => {
      event.preventDefault();
      if (!field.value.trim()) return;
      note.textContent = "Searching …";
      try {
        const found = await get(`/page/find/${spec}/${path}?match=${encodeURIComponent(field.value.trim())}`);
        note.textContent = `${found.entries.length} found among ${number(found.looked_at)} names`
          + `${found.is_complete ? "." : "; the search was ended there."}`;
        replace(place, entries(found.entries));
        place.nextElementSibling.hidden = true;
      } catch (error) {
        note.textContent = error.message;
      }
    };
    return el("form", { class: "row", role: "search", onsubmit: find },
      el("label", { for: "find" }, "Find below here"), field, el("button", { type: "submit" }, "Find"), note);
  }

  async file(spec, path, entry) {
    const place = el("div", { class: "preview" });
    const name = entry.name;
    replace(this.element, crumbs(spec, path), el("section", { class: "card", "aria-label": "File" },
      el("p", {}, `${bytes(entry.size_bytes)} (${number(entry.size_bytes)} bytes)${entry.executable ? ", executable" : ""}. `,
        el("a", { href: entry.href, download: name }, "Download")),
      el("p", { class: "note path" }, `BLAKE3 ${entry.digest}`)), card("Preview", place));
    await this.preview(place, spec, path, name);
  }

  async preview(place, spec, path, name) {
    const again = el("button", { type: "button", onclick: () => this.preview(place, spec, path, name) }, "Try again");
    replace(place, el("p", { class: "soft", role: "status" }, "Loading …"));
    try {
      const view = await get(`/page/preview/${spec}/${path}`, this.signal);
      replace(place, ...preview(view, spec, path, name), view.may_retry ? again : null);
    } catch (error) {
      if (error.name !== "AbortError") replace(place, el("p", { class: "bad" }, error.message), again);
    }
  }
}

function preview(view, spec, path, name) {
  const note = view.note ? el("p", { class: "note" }, view.note) : null;
  if (view.kind === "image") {
    const image = el("img", { src: `/page/image/${spec}/${path}`, alt: `Preview of ${name}`,
      onerror: () => image.replaceWith(el("p", { class: "bad" }, "The browser could not decode this image.")) });
    return [image, el("p", { class: "note" }, `${view.media}, ${view.width} × ${view.height} pixels`)];
  }
  if (view.kind === "table") {
    const columns = view.columns.map((column, n) => (
      { name: view.types?.[n] ? `${column} (${view.types[n]})` : column }));
    return [note, table("Preview", columns, view.rows.map((row) =>
      view.columns.map((_, n) => row[n] ?? "")))];
  }
  if (view.text) {
    return [note, el("pre", { tabindex: "0", role: "region", "aria-label": "Preview" }, view.text)];
  }
  return [note ?? el("p", { class: "soft" }, "There is nothing to show.")];
}

function entries(found) {
  return table("Entries", [{ name: "Name" }, { name: "Size", number: true }], found.map((one) => [
    el("a", { class: "path", href: `#/browse/${one.href.replace(/^\/[a-z]+\//, "")}` },
      one.name + (one.kind === "directory" ? "/" : one.kind === "symlink" ? " →" : "")),
    one.kind === "file" ? bytes(one.size_bytes) : ""]));
}

function crumbs(spec, path) {
  const [repo] = spec.split("@");
  const parts = path.split("/").filter(Boolean);
  const links = parts.map((part, n) => [" / ", el("a", { class: "path",
    href: `#/browse/${spec}/${parts.slice(0, n + 1).join("/")}` }, decoded(part))]);
  return el("div", {}, el("nav", { class: "crumbs", "aria-label": "Path" },
    el("a", { href: `#/repository/${repo}` }, repo), " @ ",
    el("a", { class: "path", href: `#/browse/${spec}/` }, shortened(spec.split("@")[1])), ...links.flat()),
  el("h1", {}, parts.length ? decoded(parts.at(-1)) : repo));
}

function shortened(rev) {
  return /^[0-9a-f]{64}$/.test(rev) ? rev.slice(0, 12) : rev;
}

// Names are bytes: what is not UTF-8 is shown as U+FFFD, as the API does.
export function decoded(part) {
  const octets = [];
  for (let at = 0; at < part.length; at += 1) {
    if (part[at] === "%") {
      octets.push(parseInt(part.slice(at + 1, at + 3), 16));
      at += 2;
    } else octets.push(...new TextEncoder().encode(part[at]));
  }
  return new TextDecoder().decode(new Uint8Array(octets));
}

function split(target) {
  const cut = target.indexOf("/", target.indexOf("@"));
  return cut < 0 ? { spec: target, path: "" } : { spec: target.slice(0, cut), path: target.slice(cut + 1) };
}
