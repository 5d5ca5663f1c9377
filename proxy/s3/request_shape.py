"""What the requests of one client have in common, so that the next one is read at once.

A client sends the same lines over and over; a few values differ, and of all but one of these the
length is known. So a request that was read header by header, and was found good, says how the next
one is read: literal bytes with values between them. Each value is checked to be what it may be, so
that no other end of the head is in it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from lodefs.proxy.s3.signature import SIGNATURE_CHARS, AccessKey, Claim, Signer

RANGE, IF_MATCH, STAMP, SIGNATURE, REQUEST_ID = range(5)  # the places of values
_ALWAYS_VARYING = (b"range", b"if-match")  # no shape has one of these in its literals
_LINE = re.compile(rb"([^:\r\n]+): ([^\r\n]*)\r\n")
_RANGE_CHARS_MAX = 33


class _Varying(NamedTuple):
    """A header that ends with a value that differs. ``length`` 0: it goes to the line's end.
    The group of ``pattern`` is the value."""

    place: int
    length: int
    pattern: re.Pattern[bytes]


_VARYING = {
    b"range": _Varying(RANGE, 0, re.compile(rb"bytes=([0-9]{1,16}-[0-9]{0,16}|-[0-9]{1,16})\Z")),
    b"if-match": _Varying(IF_MATCH, 66, re.compile(rb'("[0-9a-f]{64}")\Z')),
    b"x-amz-date": _Varying(STAMP, 16, re.compile(rb"([0-9]{8}T[0-9]{6}Z)\Z")),
    b"authorization": _Varying(
        SIGNATURE, SIGNATURE_CHARS, re.compile(rb"[!-~ ]*Signature=([0-9a-f]{64})\Z")
    ),
    b"amz-sdk-invocation-id": _Varying(REQUEST_ID, 36, re.compile(rb"([0-9A-Fa-f-]{36})\Z")),
}


class RequestShape:
    """How requests are read. ``claim``: that of the request it was learned from; None where nobody
    looks at who asks.

    ``key``, ``signer`` and ``repo`` are what its reader remembers: the key of the last good
    request, what its signatures are made with, and a repository that it may read.
    """

    __slots__ = ("_literals", "_order", "_tail", "_template", "bucket", "claim", "key", "repo",
                 "scope", "signer")  # fmt: skip

    def __init__(
        self,
        literals: Sequence[tuple[bytes, int, int]],
        tail: bytes,
        *,
        bucket: str = "",
        claim: Claim | None = None,
        template: bytes = b"%b",
        order: Sequence[int] = (STAMP,),
    ) -> None:
        """Read ``literals``, each with a value behind it, then ``tail``. ``template``: canonical
        headers, with the values that ``order`` names."""
        self._literals = literals  # before each value: bytes; the value's place; its length
        self._tail = tail
        self._template = template
        self._order: Callable[[list[bytes]], Any] = itemgetter(*order)
        self.bucket = bucket
        self.claim = claim
        self.scope = b"" if claim is None else claim.scope.encode("ascii", "replace")
        self.key: AccessKey | None = None
        self.signer: Signer | None = None
        self.repo = ""

    def values_of(self, data: bytes, at: int) -> list[bytes] | None:
        """What a request says whose target ends at ``at``, by the places above; b"" for what it
        does not say. None if it has another shape. Range and tag are as they came."""
        values = [b""] * len(_VARYING)
        for literal, place, length in self._literals:
            if not data.startswith(literal, at):
                return None
            at += len(literal)
            end = at + length if length else data.find(b"\r", at, at + _RANGE_CHARS_MAX + 1)
            values[place] = data[at:end]
            at = end
        if data[at:] != self._tail:
            return None
        words = b"".join(values[STAMP:]).replace(b"-", b"")
        return values if not words or words.isalnum() else None

    def canonical_headers(self, values: list[bytes]) -> bytes:
        """The canonical headers of a request that says this, and what comes behind them."""
        made: bytes = self._template % self._order(values)
        return made


def learn_shape(
    data: bytes, at: int, bucket: str, claim: Claim | None, canonical: bytes
) -> RequestShape | None:
    """The shape of a plain request whose target ends at ``at``; None if there is none to be used.
    ``canonical``: its canonical headers and what comes behind them, if it has a claim."""
    literals = []
    begin = at
    for line in _LINE.finditer(data, data.find(b"\r\n", at) + 2):
        found = _varying(line[1].lower(), line[2])
        if found is not None:
            varying, value = found
            end = line.start(2) + value.start(1)
            literals.append((data[begin:end], varying.place, varying.length))
            begin = line.start(2) + value.end(1)
        elif line[1].lower() in _ALWAYS_VARYING:
            return None  # another form, which is not read here
    tail = data[begin:]
    if claim is None:
        return RequestShape(literals, tail, bucket=bucket)
    template, order = _template(canonical)
    if not order:
        return None
    return RequestShape(literals, tail, bucket=bucket, claim=claim, template=template, order=order)


def _template(canonical: bytes) -> tuple[bytes, list[int]]:
    """Canonical headers with %b for each value that differs, and the places of these."""
    lines, order = [], []
    for line in canonical.split(b"\n"):
        name, _, value = line.partition(b":")
        found = _varying(name, value)
        made = line.replace(b"%", b"%%")
        if found is not None:
            varying, match = found
            made = made[: -len(match[1])] + b"%b"
            order.append(varying.place)
        lines.append(made)
    return b"\n".join(lines), order


def _varying(name: bytes, value: bytes) -> tuple[_Varying, re.Match[bytes]] | None:
    """What differs in a header, and where; None if nothing does."""
    varying = _VARYING.get(name)
    match = varying.pattern.match(value) if varying is not None else None
    return None if varying is None or match is None else (varying, match)
