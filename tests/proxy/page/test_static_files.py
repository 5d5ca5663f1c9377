"""The page needs one request for its first paint, and its policy allows no more than what is in
it."""

from __future__ import annotations

import base64
import hashlib
import re

from lodefs.proxy.api.request import Request
from lodefs.proxy.page.static_files import INDEX, StaticFiles


def test_style_and_theme_are_in_the_page() -> None:
    """What would keep a browser from painting is there, each named by its hash in the policy;
    any other inline script or style is not allowed."""
    answer = StaticFiles().answer(INDEX, Request("GET", {}))
    policy = dict(answer.headers)["Content-Security-Policy"]
    directives = {one.split()[0]: one.split()[1:] for one in policy.split("; ")}
    html = answer.body.decode()
    assert 'rel="stylesheet"' not in html
    for element, directive in (("style", "style-src"), ("script", "script-src")):
        (text,) = re.findall(rf"<{element}>(.*?)</{element}>", html, re.DOTALL)
        assert len(text) > 100
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert directives[directive] == ["'self'", f"'sha256-{digest}'"]
    assert directives["default-src"] == ["'none'"]
    assert re.findall(r"<script src=", html) == []
