"""Checks that the store answers, accepts these credentials, belongs to lodefs, refuses to
overwrite, and agrees about the time."""

from __future__ import annotations

import http.client
import re
import ssl
import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

from lodefs.chunkstore.errors import Denied, LodefsError, NotFound, Unavailable, Unsupported
from lodefs.chunkstore.objects.interface import ObjectStore
from lodefs.chunkstore.objects.open_url import StoreOptions, endpoint_of, open_objects
from lodefs.chunkstore.objects.schemes import scheme_of
from lodefs.chunkstore.repo.refs import BRANCHES
from lodefs.chunkstore.repo.store import Store, open_store, probe
from lodefs.doctor.check import Finding, fault, ok, unchecked, warning
from lodefs.doctor.subject import Subject

STORE, CREDENTIALS, CONDITIONAL, CLOCK = "store", "credentials", "conditional writes", "clock"
MIRRORS = "mirrors"
FIRST_TIMEOUT_S = 4.0
ATTEMPTS_MAX = 2
SKEW_REFUSED_S = 900.0  # AWS answers RequestTimeTooSkewed
SKEW_AMONG_NODES_S = 30.0  # above this, nodes refuse each other's requests (docs/cluster.md)
SKEW_SEEN_S = 10.0  # below this it may be rounding and a slow answer
_SKEWED = re.compile("RequestTimeTooSkewed|date header too old", re.IGNORECASE)
_VARIABLES = {
    "": "the rights of the directory",
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "az": "AZURE_STORAGE_ACCOUNT and AZURE_STORAGE_KEY",
}
_SET_CLOCK = "set the clock: timedatectl set-ntp true, or chronyc makestep"


def objects_of(subject: Subject, url: str) -> ObjectStore:
    """Opens the store, and gives up soon if nothing answers. Raises: InvalidInput."""
    options = StoreOptions(
        endpoint_url=subject.s3.endpoint_url,
        region=subject.s3.region,
        connect_timeout_s=FIRST_TIMEOUT_S,
        transfer_timeout_s=FIRST_TIMEOUT_S,
        first_timeout_s=FIRST_TIMEOUT_S,
        first_time_s_max=FIRST_TIMEOUT_S,
        attempts_max=ATTEMPTS_MAX,
        retry_time_s_max=FIRST_TIMEOUT_S,
    )
    return open_objects(url, options)


def store(subject: Subject, *, clock_s: Callable[[], float] = time.monotonic) -> list[Finding]:
    """Checks that the store answers, accepts these credentials, and refuses to overwrite."""
    url = subject.store_url
    if url is None:
        if subject.proxy_serves_store:
            saw = "the settings name no store; the proxy has its own"
            return [
                unchecked(STORE, saw, "give --store URL, LODEFS_STORE or `store` in the settings")
            ]
        saw = "the settings name no store"
        return [fault(STORE, saw, "set --store URL, LODEFS_STORE or `store` in the settings")]
    objects = objects_of(subject, url)
    try:
        begin_s = clock_s()
        open_store(objects)
        took_ms = 1000 * (clock_s() - begin_s)
        return [
            ok(STORE, f"{objects.url} answers ({took_ms:.0f} ms)"),
            ok(CREDENTIALS, "reading is allowed"),
            _conditional(objects),
        ]
    except LodefsError as error:
        return refused(subject, error)
    finally:
        objects.close()


def mirrors(subject: Subject) -> list[Finding]:
    """Checks that each mirror that the proxy may read answers, and is a store of lodefs."""
    urls = subject.config.mirrors if subject.config is not None else ()
    return [_mirror(subject, url) for url in urls] or [ok(MIRRORS, "the settings name none")]


def _mirror(subject: Subject, url: str) -> Finding:
    objects = objects_of(subject, url)
    try:
        found = open_store(objects)
        repo = next(found.repos(), None)
        if repo is None:
            mend = f"fill it: lodefs copy --all {subject.store_url} {url}"
            return warning(MIRRORS, f"{objects.url} has no repositories", mend)
        if strange := _strange_branch(subject, found, repo):
            saw = f"{objects.url} has {strange} at a commit that {subject.store_url} does not have"
            mend = "branches are read from it while the store is away: is it a copy of this store?"
            return warning(MIRRORS, saw, mend)
    except LodefsError as error:
        mend = "reads cannot fail over to it: check its URL, credentials and server, or remove it"
        return fault(MIRRORS, str(error), mend)
    finally:
        objects.close()
    return ok(MIRRORS, f"{objects.url} answers")


def _strange_branch(subject: Subject, mirror: Store, repo: str) -> str | None:
    """Returns a branch of a mirror whose commit the store lacks. None if there is none, or if the
    store cannot be asked, which its own check reports."""
    branch = next(iter(mirror.refs(repo).living(BRANCHES)), None)
    if branch is None or branch[1].commit is None or subject.store_url is None:
        return None
    objects = objects_of(subject, subject.store_url)
    try:
        is_there = open_store(objects).has_commit(repo, branch[1].commit)
    except LodefsError:
        return None
    finally:
        objects.close()
    return None if is_there else f"{repo}@{branch[0]}"


def refused(subject: Subject, error: LodefsError) -> list[Finding]:
    """Returns the findings for a store that could not be opened."""
    url, saw = subject.store_url, str(error)
    left = [unchecked(name, "the store cannot be read") for name in (CREDENTIALS, CONDITIONAL)]
    if _SKEWED.search(saw):
        mend = f"the clock is wrong: {_SET_CLOCK}"
        return [ok(STORE, f"{url} answers"), fault(CREDENTIALS, saw, mend), left[1]]
    if isinstance(error, Denied):
        answers = ok(STORE, f"{url} answers")
        if re.search("no (AWS|Google|Azure) credentials", saw) and subject.proxy_serves_store:
            saw = "this shell has no credentials; the proxy has its own"
            mend = "to check those: set -a; . /etc/default/lodefs; lodefs doctor (as root)"
            return [answers, unchecked(CREDENTIALS, saw, mend), left[1]]
        mend = (
            f"set {_VARIABLES[scheme_of(url or '')]} (for the proxy, in /etc/default/lodefs), and "
            "allow them to get, put and list objects in this bucket"
        )
        return [answers, fault(CREDENTIALS, saw, mend), left[1]]
    if isinstance(error, NotFound):
        mend = f"check its URL; `lodefs init {url}` creates a store in an existing bucket"
        return [fault(STORE, saw, mend), *left]
    if isinstance(error, Unavailable) and error.is_throttled:
        mend = (
            "network and credentials are not at fault: the store throttles, and nodes ask it less "
            "and less often until it answers; see what causes the load (lodefs top), warm datasets "
            "before their jobs, lower fetch_concurrency"
        )
        return [fault(STORE, saw, mend), *left]
    if isinstance(error, Unavailable):
        mend = "check endpoint_url (or AWS_ENDPOINT_URL), the network, and that the server runs"
        return [fault(STORE, saw, mend), *left]
    return [fault(STORE, saw, "see the message"), *left]


def _conditional(objects: ObjectStore) -> Finding:
    """Checks that a second write of one key is refused. Writes a small object and removes it."""
    try:
        probe(objects)
    except Unsupported as error:
        mend = "use another S3 server (AWS S3, Ceph RGW, MinIO): here two pushes could lose commits"
        return fault(CONDITIONAL, str(error), mend)
    except Denied as error:
        saw = f"these credentials may not write ({error})"
        mend = "for pushes, allow them to put objects; reads do not need this"
        return unchecked(CONDITIONAL, saw, mend)
    except LodefsError as error:
        return fault(CONDITIONAL, str(error), "make the store writable, or push from elsewhere")
    return ok(CONDITIONAL, "a second write of one key is refused")


def clock(subject: Subject, *, now_s: Callable[[], float] = time.time) -> list[Finding]:
    """Compares this machine's clock with the store's."""
    if subject.store_url is None or not scheme_of(subject.store_url):
        return [unchecked(CLOCK, "there is no store on a server to compare it with")]
    options = StoreOptions(endpoint_url=subject.s3.endpoint_url, region=subject.s3.region)
    endpoint = endpoint_of(subject.store_url, options)
    try:
        date = _date_of(endpoint)
    except (OSError, ValueError, http.client.HTTPException) as error:
        return [unchecked(CLOCK, f"{endpoint} does not report the time ({error})")]
    return [judged(now_s() - date, in_cluster=bool(subject.config and subject.config.in_cluster))]


def judged(skew_s: float, *, in_cluster: bool) -> Finding:
    """Returns the finding for a difference of clocks; ``skew_s`` is positive if this clock is
    ahead."""
    off = f"{abs(skew_s):,.0f} s {'ahead of' if skew_s > 0 else 'behind'} the store's"
    if abs(skew_s) >= SKEW_REFUSED_S:
        return fault(CLOCK, f"{off}: it refuses such requests", _SET_CLOCK)
    if abs(skew_s) > SKEW_AMONG_NODES_S and in_cluster:
        return fault(CLOCK, f"{off}: other nodes refuse such signatures", _SET_CLOCK)
    if abs(skew_s) > SKEW_SEEN_S:
        return warning(CLOCK, off, _SET_CLOCK)
    return ok(CLOCK, "agrees with the store's")


def _date_of(endpoint: str) -> float:
    """Returns the Date header of a server's answer, whatever its status (Unix). Raises: OSError,
    ValueError."""
    parts = urlsplit(endpoint)
    host, port = parts.hostname or "", parts.port
    connection: http.client.HTTPConnection
    if parts.scheme == "https":
        # Certificates are checked where bytes are read. Here a wrong certificate must not hide a
        # wrong clock, which makes certificates look wrong.
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        connection = http.client.HTTPSConnection(
            host, port, timeout=FIRST_TIMEOUT_S, context=context
        )
    else:
        connection = http.client.HTTPConnection(host, port, timeout=FIRST_TIMEOUT_S)
    try:
        connection.request("HEAD", "/")
        date = connection.getresponse().headers.get("Date")
    finally:
        connection.close()
    if date is None:
        raise ValueError("the answer has no Date header")
    return parsedate_to_datetime(date).timestamp()
