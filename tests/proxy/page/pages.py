"""What a page must be for all who use it, asked of a real browser. Our own checks of names, roles
and contrast; ``./run bench page`` asks axe-core as well."""

from __future__ import annotations

from loadtests.services.chromium import Page

_NEEDS_NAME = frozenset(
    {"button", "link", "textbox", "searchbox", "combobox", "image", "meter", "progressbar", "table",
     "region", "navigation"}
)  # fmt: skip
_CONTRAST = """
(() => {
  const rgb = (text) => text.match(/[0-9.]+/g).map(Number);
  const light = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map((v) => v / 255)
      .map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const found = rgb(getComputedStyle(at).backgroundColor);
      if (found.length < 4 || found[3] > 0) return found;
    }
    return [255, 255, 255];
  };
  const low = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !element.checkVisibility()) continue;
    if (["SCRIPT", "NOSCRIPT", "TITLE", "DESC"].includes(element.tagName.toUpperCase())) continue;
    const style = getComputedStyle(element);
    const color = element instanceof SVGElement ? style.fill : style.color;
    const [one, other] = [light(rgb(color)), light(behind(element))].sort((a, b) => b - a);
    const ratio = (one + 0.05) / (other + 0.05);
    if (ratio < 4.5) low.push(`${ratio.toFixed(2)} ${walker.currentNode.data.trim().slice(0, 40)}`);
  }
  return low;
})()
"""


def nameless(page: Page) -> list[str]:
    """Elements that have a role to be used or read by name, and no name (WCAG 4.1.2, 1.1.1)."""
    nodes = page.call("Accessibility.getFullAXTree")["nodes"]
    return [
        str(one["role"]["value"])
        for one in nodes
        if not one.get("ignored")
        and one["role"]["value"] in _NEEDS_NAME
        and not one.get("name", {}).get("value")
    ]


def contrasts(page: Page) -> list[str]:
    """Texts with less contrast than 4.5 to 1 (WCAG 1.4.3)."""
    found: list[str] = page.run(_CONTRAST)
    return found
