// The file that says what a directory is, below what is in it.
import { el } from "./dom.js";
import { behind } from "./paths.js";
import { showPreview } from "./preview_view.js";

// ``folded``: no more than its beginning is shown at first.
export async function showReadme(place, spec, entry, { folded, signal }) {
  const content = el("div", { class: folded ? "preview readme folded" : "preview readme" });
  const more = el("button", { type: "button", hidden: true, onclick: () => {
    content.classList.remove("folded");
    more.hidden = true;
  } }, `Show all of ${entry.name}`);
  place.replaceChildren(el("section", { class: "card" }, el("h2", {}, entry.name), content, more));
  await showPreview(content, { spec, path: behind(entry.href), name: entry.name, signal });
  more.hidden = content.scrollHeight <= content.clientHeight + 1;
}
