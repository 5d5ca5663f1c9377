// One repository: its branches and tags, its versions, and what each changed.
import { get } from "./api.js";
import { bytes, card, counted, el, number, replace, table, when } from "./dom.js";
import { headOf, problem } from "./repositories_view.js";
import { shownPath } from "./node_view.js";
import { commands } from "./commands.js";

const PAGE = 20;

export class RepositoryView {
  constructor() {
    this.element = el("div");
  }

  async show(target, signal) {
    const [repo, rev] = split(target);
    replace(this.element, heading(repo), el("p", { class: "soft", role: "status" }, "Loading …"));
    try {
      const { refs, more } = await get(`/page/repository/${repo}`, signal);
      const head = rev ? { name: rev, commit: rev } : headOf(refs);
      if (head === null) {
        replace(this.element, heading(repo), el("p", {}, "It has no branch and no tag."));
        return;
      }
      const history = new History(repo, refs);
      replace(this.element, heading(repo), this.chooser(repo, refs, head, more),
        card(`Versions of ${head.name}`, history.element), commands(repo, head.name));
      await history.load(head.name, signal);
    } catch (error) {
      if (error.name !== "AbortError") replace(this.element, heading(repo), problem(error));
    }
  }

  chooser(repo, refs, head, more) {
    const options = refs.map((one) =>
      el("option", { value: one.name, selected: one.name === head.name }, `${one.kind} ${one.name}`));
    if (!refs.some((one) => one.name === head.name)) {
      options.unshift(el("option", { value: head.name, selected: true }, head.name));
    }
    const select = el("select", { id: "rev", onchange: () => {
      location.hash = `#/repository/${repo}@${select.value}`;
    } }, ...options);
    return el("div", { class: "row" }, el("label", { for: "rev" }, "Branch or tag"), select,
      el("a", { href: `#/browse/${repo}@${head.name}/` }, "Browse its files"),
      more ? el("span", { class: "soft" }, "There are more than are listed here.") : null);
  }
}

class History {
  constructor(repo, refs) {
    this.repo = repo;
    this.refs = refs;
    this.list = el("ul", { class: "list" });
    this.more = el("button", { type: "button", hidden: true, onclick: () => this.load(this.next) }, "Older versions");
    this.element = el("div", {}, this.list, this.more);
  }

  async load(rev, signal) {
    const log = await get(`/page/history/${this.repo}@${rev}?limit=${PAGE}`, signal);
    this.list.append(...log.commits.map((commit) => this.row(commit)));
    this.next = log.next;
    this.more.hidden = log.next === null;
  }

  row(commit) {
    const names = this.refs.filter((one) => one.commit === commit.commit)
      .map((one) => el("span", { class: "tag" }, one.name));
    const place = el("div");
    const changes = el("details", { ontoggle: () => this.open(changes, commit, place) },
      el("summary", {}, "What it changed"), place);
    return el("li", {},
      el("div", { class: "name" },
        el("a", { href: `#/browse/${this.repo}@${commit.commit}/` }, commit.commit.slice(0, 12)), " ", ...names,
        el("div", { class: "message" }, commit.message || el("span", { class: "soft" }, "no message"))),
      el("span", { class: "soft" }, `${counted(commit.files, "file", "files")}, ${bytes(commit.size_bytes)}, `,
        when(commit.time_s), commit.author ? `, ${commit.author}` : ""),
      el("div", { class: "below" }, changes));
  }

  async open(details, commit, place) {
    if (!details.open || place.childElementCount) return;
    replace(place, el("p", { class: "soft", role: "status" }, "Comparing …"));
    try {
      replace(place, ...this.changed(await get(`/page/changes/${this.repo}@${commit.commit}`), commit));
    } catch (error) {
      replace(place, el("p", { class: "bad" }, error.message));
    }
  }

  changed(found, commit) {
    if (found.parent === null) {
      return [el("p", {}, `The first version: ${counted(found.added, "file", "files")}, ${bytes(found.added_bytes)}.`)];
    }
    const some = found.is_complete ? "" : "At least ";
    const summary = el("p", {}, `${some}${number(found.added)} added, ${number(found.changed)} changed, `
      + `${number(found.removed)} removed; ${bytes(found.added_bytes)} new, ${bytes(found.removed_bytes)} gone.`);
    const rows = found.changes.map((one) => [one.what,
      el("a", { class: "path", href: `#/browse/${this.repo}@${one.what === "removed" ? found.parent : commit.commit}/${one.path}` },
        shownPath(one.path)), bytes(one.before_bytes), bytes(one.after_bytes)]);
    const total = found.added + found.changed + found.removed;
    const note = rows.length < total || !found.is_complete
      ? el("p", { class: "note" }, `The first ${rows.length} are shown. `,
        el("code", {}, `lodefs diff ${this.repo}@${found.parent.slice(0, 12)} ${this.repo}@${commit.commit.slice(0, 12)}`), " lists all.")
      : null;
    return [summary, table("Changes", [{ name: "Change" }, { name: "Path" },
      { name: "Before", number: true, wide: true }, { name: "After", number: true }], rows), note];
  }
}

function heading(repo) {
  return el("div", {}, el("p", { class: "crumbs" }, el("a", { href: "#/repositories" }, "Repositories"), " /"),
    el("h1", {}, repo));
}

function split(target) {
  const [repo, rev] = target.split("@");
  return [repo, rev ?? ""];
}
