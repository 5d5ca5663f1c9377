// Directories and files of a version. Links hold paths as the API encodes them, byte by byte.
import { get } from "./api.js";
import { commands } from "./commands.js";
import { DirectoryTable, lastChange } from "./directory_table.js";
import { bytes, card, counted, el, heading, number, replace } from "./dom.js";
import { typeOf } from "./file_types.js";
import { decoded, shortened, split } from "./paths.js";
import { showPreview } from "./preview_view.js";
import { showReadme } from "./readme_view.js";
import { problem } from "./repositories_view.js";

const PAGE = 200;

export class BrowseView {
  constructor() {
    this.element = el("div");
  }

  async show(target, signal) {
    const { spec, path } = split(target);
    this.signal = signal;
    replace(this.element, whereabouts(spec, path), el("p", { class: "soft", role: "status" }, "Loading …"));
    try {
      const stat = await get(`/stat/${spec}/${path}`, signal);
      if (stat.entry.kind === "directory") await this.directory(spec, path);
      else if (stat.entry.kind === "symlink") {
        replace(this.element, whereabouts(spec, path), card("A symbolic link", el("p", { class: "path" }, stat.entry.target)));
      } else await this.file(spec, path, stat.entry);
    } catch (error) {
      if (error.name !== "AbortError") {
        replace(this.element, whereabouts(spec, path), problem(error, () => this.show(target, signal)));
      }
    }
  }

  async directory(spec, path) {
    const { signal } = this;
    const place = el("div", {}, el("p", { class: "soft", role: "status" }, "Loading …"));
    const note = el("p", { class: "note", role: "status" });
    const more = el("button", { type: "button", hidden: true }, "Show more");
    const readme = el("div");
    const asked = get(`/page/directory/${spec}/${path}?limit=${PAGE}`, signal);
    asked.catch(() => {}); // it is waited for below
    const root = path ? null : await this.facts(spec);
    replace(this.element, whereabouts(spec, path), root, this.finder(spec, path, place),
      el("section", { class: "card", "aria-label": "Directory" }, place, note, more), readme);
    const page = await asked;
    if (page.readme !== null) showReadme(readme, spec, page.readme, { folded: false, signal });
    if (place.querySelector("table")) return; // what was looked for was found first
    const shown = new DirectoryTable(spec, path, { dated: page.is_ordered });
    replace(place, page.entries.length ? shown.add(page.entries) : el("p", { class: "soft" }, "The directory is empty."));
    if (!page.is_ordered) {
      note.textContent = "This directory has so many entries that they are shown by name, and without their last changes.";
    }
    let { next } = page;
    more.hidden = next === null;
    more.addEventListener("click", async () => {
      try {
        const following = await get(`/page/directory/${spec.split("@")[0]}@${page.commit}/${path}?${next}`, signal);
        shown.add(following.entries);
        next = following.next;
        more.hidden = next === null;
      } catch (error) {
        if (error.name !== "AbortError") note.textContent = error.message;
      }
    });
    if (page.is_ordered && page.entries.length) await shown.date(signal);
  }

  async facts(spec) {
    const snapshot = await get(`/snapshots/${spec}`, this.signal);
    const [repo, rev] = spec.split("@");
    return el("div", {}, el("p", { class: "soft" }, `Commit ${snapshot.commit.slice(0, 12)}: `
      + `${counted(snapshot.files, "file", "files")} in ${counted(snapshot.directories, "directory", "directories")}, ${bytes(snapshot.size_bytes)}. `,
      el("a", { href: `#/repository/${spec}` }, "Versions")), commands(repo, rev));
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
        replace(place, new DirectoryTable(spec, path, { dated: false }).add(found.entries));
        for (let at = place.nextElementSibling; at; at = at.nextElementSibling) at.hidden = true;
      } catch (error) {
        note.textContent = error.message;
      }
    };
    return el("form", { class: "row", role: "search", onsubmit: find },
      el("label", { for: "find" }, "Find below here"), field, el("button", { type: "submit" }, "Find"), note);
  }

  async file(spec, path, entry) {
    const { signal } = this;
    const place = el("div", { class: "preview" });
    const changed = el("span", { class: "soft" }, "…");
    const { name } = entry;
    replace(this.element, whereabouts(spec, path), el("section", { class: "card", "aria-label": "File" },
      el("p", {}, `${typeOf(entry)}, ${bytes(entry.size_bytes)} (${number(entry.size_bytes)} bytes)`
        + `${entry.executable ? ", executable" : ""}. `, el("a", { href: entry.href, download: name }, "Download")),
      el("p", { class: "note" }, "Last change: ", changed),
      el("p", { class: "note path" }, `BLAKE3 ${entry.digest}`)), card("Preview", place));
    await Promise.all([showPreview(place, { spec, path, name, signal }), this.date(changed, spec, path)]);
  }

  async date(place, spec, path) {
    const { commits } = await get(`/page/dates/${spec}/${path}`, this.signal).catch(() => ({ commits: [] }));
    replace(place, ...(commits.length ? lastChange(spec, commits[0]) : ["unknown"]));
  }
}

function whereabouts(spec, path) {
  const [repo, rev = ""] = spec.split("@");
  const parts = path.split("/").filter(Boolean);
  const links = parts.map((part, n) => [decoded(part), `#/browse/${spec}/${parts.slice(0, n + 1).join("/")}`]);
  return heading(parts.length ? decoded(parts.at(-1)) : repo,
    [repo, `#/repository/${repo}`], [shortened(rev), `#/browse/${spec}/`], ...links);
}
