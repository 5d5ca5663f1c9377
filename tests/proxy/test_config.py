"""Config: values of every kind, and all mistakes at once."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from lodefs.chunkstore.errors import InvalidInput
from lodefs.proxy.config import (
    CACHE_SIZE_BYTES_MIN,
    Config,
    cache_size_bytes,
    parse_listen,
    parse_peers,
    parse_size,
)
from lodefs.proxy.peers.membership.peer import DnsName, Peer

STORE = {"store": "s3://bucket/data"}


@pytest.mark.parametrize(
    ("value", "size_bytes"),
    [
        (0, 0), (5, 5), ("5", 5), ("5B", 5), ("1KiB", 1024), ("10GiB", 10 << 30),
        ("10 GiB", 10 << 30), (" 500MB ", 500_000_000), ("1.5TiB", 3 << 39), ("2kB", 2000),
        ("2KB", 2000), ("1PiB", 1 << 50), ("0.5KiB", 512),
    ],
)  # fmt: skip
def test_sizes(value: object, size_bytes: int) -> None:
    """Binary and decimal units are told apart."""
    assert parse_size(value) == size_bytes


@pytest.mark.parametrize(
    "value", ["", "x", "10 G", "-5", -5, "1e3", "5gib", True, None, 1.5, "GiB"]
)
def test_bad_sizes(value: object) -> None:
    """What is no size is refused, with an example of one."""
    with pytest.raises(InvalidInput, match="10GiB"):
        parse_size(value)


@pytest.mark.parametrize(
    ("value", "address"),
    [
        ("", None),
        ("127.0.0.1:80", ("127.0.0.1", 80)),
        ("node", ("node", 7440)),
        (":8000", ("0.0.0.0", 8000)),
        ("[::1]:9", ("::1", 9)),
        ("[::]", ("::", 7440)),
    ],
)
def test_addresses(value: str, address: tuple[str, int] | None) -> None:
    """The port is 7440 unless given; an empty text turns TCP off."""
    assert parse_listen(value) == address


@pytest.mark.parametrize("value", ["a:b", "a:99999", "::1", "a:1:2", 7440])
def test_bad_addresses(value: object) -> None:
    """What is no address is refused."""
    with pytest.raises(InvalidInput):
        parse_listen(value)


def test_defaults() -> None:
    """Only the store must be given."""
    config = Config.from_mapping(STORE)
    assert config.store == "s3://bucket/data"
    assert config.socket_path == Path("/run/lodefs/proxy.sock")
    assert (config.socket_mode, config.listen, config.tokens_file) == (0o660, None, None)
    assert config.cache_size_bytes_max is None
    assert config.fetch_concurrency == 32


def test_values_of_the_environment_and_of_toml() -> None:
    """Texts and native values mean the same."""
    as_text = {
        "cache_size_bytes_max": "10GiB", "socket_mode": "0600", "allow_anonymous": "true",
        "listen": ":0", "write_timeout_s": "2.5", "connections_max": " 7 ", "socket_path": "",
        "cache_dir": "/c", "endpoint_url": "",
    }  # fmt: skip
    native = {
        "cache_size_bytes_max": 10 << 30, "socket_mode": 0o600, "allow_anonymous": True,
        "listen": ":0", "write_timeout_s": 2.5, "connections_max": 7, "socket_path": None,
        "cache_dir": Path("/c"), "endpoint_url": None,
    }  # fmt: skip
    config = Config.from_mapping({**STORE, **as_text})
    assert config == Config.from_mapping({**STORE, **native})
    assert (config.socket_mode, config.connections_max, config.write_timeout_s) == (0o600, 7, 2.5)


def test_all_mistakes_are_told_together() -> None:
    """One error names every wrong setting, and what it should be."""
    wrong = {
        "cache_size_bytes_max": "much", "socket_mode": "999", "allow_anonymous": "perhaps",
        "write_timeout_s": 0, "connections_max": "many", "log_level": "loud", "colour": "red",
        "listen": "a:b:c", "cache_dir": "", "peer_listen": "7441",
    }  # fmt: skip
    with pytest.raises(InvalidInput) as caught:
        Config.from_mapping(wrong)
    text = str(caught.value)
    assert all(f"{name}: " in text for name in [*wrong, "store"])
    assert "'much'" in text
    assert "\n" not in text
    assert "debug, info, warning, error" in text


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"store": ""}, "store"),
        ({"listen": ":1"}, "listen"),
        ({"unused_timeout_s": 60, "listen": ":1", "allow_anonymous": True}, "unused_timeout_s"),
        ({"unused_timeout_s": 60, "socket_path": "", "listen": ":1"}, "unused_timeout_s"),
        ({"socket_path": ""}, "socket_path"),
        ({"socket_path": "/" + "x" * 200}, "socket_path"),
        ({"cache_size_bytes_max": "1MiB"}, "cache_size_bytes_max"),
    ],
)
def test_settings_that_do_not_fit_together(values: dict[str, object], name: str) -> None:
    """TCP without tokens must be asked for; there must be a door, and room for a few chunks."""
    with pytest.raises(InvalidInput, match=f"{name}: "):
        Config.from_mapping({**STORE, **values})


TOKENS = {"tokens_file": "/t"}
FILES = {"tls_cert_file": "/c", "tls_key_file": "/k"}


@pytest.mark.parametrize(
    "extra",
    [{**TOKENS, **FILES}, {**TOKENS, "allow_plain_tokens": True}, {"allow_anonymous": True}],
)
def test_tcp_with_tokens_or_for_everybody(extra: dict[str, object]) -> None:
    """Either is enough."""
    assert Config.from_mapping({**STORE, "listen": ":1", **extra}).listen == ("0.0.0.0", 1)


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.1", "[::]", "node1"])
def test_tokens_in_the_clear(host: str) -> None:
    """Tokens need TLS on addresses that others reach, and none on this machine's own."""
    with pytest.raises(InvalidInput, match="listen: tokens would cross the network unencrypted"):
        Config.from_mapping({**STORE, **TOKENS, "listen": f"{host}:1"})
    for own in ("127.0.0.1", "[::1]", "localhost"):
        assert Config.from_mapping({**STORE, **TOKENS, "listen": f"{own}:1"}).listen


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"s3_listen": ":1"}, "s3.listen: needs tokens_file"),
        ({"listen": "h:1"}, r"needs tokens_file \(--tokens FILE\), .* \(--allow-anonymous\)"),
        ({"s3_listen": ":1", "listen": ":1", "allow_anonymous": True}, "s3.listen: must differ"),
        ({"tls_cert_file": "/c"}, "TLS needs tls_cert_file and tls_key_file"),
        ({"s3_buckets": {"lodefs": "a@b"}}, "lodefs is the bucket of the whole store"),
        (
            {"s3_buckets": {"abc": "a@b", "np": "c@d"}},
            "'np' must be the name of a bucket: 3 to 63 characters of a-z, 0-9, '.' and '-'$",
        ),
        ({"s3_bucket": "A"}, "must be the name of a bucket: .*, not 'A'$"),
        ({"s3_buckets": {"abc": "a@@b"}}, "'@b' is not a revision: write a branch"),
        ({"s3_domain": "a_b"}, "must be a host name"),
    ],
)
def test_settings_of_s3(values: dict[str, object], problem: str) -> None:
    """What is wrong with the S3 interface's settings is told."""
    with pytest.raises(InvalidInput, match=problem):
        Config.from_mapping({**STORE, **values})


TLS = {name: f"/{name}" for name in ("peer_tls_cert_file", "peer_tls_key_file", "peer_tls_ca_file")}
SECRET = {"peer_secret_file": "/secret"}


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"peer_listen": ":7441"}, "peer_listen"),
        ({"peers": ["a:1"]}, "peers"),
        ({"peers_dns": "nodes"}, "peers_dns"),
        ({"peer_listen": ":7441", "peer_tls_cert_file": "/c"}, "peer_tls_cert_file"),
        ({**SECRET, "peers": ["a:1"], "peers_file": "/p"}, "peers_file"),
        ({**SECRET, "peers_file": "/p", "peers_dns": "nodes"}, "peers_dns"),
        ({**SECRET, "peer_listen": ":1", "peer_allow_anonymous": True}, "peer_allow_anonymous"),
        ({**SECRET, "peers": ["a:1"], "peer_address": "a:1"}, "peer_address"),
        ({**SECRET, "peers": ["a:0"]}, "peers"),
        ({**SECRET, "peers": [1]}, "peers"),
        ({**SECRET, "peers": "a:1;weight=x"}, "peers"),
        ({**SECRET, "peers_dns": "10.0.0.1"}, "peers_dns"),
        ({**SECRET, "peers_dns": "_lodefs.example"}, "peers_dns"),
        ({**SECRET, "peers_dns": "_lodefs._tcp.example:7"}, "peers_dns"),
        ({**SECRET, "peer_listen": ":1", "peer_address": "a b"}, "peer_address"),
        ({"peer_upload_bytes_per_s_max": "1KiB"}, "peer_upload_bytes_per_s_max"),
        ({"scrub_bytes_per_s_max": "1KiB"}, "scrub_bytes_per_s_max"),
        ({"scrub_days": 0}, "scrub_days"),
        ({"mirrors": ["ftp://x"]}, "mirrors"),
        ({"mirrors": ["/a", "/a"]}, "mirrors"),
        (
            {**SECRET, "peer_listen": ":1", "listen": ":1", "allow_anonymous": True},
            "peer_listen",
        ),
    ],
)
def test_settings_of_a_cluster_that_do_not_fit(values: dict[str, object], name: str) -> None:
    """Trust must be settled, one source says who is a member, and addresses are addresses."""
    with pytest.raises(InvalidInput, match=f"{name}: "):
        Config.from_mapping({**STORE, **values})


@pytest.mark.parametrize("trust", [SECRET, TLS, {**SECRET, **TLS}, {"peer_allow_anonymous": True}])
@pytest.mark.parametrize("door", [{}, {"peer_listen": ""}, {"peer_listen": "0.0.0.0"}])
@pytest.mark.parametrize("source", [{}, {"peers": ["a"]}, {"peers_file": "/p"}, {"peers_dns": "n"}])
def test_settings_of_a_cluster(
    trust: dict[str, object], door: dict[str, object], source: dict[str, object]
) -> None:
    """A node may ask without answering and answer without asking."""
    config = Config.from_mapping({**STORE, **trust, **door, **source})
    assert config.in_cluster == bool(source or door.get("peer_listen"))
    assert config.peer_listen in (None, ("0.0.0.0", 7441))


def test_members_are_read() -> None:
    """A list, or a text with commas; the same node counts once."""
    expected = (Peer("[::1]:7441", 2.0), Peer("a:1"))
    assert parse_peers(["A:1", "a:1", "[::1];weight=2"]) == expected
    assert parse_peers("a:1, [::1];weight=2,") == expected
    assert parse_peers("") == parse_peers([]) == ()


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("nodes.example", DnsName("nodes.example", 7441)),
        ("nodes.example.:9", DnsName("nodes.example.", 9)),
        ("_lodefs._tcp.Nodes.example", DnsName("_lodefs._tcp.nodes.example", None)),
    ],
)
def test_names_of_dns(text: str, name: DnsName) -> None:
    """A service has its ports in its records; addresses need one port for all."""
    assert Config.from_mapping({**STORE, **SECRET, "peers_dns": text}).peers_dns == name


def test_every_setting_can_be_read() -> None:
    """Each field knows how to read itself; the command line relies on it."""
    assert all(callable(one.metadata["parse"]) for one in fields(Config))


def test_every_setting_is_documented() -> None:
    """docs/configuration.md names each field."""
    text = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text()
    names = [one.name.removeprefix("s3_") for one in fields(Config)]
    assert not [name for name in names if f"{name}`" not in text]


def test_the_cache_takes_most_of_the_disk_by_default(tmp_path: Path) -> None:
    """A given limit counts as it is; else it is a share of free and already used bytes."""
    given = Config(store="x", cache_dir=tmp_path, cache_size_bytes_max=1 << 40)
    assert cache_size_bytes(given) == 1 << 40
    default = Config(store="x", cache_dir=tmp_path / "not" / "there")
    used = 1 << 50
    assert cache_size_bytes(default, used) >= int(used * 0.8)
    assert cache_size_bytes(default) >= CACHE_SIZE_BYTES_MIN


@pytest.mark.parametrize(("value", "rate"), [(0, 0), ("0", 0), ("2MiB", 2 << 20)])
def test_the_rate_of_the_scrub(value: object, rate: int) -> None:
    """0 turns it off; otherwise it is a rate."""
    assert (
        Config.from_mapping(STORE | {"scrub_bytes_per_s_max": value}).scrub_bytes_per_s_max == rate
    )
