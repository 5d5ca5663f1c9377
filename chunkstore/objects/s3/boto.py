"""A boto3 client whose requests other threads can end: the only importer of boto3.

botocore has no public interface for some of this; tests notice if it changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from os import environ
from os.path import isfile
from typing import Any

from lodefs.chunkstore.errors import DeadlineExceeded, Denied, InvalidInput, Unavailable
from lodefs.chunkstore.objects.s3.errors import error_of
from lodefs.chunkstore.objects.s3.range_reader import RangeReader, request_template
from lodefs.chunkstore.objects.s3.sigv4 import Credentials
from lodefs.chunkstore.objects.timed_requests import (
    ANSWER_SIZE_BYTES_MAX,
    HttpOptions,
    ThreadTransfer,
    watched,
)

CHECK = "check the endpoint (AWS_ENDPOINT_URL, or endpoint_url in the settings) and the network"
REGION = "us-east-1"  # the default; servers other than AWS ignore it


@dataclass(frozen=True, slots=True)
class S3Options(HttpOptions):
    """The options for reaching S3. None stands for AWS's own settings and environment."""

    endpoint_url: str | None = None
    region: str | None = None
    requester_pays: bool = False  # requests say that their sender pays for them
    credentials: Credentials | None = None
    profile: str | None = None  # of AWS's files, if there are no credentials


class S3Transfer(ThreadTransfer):
    """The current request of one thread to S3."""

    def __init__(self) -> None:
        super().__init__()
        self.request: tuple[str, Mapping[str, str]] = ("", {})  # URL and headers of the last GET


def open_client(options: S3Options, current: S3Transfer) -> Any:
    """Returns a boto3 client without retries. Raises: InvalidInput for an invalid endpoint or
    region."""
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError

    custom = (
        options.endpoint_url
        or environ.get("AWS_ENDPOINT_URL_S3", "")
        or environ.get("AWS_ENDPOINT_URL", "")
    )
    config = Config(
        connect_timeout=options.connect_timeout_s,
        read_timeout=options.read_timeout_s,
        max_pool_connections=options.connections_max,
        retries={"total_max_attempts": 1},
        parameter_validation=False,
        tcp_keepalive=True,
        user_agent_extra="lodefs",
        s3={"addressing_style": "path"} if custom else None,
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    try:
        session = _session(options.profile)
        own = options.credentials
        keys = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
        client = session.client(
            "s3",
            endpoint_url=options.endpoint_url,
            region_name=options.region or session.region_name or REGION,
            config=config,
            **({} if own is None else dict(zip(keys, own, strict=True))),
        )
    except (BotoCoreError, ValueError) as error:
        raise InvalidInput(f"S3 cannot be reached with these settings: {error}") from error
    _watch_connections(client, current)
    _bound_answers(client)

    def keep(request: Any, **_: Any) -> None:
        headers = {name.lower(): _text(value) for name, value in request.headers.items()}
        current.request = (request.url, headers)

    client.meta.events.register("before-send.s3.GetObject", keep)
    if options.requester_pays:
        client.meta.events.register("before-sign.s3", _say_who_pays)
    by_md5 = config.merge(Config(s3={**(config.s3 or {}), "payload_signing_enabled": False}))

    def leave_unsigned(request: Any, **_: Any) -> None:
        if "Content-MD5" in request.headers:  # MD5 is signed, so the body needs no SHA-256
            request.context["client_config"] = by_md5

    client.meta.events.register("before-sign.s3.PutObject", leave_unsigned)
    return client


def _say_who_pays(request: Any, **_: Any) -> None:
    """Adds the header of "Using Requester Pays buckets" in Amazon's S3 User Guide."""
    request.headers["x-amz-request-payer"] = "requester"


def node_credentials() -> Callable[[], Credentials]:
    """Returns a function that finds the current credentials in AWS's usual places. It raises:
    Denied if there are none; Unavailable if they cannot be renewed."""
    from botocore.exceptions import BotoCoreError

    found = _session().get_credentials()

    def credentials() -> Credentials:
        if found is None:
            raise Denied("this node has no credentials for S3")
        try:
            return Credentials(*found.get_frozen_credentials()[:3])
        except BotoCoreError as error:
            raise Unavailable(
                f"this node's credentials for S3 cannot be renewed: {error}"
            ) from error

    return credentials


def _session(profile: str | None = None) -> Any:
    """Returns a new session, with AWS's current settings, or those of a profile. It leaves dates
    as texts: nobody reads them, and parsing them takes most of the time of a list."""
    import boto3
    import botocore.session

    session = botocore.session.Session(profile=profile)
    session.register_component("data_loader", _loader(session.get_config_variable("data_path")))
    parsers = session.get_component("response_parser_factory")
    parsers.set_parser_defaults(timestamp_parser=lambda text: text)
    return boto3.session.Session(botocore_session=session)


@cache
def _loader(data_path: str | None) -> Any:
    """Returns the loader of AWS's service descriptions, shared by all clients of a process, since
    it takes most of the time to open one."""
    from botocore.loaders import create_loader

    return create_loader(data_path)


def endpoint_of(options: S3Options) -> str:
    """Returns the URL that requests go to. Raises: InvalidInput as open_client does."""
    client = open_client(options, S3Transfer())
    try:
        return str(client.meta.endpoint_url)
    finally:
        client.close()


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode("latin-1")


def _watch_connections(client: Any, current: S3Transfer) -> None:
    """Lets a thread's transfer close the connection that it uses, once it sends on it."""
    from botocore.awsrequest import (
        AWSHTTPConnection,
        AWSHTTPConnectionPool,
        AWSHTTPSConnection,
        AWSHTTPSConnectionPool,
    )

    pools = {
        "http": type(
            "WatchedPool",
            (AWSHTTPConnectionPool,),
            {"ConnectionCls": watched(AWSHTTPConnection, current)},
        ),
        "https": type(
            "WatchedTlsPool",
            (AWSHTTPSConnectionPool,),
            {"ConnectionCls": watched(AWSHTTPSConnection, current)},
        ),
    }
    client._endpoint.http_session._pool_classes_by_scheme.update(pools)


def _bound_answers(client: Any) -> None:
    """Limits answers that botocore reads whole (lists, errors and the like) to
    ANSWER_SIZE_BYTES_MAX. Bodies of objects are streamed."""
    session = client._endpoint.http_session
    send = session.send

    def send_bounded(request: Any) -> Any:
        is_object, request.stream_output = request.stream_output, True
        response = send(request)
        if not is_object or response.status_code >= 300:
            data = response.raw.read(ANSWER_SIZE_BYTES_MAX + 1)
            if len(data) > ANSWER_SIZE_BYTES_MAX:
                response.raw.close()
                raise Unavailable(
                    f"the server's answer to {request.method} {request.url.partition('?')[0]} "
                    f"has more than {ANSWER_SIZE_BYTES_MAX} bytes; {CHECK}"
                )
            response._content = data
        return response

    session.send = send_bounded


def is_answer(error: Exception) -> bool:
    """Whether an error of boto3 is an answer of the server."""
    from botocore.exceptions import ClientError

    return isinstance(error, ClientError)


def translated(error: Exception, what: str, bucket: str) -> Exception:
    """Returns the error of lodefs for one of boto3, botocore or urllib3; others unchanged."""
    from botocore import exceptions as aws
    from botocore.parsers import ResponseParserError
    from urllib3.exceptions import HTTPError
    from urllib3.exceptions import TimeoutError as LateError

    if isinstance(error, aws.ClientError):
        return error_of(error.response, what, bucket)
    no_credentials = (
        aws.NoCredentialsError,
        aws.PartialCredentialsError,
        aws.CredentialRetrievalError,
        aws.TokenRetrievalError,
        aws.ProfileNotFound,
    )
    if isinstance(error, no_credentials):
        return Denied(
            f"{what}: no AWS credentials were found ({error}); set AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY, AWS_PROFILE, or ~/.aws/credentials"
        )
    if isinstance(error, aws.ConnectTimeoutError | aws.ReadTimeoutError | TimeoutError | LateError):
        return DeadlineExceeded(f"{what}: {error}; {CHECK}")
    if isinstance(error, aws.ParamValidationError):
        return InvalidInput(f"{what}: {error}")
    if isinstance(error, aws.EndpointConnectionError):
        return Unavailable(f"{what}: {error}; {CHECK}")
    # broken connections, truncated bodies, answers that S3 does not give
    broken = (aws.BotoCoreError, ResponseParserError, HTTPError, OSError, KeyError, ValueError)
    if isinstance(error, broken):
        return Unavailable(f"{what}: the answer was incomplete, or did not come from S3 ({error})")
    return error


def range_reader_of(
    client: Any, current: S3Transfer, key: str, options: S3Options
) -> RangeReader | None:
    """Returns a reader that makes the same requests as boto3's last one for ``key``, if
    possible."""
    url, headers = current.request
    model = request_template(url, headers, key)
    try:
        session = client._endpoint.http_session
        if model is None or session._proxy_config.proxy_url_for(url):
            return None
        make = session._get_connection_manager(url).connection_from_url(url)._new_conn
        keys = client._request_signer._credentials
        ca_file = _ca_file(session)
    except AttributeError:  # this botocore keeps them elsewhere, so it makes all reads
        return None

    def connect() -> Any:
        connection = make()
        connection.connect()
        return connection

    def credentials() -> Credentials:
        return Credentials(*keys.get_frozen_credentials()[:3])

    return RangeReader(model, connect, credentials, options, ca_file=ca_file)


def _ca_file(session: Any) -> str:
    """Returns the file of certificates that botocore checks servers with; "" if it does not check
    them, or uses a client certificate. Raises: AttributeError."""
    from botocore.httpsession import get_cert_path

    path = get_cert_path(session._verify) if session._verify and not session._cert_file else ""
    return path if isinstance(path, str) and isfile(path) else ""
