// What differs between two versions of a repository that somebody chooses.
import { get } from "./api.js";
import { changes } from "./changes_view.js";
import { card, el, heading, replace } from "./dom.js";
import { shortened, split } from "./paths.js";
import { headOf, problem } from "./repositories_view.js";

const COMMITS = 50;

export class CompareView {
  constructor() {
    this.element = el("div");
  }

  // ``target``: REPO, REPO@FROM or REPO@FROM/TO.
  async show(target, signal) {
    const { spec, path } = split(target);
    const [repo, from = ""] = spec.split("@");
    replace(this.element, twoVersions(repo), el("p", { class: "soft", role: "status" }, "Loading …"));
    try {
      const { refs } = await get(`/page/repository/${repo}`, signal);
      const head = headOf(refs);
      const log = head ? await get(`/page/history/${repo}@${head.commit}?limit=${COMMITS}`, signal) : { commits: [] };
      const to = decodeURIComponent(path) || (head?.name ?? "");
      const before = decodeURIComponent(from) || (log.commits[1]?.commit ?? to);
      const place = el("div", {}, el("p", { class: "soft", role: "status" }, "Comparing …"));
      replace(this.element, twoVersions(repo), chooser(repo, refs, log.commits, before, to), card("What differs", place));
      await this.compare(place, repo, before, to, signal);
    } catch (error) {
      if (error.name !== "AbortError") {
        replace(this.element, twoVersions(repo), problem(error, () => this.show(target, signal)));
      }
    }
  }

  async compare(place, repo, before, to, signal) {
    const found = await get(`/page/changes/${repo}@${to}?since=${encodeURIComponent(before)}`, signal);
    replace(place, ...changes(repo, found));
  }
}

function chooser(repo, refs, commits, before, to) {
  const go = () => {
    location.hash = `#/compare/${repo}@${encodeURIComponent(from.value)}/${encodeURIComponent(until.value)}`;
  };
  const from = versions("from", refs, commits, before, go);
  const until = versions("to", refs, commits, to, go);
  return el("div", { class: "row" }, el("label", { for: "from" }, "From"), from, el("label", { for: "to" }, "to"), until,
    el("button", { type: "button", onclick: () => {
      [from.value, until.value] = [until.value, from.value];
      go();
    } }, "Swap"));
}

function versions(id, refs, commits, chosen, go) {
  const options = [
    ...refs.map((one) => [one.name, `${one.kind} ${one.name}`]),
    ...commits.map((one) => [one.commit, `${one.commit.slice(0, 12)} ${one.message.split("\n")[0].slice(0, 40)}`]),
  ];
  if (!options.some(([value]) => value === chosen)) options.unshift([chosen, shortened(chosen)]);
  const select = el("select", { id, onchange: go }, ...options.map(([value, text]) => el("option", { value }, text)));
  select.value = chosen;
  return select;
}

function twoVersions(repo) {
  return heading("Two versions", [repo, `#/repository/${repo}`], ["Two versions"]);
}
