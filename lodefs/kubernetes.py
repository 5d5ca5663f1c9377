"""Labels a Kubernetes node with what is pinned in its cache, through the API server as a pod with a
service account reaches it.

The address is in the environment, certificate and token are in a directory (Kubernetes: "Accessing
the Kubernetes API from a Pod"). The token is read for each call, since Kubernetes rotates it.
"""

from __future__ import annotations

import http.client
import re
import ssl
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from blake3 import blake3

from lodefs.chunkstore.errors import Denied, InvalidInput, LodefsError, NotFound, Unavailable
from lodefs.chunkstore.format.decoding import json_decoder
from lodefs.chunkstore.protocol.cache_control import PinView

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TIMEOUT_S = 10.0
ANSWER_BYTES_MAX = 16 << 20
_MERGE_PATCH = "application/merge-patch+json"  # RFC 7396


class ApiServer:
    """Calls the API server with one service account."""

    def __init__(self, environ: Mapping[str, str], account: Path = ACCOUNT) -> None:
        """Raises: InvalidInput outside a pod, or if the pod lacks the account's token."""
        self._host = environ.get("KUBERNETES_SERVICE_HOST", "")
        self._port = environ.get("KUBERNETES_SERVICE_PORT", "443")
        self._token = account / "token"
        if not self._host or not self._token.exists():
            raise InvalidInput(
                "this needs a pod with a service account: KUBERNETES_SERVICE_HOST is not set, or "
                f"{self._token} is missing (automountServiceAccountToken)"
            )
        try:
            self._tls = ssl.create_default_context(cafile=str(account / "ca.crt"))
        except OSError as error:
            raise InvalidInput(f"{account / 'ca.crt'}: {error.strerror}") from error

    def node_labels(self, node: str) -> dict[str, str]:
        """Returns all labels of a node. Raises: NotFound, Denied, Unavailable."""
        found = self._call("GET", f"/api/v1/nodes/{node}")
        labels = found.get("metadata", {}).get("labels", {})
        return {str(key): str(value) for key, value in labels.items()}

    def patch_node_labels(self, node: str, patch: Mapping[str, str | None]) -> None:
        """Sets labels of a node; None removes one. Raises: NotFound, Denied, Unavailable."""
        self._call("PATCH", f"/api/v1/nodes/{node}", {"metadata": {"labels": dict(patch)}})

    def _call(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {self._read_token()}", "Accept": "application/json"}
        data = None
        if body is not None:
            data = msgspec.json.encode(body)
            headers["Content-Type"] = _MERGE_PATCH
        connection = http.client.HTTPSConnection(
            self._host, int(self._port), timeout=TIMEOUT_S, context=self._tls
        )
        try:
            connection.request(method, path, data, headers)
            answer = connection.getresponse()
            text = answer.read(ANSWER_BYTES_MAX)
        except (OSError, http.client.HTTPException) as error:
            raise Unavailable(
                f"API server {self._host}: {error or type(error).__name__}"
            ) from error
        finally:
            connection.close()
        return _decoded(answer.status, text, f"{method} {path}")

    def _read_token(self) -> str:
        try:
            return self._token.read_text().strip()
        except OSError as error:
            raise Unavailable(f"{self._token}: {error.strerror}") from error


def _decoded(status: int, text: bytes, what: str) -> dict[str, Any]:
    """Returns the object in an answer. Raises: the error of its status, with the server's
    message."""
    try:
        found = json_decoder(dict[str, Any]).decode(text)
    except msgspec.DecodeError:
        found = {}
    if status < 300:
        return found
    kinds: dict[int, type[LodefsError]] = {401: Denied, 403: Denied, 404: NotFound}
    reason = found.get("message") or f"HTTP status {status}"
    raise kinds.get(status, Unavailable)(f"{what}: {reason}")


PREFIX = "pinned.lodefs.dev/"
COMMIT_DIGITS = 12
_NAME_CHARS_MAX = 63
_DIGEST_DIGITS = 8
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?\Z")


def label_key(repo: str) -> str:
    """Returns the key of a repository's label, in Kubernetes' syntax: a name of at most 63
    characters, with letters or digits at both ends. ``/`` becomes ``.``. A name that does not fit
    ends with a digest."""
    name = repo.replace("/", ".")
    if len(name) > _NAME_CHARS_MAX or not _NAME.match(name):
        digest = blake3(repo.encode()).hexdigest(length=_DIGEST_DIGITS // 2)
        kept = name.strip("._-")[: _NAME_CHARS_MAX - _DIGEST_DIGITS - 1]
        name = f"{kept}-{digest}" if kept else digest
    return PREFIX + name


def labels(pins: Iterable[PinView]) -> dict[str, str]:
    """Returns the labels of a node with what is pinned in its cache, ``pinned.lodefs.dev/REPO:
    COMMIT``. Of several commits, the one that is pinned longest counts. Pins count only when all of
    their data is there."""
    found: dict[str, str] = {}
    for pin in sorted(pins, key=lambda pin: (pin.pinned_until_s, pin.commit)):
        if pin.is_complete:
            found[label_key(pin.repo)] = pin.commit[:COMMIT_DIGITS]
    return found


def changes(present: Mapping[str, str], wanted: Mapping[str, str]) -> dict[str, str | None]:
    """Returns the patch (RFC 7396) that turns a node's own labels into ``wanted``. Other labels
    stay."""
    patch: dict[str, str | None] = {
        key: None for key in present if key.startswith(PREFIX) and key not in wanted
    }
    patch.update({key: value for key, value in wanted.items() if present.get(key) != value})
    return patch
