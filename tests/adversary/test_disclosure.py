"""What a token or a key for S3 is told of what it does not cover: nothing, by any answer."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import boto3
import pytest
from botocore.client import Config
from botocore.exceptions import ClientError

from lodefs.chunkstore.format.names import Spec
from lodefs.chunkstore.objects.directory import DirectoryObjects
from lodefs.proxy.api import routes
from lodefs.proxy.http.tokens import create_s3_token
from lodefs.proxy.s3.buckets import S3Settings
from tests.support.mount.mounts import until
from tests.support.proxy.fake_node import RunningProxy
from tests.support.proxy.rig import Rig, serve_rig

OWN, NO_OWN = "pub/a", "pub/b"
FOREIGN, NO_FOREIGN = "medical/patients", "medical/nobodies"
NO_COMMIT, NO_JOB = "0123456789abcdef" * 4, "0" * 16
SECRET_FILE, SECRET_BYTES = b"dr-xaver.txt", b"what nobody is to see"
BUCKETS = {"own": Spec(OWN, "main", b""), "hidden": Spec(FOREIGN, "main", b"")}


class World(NamedTuple):
    """A proxy with a token for pub/*, and what it must not tell."""

    proxy: RunningProxy
    token: str
    s3_secret: str
    store: Path
    commit: str  # of the foreign repository
    job: str  # that warmed it
    secrets: tuple[bytes, ...]

    def tell(self, seen: bytes, about: str) -> None:
        """Fails if something was told that is not covered."""
        assert not [one for one in self.secrets if one in seen], (about, seen)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    store = tmp_path / "place-of-the-store"
    rig = Rig(tmp_path, {b"f": b"0" * 5000}, below=DirectoryObjects(store))
    rig.maker.commit(OWN, {b"f": b"1" * 5000, b"d/g": b"2" * 5000})
    commit = rig.maker.commit(FOREIGN, {SECRET_FILE: SECRET_BYTES})
    tokens = tmp_path / "tokens"
    made = create_s3_token(tokens, "team", ["pub/*"], now_s=1)
    s3 = S3Settings(aliases=BUCKETS)
    with serve_rig(rig, tokens_file=tokens, s3=s3, tcp_is_local=True) as (proxy, _):
        job = _known_here(proxy)
        secrets = (
            *(b"patients", SECRET_FILE, SECRET_BYTES, commit.hex().encode(), job.encode()),
            *(bytes(store), b"place-of-the-store", bytes(tmp_path / "cache")),
        )
        yield World(proxy, made.text, made.s3_secret, store, commit.hex(), job, secrets)


def _known_here(proxy: RunningProxy) -> str:
    """The foreign repository is read, warmed and pinned by somebody who may. The job's id."""
    with proxy.client() as all_of_it:
        assert all_of_it.get(f"/files/{FOREIGN}@main/{SECRET_FILE.decode()}").body == SECRET_BYTES
        body = json.dumps({"repo": FOREIGN, "pin_s": 600}).encode()
        job = str(all_of_it.get("/warm", method="POST", body=body).json()["id"])
        until(lambda: all_of_it.get(f"/warm/{job}").json()["state"] == "done")
        assert FOREIGN.encode() in all_of_it.get("/metrics").body
    return job


LFS_OBJECT = {"oid": "0" * 64, "size": 1}


def targets(repo: str, commit: str, job: str) -> Iterator[str]:
    """A target of each route there is, about a repository; made of the tables of routes.py."""
    yield from routes._PLAIN
    for rev in ("main", "nope", commit):
        for prefix in routes._IN_SNAPSHOT:
            yield from (f"{prefix}{repo}@{rev}{path}" for path in ("", "/", "/f", "/nope"))
        for part in routes._PAGE_TREES:
            yield from (f"/page/{part}/{repo}@{rev}{path}?match=a" for path in ("", "/f"))
        yield from (f"/hf/{repo}/resolve/{rev}/f", f"/hf/datasets/{repo}/resolve/{rev}/f")
        for call in ("revision", "tree", "paths-info"):
            yield f"/hf/api/models/{repo}/{call}/{rev}"
    yield from (f"/hf/api/models/{repo}", f"/hf/api/models/{repo}/refs")
    for call in ("objects/batch", f"objects/{'0' * 64}", "verify", "locks", "locks/verify"):
        yield f"/lfs/{repo}/{call}"
    for node_part in routes._NODE_PARTS:
        for ino in (1, 77):
            yield f"/nodes/{repo}@{commit}/{ino}/{node_part.decode()}?name=f".replace("/?", "?")
    yield from (f"/page/repository/{repo}", "/page/repositories", "/page/static/app.js")
    yield from (f"/warm/{job}", "/nope", "/page/nope", f"/files/{repo}", "/files/%")


def bodies(target: str, repo: str) -> Iterator[tuple[str, bytes | None]]:
    """Methods and bodies to ask a target with."""
    yield from (("HEAD", None), ("GET", None))
    if target in ("/warm", "/evict", "/cache/used"):
        for words in ({"repo": repo}, {"repo": repo, "paths": ["nope"]}, {"everything": True}):
            yield "POST", json.dumps(words).encode()
        yield "POST", b'{"everything":true,"pins_only":true,"owner":"x"}'
    if "/paths-info/" in target:
        yield "POST", b'{"paths":["f","nope"]}'
    if target.endswith("/objects/batch"):
        yield "POST", json.dumps({"operation": "download", "objects": [LFS_OBJECT]}).encode()
        yield "POST", json.dumps({"operation": "upload", "objects": [LFS_OBJECT]}).encode()
    if target.endswith(("/locks", "/verify")):
        yield "POST", json.dumps({"path": "f"} | LFS_OBJECT).encode()
    if target.startswith("/warm/"):
        yield "DELETE", None


def asked(world: World, target: str, method: str, body: bytes | None) -> tuple[int, bytes]:
    """Status, and all that came; of what never ends the first state of the node."""
    connection = http.client.HTTPConnection("127.0.0.1", world.proxy.port, timeout=60)
    try:
        headers = {"Authorization": f"Bearer {world.token}", "X-Request-Id": "one"}
        connection.request(method, target, body, headers)
        answer = connection.getresponse()
        seen = str(answer.headers).encode()
        if (method, target, answer.status) == ("GET", "/page/events", 200):
            while b"event: node" not in seen or not seen.endswith(b"\n\n"):
                seen += answer.fp.readline()
            return answer.status, seen
        return answer.status, seen + answer.read()
    finally:
        connection.close()


def test_no_route_tells(world: World) -> None:
    """Every route, about every kind of repository, while the store is there and when it is gone."""
    kinds = set(world.proxy.server._handlers._of) | {routes.PAGE_LOGIN, routes.PAGE_LOGOUT}
    found = {routes.route_of(one).kind for one in targets(OWN, NO_COMMIT, NO_JOB)}
    assert kinds <= found, "a route that this test does not ask"
    for is_there in (True, False):
        if not is_there:
            world.store.rename(world.store.with_name("moved"))
        for repo in (OWN, NO_OWN, NO_FOREIGN):
            for target in targets(repo, NO_COMMIT, NO_JOB):
                for method, body in bodies(target, repo):
                    status, seen = asked(world, target, method, body)
                    world.tell(seen, f"{method} {target}")
                    assert status != 500 or not is_there, (target, seen)


def test_what_is_there_is_as_what_is_not(world: World) -> None:
    """About a foreign repository, commit or job, each route says the same whether it exists."""
    there = list(targets(FOREIGN, world.commit, world.job))
    nowhere = list(targets(NO_FOREIGN, NO_COMMIT, NO_JOB))
    for one, other in zip(there, nowhere, strict=True):
        if "patients" not in one and world.job not in one:
            continue  # the other test has these
        both = zip(bodies(one, FOREIGN), bodies(other, NO_FOREIGN), strict=True)
        for (method, body), (_, other_body) in both:
            status, seen = asked(world, one, method, body)
            for name, stand_in in ((FOREIGN, NO_FOREIGN), (world.job, NO_JOB)):
                seen = seen.replace(name.encode(), stand_in.encode())  # what was asked for
            expected = asked(world, other, method, other_body)
            assert (status, _undated(seen)) == (expected[0], _undated(expected[1])), one
            world.tell(seen.replace(world.commit.encode(), b""), f"{method} {one}")


def _undated(seen: bytes) -> bytes:
    lines = seen.split(b"\n")
    return b"\n".join(line for line in lines if not line.lower().startswith(b"date:"))


def operations(client: Any) -> Iterator[tuple[str, Any]]:
    """All operations of S3, and the shapes of what each takes; but for one that asks another
    host."""
    model = client.meta.service_model
    for name in model.operation_names:
        if name != "WriteGetObjectResponse":
            yield name, model.operation_model(name).input_shape


def filled(shape: Any, bucket: str, key: str) -> Any:
    """Something that an operation takes: what it must have, about a bucket and a key."""
    if shape is None:
        return {}
    if shape.type_name == "structure":
        places = {"Bucket": bucket, "Key": key, "CopySource": f"{bucket}/{key}", "Prefix": key}
        return {
            name: places.get(name) or filled(shape.members[name], bucket, key)
            for name in shape.required_members
        }
    if shape.type_name == "list":
        return [filled(shape.member, bucket, key)]
    samples = {"string": "x", "blob": b"x", "boolean": True, "timestamp": "2026-01-01T00:00:00Z"}
    return (getattr(shape, "enum", None) or [samples.get(shape.type_name, 1)])[0]


def test_no_operation_of_s3_tells(world: World) -> None:
    """Every operation, about own and foreign buckets and keys; what is foreign is as what is not
    there."""
    seen: list[bytes] = []
    client = boto3.client(
        "s3",
        endpoint_url=f"http://127.0.0.1:{world.proxy.s3_port}",
        region_name="eu-west-1",
        aws_access_key_id="team",
        aws_secret_access_key=world.s3_secret,
        config=Config(
            s3={"addressing_style": "path"},
            retries={"total_max_attempts": 1},
            parameter_validation=False,
        ),
    )

    def note(http_response: Any, **_: Any) -> None:
        seen.append(str(dict(http_response.headers)).encode() + (http_response.content or b""))

    client.meta.events.register("after-call.s3", note)
    places = [("lodefs", f"{repo}@main/f") for repo in (OWN, NO_OWN, FOREIGN, NO_FOREIGN)]
    places += [("lodefs", f"{OWN}@nope/f"), ("own", "nope"), ("hidden", "f"), ("nought", "f")]
    told: dict[str, list[tuple[str, int]]] = {}
    for is_there in (True, False):
        if not is_there:
            world.store.rename(world.store.with_name("moved"))
        for name, shape in operations(client):
            needs = set(shape.required_members) if shape is not None else set()
            for bucket, key in places if "Bucket" in needs else places[:1]:
                given = filled(shape, bucket, key)
                told.setdefault(f"{name} {is_there}", []).append(_code(client, name, given))
                asked_for = key.partition("@")[0].encode()
                for one in seen:
                    world.tell(one.replace(asked_for, b""), f"{name} {bucket} {key}")
                seen.clear()
        for prefix in ("", "med", "medical/", f"{FOREIGN}@", f"{FOREIGN}@main/"):
            for delimiter in ("", "/", "@"):
                given = {"Bucket": "lodefs", "Prefix": prefix, "Delimiter": delimiter}
                with suppress(ClientError):
                    client.list_objects_v2(**given)
                for one in seen:
                    world.tell(
                        one.replace(prefix.partition("@")[0].encode() or b"\0", b""), str(given)
                    )
                seen.clear()
    assert len(told) > 200
    for codes in (codes for codes in told.values() if len(codes) == len(places)):
        assert codes[2] == codes[3]
        assert codes[6] == codes[7]


def _code(client: Any, name: str, given: dict[str, str]) -> tuple[str, int]:
    try:
        client._make_api_call(name, given)
    except ClientError as error:
        metadata = error.response["ResponseMetadata"]
        return error.response["Error"]["Code"], metadata["HTTPStatusCode"]
    return "", 200
