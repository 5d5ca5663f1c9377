"""Credentials for Google Cloud Storage and Azure: where they come from, and who is sent them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from lodefs.chunkstore.errors import Denied, InvalidInput, Unsupported
from lodefs.chunkstore.objects.clouds.azure import AzureApi, AzureToken, account_of, text_to_sign
from lodefs.chunkstore.objects.clouds.gcs import GoogleToken, open_gcs
from lodefs.chunkstore.objects.clouds.http_objects import HttpRequest
from tests.support.chunkstore.bad_server import Answer, BadServer

NOW_S = 1_700_000_000.0
TOKEN = b'{"access_token": "secret-token", "expires_in": 3600, "token_type": "Bearer"}'


@pytest.fixture
def server() -> Iterator[BadServer]:
    with BadServer(lambda _: Answer(200, TOKEN, {"Content-Type": "application/json"})) as server:
        yield server


@pytest.fixture
def no_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """No credentials of this machine, and no server that would give some."""
    for name in ("GOOGLE_APPLICATION_CREDENTIALS", "STORAGE_EMULATOR_HOST", "CLOUDSDK_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    monkeypatch.setenv("PATH", str(tmp_path))
    return monkeypatch


def service_account(folder: Path, token_uri: str) -> Path:
    """The file of a service account, whose tokens come from ``token_uri``."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    path = folder / "account.json"
    account = {"type": "service_account", "client_email": "a@b", "token_uri": token_uri}
    path.write_text(json.dumps({**account, "private_key": pem.decode()}))
    return path


def test_a_service_account(
    server: BadServer, no_environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its token is fetched once, sent with each request, and not shown."""
    account = service_account(tmp_path, f"{server.endpoint_url}/token")
    no_environment.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(account))
    api = open_gcs("bucket")
    signed = [api.signed(api.head("a"), None) for _ in range(2)]
    assert [one.headers["authorization"] for one in signed] == ["Bearer secret-token"] * 2
    assert len(server.requests) == 1
    assert api.endpoint == "https://storage.googleapis.com"


def test_a_service_account_that_is_refused(
    server: BadServer, no_environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A wrong clock is refused like this, so the message names the clock."""
    body = b'{"error": "invalid_grant", "error_description": "Token must be short-lived"}'
    server.script = lambda _: Answer(400, body, {"Content-Type": "application/json"})
    account = service_account(tmp_path, f"{server.endpoint_url}/token")
    no_environment.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(account))
    with pytest.raises(Denied, match=r"short-lived.*clock"):
        GoogleToken()()


def test_no_credentials_of_google(no_environment: pytest.MonkeyPatch) -> None:
    """The message says how to get some; without the library, how to install it."""
    with pytest.raises(Denied, match="gcloud auth application-default login"):
        GoogleToken()()
    no_environment.setitem(sys.modules, "google.auth", None)
    with pytest.raises(Unsupported, match=r"pip install 'lodefs\[gcs\]'"):
        GoogleToken()()


def test_an_emulator_of_google_gets_no_token(no_environment: pytest.MonkeyPatch) -> None:
    """STORAGE_EMULATOR_HOST is asked as it is, with or without its scheme."""
    for host in ("127.0.0.1:4443", "http://127.0.0.1:4443/"):
        no_environment.setenv("STORAGE_EMULATOR_HOST", host)
        api = open_gcs("bucket")
        assert api.endpoint == "http://127.0.0.1:4443"
        assert api.signed(api.head("a"), None) == api.head("a")


def test_an_identity_of_azure(server: BadServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A managed identity gives a token, which is kept until it ends."""
    body = b'{"access_token": "secret", "expires_on": "4102444800", "resource": "r"}'
    server.script = lambda _: Answer(200, body, {"Content-Type": "application/json"})
    monkeypatch.setenv("IDENTITY_ENDPOINT", f"{server.endpoint_url}/token")
    monkeypatch.setenv("IDENTITY_HEADER", "header")
    api = AzureApi("box", account_of("ours", {}), AzureToken())
    signed = [api.signed(api.head("a"), None) for _ in range(2)]
    assert [one.headers["authorization"] for one in signed] == ["Bearer secret"] * 2
    assert len(server.requests) == 1
    assert api.endpoint == "https://ours.blob.core.windows.net"


def test_no_identity_of_azure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the library the message says what else there is."""
    monkeypatch.setitem(sys.modules, "azure.identity", None)
    with pytest.raises(Unsupported, match=r"AZURE_STORAGE_KEY.*lodefs\[azure\]"):
        AzureToken()()


def test_accounts_of_the_environment() -> None:
    """An account comes from variables or a connection string; its key is for itself alone."""
    variables = {"AZURE_STORAGE_ACCOUNT": "ours", "AZURE_STORAGE_KEY": "a2V5"}
    own = account_of(None, variables)
    assert (own.endpoint, own.key) == ("https://ours.blob.core.windows.net", b"key")
    assert "a2V5" not in repr(own) and "key" not in repr(own)
    assert account_of("ours", variables) == own
    other = account_of("theirs", variables)
    assert (other.endpoint, other.key, other.sas) == (
        "https://theirs.blob.core.windows.net",
        b"",
        "",
    )
    sas = account_of(None, {"AZURE_STORAGE_ACCOUNT": "ours", "AZURE_STORAGE_SAS_TOKEN": "?sig=1"})
    assert (sas.sas, sas.key) == ("sig=1", b"")
    text = "AccountName=ours;AccountKey=a2V5;EndpointSuffix=core.example"
    found = account_of(None, variables | {"AZURE_STORAGE_CONNECTION_STRING": text})
    assert found.endpoint == "https://ours.blob.core.example"
    emulated = {"AZURE_STORAGE_CONNECTION_STRING": "UseDevelopmentStorage=true"}
    assert account_of(None, emulated).endpoint == "http://127.0.0.1:10000/devstoreaccount1"


@pytest.mark.parametrize(
    ("name", "environment", "says"),
    [
        (None, {}, "AZURE_STORAGE_ACCOUNT"),
        ("No/Account", {}, "lower-case letters and digits"),
        (None, {"AZURE_STORAGE_ACCOUNT": "a.evil.example"}, "lower-case letters and digits"),
        (None, {"AZURE_STORAGE_ACCOUNT": "ours", "AZURE_STORAGE_KEY": "s%cret"}, "not base64"),
        (
            None,
            {"AZURE_STORAGE_CONNECTION_STRING": "AccountName=x;BlobEndpoint=ftp://s%cret"},
            "no",
        ),
    ],
)
def test_accounts_that_are_none(name: str | None, environment: dict[str, str], says: str) -> None:
    """The message says what is wrong, and repeats no secret."""
    with pytest.raises(InvalidInput, match=says) as caught:
        account_of(name, environment)
    assert "s%cret" not in str(caught.value)


def test_a_shared_key_signs_what_azure_checks() -> None:
    """The text that is signed is the one of "Authorize with Shared Key"."""
    request = HttpRequest(
        "PUT",
        "/acc/box/a%20b?timeout=20&comp=list",
        {"x-ms-version": "1", "x-ms-date": "today", "if-none-match": "*", "content-type": "t"},
    )
    assert text_to_sign(request, "acc", 5) == (
        "PUT\n\n\n5\n\nt\n\n\n\n*\n\n\n"
        "x-ms-date:today\nx-ms-version:1\n/acc/acc/box/a%20b\ncomp:list\ntimeout:20"
    )
    account = account_of(None, {"AZURE_STORAGE_ACCOUNT": "acc", "AZURE_STORAGE_KEY": "a2V5"})
    api = AzureApi("box", account, str, lambda: NOW_S)
    signed = api.signed(api.get("a", "bytes=0-9", '"1"'), None).headers
    assert signed["x-ms-date"] == "Tue, 14 Nov 2023 22:13:20 GMT"
    assert signed["authorization"].startswith("SharedKey acc:")


def test_a_token_of_the_query() -> None:
    """A SAS goes into the request, and into no message."""
    sas = {"AZURE_STORAGE_ACCOUNT": "acc", "AZURE_STORAGE_SAS_TOKEN": "?sv=1&sig=secret"}
    api = AzureApi("box", account_of(None, sas), str)
    assert api.signed(api.head("a"), None).target == "/box/a?sv=1&sig=secret"
    assert "secret" not in api.url
