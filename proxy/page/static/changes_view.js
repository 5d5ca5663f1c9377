// What differs between two versions, path by path, and line by line where somebody asks for that.
import { bytes, counted, el, number, table } from "./dom.js";
import { decoded } from "./paths.js";
import { showPreview } from "./preview_view.js";

const PATCH_BYTES_MAX = 1024 * 1024;

export function changes(repo, found) {
  if (found.parent === null) {
    return [el("p", {}, `The first version: ${counted(found.added, "file", "files")}, ${bytes(found.added_bytes)}.`)];
  }
  const total = found.added + found.changed + found.removed;
  if (!total && found.is_complete) return [el("p", {}, "The two versions have the same content.")];
  const some = found.is_complete ? "" : "At least ";
  const summary = el("p", {}, `${some}${number(found.added)} added, ${number(found.changed)} changed, `
    + `${number(found.removed)} removed; ${bytes(found.added_bytes)} new, ${bytes(found.removed_bytes)} gone.`);
  const rows = found.changes.map((one) => [one.what, path(repo, found, one), bytes(one.before_bytes), bytes(one.after_bytes)]);
  const note = rows.length < total || !found.is_complete
    ? el("p", { class: "note" }, `The first ${rows.length} are shown. `,
      el("code", {}, `lodefs diff ${repo}@${found.parent.slice(0, 12)} ${repo}@${found.commit.slice(0, 12)}`), " lists all.")
    : null;
  return [summary, table("Changes", [{ name: "Change", word: true }, { name: "Path" },
    { name: "Before", number: true, wide: true }, { name: "After", number: true }], rows), note];
}

function path(repo, found, one) {
  const spec = `${repo}@${one.what === "removed" ? found.parent : found.commit}`;
  const name = decoded(one.path);
  const link = el("a", { class: "path", href: `#/browse/${spec}/${one.path}` }, name);
  const isText = one.what === "changed" && Math.max(one.before_bytes ?? Infinity, one.after_bytes ?? Infinity) <= PATCH_BYTES_MAX;
  if (!isText) return link;
  const place = el("div", { class: "preview" });
  const lines = el("details", { ontoggle: () => {
    if (lines.open && !place.childElementCount) {
      showPreview(place, { spec, path: one.path, name, since: found.parent });
    }
  } }, el("summary", {}, "Lines", el("span", { class: "hidden" }, ` of ${name}`)), place);
  return el("div", {}, link, lines);
}
