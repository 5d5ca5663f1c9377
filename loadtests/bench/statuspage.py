"""The status page in a real Chromium: when it is painted, and what axe-core finds wrong.

axe-core is a package of npm, which is fetched once, by ``npm pack``, into the folder of corpora,
and used only if its bytes are those that were pinned here.
"""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import subprocess
import tarfile
from pathlib import Path
from statistics import median

from loadtests import corpora
from loadtests.cli import Lodefs
from loadtests.errors import LoadtestError
from loadtests.results import Result
from loadtests.services import free_port
from loadtests.services.chromium import Browser, Page, chromium

AXE = "axe-core-4.10.2"
AXE_SHA512 = (
    "RE3mdQ7P3FRSe7eqCWoeQ/Z9QXrtniSjp1wUjt5nRC3WIpz5rSCve6o3fsZ2aCpJtrZjSZgjwXAoTO5k4tEI0w=="
)
REPOSITORIES = 100
MANY = 10_000
LARGE = "large/million"
DESCRIBED = "small/described"
README = """# A dataset

| split | files |
|-------|------:|
| train | 1,000 |

## How to read it

```python
import lodefs
```

See [the labels](labels.csv) or <https://example.org>. ![a picture](https://example.org/x.png)
"""
ROUNDS = 5
SIZES = {"desktop": (1200, 900), "phone": (390, 844)}
_PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
VIEWS = {  # views, and what is there once they are complete
    "#/": "document.querySelector('.list time')",
    "#/node": "document.querySelector('meter')",
    f"#/repository/{DESCRIBED}": "document.querySelector('.document')",
    f"#/browse/{DESCRIBED}@main/": "document.querySelector('.document h3')",
    f"#/compare/{DESCRIBED}": "document.querySelector('td details')",
    f"#/browse/{LARGE}@main/": "document.querySelector('td a')",
}


def page(scratch: Path) -> Result:
    """100 repositories, one of them with 1,000,000 files in one directory: first paint, axe-core,
    foreign hosts."""
    result = Result("page")
    lodefs = Lodefs(str(scratch / "store"), scratch / "home", {})
    lodefs.run("init", lodefs.store)
    lodefs.run("push", corpora.million(flat=True), LARGE)
    _many(lodefs, scratch / "small")
    _described(lodefs, scratch / "described")
    port = free_port()
    words = ("--listen", f"127.0.0.1:{port}", "--allow-anonymous")
    with lodefs.proxy(scratch / "node", *words), chromium() as browser:
        look(result, browser, f"http://127.0.0.1:{port}", axe_source(), scratch)
    _copies(scratch / "store" / "repos")
    with lodefs.proxy(scratch / "node", *words), chromium() as browser:
        look_at_many(result, browser, f"http://127.0.0.1:{port}")
    return result


def look_at_many(result: Result, browser: Browser, url: str) -> None:
    """The list of MANY repositories: at first, and when all have been listed."""
    view = "#/"
    first_paint, first_complete = _times(browser, url, view, VIEWS[view])
    times = [_times(browser, url, view, VIEWS[view]) for _ in range(ROUNDS)]
    paints, complete = zip(*times, strict=True)
    result.add(f"first paint of {MANY} repositories", first_paint / 1000, "s", at_most=0.5)
    result.add(f"all that it shows of {MANY} repositories", first_complete / 1000, "s")
    result.add(f"first paint of {MANY}, again", median(paints) / 1000, "s", at_most=0.5)
    result.add(f"all that it shows of {MANY}, again", median(complete) / 1000, "s")


def look(result: Result, browser: Browser, url: str, axe: str, folder: Path) -> None:
    """Opens every view in both themes and sizes, and writes pictures to ``folder``."""
    for view, ready in VIEWS.items():
        times = [_times(browser, url, view, ready) for _ in range(ROUNDS)]
        paints, complete = zip(*times, strict=True)
        result.add(f"first paint of {view}", median(paints) / 1000, "s", at_most=0.5)
        result.add(f"all that it shows, {view}", median(complete) / 1000, "s")
    violations, foreign = 0, 0
    for size, (width, height) in SIZES.items():
        for scheme in ("light", "dark"):
            tab = browser.page(width=width, height=height)
            tab.prefer(scheme)
            for n, (view, ready) in enumerate(VIEWS.items()):
                _open(tab, url, view, ready)
                found = violations_of(tab, axe)
                violations += len(found)
                result.notes += [f"{view} ({size}, {scheme}): {one}" for one in found]
                tab.picture(folder / f"{n}-{scheme}-{size}.png")
            asked = tab.requests()
            foreign += sum(not one.startswith((url, "about:", "data:")) for one in asked)
            tab.close()
    result.add("axe-core violations, all views, sizes, themes", violations, at_most=0)
    result.add("requests to other hosts", foreign, at_most=0)


def violations_of(tab: Page, axe: str) -> list[str]:
    """axe-core's findings, one line for each rule and element."""
    tab.run(f"{axe}; 0")
    found = json.loads(tab.run("axe.run().then((all) => JSON.stringify(all.violations))"))
    return [f"{rule['id']}: {node['html'][:120]}" for rule in found for node in rule["nodes"]]


def axe_source() -> str:
    """axe-core's program. Raises: LoadtestError if it cannot be fetched, or is not the pinned
    one."""
    folder = corpora.DATA
    folder.mkdir(parents=True, exist_ok=True)
    package = folder / f"{AXE}.tgz"
    if not package.exists():
        name, _, version = AXE.rpartition("-")
        command = ["npm", "pack", "--silent", f"{name}@{version}"]
        try:
            subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=300)
        except (OSError, subprocess.SubprocessError) as error:
            raise LoadtestError(f"axe-core could not be fetched by npm: {error}") from error
    digest = hashlib.sha512(package.read_bytes()).digest()
    if base64.b64encode(digest).decode() != AXE_SHA512:
        raise LoadtestError(f"{package} is not the axe-core that was pinned: remove it")
    with tarfile.open(package) as archive:
        file = archive.extractfile("package/axe.min.js")
        assert file is not None
        return file.read().decode()


def _many(lodefs: Lodefs, folder: Path) -> None:
    folder.mkdir()
    for n in range(REPOSITORIES - 1):
        (folder / "a.txt").write_text(f"{n}\n")
        lodefs.run("push", folder, f"small/{n:03}")


def _described(lodefs: Lodefs, folder: Path) -> None:
    """A repository with a README and two versions that differ in a text."""
    folder.mkdir()
    (folder / "README.md").write_text(README)
    for n in range(2):
        (folder / "labels.csv").write_text(f"name,n\na,{n}\n")
        lodefs.run("push", folder, DESCRIBED)


def _copies(repos: Path) -> None:
    """Makes repositories that share one history, since pushing so many would take an hour."""
    for n in range(MANY):
        shutil.copytree(repos / "small" / "000", repos / "many" / f"{n:05}")


def _open(tab: Page, url: str, view: str, ready: str) -> None:
    tab.go("about:blank")
    tab.go(f"{url}/{view}")
    tab.until(ready)


def _times(browser: Browser, url: str, view: str, ready: str) -> tuple[float, float]:
    """Milliseconds until the first paint and until all is there, in a fresh profile."""
    tab = browser.page()
    _open(tab, url, view, ready)
    complete = float(tab.run("performance.now()"))
    tab.until(_PAINT)
    paint = float(tab.run(_PAINT))
    tab.close()
    return paint, complete
