"""Signatures are those that botocore makes."""

from __future__ import annotations

from calendar import timegm
from time import strptime

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as BotoCredentials

from lodefs.chunkstore.objects.s3.sigv4 import Credentials, Signer

HOST = "s3.example:9000"
PATH = "/bucket/a%20prefix/packs/00/00ab.cd-ef_gh"


def signed_by_botocore(credentials: Credentials, region: str) -> dict[str, str]:
    """The headers of a GET, by lower-case name."""
    request = AWSRequest("GET", f"http://{HOST}{PATH}", {})
    S3SigV4Auth(BotoCredentials(*credentials), "s3", region).add_auth(request)
    return {name.lower(): value for name, value in request.headers.items()}


@pytest.mark.parametrize("token", [None, "of/a+session=="])
@pytest.mark.parametrize("region", ["us-east-1", "eu-west-3"])
def test_signatures_are_those_of_botocore(token: str | None, region: str) -> None:
    """Same user, place and second: the same headers."""
    credentials = Credentials("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", token)
    expected = signed_by_botocore(credentials, region)
    now_s = timegm(strptime(expected["x-amz-date"], "%Y%m%dT%H%M%SZ"))
    found = Signer(HOST, region).headers(PATH, credentials, now_s)
    assert found.pop("host") == HOST
    assert found == expected


def test_other_days_and_users_have_other_keys() -> None:
    """What is kept of one is not used for another, and comes back right."""
    signer = Signer(HOST, "us-east-1")
    users = [Credentials("a", "secret"), Credentials("a", "other"), Credentials("a", "secret")]
    first = [signer.headers(PATH, user, 0)["authorization"] for user in users]
    assert first[0] == first[2] != first[1]
    later = signer.headers(PATH, users[0], 86400)["authorization"]
    assert "/19700102/" in later
    assert later == Signer(HOST, "us-east-1").headers(PATH, users[0], 86400)["authorization"]


def test_secrets_are_not_shown() -> None:
    """Not in a traceback, not in a log."""
    assert repr(Credentials("name", "secret", "token")) == "Credentials(name)"
