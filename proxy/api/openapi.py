"""The OpenAPI document of the proxy, which /openapi.json answers.

Schemas come from the structures that are sent, so they cannot drift; tests check the rest against a
running server.
"""

from __future__ import annotations

from typing import Any

import msgspec

from lodefs.chunkstore.protocol import cache_control, wire
from lodefs.proxy.api import views
from lodefs.proxy.api.ranges import RANGES_MAX
from lodefs.proxy.api.routes import PAGE_ENTRIES_DEFAULT

Json = dict[str, Any]

_REPO_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*$"
_REV_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
_FAILURES: dict[int, str] = {
    400: "A malformed name, path, number or query",
    401: "A token is needed, or this one is unknown",
    403: "The token may not read this repository",
    404: "No such repository, revision, path or inode number; or it is of another kind",
    500: "An error inside the proxy",
    502: "Stored bytes are damaged, and no good copy was found",
    503: "The store did not answer, or the proxy is overloaded",
    504: "The answer took too long",
}
_TEXT: Json = {"schema": {"type": "string"}}


def document(version: str) -> Json:
    structures: list[Any] = [
        *(views.StatView, views.ListView, views.SnapshotView, wire.Failure),
        *(cache_control.WarmRequest, cache_control.WarmStatus, cache_control.WarmJobs),
        *(cache_control.PinsView, cache_control.EvictRequest, cache_control.EvictView),
    ]
    _, schemas = msgspec.json.schema_components(
        structures, ref_template="#/components/schemas/{name}"
    )
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "lodefs proxy",
            "version": version,
            "description": "Versioned files of a node's cache. docs/protocol.md says more.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": {**_tree_paths(), **_node_paths(), **_own_paths(), **_cache_control_paths()},
        "components": {
            "schemas": schemas,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"token": []}],
    }


def _tree_paths() -> Json:
    target = [_repo(), _in_path("rev", "A branch, tag, commit id or its beginning", _rev_schema())]
    path = _in_path("path", "A path in the snapshot; it may contain '/'", {"type": "string"})
    commit = {wire.COMMIT_HEADER: _header("The commit that answered")}
    stat = _answer("The entry", _json_of("StatView"), commit)
    page = _answer("One page of entries", _json_of("ListView"), commit)
    listing: Json = {
        "application/json": {"schema": {"$ref": "#/components/schemas/SnapshotView"}},
        wire.MSGPACK: {"schema": {}},
    }
    snapshot = _answer("The commit", listing, commit)
    octets: Json = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
    tree = {"200": _answer("docs/format.md, Tree", octets, commit)}
    return {
        "/files/{repo}@{rev}/{path}": {
            "get": _operation("getFile", "A file's bytes",
                              [*target, path, *_conditions(range_=True)],
                              _file_answers(ranges=True)),
            "head": _operation("headFile", "A file's headers", [*target, path, *_conditions()],
                               _file_answers(ranges=False)),
        },
        "/stat/{repo}@{rev}/{path}": {
            "get": _operation("getStat", "The entry at a path", [*target, path], {"200": stat}),
        },
        "/stat/{repo}@{rev}": {
            "get": _operation("getRootStat", "The root directory", target, {"200": stat}),
        },
        "/list/{repo}@{rev}/{path}": {
            "get": _operation("list", "A directory", [*target, path, *_paging()], {"200": page}),
        },
        "/list/{repo}@{rev}": {
            "get": _operation("listRoot", "The root", [*target, *_paging()], {"200": page}),
        },
        "/trees/{repo}@{rev}/{path}": {
            "get": _operation("getTree", "A directory's stored form", [*target, path], tree),
        },
        "/trees/{repo}@{rev}": {
            "get": _operation("getRootTree", "The root's stored form", target, tree),
        },
        "/snapshots/{repo}@{rev}": {
            "get": _operation("getSnapshot", "The commit of a revision", target, {"200": snapshot}),
        },
    }  # fmt: skip


def _node_paths() -> Json:
    commit = _in_path(
        "commit", "A whole commit id", {"type": "string", "pattern": "^[0-9a-f]{64}$"}
    )
    number: Json = {"type": "integer", "minimum": 1, "maximum": (1 << 63) - 1}
    ino = _in_path("ino", "An inode number; 1 is the root", number)
    target = [_repo(), commit, ino]
    name: Json = {
        "name": "name",
        "in": "query",
        "required": True,
        "description": "The name of a child, its bytes percent-encoded",
        "schema": {"type": "string", "minLength": 1},
    }
    base = "/nodes/{repo}@{commit}/{ino}"
    packed: Json = {wire.MSGPACK: {"schema": {}}}
    node = {"200": _answer("wire.Node: an array as docs/protocol.md says", packed)}
    page = {"200": _answer("wire.Page", packed)}
    return {
        base: {"get": _operation("getNode", "An entry by number", target, node)},
        f"{base}/children": {
            "get": _operation("getChildren", "A directory", [*target, *_paging()], page)
        },
        f"{base}/lookup": {"get": _operation("lookup", "One child", [*target, name], node)},
        f"{base}/data": {
            "get": _operation("getData", "A file's bytes", [*target, *_conditions(range_=True)],
                              _file_answers(ranges=True)),
        },
    }  # fmt: skip


def _own_paths() -> Json:
    any_object: Json = {"application/json": {"schema": {"type": "object"}}}
    text: Json = {"text/plain": {"schema": {"type": "string"}}}
    packed: Json = {wire.MSGPACK: {"schema": {}}}
    return {
        "/healthz": {"get": _operation("healthz", "Whether it is alive", [], _ok(any_object))},
        "/readyz": {"get": _operation("readyz", "Whether it can serve", [], _ok(any_object))},
        "/metrics": {"get": _operation("metrics", "Metrics for Prometheus", [], _ok(text))},
        "/status": {"get": _operation("status", "Figures", [], _ok(any_object))},
        "/openapi.json": {"get": _operation("openapi", "This", [], _ok(any_object))},
        wire.CACHE: {
            "get": _operation(
                "getCache", "The cache's location; on the Unix socket only", [], _ok(packed)
            ),
        },
        wire.CACHE_USED: {
            "post": {
                **_operation(
                    "reportUse",
                    "A report of reads; on the Unix socket only",
                    [],
                    {"204": {"description": "Noted"}},
                ),
                "requestBody": {"required": True, "content": packed},
            },
        },
    }


def _cache_control_paths() -> Json:
    """Returns the paths that exist on the Unix socket only."""
    job = _in_path("id", "The id of a job", {"type": "string", "pattern": "^[0-9a-f]{16}$"})
    status = _ok(_json_of("WarmStatus"))
    began = {"202": _answer("The job", _json_of("WarmStatus"), {"Location": _header("The job")})}
    return {
        cache_control.WARM: {
            "post": _posted("warm", "Fetch files into the cache", "WarmRequest", began),
            "get": _operation("warmJobs", "The jobs", [], _ok(_json_of("WarmJobs"))),
        },
        f"{cache_control.WARM}/{{id}}": {
            "get": _operation("warmStatus", "A job's progress", [job], status),
            "delete": _operation("cancelWarm", "End a job", [job], status),
        },
        cache_control.PINS: {"get": _operation("pins", "The pins", [], _ok(_json_of("PinsView")))},
        cache_control.EVICT: {
            "post": _posted(
                "evict", "Remove pins and cached data", "EvictRequest", _ok(_json_of("EvictView"))
            ),
        },
    }


def _posted(name: str, summary: str, request: str, answers: Json) -> Json:
    body = {"required": True, "content": _json_of(request)}
    return {**_operation(name, summary, [], answers), "requestBody": body}


def _operation(name: str, summary: str, parameters: list[Json], answers: Json) -> Json:
    failures = {
        str(status): _answer(text, _json_of("Failure")) for status, text in _FAILURES.items()
    }
    return {
        "operationId": name,
        "summary": summary,
        "parameters": parameters,
        "responses": {**answers, **failures},
    }


def _ok(content: Json) -> Json:
    return {"200": _answer("OK", content)}


def _answer(description: str, content: Json, headers: Json | None = None) -> Json:
    answer: Json = {"description": description, "content": content}
    return {**answer, "headers": headers} if headers else answer


def _json_of(name: str) -> Json:
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}


def _header(description: str, *, required: bool = True) -> Json:
    return {"description": description, "required": required, **_TEXT}


def _file_answers(*, ranges: bool) -> Json:
    headers: Json = {
        "ETag": _header("An id of the file's bytes, quoted; not its digest"),
        wire.COMMIT_HEADER: _header("The commit that answered"),
        wire.DIGEST_HEADER: _header("The file's BLAKE3 digest, as the commit says"),
        "Accept-Ranges": _header("bytes"),
        "Cache-Control": _header("immutable if the revision is a whole commit id"),
    }
    content: Json = {"*/*": {"schema": {}}}
    answers: Json = {
        "200": _answer("The whole file", content, headers),
        "304": {"description": "The client has the file", "headers": headers},
        "412": _answer("If-Match does not hold", _json_of("Failure")),
    }
    if ranges:
        part: Json = {**headers, "Content-Range": _header("The range", required=False)}
        unsatisfiable = {"Content-Range": _header("bytes */SIZE")}
        answers["206"] = _answer("One range; or several as multipart/byteranges", content, part)
        answers["416"] = _answer("No such range", _json_of("Failure"), unsatisfiable)
    return answers


def _repo() -> Json:
    schema: Json = {"type": "string", "pattern": _REPO_PATTERN, "maxLength": 200}
    return _in_path("repo", "A repository; it may contain '/'", schema)


def _rev_schema() -> Json:
    return {"type": "string", "pattern": _REV_PATTERN, "maxLength": 100}


def _in_path(name: str, description: str, schema: Json) -> Json:
    return {
        "name": name, "in": "path", "required": True, "description": description, "schema": schema,
    }  # fmt: skip


def _paging() -> list[Json]:
    limit: Json = {
        "type": "integer",
        "minimum": 1,
        "maximum": wire.CHILDREN_MAX,
        "default": PAGE_ENTRIES_DEFAULT,
    }
    after = "The name after which the page begins; its bytes percent-encoded"
    return [
        {"name": "after", "in": "query", "description": after, "schema": {"type": "string"}},
        {"name": "limit", "in": "query", "description": "Entries in a page", "schema": limit},
    ]


def _conditions(*, range_: bool = False) -> list[Json]:
    found = [
        {"name": "If-Match", "in": "header", "description": "Tags, or *", **_TEXT},
        {"name": "If-None-Match", "in": "header", "description": "Tags, or *", **_TEXT},
    ]
    if range_:
        text = f"bytes=FIRST-LAST, bytes=FIRST- or bytes=-SIZE; at most {RANGES_MAX} of them"
        found += [
            {"name": "Range", "in": "header", "description": text, **_TEXT},
            {"name": "If-Range", "in": "header", "description": "A strong tag", **_TEXT},
        ]
    return found
