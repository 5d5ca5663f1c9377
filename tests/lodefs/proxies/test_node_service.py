"""Why the node's service does not start, by what systemd shows."""

from __future__ import annotations

import pytest

from lodefs.chunkstore.errors import Unavailable
from lodefs.proxies import own_proxy
from lodefs.settings.session import Session

STATUS = "cannot start: /srv/store is not a lodefs store: create it with `lodefs init /srv/store`"
SHOWN = f"ActiveState=activating\nNRestarts=4\nStatusText={STATUS}\n"


def test_what_it_said_is_told() -> None:
    """Its own words, how often it was tried, and where there is more."""
    told = own_proxy.told(SHOWN)
    assert told is not None
    assert f"the node's proxy {STATUS} (tried 5 times); journalctl -u lodefs-proxy" in told


def test_one_that_serves_has_no_reason() -> None:
    """Neither one that runs or opens its cache, nor one that is not there."""
    for shown in (
        "",
        SHOWN.replace("activating", "active"),
        "ActiveState=activating\nNRestarts=0\nStatusText=Opening /srv/store and the cache /c\n",
        "ActiveState=inactive\nNRestarts=0\nStatusText=\n",
    ):
        assert own_proxy.told(shown) is None


def test_one_that_is_just_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """While it is started anew systemd shows nothing: it is asked until there is a reason, or the
    proxy serves."""
    monkeypatch.setattr(own_proxy, "_IS_BOOTED", "/")
    monkeypatch.setattr(own_proxy, "PAUSE_S", 0.0)
    starting = SHOWN.replace(STATUS, "")
    serving = SHOWN.replace("activating", "active").replace(STATUS, "Serving /srv/store")
    for last, told in ((SHOWN, own_proxy.told(SHOWN)), (serving, None), ("", None)):
        shown = iter([starting, starting, last])
        monkeypatch.setattr(own_proxy, "_shown", shown.__next__)
        assert own_proxy.why_not_started("unix:/run/lodefs/proxy.sock") == told


def test_commands_tell_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that wants a proxy that runs says why the node's does not; systemd is asked of no
    other one."""
    monkeypatch.setattr(own_proxy, "_shown", lambda: SHOWN)
    monkeypatch.setattr(own_proxy, "_IS_BOOTED", "/")
    monkeypatch.setattr(own_proxy, "serves", lambda *_: False)
    with pytest.raises(Unavailable, match="lodefs init /srv/store"):
        own_proxy.running_proxy(Session({"LODEFS_CONFIG": "/dev/null"}))
    assert own_proxy.why_not_started("unix:/run/another.sock") is None


def test_one_that_starts_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command asks a proxy again that systemd starts, and not one that does not run."""
    answers = iter([False, False, True, False])
    starting = SHOWN.replace(STATUS, "Opening /srv/store and the cache /c")
    monkeypatch.setattr(own_proxy, "PAUSE_S", 0.0)
    monkeypatch.setattr(own_proxy, "_IS_BOOTED", "/")
    monkeypatch.setattr(own_proxy, "serves", lambda *_: next(answers))
    session = Session({"LODEFS_CONFIG": "/dev/null"})
    monkeypatch.setattr(own_proxy, "_shown", lambda: starting)
    assert own_proxy.running_proxy(session) == "unix:/run/lodefs/proxy.sock"
    monkeypatch.setattr(own_proxy, "_shown", lambda: starting.replace("activating", "inactive"))
    with pytest.raises(Unavailable, match="does not run"):
        own_proxy.running_proxy(session)
