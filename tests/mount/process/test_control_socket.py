"""Sockets of mounts: where they lie, who may use them, and what is left of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lodefs.chunkstore.errors import Unavailable
from lodefs.mount.process import control_socket


def test_folders() -> None:
    """Root's lie in /run; a user's in the directory that the session has for that."""
    assert control_socket.folders({}, 0)[0] == control_socket.ROOT
    assert control_socket.folders({"XDG_RUNTIME_DIR": "/run/user/5"}, 5)[0] == Path(
        "/run/user/5/lodefs/mounts"
    )
    assert len(control_socket.folders({"XDG_RUNTIME_DIR": "relative"}, 5)) == 1
    assert "5" in control_socket.folders({}, 5)[0].name


def test_listen_find_connect_remove(tmp_path: Path) -> None:
    """A socket is the user's alone, is found by its device, and goes when it is removed."""
    places = [tmp_path / "a" / "mounts"]
    listener, place = control_socket.listen("0:53", places)
    with listener:
        assert place.path.stat().st_mode & 0o777 == 0o600
        assert places[0].stat().st_mode & 0o777 == 0o700
        assert control_socket.find("0:53", places) == place
        assert control_socket.find("0:54", places) is None
        control_socket.connect(place).close()
    with pytest.raises(Unavailable):
        control_socket.connect(place)
    place.remove()
    assert os.listdir(places[0]) == []
    place.remove()


def test_what_mounts_left_behind_goes_at_the_next(tmp_path: Path) -> None:
    """Sockets that nobody listens on are removed, with their locks; living ones are not."""
    dead, gone = control_socket.listen("0:1", [tmp_path / "m"])
    os.close(gone.lock())
    dead.close()
    living, kept = control_socket.listen("0:2", [tmp_path / "m"])
    fresh, _ = control_socket.listen("0:3", [tmp_path / "m"])
    with living, fresh:
        assert sorted(os.listdir(tmp_path / "m")) == ["0-2.sock", "0-3.sock"]
        assert kept.path.exists()


def test_two_that_sweep_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dead socket that another has just removed does not keep a mount from having its own."""
    monkeypatch.setattr(Path, "glob", lambda folder, _pattern: iter([folder / "0-1.sock"]))
    listener, place = control_socket.listen("0:2", [tmp_path / "m", tmp_path / "other"])
    with listener:
        assert place.path.parent == tmp_path / "m"


def test_the_place_of_another_mount_is_not_removed(tmp_path: Path) -> None:
    """A device's number is given again: the socket of its new mount stays."""
    old, place = control_socket.listen("0:1", [tmp_path / "m"])
    new, again = control_socket.listen("0:1", [tmp_path / "m"])
    with old, new:
        place.remove()
        assert again.path.exists()


def test_directories_of_others_are_not_used(tmp_path: Path) -> None:
    """One that others may enter, a link, and a file are passed over for the next."""
    (tmp_path / "open").mkdir(mode=0o755)
    (tmp_path / "open").chmod(0o755)
    (tmp_path / "own").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "own")
    (tmp_path / "file").touch()
    bad = [tmp_path / name for name in ("open", "link", "file")]
    listener, place = control_socket.listen("0:1", [*bad, tmp_path / "good"])
    listener.close()
    assert place.path.parent == tmp_path / "good"
    with pytest.raises(Unavailable, match="file"):
        control_socket.listen("0:1", bad)


def test_a_path_that_is_too_long_for_a_socket(tmp_path: Path) -> None:
    """It is no reason not to mount: the next directory is used."""
    listener, place = control_socket.listen("0:1", [tmp_path / ("l" * 120), tmp_path / "short"])
    listener.close()
    assert place.path.parent == tmp_path / "short"


def test_other_files_are_not_taken_for_sockets(tmp_path: Path) -> None:
    """A file with a socket's name is none."""
    (tmp_path / "0-1.sock").touch()
    assert control_socket.find("0:1", [tmp_path]) is None


def test_root_has_no_sockets_where_a_user_makes_names(tmp_path: Path) -> None:
    """Its environment may be that of the user who became root (sudo -E)."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to make another user's directory")
    environ = {"XDG_RUNTIME_DIR": str(tmp_path)}
    assert len(control_socket.folders(environ, 0)) == 3
    os.chown(tmp_path, 61234, 61234)
    assert len(control_socket.folders(environ, 0)) == 2
