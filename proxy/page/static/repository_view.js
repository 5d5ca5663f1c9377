// One repository: its branches and tags, its versions, and what each changed.
import { get } from "./api.js";
import { changes } from "./changes_view.js";
import { commands } from "./commands.js";
import { bytes, card, counted, el, heading, replace, when } from "./dom.js";
import { shortened } from "./paths.js";
import { showReadme } from "./readme_view.js";
import { headOf, problem } from "./repositories_view.js";

const PAGE = 20;

export class RepositoryView {
  constructor() {
    this.element = el("div");
  }

  async show(target, signal) {
    const [repo, rev] = split(target);
    replace(this.element, heading(repo, [repo]), el("p", { class: "soft", role: "status" }, "Loading …"));
    try {
      const { refs, more } = await get(`/page/repository/${repo}`, signal);
      const head = rev ? { name: rev, commit: rev } : headOf(refs);
      if (head === null) {
        replace(this.element, heading(repo, [repo]), el("p", {}, "It has no branch and no tag."));
        return;
      }
      const history = new History(repo, refs);
      const readme = el("div");
      replace(this.element, heading(repo, [repo]), this.chooser(repo, refs, head, more), readme,
        card(`Versions of ${shortened(head.name)}`, history.element), commands(repo, head.name));
      await Promise.all([history.load(head.name, signal), this.readme(readme, `${repo}@${head.name}`, signal)]);
    } catch (error) {
      if (error.name !== "AbortError") {
        replace(this.element, heading(repo, [repo]), problem(error, () => this.show(target, signal)));
      }
    }
  }

  // Versions are shown also where the content is not to be had now.
  async readme(place, spec, signal) {
    const { readme } = await get(`/page/directory/${spec}/?limit=1`, signal).catch(() => ({ readme: null }));
    if (readme !== null) await showReadme(place, spec, readme, { folded: true, signal });
  }

  chooser(repo, refs, head, more) {
    const options = refs.map((one) =>
      el("option", { value: one.name, selected: one.name === head.name }, `${one.kind} ${one.name}`));
    if (!refs.some((one) => one.name === head.name)) {
      options.unshift(el("option", { value: head.name, selected: true }, shortened(head.name)));
    }
    const select = el("select", { id: "rev", onchange: () => {
      location.hash = `#/repository/${repo}@${select.value}`;
    } }, ...options);
    return el("div", { class: "row" }, el("label", { for: "rev" }, "Branch or tag"), select,
      el("a", { href: `#/browse/${repo}@${head.name}/` }, "Browse its files"),
      el("a", { href: `#/compare/${repo}` }, "Compare two versions"),
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
      metadata(commit.metadata ?? {}),
      el("div", { class: "below" }, changes));
  }

  async open(details, commit, place) {
    if (!details.open || place.childElementCount) return;
    replace(place, el("p", { class: "soft", role: "status" }, "Comparing …"));
    try {
      replace(place, ...changes(this.repo, await get(`/page/changes/${this.repo}@${commit.commit}`)));
    } catch (error) {
      replace(place, el("p", { class: "bad" }, error.message));
    }
  }
}

function metadata(found) {
  const pairs = Object.entries(found);
  return pairs.length ? el("dl", { class: "below metadata" }, ...pairs.map(([key, value]) =>
    el("div", {}, el("dt", {}, key), el("dd", {}, value)))) : null;
}

function split(target) {
  const [repo, rev] = target.split("@");
  return [repo, rev ?? ""];
}
