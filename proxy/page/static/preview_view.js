// What is in a file: text, a table, an image, a document, or what differs in it between two versions.
import { get } from "./api.js";
import { documentOf } from "./document_view.js";
import { el, replace, table } from "./dom.js";

// Shows a preview in a place, with a button to try again where that may help.
export async function showPreview(place, { spec, path, name, since = "", signal = undefined }) {
  const again = el("button", { type: "button",
    onclick: () => showPreview(place, { spec, path, name, since, signal }) }, "Try again");
  replace(place, el("p", { class: "soft", role: "status" }, "Loading …"));
  try {
    const query = since ? `?since=${encodeURIComponent(since)}` : "";
    const view = await get(`/page/preview/${spec}/${path}${query}`, signal);
    replace(place, ...preview(view, spec, path, name), view.may_retry ? again : null);
  } catch (error) {
    if (error.name !== "AbortError") replace(place, el("p", { class: "bad" }, error.message), again);
  }
}

function preview(view, spec, path, name) {
  const note = view.note ? el("p", { class: "note" }, view.note) : null;
  if (view.kind === "image") {
    const image = el("img", { src: `/page/image/${spec}/${path}`, alt: `Preview of ${name}`,
      onerror: () => image.replaceWith(el("p", { class: "bad" }, "The browser could not decode this image.")) });
    return [image, el("p", { class: "note" }, `${view.media}, ${view.width} × ${view.height} pixels`)];
  }
  if (view.kind === "document") return [note, documentOf(view.parts, spec, path)];
  if (view.kind === "table") {
    const columns = view.columns.map((column, n) => (
      { name: view.types?.[n] ? `${column} (${view.types[n]})` : column }));
    return [note, table("Preview", columns, (view.rows ?? []).map((row) =>
      view.columns.map((_, n) => row[n] ?? "")))];
  }
  if (view.kind === "patch") return [note, patch(view.text, name)];
  if (view.text) {
    return [note, el("pre", { tabindex: "0", role: "region", "aria-label": `Content of ${name}` }, view.text)];
  }
  return [note ?? el("p", { class: "soft" }, "There is nothing to show.")];
}

const MARKS = { "+": "added", "-": "removed", "@": "place" };

function patch(text, name) {
  return el("pre", { class: "patch", tabindex: "0", role: "region", "aria-label": `What differs in ${name}` },
    ...text.split("\n").map((line) => el("span", { class: MARKS[line[0]] ?? null }, `${line}\n`)));
}
