"""Signs reads for S3. Pure, except that it keeps signing keys for a day.

Source: AWS General Reference, "Create a signed AWS API request" (Signature Version 4), with the
headers that Amazon S3 needs. It covers only requests without a body.
"""

from __future__ import annotations

import time
from typing import NamedTuple

_NO_BODY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"  # SHA-256 of nothing
_ALGORITHM = "AWS4-HMAC-SHA256"


class Credentials(NamedTuple):
    """The credentials of one user. ``token`` is set if they are temporary."""

    access_key: str
    secret_key: str
    token: str | None = None

    def __repr__(self) -> str:
        """Returns a text without the secrets."""
        return f"Credentials({self.access_key})"


class Signer:
    """Signs reads from one host in one region. Many threads may use it at once."""

    def __init__(self, host: str, region: str) -> None:
        self._host = host
        self._region = region
        self._keys: tuple[str, Credentials, bytes] | None = None  # for the last day and user

    def headers(
        self,
        path: str,
        credentials: Credentials,
        now_s: float,
        *,
        method: str = "GET",
        query: str = "",
    ) -> dict[str, str]:
        """Returns the headers that authenticate a read of ``path`` and ``query``, as in the request
        line, the query in its canonical form."""
        # Here, since OpenSSL takes milliseconds to load and most stores do not need it
        import hashlib
        import hmac

        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now_s))
        day = stamp[:8]
        signed = {"host": self._host, "x-amz-content-sha256": _NO_BODY, "x-amz-date": stamp}
        if credentials.token:
            signed["x-amz-security-token"] = credentials.token
        names = ";".join(signed)
        lines = "".join(f"{name}:{value}\n" for name, value in signed.items())
        asked = f"{method}\n{path}\n{query}\n{lines}\n{names}\n{_NO_BODY}"
        scope = f"{day}/{self._region}/s3/aws4_request"
        digest = hashlib.sha256(asked.encode()).hexdigest()
        text = f"{_ALGORITHM}\n{stamp}\n{scope}\n{digest}"
        signature = hmac.digest(self._key(day, credentials), text.encode(), "sha256").hex()
        signed["authorization"] = (
            f"{_ALGORITHM} Credential={credentials.access_key}/{scope}, "
            f"SignedHeaders={names}, Signature={signature}"
        )
        return signed

    def _key(self, day: str, credentials: Credentials) -> bytes:
        kept = self._keys
        if kept is not None and kept[:2] == (day, credentials):
            return kept[2]
        import hmac

        key = b"AWS4" + credentials.secret_key.encode()
        for part in (day, self._region, "s3", "aws4_request"):
            key = hmac.digest(key, part.encode(), "sha256")
        self._keys = (day, credentials, key)
        return key
