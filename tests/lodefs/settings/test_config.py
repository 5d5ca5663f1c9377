"""config.py: files, environment, and every mistake with its place."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lodefs.chunkstore.errors import InvalidInput, NotFound
from lodefs.commands.serve import settings as serve_settings
from lodefs.proxies.store_proxies import StoreProxies
from lodefs.proxy.config import Config as ProxyConfig
from lodefs.settings import mount_file
from lodefs.settings.config import Config, load, parse
from lodefs.settings.session import Session

GOOD = """
store = "s3://bucket/prefix"
proxy = "unix:/run/lodefs/proxy.sock"

[s3]
endpoint_url = "http://127.0.0.1:9000"
region = "eu-1"
transfer_timeout_s = 20

[serve]
cache_dir = "/var/cache/lodefs"
cache_size_bytes_max = "100GiB"
listen = "0.0.0.0:7440"
tokens_file = "/etc/lodefs/tokens"
"""


def test_all_settings() -> None:
    """Every setting of a file arrives."""
    config = parse(GOOD)
    assert config.store == "s3://bucket/prefix"
    assert config.s3.endpoint_url == "http://127.0.0.1:9000"
    assert config.s3.transfer_timeout_s == 20
    assert config.serve["cache_size_bytes_max"] == "100GiB"


def test_sources_reach_every_proxy(tmp_path: Path) -> None:
    """Sources of virtual packs come to the proxy's settings, also to those of the proxies that a
    node starts for other stores; a wrong one is named with its line."""
    text = '[sources.field-7]\nurl = "s3://bucket/in/put"\nprofile = "reader"\n'
    found = parse(text).sources
    file = tmp_path / "lodefs.toml"
    file.write_text(text)
    session = Session({"LODEFS_CONFIG": str(file), "LODEFS_STORE": "/store"})
    assert ProxyConfig.from_mapping(serve_settings(session, {})).sources == found
    assert parse(StoreProxies(session, tmp_path, print)._settings()).sources == found
    with pytest.raises(InvalidInput, match=r"f\.toml:1: sources: .*lodefs push URL"):
        parse('sources.a.url = "gs://bucket"', "f.toml")


def test_mistakes_are_told_together_with_their_lines() -> None:
    """Unknown keys, wrong types and wrong values are all named, each with file and line."""
    text = (
        'store = 7\nstor = "x"\n\n[s3]\nregion = ""\ntransfer_timeout_s = -1\nkey = "x"\n'
        '[serve]\ncache_dir = 5\nstore = "x"\ncache_size_bytes_max = "lots"\n[more]\nx = 1\n'
    )
    with pytest.raises(InvalidInput) as caught:
        parse(text, "f.toml")
    told = str(caught.value)
    for place in (
        "f.toml:1: store: must be a text",
        "f.toml:2: stor: there is no such setting",
        "f.toml:5: s3.region: must be a text",
        "f.toml:6: s3.transfer_timeout_s: must be a number",
        "f.toml:7: s3.key: there is no such setting",
        "f.toml:9: serve.cache_dir: ",
        "f.toml:10: serve.store: there is no such setting",
        "f.toml:11: serve.cache_size_bytes_max: ",
        "f.toml:12: more: there is no such setting",
    ):
        assert place in told


def test_a_table_that_is_none() -> None:
    """A value where a table belongs is a mistake."""
    with pytest.raises(InvalidInput, match="f:1: s3: must be a table"):
        parse("s3 = 1", "f")


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('listen = "7440"', 'must be HOST:PORT, such as 0.0.0.0:7440 or [::]:7440, not "7440"'),
        ("listen = 7440", "must be a text, not 7440"),
        ('allow_anonymous = "yes"', 'must be true or false, not "yes"'),
        ("allow_anonymous = 1", "must be true or false, not 1"),
        ('connections_max = "7"', 'must be a number from 1 to 1000000, not "7"'),
        ("connections_max = true", "must be a number from 1 to 1000000, not true"),
        ("connections_max = 7.0", "must be a number from 1 to 1000000, not 7.0"),
        ('write_timeout_s = "2"', 'must be a number of seconds from 1 to 86400, not "2"'),
        ("write_timeout_s = nan", "must be a number of seconds from 1 to 86400, not NaN"),
        ("cache_size_bytes_max = 1.5", "must be a size such as 10GiB or 500MB, not 1.5"),
        ("socket_mode = true", 'must be a file mode such as "0660", not true'),
        ("peers = 1", "must be a list of addresses"),
        ('log_level = ["info"]', 'must be one of debug, info, warning, error, not ["info"]'),
        ("cache_dir = 1979-05-27", 'must be a text, not "1979-05-27"'),
        ('cache_size_bytes = "1GiB"', "there is no such setting; is cache_size_bytes_max meant?"),
    ],
)
def test_values_are_of_their_own_types(line: str, told: str) -> None:
    """What a file holds is not guessed at: each mistake names file, line and key, what is wanted,
    and what is there."""
    with pytest.raises(InvalidInput) as caught:
        parse(f"[serve]\n{line}\n", "f.toml")
    assert str(caught.value).startswith(f"f.toml:2: serve.{line.split()[0]}: {told}")


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('create_dir = "yes"', 'must be true or false, not "yes"'),
        ('read_timeout_s = "30"', 'must be a number of seconds from 0.1 to 3600, not "30"'),
        ("proxy = 7440", "must be a text that is not empty, not 7440"),
        ('mount_point = "/x"', "there is no such setting"),
        ("mode = true", 'must be permission bits, such as "0550", not true'),
    ],
)
def test_files_of_mounts_are_read_alike(line: str, told: str) -> None:
    """The file of a mount has the same types, and its mistakes the same words."""
    with pytest.raises(InvalidInput) as caught:
        mount_file.parse(f'spec = "a"\ndir = "/a"\n{line}\n', "m.toml")
    assert str(caught.value) == f"m.toml:3: {line.split()[0]}: {told}"


def test_a_long_value_is_told_in_short() -> None:
    """An error stays readable whatever was put into the file."""
    with pytest.raises(InvalidInput) as caught:
        parse(f'[serve]\nallow_anonymous = "{"x" * 5000}"\n', "f.toml")
    assert len(str(caught.value)) < 200


def test_what_is_not_toml() -> None:
    """A file that is not TOML is named with the place."""
    with pytest.raises(InvalidInput, match=r"f\.toml: .*line 1"):
        parse("store = = 1", "f.toml")
    with pytest.raises(InvalidInput, match=r"f\.toml: .*nested"):
        parse("store = " + "[" * 100_000, "f.toml")


def write(path: Path, text: str) -> Path:
    """A file with its directories."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_sources_win_in_order(tmp_path: Path) -> None:
    """The user's file stands over the system's, key by key, and the environment over both."""
    system = write(tmp_path / "system.toml", 'store = "/system"\nproxy = "unix:/system"\n')
    write(tmp_path / "home/.config/lodefs/lodefs.toml", 'store = "/user"\n[s3]\nregion = "r"\n')
    environment = {"HOME": str(tmp_path / "home")}
    config = load(environment, system_file=system)
    assert (config.store, config.proxy, config.s3.region) == ("/user", "unix:/system", "r")
    config = load({**environment, "LODEFS_STORE": "/env"}, system_file=system)
    assert (config.store, config.proxy) == ("/env", "unix:/system")
    config = load({**environment, "LODEFS_PROXY": "http://n:1"}, system_file=system)
    assert config.proxy == "http://n:1"


def test_named_file_stands_alone(tmp_path: Path) -> None:
    """LODEFS_CONFIG is read instead of the other files, and must exist."""
    system = write(tmp_path / "system.toml", 'proxy = "unix:/system"\n')
    named = write(tmp_path / "named.toml", 'store = "/named"\n')
    config = load({"LODEFS_CONFIG": str(named)}, system_file=system)
    assert (config.store, config.proxy) == ("/named", None)
    with pytest.raises(NotFound, match="LODEFS_CONFIG names it"):
        load({"LODEFS_CONFIG": str(tmp_path / "none")}, system_file=system)
    with pytest.raises(InvalidInput):
        load({"LODEFS_CONFIG": str(tmp_path)}, system_file=system)


def test_no_files(tmp_path: Path) -> None:
    """Without files nothing is set."""
    assert load({"HOME": str(tmp_path)}, system_file=tmp_path / "none") == Config()


def test_not_utf8(tmp_path: Path) -> None:
    """A file that is not UTF-8 is named."""
    path = tmp_path / "x.toml"
    path.write_bytes(b"store = '\xff'")
    with pytest.raises(InvalidInput, match="not UTF-8"):
        load({"LODEFS_CONFIG": str(path)})


def test_the_documented_example() -> None:
    """The cluster's settings in docs/cluster.md and the mount's file in docs/services.md work."""
    docs = Path(__file__).parents[3] / "docs"
    block = re.compile(r"^```toml\n(.*?)^```", re.DOTALL | re.MULTILINE)
    (cluster,) = block.findall((docs / "cluster.md").read_text())
    (mount,) = block.findall((docs / "services.md").read_text())
    config = parse(cluster)
    served = ProxyConfig.from_mapping({"store": config.store, **config.serve})
    assert len(served.peers) == 3
    assert served.in_cluster
    assert mount_file.parse(mount, "example").directory == "/data/cats"
