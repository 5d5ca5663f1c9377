"""The example of docker compose says what the plugin understands."""

from __future__ import annotations

import yaml

from lodefs.mount.docker.options import parse_options
from tests.deploy.conftest import DEPLOY


def test_its_volumes_are_volumes() -> None:
    """The plugin's own parser takes the example's options, and each volume that a service reads
    is one of the file, read-only where it is of lodefs."""
    document = yaml.safe_load((DEPLOY / "docker-compose.yml").read_text())
    volumes = {name: about for name, about in document["volumes"].items() if "driver" in about}
    assert {about["driver"] for about in volumes.values()} == {"lodefs"}
    options = parse_options(volumes["flickr30k"]["driver_opts"], lambda url: ("", url))
    assert (options.source.repo, options.rev) == ("vision/flickr30k", "main")
    used = [one.split(":") for one in document["services"]["train"]["volumes"]]
    named = {words[0]: words[2:] for words in used if not words[0].startswith(".")}
    assert set(named) == set(document["volumes"])
    assert all(named[name] == ["ro"] for name in volumes)
