"""All metrics of /metrics: name, type, labels, and description. docs/metrics.md has the same table
for users; a test compares the two.

Names follow Prometheus: base units, the unit last, ``_total`` for counters. What can be computed
from another metric is not a metric; a histogram's ``_count`` counts.
"""

from __future__ import annotations

from lodefs.proxy.metrics.exposition import Definition

_all: dict[str, Definition] = {}


def _counter(name: str, text: str, *labels: str) -> Definition:
    return _add(Definition(f"lodefs_{name}_total", "counter", labels, text))


def _gauge(name: str, text: str, *labels: str) -> Definition:
    return _add(Definition(f"lodefs_{name}", "gauge", labels, text))


def _histogram(name: str, text: str, *labels: str) -> Definition:
    return _add(Definition(f"lodefs_{name}", "histogram", labels, text))


def _summary(name: str, text: str, *labels: str) -> Definition:
    return _add(Definition(f"lodefs_{name}", "summary", labels, text))


def _add(definition: Definition) -> Definition:
    assert definition.name not in _all
    _all[definition.name] = definition
    return definition


# --- processes
BUILD_INFO = _gauge(
    "build_info",
    "Always 1; which versions run",
    *("version", "python", "cache_format", "mount_counts_format"),
)
EVENT_LOOP_LAG = _histogram(
    "event_loop_lag_seconds", "How late the event loop ran a timer of each second"
)
SPANS = _counter("trace_spans", "Spans of requests that are recorded", "outcome")
FIGURES_LATE = _counter(
    "figures_late", "Scrapes with old counters of mounts and components: their files took too long"
)

# --- reads
READS = _counter("reads", "Reads by programs of this node", "repository", "source")
READ_BYTES = _counter("read_bytes", "Bytes that they got", "repository", "source")

USER_BYTES = _counter(
    "user_bytes",
    "Bytes that came into the cache, or were read from its files, for a user",
    *("user", "source"),
)

# --- HTTP
HTTP_SECONDS = _histogram(
    "http_request_seconds", "Time until an answer was written", "route", "status", "source"
)
HTTP_FIRST_BYTE = _histogram(
    "http_first_byte_seconds", "Time until the first bytes of a file were there", "route", "source"
)
HTTP_SENT_BYTES = _counter("http_sent_bytes", "Bytes of answers", "route", "status", "source")
HTTP_RECEIVED_BYTES = _counter("http_received_bytes", "Bytes of bodies of requests", "route")
HTTP_HOT = _counter("http_hot_answers", "Of all answers, those of the hot path")
HTTP_BROKEN = _counter("http_broken_bodies", "Answers broken off by an error")
HTTP_CONNECTIONS = _gauge("http_connections", "Open connections", "listener")
HTTP_CONNECTIONS_REFUSED = _counter("http_connections_refused", "Beyond the limit", "listener")
HTTP_CONNECTIONS_CUT = _counter("http_connections_cut", "Idle, or reading too slowly", "listener")
HTTP_STREAMS = _gauge("http_streams", "Requests being answered", "listener")
HTTP_STREAMS_REFUSED = _counter("http_streams_refused", "Requests beyond the limit", "listener")
S3_LEFT_OUT = _counter("s3_left_out", "Names left out of S3's listings")
TOKENS_STALE = _gauge("tokens_stale", "1 while the tokens file, as it is now, cannot be read")
CERTIFICATE_END = _gauge(
    "certificate_not_after_timestamp_seconds",
    "When the certificate of a listener expires",
    "listener",
)

# --- the cache
CACHE_USED = _gauge("cache_used_bytes", "Bytes that the cache holds")
CACHE_LIMIT = _gauge("cache_limit_bytes", "Bytes that the cache may hold")
CACHE_FILES = _gauge("cache_files", "Slabs and flat files in the cache")
CACHE_PINNED = _gauge("cache_pinned_bytes", "Bytes of cache files that are pinned")
CACHE_FILLED = _counter("cache_filled_bytes", "Bytes written to the cache")
CACHE_UNCACHED = _counter("cache_uncached_bytes", "Bytes served but not kept, for lack of space")
CACHE_LEFT_OUT = _counter("cache_left_out_bytes", "Bytes served but not kept: the disk is slow")
CACHE_UNWRITTEN = _gauge("cache_unwritten_bytes", "Bytes that wait for the cache's disk")
CACHE_EVICTED_BYTES = _counter("cache_evicted_bytes", "Bytes evicted")
CACHE_EVICTED_UNREAD = _counter(
    "cache_evicted_unread_bytes", "Of these, bytes that nobody had read"
)
CACHE_EVICTED_AGE = _histogram(
    "cache_evicted_age_seconds", "How long ago an evicted file had been used last"
)
CACHE_NO_SPACE = _counter("cache_no_space_errors", "Writes that found no space on the disk")
CACHE_PINNED_FULL = _counter(
    "cache_pinned_full_writes", "Writes not kept: all that could go is pinned"
)
VERIFICATION_FAILURES = _counter(
    "verification_failures", "Wrong bytes that were noticed; no reader got them", "source"
)
RECOVERY_BYTES = _gauge("recovery_bytes", "Bytes to check after a power cut")
RECOVERY_DONE = _gauge("recovery_done_bytes", "Of these, bytes that were checked")
SCRUB_BYTES = _gauge("scrub_bytes", "Bytes of the cache by their last check", "state")
SCRUB_AGE = _gauge("scrub_oldest_check_age_seconds", "Age of the oldest check of a cache file")
SCRUB_CHECKED = _counter("scrub_checked_bytes", "Bytes of cache files that the scrub checked")

# --- fetching
FETCH_PIECES = _counter("fetch_pieces", "Pieces that had to be fetched for a reader")
FETCH_JOINS = _counter("fetch_joins", "Of these, pieces that were on their way already")
FETCH_SECONDS = _histogram(
    "fetch_seconds", "Time of a fetch, from its turn until it is in the cache", "source"
)
FETCH_IN_FLIGHT = _gauge("fetch_in_flight_bytes", "Bytes being fetched, or waiting for that")
FETCH_WAITING = _gauge("fetch_waiting_units", "Fetches ahead of readers that wait for their turn")
FETCH_DEADLINES = _counter("fetch_deadlines", "Fetches that took too long")
FETCH_AHEAD = _counter("fetch_ahead_units", "Units read ahead")
FETCH_AHEAD_REFUSED = _counter(
    "fetch_ahead_refused_units", "Units not read ahead: too much in flight"
)
POOL_THREADS = _gauge("pool_busy_threads", "Calls that run, by pool of threads", "pool")
POOL_WAITING = _gauge("pool_waiting_calls", "Calls that wait for a thread of it", "pool")
DATA_PROCESSES = _gauge("data_processes", "Data processes that take orders")
DATA_ORDERS = _gauge("data_processes_busy_orders", "Orders that they carry out")
DATA_ORDERS_DONE = _counter("data_processes_orders", "Orders that they have reported on")
DATA_RESTARTS = _counter("data_processes_restarts", "Data processes that ended and were replaced")
TREES_LOADED = _counter("trees_loaded_directories", "Directories loaded from the store")
WARM_JOBS = _gauge("warm_jobs", "Warm jobs that run")

# --- the store
STORE_SECONDS = _histogram(
    "store_request_seconds", "Calls to the store, retries included", "operation", "outcome"
)
STORE_BYTES = _counter("store_request_bytes", "Bytes moved by these calls", "operation")
STORE_RETRIES = _counter("store_retries", "Attempts that were repeated", "reason")
MIRROR_UP = _gauge("mirror_up", "Whether a store answers; only where there are mirrors", "store")
MIRROR_ANSWERS = _counter("mirror_answers", "Calls that each of the stores has answered", "store")
STORE_RANGES = _counter("store_ranges", "Ranged reads of chunks: requests of the store")
STORE_CHUNK_BYTES = _counter("store_chunk_bytes", "Bytes that they fetched, as stored")
STORE_INDEXES = _counter("store_indexes_reads", "Indexes of packs read from the store")
STORE_SAVED_BYTES = _counter(
    "store_saved_bytes", "Bytes that readers got beyond those that the store sent"
)
STORE_COST = _counter("store_cost", "Cost of the store's requests and bytes, at set prices")
STORE_SAVED_COST = _counter("store_saved_cost", "Further cost if each read had asked the store")

# --- other nodes
PEER_NODES = _gauge("peer_nodes", "Other nodes of the cluster, by state", "state")
PEER_REQUESTS = _counter("peer_requests", "Requests sent to other nodes")
PEER_FAILURES = _counter("peer_failures", "Of these, requests that fetched nothing", "kind")
PEER_FALLBACKS = _counter("peer_fallbacks", "Fetches from the store after asking other nodes")
PEER_RECEIVED = _counter("peer_received_bytes", "Bytes that came from other nodes")
PEER_SENT = _counter("peer_sent_bytes", "Bytes sent to other nodes")
PEER_REFUSED = _counter("peer_refused_requests", "Other nodes' requests refused", "reason")

# --- mounts
MOUNTS = _gauge("mounts", "Mounts whose counters the proxy can read")
MOUNT_INFO = _gauge(
    "mount_info",
    "Always 1; what is mounted where",
    *("mountpoint", "repository", "commit", "user", "version"),
)
MOUNT_START = _gauge("mount_start_time_seconds", "When the mount was made", "mountpoint")
MOUNT_OPERATIONS = _summary(
    "mount_operation_seconds", "Requests of the kernel: count and time",
    *("mountpoint", "operation"),
)  # fmt: skip
MOUNT_ERRORS = _counter(
    "mount_errors", "Requests answered with EIO or ESTALE", "mountpoint", "operation"
)
MOUNT_READS = _counter("mount_reads", "Reads of files by the kernel", "mountpoint", "source")
MOUNT_READ_BYTES = _counter("mount_read_bytes", "Bytes of these", "mountpoint", "source")
MOUNT_AHEAD_BYTES = _counter(
    "mount_stored_ahead_bytes", "Bytes given to the kernel before it asked", "mountpoint"
)
MOUNT_WAITING_SECONDS = _counter(
    "mount_waiting_seconds", "Time that requests took, by what they waited for",
    *("mountpoint", "layer"),
)  # fmt: skip
MOUNT_WAITING = _gauge("mount_waiting_requests", "Requests that wait now", "mountpoint")
MOUNT_PASSTHROUGH_OPENS = _counter(
    "mount_passthrough_opens", "Files opened that the kernel reads by itself", "mountpoint"
)
MOUNT_PASSTHROUGH_BYTES = _counter(
    "mount_passthrough_opened_bytes",
    "Sizes of these files; nobody sees how much of them is read",
    "mountpoint",
)
MOUNT_WORKER_RESTARTS = _counter("mount_worker_restarts", "Workers replaced", "mountpoint")
MOUNT_RESENDS = _counter(
    "mount_resends", "Times that the kernel was asked to send requests again", "mountpoint"
)

# --- jobs
JOB_READ_BYTES = _counter(
    "job_read_bytes", "Bytes that a job's processes asked this node's mounts for", "job", "source"
)
JOB_PASSTHROUGH_OPENS = _counter(
    "job_passthrough_opens", "Files that it opened and the kernel reads by itself", "job"
)
JOB_PASSTHROUGH_BYTES = _counter(
    "job_passthrough_opened_bytes", "Sizes of these files, read or not", "job"
)

# --- components
COMPONENT_INFO = _gauge(
    "component_info", "Always 1; which version of a component runs", "component", "version"
)
COMPONENT_START = _gauge("component_start_time_seconds", "When it was started", "component")
COMPONENT_REQUESTS = _summary(
    "component_request_seconds", "Calls that it answered: count and time",
    *("component", "operation"),
)  # fmt: skip
COMPONENT_ERRORS = _counter(
    "component_errors", "Calls answered with an error", "component", "operation", "error"
)
COMPONENT_VOLUMES = _gauge("component_volumes", "Volumes by state", "component", "state")

ALL: tuple[Definition, ...] = tuple(_all.values())
