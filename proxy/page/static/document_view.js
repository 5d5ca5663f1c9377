// A document of known parts, as the proxy makes one of Markdown. Whatever is in it becomes text.
import { el } from "./dom.js";

const TAGS = {
  paragraph: "p", item: "li", quote: "blockquote", strong: "strong", emphasis: "em", struck: "s", code: "code",
};
const HEADINGS = ["h3", "h4", "h5", "h6"];

// ``spec`` and ``path`` are those of the file: links and images are relative to it.
export function documentOf(parts, spec, path) {
  const made = new Maker(spec, path);
  return el("div", { class: "document" }, ...made.all(parts));
}

class Maker {
  constructor(spec, path) {
    this.spec = spec;
    this.path = path;
    this.tables = 0;
  }

  all(parts) {
    return (parts ?? []).map((part) => this.one(part));
  }

  one(part) {
    switch (part.part) {
      case "text": return part.text ?? "";
      case "code": return el("code", {}, part.text ?? "");
      case "block": return el("pre", {}, el("code", {}, part.text ?? ""));
      case "break": return el("br");
      case "rule": return el("hr");
      case "heading": return el(HEADINGS[Math.min(part.level, HEADINGS.length) - 1] ?? "h6", {}, ...this.all(part.parts));
      case "bullets": return el("ul", {}, ...this.items(part.parts));
      case "numbers": return el("ol", { start: part.level }, ...this.items(part.parts));
      case "link": return this.link(part);
      case "image": return this.image(part);
      case "table": return this.table(part);
      default: return el(TAGS[part.part] ?? "span", {}, ...this.all(part.parts));
    }
  }

  items(parts) {
    return (parts ?? []).map((part) => (part.part === "item" ? this.one(part) : el("li", {}, this.one(part))));
  }

  link(part) {
    const href = part.href ?? "";
    const inside = this.inside(href);
    if (inside !== null) return el("a", { href: `#/browse/${this.spec}/${inside}` }, ...this.all(part.parts));
    if (!/^(https?:|mailto:)/i.test(href)) return el("span", {}, ...this.all(part.parts));
    return el("a", { href, rel: "noopener noreferrer nofollow", title: href }, ...this.all(part.parts));
  }

  image(part) {
    const inside = this.inside(part.href ?? "");
    if (inside === null) return `[image: ${part.text}]`;
    const image = el("img", { src: `/page/image/${this.spec}/${inside}`, alt: part.text, loading: "lazy",
      onerror: () => image.replaceWith(`[image: ${part.text}]`) });
    return image;
  }

  table(part) {
    this.tables += 1;
    const rows = (part.parts ?? []).filter((row) => row.part === "row").map((row) => el("tr", {},
      ...(row.parts ?? []).map((cell) => (cell.part === "head" && cell.parts
        ? el("th", { scope: "col" }, ...this.all(cell.parts)) : el("td", {}, ...this.all(cell.parts))))));
    const name = `Table ${this.tables}`;
    return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": name },
      el("table", { "aria-label": name }, el("tbody", {}, ...rows)));
  }

  // The path of a file beside the document, as URLs have it; null for what is elsewhere.
  inside(href) {
    if (!href || /^([a-z][a-z0-9+.-]*:|\/\/|#)/i.test(href)) return null;
    try {
      const url = new URL(href, `http://inside/${this.path}`);
      return url.host === "inside" ? url.pathname.slice(1) : null;
    } catch {
      return null;
    }
  }
}
