"""Volumes that a token opens: given by a Secret, rotated under pods that read, revoked."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loadtests.kube.configs import NODE_ADDRESS
from loadtests.kube.installation import NAMESPACE, Installation, inline, pod
from loadtests.kube.node import Node
from tests.kube.conftest import Dataset
from tests.kube.readers import REPO, Readers

PROXY = f"http://{NODE_ADDRESS}:7440"
SECRET = {"nodePublishSecretRef": {"name": "lodefs"}}


class Tokens:
    """The proxy's tokens, in a Secret of its namespace."""

    def __init__(self, lodefs: Installation, folder: Path) -> None:
        self._lodefs = lodefs
        self._file = folder / "tokens.json"

    def make(self, name: str, pattern: str) -> str:
        """A new token; the Secret has it as soon as ``write`` is called."""
        return self._token("create", name, pattern).split()[-1]

    def delete(self, name: str) -> None:
        """It is good no more once the proxy sees the Secret."""
        self._token("delete", name)

    def write(self) -> None:
        """Put them into the Secret."""
        self._lodefs.node.apply(
            _secret("lodefs-tokens", NAMESPACE, {"tokens.json": self._file.read_text()})
        )

    def _token(self, *words: str) -> str:
        return self._lodefs.lodefs("token", "--file", self._file, *words).strip()


@pytest.fixture(scope="module")
def tokens(lodefs: Installation, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tokens]:
    """lodefs as it is where volumes need tokens."""
    made = Tokens(lodefs, tmp_path_factory.mktemp("tokens"))
    made.make("first", "vision/*")
    made.write()
    values = lodefs.values()
    values["proxy"] |= {
        "tokensSecret": "lodefs-tokens",
        "allowPlainTokens": True,
        "hostNetwork": True,  # no kube-proxy leads to the node's proxy here
    }
    values["csi"] = {"mounter": {"proxyUrl": PROXY}}
    lodefs.upgrade(values)
    yield made
    lodefs.upgrade(lodefs.values())


def test_a_token_rotates_under_pods(
    node: Node, lodefs: Installation, tokens: Tokens, dataset: Dataset
) -> None:
    """A pod without the token is told so. With it pods read; another one in the Secret takes its
    place while they do, and when the first one is revoked no read fails, in new pods neither."""
    node.apply(pod("poor", inline(REPO, commit="v1.0"), "true"))
    node.until(lambda: _told(lodefs, "poor", "Unauthenticated"), "an event asks for a token")
    second = tokens.make("second", "vision/*")
    third = tokens.make("third", "vision/*")
    tokens.write()
    _give(node, second)
    readers = Readers(node, _opened())
    _give(node, third)
    node.until(lambda: "now has another token" in _log(lodefs), "the token is rotated", 240.0)
    tokens.delete("second")
    tokens.write()
    node.until(lambda: not _opens(lodefs, second), "the proxy refuses the token", 240.0)
    _give(node, second)
    node.apply(pod("late", _opened(), "cat /data/labels/a.txt"))
    node.until(
        lambda: _told(lodefs, "late", "Unauthenticated"), "an event refuses the token", 240.0
    )
    readers.read_on()
    _give(node, third)
    node.await_pods(["late"], "Succeeded", timeout_s=240.0)
    readers.read_on()
    assert second not in _log(lodefs)
    assert third not in _log(lodefs)


# Whether a token opens a dataset, by HTTP: docs/protocol.md.
_ASK = """
import sys, urllib.request, urllib.error
request = urllib.request.Request(sys.argv[1], headers={"Authorization": "Bearer " + sys.argv[2]})
try:
    print(urllib.request.urlopen(request, timeout=60).status)
except urllib.error.HTTPError as error:
    print(error.code)
"""


def _opens(lodefs: Installation, token: str) -> bool:
    status = lodefs.python(_ASK, f"{PROXY}/snapshots/{REPO}@v1.0", token).strip()
    assert status in ("200", "401", "403")
    return status == "200"


def _opened() -> dict[str, Any]:
    """A volume that the Secret opens."""
    volume = inline(REPO, commit="v1.0")
    volume["csi"] |= SECRET
    return volume


def _give(node: Node, token: str) -> None:
    node.apply(_secret("lodefs", "default", {"token": token}))


def _secret(name: str, namespace: str, data: dict[str, str]) -> dict[str, Any]:
    encoded = {key: base64.b64encode(value.encode()).decode() for key, value in data.items()}
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": encoded}


def _told(lodefs: Installation, name: str, what: str) -> bool:
    return what in lodefs.describe(name).partition("\nEvents:")[2]


def _log(lodefs: Installation) -> str:
    logs = [
        lodefs.node.kubectl("-n", NAMESPACE, "logs", one["metadata"]["name"], "--tail=-1")
        for part in ("mounter", "csi")
        for one in lodefs.pods(part)
    ]
    return "\n".join(logs)
