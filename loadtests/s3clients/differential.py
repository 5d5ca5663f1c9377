"""``./run clients rgw [REQUESTS]``: the same requests to the proxy and to a real Ceph RGW.

Requests are generated from a seed. Statuses, headers, bytes and parsed documents are compared; what
differs must be one of EXPLAINED, which docs/s3.md tells.
"""

from __future__ import annotations

import hashlib
import http.client
import random
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from email.utils import formatdate
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, unquote, urlsplit

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from loadtests.s3clients.serving import serving
from loadtests.services.ceph import ceph_rgw

BUCKET = "clients"
REQUESTS = 5000
SHOWN_MAX = 10
_CHANCE = random.Random(20)
FILES = {
    **{name: name.encode() * 3 for name in (
        "a", "a-b", "a.txt", "b/a", "b-a", "b.c/d", "b/c/d", "b/c-d", "b/c.d", "b0", "c d/é +%@",
        "d/e/f/g", "d/e/f-g", "d/e0/x", "d!", "~", "é-", "é/è", "z/zero", "_x/-y/.z",
    )},
    "zero": b"",
    "large": _CHANCE.randbytes(300_000),
    **{f"many/{n:03}": b"%d" % n for n in range(60)},
}  # fmt: skip


class Asked(NamedTuple):
    """A request to be made of both. ``headers`` may name a server's own ETag and time."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]


@dataclass
class Server:
    """One of the two."""

    url: str
    credentials: Credentials
    etags: dict[str, str] = field(default_factory=dict)
    times: dict[str, float] = field(default_factory=dict)
    connection: http.client.HTTPConnection | None = None

    def send(self, asked: Asked, token: str = "") -> tuple[int, dict[str, str], bytes]:
        """Status, headers in lower case, body."""
        query = {**asked.query, **({"continuation-token": token} if token else {})}
        pairs = (f"{quote(k, safe='')}={quote(v, safe='')}" for k, v in query.items())
        target = quote(asked.path, safe="/~") + ("?" + "&".join(pairs) if query else "")
        headers = {name: self._own(value, asked) for name, value in asked.headers.items()}
        request = AWSRequest(method=asked.method, url=self.url + target, headers=headers)
        S3SigV4Auth(self.credentials, "s3", "us-east-1").add_auth(request)
        names = {name: str(value) for name, value in request.headers.items()}
        if self.connection is None:
            parts = urlsplit(self.url)
            self.connection = http.client.HTTPConnection(parts.hostname or "", parts.port)
        self.connection.request(asked.method, target, headers=names)
        answer = self.connection.getresponse()
        found = {name.lower(): value for name, value in answer.getheaders()}
        return answer.status, found, answer.read()

    def _own(self, value: str, asked: Asked) -> str:
        key = asked.path.removeprefix(f"/{BUCKET}/")
        if value.startswith("TIME"):
            return formatdate(self.times.get(key, 1e9) + int(value[4:]), usegmt=True)
        return value.replace("ETAG", self.etags.get(key, '"none"'))


def generate(chance: random.Random) -> Asked:
    """One request."""
    kind = chance.random()
    if kind < 0.5:
        return Asked("GET", f"/{BUCKET}", _listing(chance), {})
    if kind < 0.95:
        key = chance.choice(
            [*FILES] * 3 + ["large"] * 60 + ["zero"] * 10 + ["no", "b", "b/", "a/x"]
        )
        method = chance.choice(("GET", "GET", "HEAD"))
        return Asked(method, f"/{BUCKET}/{key}", {}, _conditions(chance))
    name = chance.choice(("location", "versioning", "policy", "cors", "tagging", "lifecycle"))
    path = chance.choice((f"/{BUCKET}", f"/{BUCKET}", "/no-such-bucket"))
    return Asked(*chance.choice((
        ("GET", path, {name: ""}, {}),
        ("HEAD", path, {}, {}),
        ("GET", path, {"list-type": "2"}, {}),
    )))  # fmt: skip


def _listing(chance: random.Random) -> dict[str, str]:
    words = [
        "",
        "a",
        "b",
        "b/",
        "b/c",
        "d/e",
        "d/e/",
        "é",
        "é/",
        "c d",
        "many/",
        "many/01",
        "x",
        "~",
    ]
    query: dict[str, str] = {}
    two = chance.random() < 0.6
    if two:
        query["list-type"] = "2"
    if chance.random() < 0.7:
        query["prefix"] = chance.choice(words)
    if chance.random() < 0.6:
        query["delimiter"] = chance.choice(["/", "/", "/", "-", "/c", "0", "", "é"])
    if chance.random() < 0.6:
        query["max-keys"] = chance.choice(["1", "2", "7", "10", "100", "1000", "0", "-1", "x"])
    if chance.random() < 0.3:
        after = chance.choice([*FILES, *words, "b/c/", "many/010x"])
        query["start-after" if two else "marker"] = after
    if chance.random() < 0.3:
        query["encoding-type"] = "url"
    if two and chance.random() < 0.2:
        query["fetch-owner"] = chance.choice(["true", "false"])
    return query


def _conditions(chance: random.Random) -> dict[str, str]:
    headers: dict[str, str] = {}
    if chance.random() < 0.6:
        first = chance.choice([0, 1, 5, 1000, 299_999, 300_000, 400_000])
        last = first + chance.choice([0, 1, 100, 1_000_000])
        headers["Range"] = chance.choice([
            f"bytes={first}-{last}", f"bytes={first}-{last}", f"bytes={first}-", f"bytes=-{first}",
            "bytes=5-1", "bytes=a-b", "bytes=", "lines=1-2", "bytes=0-1,4-5",
        ])  # fmt: skip
    tags = ["ETAG", '"other"', "*", '"other", ETAG']
    for name, values in (
        ("If-Match", tags),
        ("If-None-Match", tags),
        ("If-Modified-Since", ["TIME+10", "TIME-10", "TIME+0"]),
        ("If-Unmodified-Since", ["TIME+10", "TIME-10", "TIME+0"]),
    ):
        if chance.random() < 0.2:
            headers[name] = chance.choice(values)
    return headers


def seen(asked: Asked, answer: tuple[int, dict[str, str], bytes]) -> dict[str, Any]:
    """What of an answer is compared."""
    status, headers, body = answer
    found: dict[str, Any] = {"status": status}
    if status >= 400:
        if asked.method != "HEAD":
            found["code"] = ET.fromstring(body).findtext("Code") if body else ""
        return found
    if asked.path.count("/") > 1:
        for name in ("content-length", "content-range", "accept-ranges"):
            found[name] = headers.get(name) if status != 304 else None
        found["body"] = hashlib.sha256(body).hexdigest()
        return found
    if asked.method == "HEAD" or not body:
        return found
    root = ET.fromstring(body)
    # which characters are escaped with encoding-type=url is the server's choice
    plain = unquote if asked.query.get("encoding-type") else str
    space = "{http://s3.amazonaws.com/doc/2006-03-01/}"
    found["document"] = root.tag.removeprefix(space)
    for name in ("Name", "Prefix", "Delimiter", "MaxKeys", "KeyCount", "IsTruncated", "StartAfter",
                 "Marker", "EncodingType"):  # fmt: skip
        value = root.findtext(space + name)
        found[name] = plain(value) if value else value
    for outer, inner in (("Contents", "Key"), ("Contents", "Size"), ("CommonPrefixes", "Prefix")):
        values = [one.findtext(space + inner) or "" for one in root.iter(space + outer)]
        found[f"{outer}.{inner}"] = list(map(plain, values))
    found["owners"] = len(list(root.iter(f"{space}Owner")))
    found["token"] = root.findtext(f"{space}NextContinuationToken")
    return found


Rule = Callable[[Asked, dict[str, Any], dict[str, Any]], bool]
# What may differ, and why: docs/s3.md. Each takes the request, the proxy's answer, RGW's.
EXPLAINED: dict[str, Rule] = {
    "a range of another unit than bytes is no range": lambda asked, own, _: (
        not asked.headers.get("Range", "bytes=").startswith("bytes=")
        and own["status"] in WITHOUT_RANGE
    ),
    "what is no range, or several, is ignored, as AWS does it": lambda asked, own, _: (
        asked.headers.get("Range") in NO_RANGES and own["status"] in WITHOUT_RANGE
    ),
    "the last 0 bytes are no range that can be satisfied": lambda asked, own, _: (
        asked.headers.get("Range") == "bytes=-0" and own["status"] in (304, 412, 416)
    ),
    "'*' and lists of tags mean what RFC 9110 says": lambda asked, own, other: (
        any(asked.headers.get(name) in ANY_TAG for name in ("If-Match", "If-None-Match"))
        and own["status"] != other["status"]
    ),
    "of two conditions that fail, RFC 9110 says which counts": lambda asked, own, other: (
        {own["status"], other["status"]} == {304, 412}
        and sum(name.startswith("If-") for name in asked.headers) > 1
    ),
    "only the object's own date is unmodified: a branch may have been set back": (
        lambda asked, own, other: (
            asked.headers.get("If-Modified-Since") == "TIME+10"
            and (own["status"], other["status"]) in LATER_DATE
        )
    ),
    "max-keys less than 0 is refused, as AWS does it": lambda asked, own, _: (
        asked.query.get("max-keys") == "-1" and own["status"] == 400
    ),
}
LATER_DATE = ((200, 304), (206, 304), (416, 304))
WITHOUT_RANGE = (200, 304, 412)
ANY_TAG = ("*", '"other", ETAG')
NO_RANGES = ("bytes=5-1", "bytes=a-b", "bytes=", "bytes=0-1,4-5")


def explained(asked: Asked, own: dict[str, Any], other: dict[str, Any]) -> str:
    """The name of the rule that explains a difference; "" for none."""
    return next((name for name, rule in EXPLAINED.items() if rule(asked, own, other)), "")


def compare(
    own: Server, other: Server, asked: Asked
) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """The answers of both that differ; of a listing V2, those of all its pages."""
    different = []
    tokens = ("", "")
    for _ in range(100):
        both = [
            seen(asked, one.send(asked, token))
            for one, token in zip((own, other), tokens, strict=True)
        ]
        tokens = tuple(one.pop("token", None) or "" for one in both)  # type: ignore[assignment]
        if both[0] != both[1]:
            different.append((both[0], both[1]))
        if not all(tokens):
            break
    return different


def fill(server: Any) -> Server:
    """RGW with the objects."""
    s3 = server.client()
    s3.create_bucket(Bucket=BUCKET)
    found = Server(server.endpoint_url, Credentials(server.access_key, server.secret_key))
    for key, content in FILES.items():
        s3.put_object(Bucket=BUCKET, Key=key, Body=content)
    return found


def learn(server: Server) -> None:
    """The tags and times of all objects."""
    for key in FILES:
        _, headers, _ = server.send(Asked("HEAD", f"/{BUCKET}/{key}", {}, {}))
        server.etags[key] = headers["etag"]
        parsed = time.strptime(headers["last-modified"], "%a, %d %b %Y %H:%M:%S GMT")
        server.times[key] = time.mktime(parsed) - time.timezone


def run(count: int) -> int:
    """1 if something differs that nothing explains."""
    chance = random.Random(1)
    named: Counter[str] = Counter()
    unknown = 0
    with tempfile.TemporaryDirectory(prefix="lodefs-rgw-") as scratch, ceph_rgw() as rgw:
        tree = dict(FILES)
        with serving(Path(scratch), tree) as (endpoint, keys):
            own_key = keys["AWS_ACCESS_KEY_ID"], keys["AWS_SECRET_ACCESS_KEY"]
            own = Server(endpoint, Credentials(*own_key))
            other = fill(rgw)
            learn(own)
            learn(other)
            for _ in range(count):
                asked = generate(chance)
                for ours, theirs in compare(own, other, asked)[:1]:
                    why = explained(asked, ours, theirs)
                    named[why or "unexplained"] += 1
                    if not why:
                        unknown += 1
                        if unknown <= SHOWN_MAX:
                            keys_of = [k for k in ours | theirs if ours.get(k) != theirs.get(k)]
                            print(asked)
                            for name in keys_of:
                                print(f"   {name}: {ours.get(name)!r}; RGW {theirs.get(name)!r}")
    print(f"{count} requests, {sum(named.values())} answers differ")
    for why, number in named.most_common():
        print(f"{number:6} {why}")
    return 1 if unknown else 0


if __name__ == "__main__":
    sys.exit(run(int(sys.argv[1]) if len(sys.argv) > 1 else REQUESTS))
