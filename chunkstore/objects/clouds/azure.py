"""Requests to Azure Blob Storage through its REST interface, with block blobs.

Source: Azure Storage REST API reference (Get Blob, Put Blob, List Blobs, Delete Blob; "Authorize
with Shared Key"; "Configure connection strings"). Credentials are found as Azure's own tools find
them: AZURE_STORAGE_CONNECTION_STRING, or AZURE_STORAGE_ACCOUNT with AZURE_STORAGE_KEY or
AZURE_STORAGE_SAS_TOKEN, or else azure-identity (AZURE_CLIENT_ID and the like, a managed identity,
`az login`).
"""

from __future__ import annotations

import re
import threading
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from email.utils import formatdate
from os import environ
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from lodefs.chunkstore.errors import Denied, InvalidInput, LodefsError, Unsupported
from lodefs.chunkstore.objects.clouds.http_objects import HttpRequest, Listing, Page, Written
from lodefs.chunkstore.objects.interface import ObjectInfo
from lodefs.chunkstore.objects.ranges.answers import RangeResponse
from lodefs.chunkstore.objects.s3.errors import error_of_cloud

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

VERSION = "2021-12-02"  # of the REST interface
SCOPE = "https://storage.azure.com/.default"
_SUFFIX = "core.windows.net"
_ACCOUNT = re.compile(r"[a-z0-9]{3,24}\Z")
_CONTAINER = re.compile(r"[a-z0-9](-?[a-z0-9]){2,62}\Z")
_CHECK = "check the account's name and the network"
# The account of emulators, which is public (docs of Azurite, "Well-known storage account and key")
_EMULATED = (
    "DefaultEndpointsProtocol=http;AccountName=devstoreaccount1;AccountKey="
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==;"
    "BlobEndpoint=http://127.0.0.1:10000/devstoreaccount1"
)
_RENEWED_BEFORE_S = 300.0  # a token's end
_CODES = {  # error codes of Azure for which s3/errors.py has a name
    "ContainerNotFound": "NoSuchBucket",
    "AuthenticationFailed": "InvalidAccessKeyId",
    "InvalidAuthenticationInfo": "InvalidToken",
    "ServerBusy": "SlowDown",
    "BlobArchived": "InvalidObjectState",
}


def open_azure(container: str, account: str | None) -> AzureApi:
    """Returns the interface to a container of an account, or of the environment's account, with the
    credentials of this environment. It does not connect yet. Raises: InvalidInput."""
    return AzureApi(container, account_of(account, environ), AzureToken())


class Account(NamedTuple):
    """A storage account, and what authenticates requests to it: a key, a token in the query (SAS),
    or neither, and then azure-identity."""

    name: str
    endpoint: str  # of its blobs: http(s)://HOST[:PORT][/PATH]
    key: bytes = b""
    sas: str = ""

    def __repr__(self) -> str:
        """Returns a text without secrets."""
        return f"Account({self.name}, {self.endpoint})"


def account_of(name: str | None, environment: Mapping[str, str]) -> Account:
    """Returns the account called ``name``, or else the environment's. Keys and tokens of the
    environment are only for its own account. Raises: InvalidInput, which quotes no value."""
    text = environment.get("AZURE_STORAGE_CONNECTION_STRING", "")
    own = _of_connection_string(text) if text else _of_variables(environment)
    if own is not None and name in (None, own.name):
        return own
    if name is None:
        raise InvalidInput(
            "az:// needs a storage account: set AZURE_STORAGE_ACCOUNT or "
            "AZURE_STORAGE_CONNECTION_STRING, or use az://container/prefix?account=NAME"
        )
    return Account(_checked_name(name), f"https://{name}.blob.{_SUFFIX}")


def _of_variables(environment: Mapping[str, str]) -> Account | None:
    name = environment.get("AZURE_STORAGE_ACCOUNT", "")
    if not name:
        return None
    key = _key_of(environment.get("AZURE_STORAGE_KEY", ""), "AZURE_STORAGE_KEY")
    sas = environment.get("AZURE_STORAGE_SAS_TOKEN", "").lstrip("?")
    return Account(_checked_name(name), f"https://{name}.blob.{_SUFFIX}", key, "" if key else sas)


def _of_connection_string(text: str) -> Account:
    if text.strip().rstrip(";").lower() == "usedevelopmentstorage=true":
        text = _EMULATED
    parts = dict(part.split("=", 1) for part in text.split(";") if "=" in part)
    name = parts.get("AccountName", "")
    scheme = parts.get("DefaultEndpointsProtocol", "https")
    suffix = parts.get("EndpointSuffix", _SUFFIX)
    endpoint = parts.get("BlobEndpoint", f"{scheme}://{name}.blob.{suffix}").rstrip("/")
    name = name or (urlsplit(endpoint).hostname or "").partition(".")[0]
    key = _key_of(parts.get("AccountKey", ""), "AZURE_STORAGE_CONNECTION_STRING")
    sas = parts.get("SharedAccessSignature", "").lstrip("?")
    if urlsplit(endpoint).scheme not in ("http", "https"):
        raise InvalidInput("AZURE_STORAGE_CONNECTION_STRING names no http(s) endpoint of blobs")
    return Account(_checked_name(name), endpoint, key, sas)


def _checked_name(name: str) -> str:
    if not _ACCOUNT.match(name):
        raise InvalidInput("a storage account's name has 3 to 24 lower-case letters and digits")
    return name


def _key_of(text: str, source: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except ValueError:
        raise InvalidInput(f"{source} holds a key that is not base64") from None


class AzureApi:
    """Implements CloudApi for one container."""

    etag_header = "etag"
    has_suffix_ranges = False
    has_start = False
    check = _CHECK

    def __init__(
        self,
        container: str,
        account: Account,
        token: Callable[[], str],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``token`` returns an access token, for an account without key and SAS. Raises:
        InvalidInput for a malformed name, which it does not repeat."""
        if not _CONTAINER.match(container):
            raise InvalidInput(
                "the URL's container is not a valid name: one has 3 to 63 lower-case letters, "
                "digits and single '-'; use az://container/prefix"
            )
        parts = urlsplit(account.endpoint)
        self.url = f"az://{container}"
        self.endpoint = f"{parts.scheme}://{parts.netloc}"
        self._container = container
        self._path = f"{parts.path}/{container}"
        self._account = account
        self._token = token
        self._clock = clock

    def signed(self, request: HttpRequest, body_bytes: int | None) -> HttpRequest:
        headers = {**request.headers, "x-ms-version": VERSION}
        headers["x-ms-date"] = formatdate(self._clock(), usegmt=True)
        account = self._account
        if account.key:
            text = text_to_sign(request._replace(headers=headers), account.name, body_bytes or 0)
            headers["authorization"] = f"SharedKey {account.name}:{_hmac(account.key, text)}"
        elif account.sas:
            mark = "&" if "?" in request.target else "?"
            return HttpRequest(request.method, f"{request.target}{mark}{account.sas}", headers)
        else:
            headers["authorization"] = f"Bearer {self._token()}"
        return request._replace(headers=headers)

    def get(self, key: str, wanted: str, if_match: str | None) -> HttpRequest:
        headers = {"range": wanted}
        if if_match is not None:
            headers["if-match"] = if_match
        return HttpRequest("GET", self._target(key), headers)

    def head(self, key: str) -> HttpRequest:
        return HttpRequest("HEAD", self._target(key), {})

    def put(self, key: str, *, if_absent: bool) -> HttpRequest:
        headers = {"x-ms-blob-type": "BlockBlob", "content-type": "application/octet-stream"}
        if if_absent:
            headers["if-none-match"] = "*"
        return HttpRequest("PUT", self._target(key), headers)

    def delete(self, key: str) -> HttpRequest:
        return HttpRequest("DELETE", self._target(key), {"x-ms-delete-snapshots": "include"})

    def list(self, listing: Listing) -> HttpRequest:
        query = {
            "restype": "container",
            "comp": "list",
            "prefix": listing.prefix,
            "delimiter": listing.delimiter,
            "maxresults": str(listing.keys_max),
            "marker": listing.token,
        }
        said = urlencode({name: value for name, value in query.items() if value}, quote_via=quote)
        return HttpRequest("GET", f"{self._path}?{said}", {})

    def info(self, key: str, answer: RangeResponse) -> ObjectInfo:
        return ObjectInfo(key, int(answer.headers["content-length"]), answer.headers["etag"])

    def written(self, answer: RangeResponse) -> Written:
        md5 = answer.headers.get("content-md5")
        return Written(answer.headers["etag"], b64decode(md5) if md5 else None)

    def page(self, answer: RangeResponse) -> Page:
        from xml.etree import ElementTree as ET  # here, since most stores do not need it

        try:
            root = ET.fromstring(bytes(answer.data))
        except ET.ParseError as error:
            raise ValueError(str(error)) from error
        found = [
            ObjectInfo(
                _text(blob, "Name"),
                int(_text(blob, "Properties/Content-Length")),
                '"{}"'.format(_text(blob, "Properties/Etag").strip('"')),
            )
            for blob in root.iterfind("Blobs/Blob")
        ]
        prefixes = [_text(one, "Name") for one in root.iterfind("Blobs/BlobPrefix")]
        return Page(found, prefixes, root.findtext("NextMarker") or "")

    def is_taken(self, answer: RangeResponse) -> bool:
        code = answer.headers.get("x-ms-error-code", "")
        return answer.status == 412 or (answer.status == 409 and code == "BlobAlreadyExists")

    def refusal(self, answer: RangeResponse, what: str) -> LodefsError:
        body = bytes(answer.data).decode("utf-8", "replace")
        code = answer.headers.get("x-ms-error-code") or _element(body, "Code")
        detail = _element(body, "AuthenticationErrorDetail")
        message = detail or _element(body, "Message").partition("\n")[0]
        return error_of_cloud(answer, _CODES.get(code, code), message, what, self._container)

    def _target(self, key: str) -> str:
        return f"{self._path}/{quote(key, safe='/~')}"


def text_to_sign(request: HttpRequest, account: str, body_bytes: int) -> str:
    """Returns what the signature of a request covers ("Authorize with Shared Key")."""
    headers = request.headers
    names = (
        *("content-encoding", "content-language", "content-length", "content-md5"),
        *("content-type", "date", "if-modified-since", "if-match", "if-none-match"),
        *("if-unmodified-since", "range"),
    )
    said = {**headers, "content-length": str(body_bytes or "")}
    lines = [request.method, *(said.get(name, "") for name in names)]
    lines += [f"{name}:{headers[name]}" for name in sorted(headers) if name.startswith("x-ms-")]
    path, _, query = request.target.partition("?")
    lines.append(f"/{account}{path}")
    lines += [f"{name}:{value}" for name, value in sorted(parse_qsl(query))]
    return "\n".join(lines)


def _hmac(key: bytes, text: str) -> str:
    import hmac  # here, since OpenSSL takes milliseconds to load

    return b64encode(hmac.digest(key, text.encode(), "sha256")).decode()


class AzureToken:
    """The access token of this environment's identity, renewed before it ends. For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # lets one thread find and renew it
        self._credential: Any = None
        self._token, self._ends_s = "", 0.0

    def __call__(self) -> str:
        """Returns the token. Raises: Denied; Unsupported without azure-identity."""
        try:
            from azure.core.exceptions import AzureError
            from azure.identity import DefaultAzureCredential
        except ImportError:
            raise Unsupported(
                "az:// needs AZURE_STORAGE_KEY, AZURE_STORAGE_SAS_TOKEN or "
                "AZURE_STORAGE_CONNECTION_STRING, or the library azure-identity: "
                "pip install 'lodefs[azure]'"
            ) from None
        with self._lock:
            if time.time() < self._ends_s - _RENEWED_BEFORE_S:
                return self._token
            try:
                self._credential = self._credential or DefaultAzureCredential()
                found = self._credential.get_token(SCOPE)
            except AzureError as error:
                first = str(error).partition("\n")[0]
                raise Denied(
                    f"no Azure credentials were found ({first}); set AZURE_STORAGE_KEY or "
                    "AZURE_STORAGE_SAS_TOKEN, or use `az login` or a managed identity"
                ) from error
            self._token, self._ends_s = str(found.token), float(found.expires_on)
            return self._token


def _text(element: Element, path: str) -> str:
    """Returns the text of an element below. Raises: LookupError."""
    found = element.findtext(path)
    if found is None:
        raise LookupError(path)
    return found


def _element(text: str, name: str) -> str:
    found = re.search(f"<{name}>([^<]*)</{name}>", text)
    return found.group(1) if found else ""
