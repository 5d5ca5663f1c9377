"""The XML of S3's answers.

Source: Amazon S3 API Reference, namespace of 2006-03-01.
"""

from __future__ import annotations

import re
from email.utils import formatdate
from time import gmtime, strftime

XML = "application/xml"
NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
OWNER = "<Owner><ID>lodefs</ID><DisplayName>lodefs</DisplayName></Owner>"
# XML 1.0 cannot contain the other control characters. S3 writes them anyway, and clients that
# expect such names ask for encoding-type=url.
_SPECIAL = re.compile('[&<>"\x00-\x1f\x7f]')
_NAMED = {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;"}


def escaped(text: str) -> str:
    if _SPECIAL.search(text) is None:
        return text
    return _SPECIAL.sub(lambda found: _NAMED.get(found[0]) or f"&#x{ord(found[0]):X};", text)


def element(name: str, text: str | int) -> str:
    return f"<{name}>{escaped(str(text))}</{name}>"


def document(name: str, inner: str) -> bytes:
    """Returns a whole document in S3's namespace; ``inner`` is XML already."""
    head = '<?xml version="1.0" encoding="UTF-8"?>\n'
    body = f'<{name} xmlns="{NAMESPACE}"/>'
    if inner:
        body = f'<{name} xmlns="{NAMESPACE}">{inner}</{name}>'
    return (head + body).encode("utf-8", "surrogateescape")


def iso_time(time_s: float) -> str:
    return strftime("%Y-%m-%dT%H:%M:%S.000Z", gmtime(time_s))


def http_time(time_s: float) -> str:
    """Returns a time as in headers (RFC 9110, 5.6.7)."""
    return formatdate(time_s, usegmt=True)
