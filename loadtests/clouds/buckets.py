"""Makes buckets and containers on emulators, and objects with any name, which lodefs itself never
does."""

from __future__ import annotations

import json
import os
import secrets
import urllib.request

from lodefs.chunkstore.objects.clouds.azure import AzureApi, account_of
from lodefs.chunkstore.objects.clouds.http_objects import CloudApi, HttpRequest

TIMEOUT_S = 30.0


def gcs_bucket() -> str:
    """A new bucket on the emulator that the environment names."""
    name = f"lodefs-{secrets.token_hex(6)}"
    body = json.dumps({"name": name}).encode()
    url = f"{os.environ['STORAGE_EMULATOR_HOST']}/storage/v1/b"
    _ask(urllib.request.Request(url, body, {"content-type": "application/json"}))
    return name


def azure_container() -> str:
    """A new container of the account that the environment names."""
    name = f"lodefs-{secrets.token_hex(6)}"
    api = AzureApi(name, account_of(None, os.environ), str)
    target = f"{api.head('').target.rstrip('/')}?restype=container"
    signed = api.signed(HttpRequest("PUT", target, {"content-type": "text/plain"}), 0)
    _ask(urllib.request.Request(api.endpoint + signed.target, b"", signed.headers, method="PUT"))
    return name


def put_object(api: CloudApi, key: str, data: bytes) -> None:
    """Writes an object."""
    made = api.put(key, if_absent=False)
    body = made.before + data + made.after
    _ask(_request(api, made, body))


def delete_object(api: CloudApi, key: str) -> None:
    """Removes an object."""
    _ask(_request(api, api.delete(key), None))


def _request(api: CloudApi, made: HttpRequest, body: bytes | None) -> urllib.request.Request:
    signed = api.signed(made, None if body is None else len(body))
    url = api.endpoint + signed.target
    return urllib.request.Request(url, body, signed.headers, method=signed.method)


def _ask(request: urllib.request.Request) -> None:
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
        answer.read()
