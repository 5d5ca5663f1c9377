// All repositories, a page at a time, with a search.
import { get } from "./api.js";
import { bytes, card, counted, el, replace, when } from "./dom.js";

const PAGE = 50;
const TYPING_MS = 250;

export class RepositoriesView {
  constructor() {
    this.list = el("ul", { class: "list" });
    this.note = el("p", { class: "note", role: "status" });
    this.more = el("button", { type: "button", hidden: true, onclick: () => this.load() }, "Show more");
    this.field = el("input", { type: "search", id: "match", placeholder: "Name holds …", autocomplete: "off",
      maxlength: 200, oninput: () => this.typed() });
    this.timer = 0;
    this.aborted = null;
    this.watcher = new IntersectionObserver((entries) => entries.forEach((one) => this.seen(one)));
    this.element = el("div", {}, el("h1", {}, "Repositories"),
      el("form", { class: "row", role: "search", onsubmit: (event) => event.preventDefault() },
        el("label", { for: "match" }, "Search"), this.field),
      el("section", { class: "card", "aria-label": "Repositories" }, this.list, this.note, this.more));
  }

  show() {
    this.begin();
  }

  typed() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.begin(), TYPING_MS);
  }

  begin() {
    this.aborted?.abort();
    this.aborted = new AbortController();
    this.after = "";
    this.fresh = true;
    this.load();
  }

  async load() {
    const { signal } = this.aborted;
    const match = encodeURIComponent(this.field.value.trim());
    const after = encodeURIComponent(this.after);
    try {
      const page = await get(`/page/repositories?limit=${PAGE}&match=${match}&after=${after}`, signal);
      if (this.fresh) {
        this.watcher.disconnect();
        replace(this.list);
      }
      this.fresh = false;
      this.list.append(...page.names.map((name) => this.row(name)));
      this.after = page.names.at(-1) ?? this.after;
      this.more.hidden = !page.more;
      const none = !this.list.children.length;
      this.note.textContent = none && page.is_complete ? "No repository has such a name."
        : page.is_complete || page.more ? "" : "The store is still being listed; there may be more.";
    } catch (error) {
      if (error.name !== "AbortError") this.note.textContent = error.message;
    }
  }

  row(name) {
    const facts = el("span", { class: "soft" }, "…");
    const row = el("li", {}, el("a", { class: "name", href: `#/repository/${name}` }, name), facts);
    row.dataset.repo = name;
    this.watcher.observe(row);
    return row;
  }

  // What a repository holds is asked for when its row can be seen.
  async seen(entry) {
    if (!entry.isIntersecting) return;
    const row = entry.target;
    this.watcher.unobserve(row);
    const { repo } = row.dataset;
    const facts = row.lastElementChild;
    try {
      const refs = (await get(`/page/repository/${repo}`)).refs;
      const head = headOf(refs);
      if (head === null) {
        replace(facts, "no branch");
        return;
      }
      const log = await get(`/page/history/${repo}@${head.commit}?limit=1`);
      const [commit] = log.commits;
      replace(facts, `${counted(commit.files, "file", "files")}, ${bytes(commit.size_bytes)}, ${head.name} of `,
        when(commit.time_s));
    } catch (error) {
      replace(facts, error.message);
    }
  }
}

export function headOf(refs) {
  return refs.find((one) => one.kind === "branch" && one.name === "main")
    ?? refs.find((one) => one.kind === "branch") ?? refs[0] ?? null;
}

// ``again``: what tries once more, where that may help.
export function problem(error, again) {
  const mayPass = error.status === 0 || error.status >= 500;
  return card("This cannot be shown", el("p", { class: "bad message", role: "alert" }, error.message),
    again && mayPass ? el("button", { type: "button", onclick: again }, "Try again") : null);
}
