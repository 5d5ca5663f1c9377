"""*Node*: all that one proxy tells, from its readers down to its disk."""

from __future__ import annotations

from grafana.panels import (
    INSTANCE,
    JOB,
    NODES,
    Board,
    Look,
    Panel,
    Query,
    Row,
    gauge,
    quantiles,
    rate,
)

NODE = Board(
    "lodefs-node",
    "lodefs / Node",
    "One node: what its readers got, its cache, the store, other nodes, and its processes.",
    (JOB, INSTANCE),
    (
        Row(
            "Readers",
            (
                Panel(
                    "Read by programs, by source",
                    "direct: from the cache's files, without the proxy; cache: by the proxy; "
                    "peers: from other nodes; store: fetched for the reader.",
                    "Bps",
                    (Query(rate("lodefs_read_bytes_total", "source"), "{{source}}"),),
                    Look.STACKED,
                ),
                Panel(
                    "Requests over HTTP",
                    "Answers by route. Reads of mounts from the cache's files are not among them.",
                    "reqps",
                    (Query(rate("lodefs_http_request_seconds_count", "route"), "{{route}}"),),
                    Look.STACKED,
                ),
                Panel(
                    "Time of an answer",
                    "Until it was written, by where its bytes came from.",
                    "s",
                    quantiles("lodefs_http_request_seconds", "source"),
                ),
                Panel(
                    "Time to first byte",
                    "Until the first bytes of a file were there.",
                    "s",
                    quantiles("lodefs_http_first_byte_seconds", "source"),
                ),
                Panel(
                    "Errors and broken answers",
                    "Answers of class 5xx, and bodies that were broken off by an error.",
                    "reqps",
                    (
                        Query(
                            rate("lodefs_http_request_seconds_count", "", 'status="5xx"')
                            + " or vector(0)",
                            "5xx",
                        ),
                        Query(rate("lodefs_http_broken_bodies_total"), "broken off"),
                    ),
                ),
                Panel(
                    "Connections and requests being answered",
                    "By listener: the Unix socket, TCP, S3, other nodes.",
                    "short",
                    (
                        Query(
                            gauge("lodefs_http_connections", "listener"), "connections {{listener}}"
                        ),
                        Query(gauge("lodefs_http_streams", "listener"), "requests {{listener}}"),
                    ),
                ),
            ),
        ),
        Row(
            "The cache",
            (
                Panel(
                    "Cache",
                    "What it holds, what is pinned of it, and its limit.",
                    "bytes",
                    (
                        Query(gauge("lodefs_cache_used_bytes"), "used"),
                        Query(gauge("lodefs_cache_pinned_bytes"), "pinned"),
                        Query(gauge("lodefs_cache_limit_bytes"), "limit"),
                    ),
                ),
                Panel(
                    "Filled and evicted",
                    "Bytes written to the cache, evicted, and served without being kept.",
                    "Bps",
                    (
                        Query(rate("lodefs_cache_filled_bytes_total"), "filled"),
                        Query(rate("lodefs_cache_evicted_bytes_total"), "evicted"),
                        Query(rate("lodefs_cache_uncached_bytes_total"), "not kept"),
                    ),
                ),
                Panel(
                    "Age of what is evicted",
                    "Time since an evicted file was used last. Shorter than an epoch: the cache "
                    "is too small for the data. Nothing is shown while nothing is evicted.",
                    "s",
                    quantiles("lodefs_cache_evicted_age_seconds"),
                ),
                Panel(
                    "Wrong bytes noticed",
                    "Chunks of the store, answers of other nodes, files of the cache; no reader "
                    "got them.",
                    "short",
                    (
                        Query(
                            "sum by (source) (increase(lodefs_verification_failures_total"
                            f"{{{NODES}}}[$__rate_interval]))",
                            "{{source}}",
                        ),
                    ),
                ),
                Panel(
                    "Writes that found no space",
                    "On the disk, or because all that could be evicted is pinned.",
                    "ops",
                    (
                        Query(rate("lodefs_cache_no_space_errors_total"), "disk full"),
                        Query(rate("lodefs_cache_pinned_full_writes_total"), "all is pinned"),
                    ),
                ),
                Panel(
                    "Last check of cached bytes",
                    "Bytes by when they were last compared with their ids (setting scrub_days).",
                    "bytes",
                    (Query(gauge("lodefs_scrub_bytes", "state"), "{{state}}"),),
                    Look.STACKED,
                ),
            ),
        ),
        Row(
            "Fetching",
            (
                Panel(
                    "Requests to the store",
                    "Calls by operation, repetitions not counted.",
                    "reqps",
                    (
                        Query(
                            rate("lodefs_store_request_seconds_count", "operation"), "{{operation}}"
                        ),
                    ),
                ),
                Panel(
                    "Time of a request to the store",
                    "With its repetitions and the wait for its turn.",
                    "s",
                    quantiles("lodefs_store_request_seconds", "operation"),
                ),
                Panel(
                    "Time of a fetch",
                    "Of one unit (up to 8 MiB), from its turn until it is in the cache.",
                    "s",
                    quantiles("lodefs_fetch_seconds", "source"),
                ),
                Panel(
                    "In flight",
                    "Bytes being fetched, or waiting for that.",
                    "bytes",
                    (Query(gauge("lodefs_fetch_in_flight_bytes"), "in flight"),),
                ),
                Panel(
                    "Pieces fetched and joined",
                    "Pieces that readers needed, and those of them that were under way already.",
                    "ops",
                    (
                        Query(rate("lodefs_fetch_pieces_total"), "needed"),
                        Query(rate("lodefs_fetch_joins_total"), "joined"),
                    ),
                ),
                Panel(
                    "Ranges for a GiB",
                    "Ranged requests to the store for each GiB that it sent. 128 are units of "
                    "8 MiB; some thousands are small random reads.",
                    "short",
                    (
                        Query(
                            f"{rate('lodefs_store_ranges_total')} / "
                            f"({rate('lodefs_store_chunk_bytes_total')} / 2^30 > 0)",
                            "ranges",
                        ),
                    ),
                ),
            ),
        ),
        Row(
            "Other nodes",
            (
                Panel(
                    "Other nodes",
                    "As this node sees them.",
                    "short",
                    (Query(gauge("lodefs_peer_nodes", "state"), "{{state}}"),),
                    Look.STACKED,
                ),
                Panel(
                    "To and from other nodes",
                    "Bytes sent to them and received.",
                    "Bps",
                    (
                        Query(rate("lodefs_peer_received_bytes_total"), "received"),
                        Query(rate("lodefs_peer_sent_bytes_total"), "sent"),
                    ),
                ),
                Panel(
                    "Requests that brought nothing",
                    "busy: the other node had too much to do; denied: it does not trust this one; "
                    "fallbacks: the store was asked instead.",
                    "reqps",
                    (
                        Query(rate("lodefs_peer_failures_total", "kind"), "{{kind}}"),
                        Query(rate("lodefs_peer_fallbacks_total"), "fallbacks"),
                    ),
                ),
            ),
        ),
        Row(
            "Processes",
            (
                Panel(
                    "Processor",
                    "Processors that the proxy's main process keeps busy. Near 1 it is the limit.",
                    "short",
                    (Query(rate("process_cpu_seconds_total"), "processors"),),
                    columns=6,
                ),
                Panel(
                    "Event loop's lag",
                    "How late the proxy came to a timer.",
                    "s",
                    quantiles("lodefs_event_loop_lag_seconds"),
                    columns=6,
                ),
                Panel(
                    "Memory",
                    "Resident memory of the proxy's main process.",
                    "bytes",
                    (Query(gauge("process_resident_memory_bytes"), "resident"),),
                    columns=6,
                ),
                Panel(
                    "Descriptors",
                    "Open files and sockets, and how many there may be.",
                    "short",
                    (
                        Query(gauge("process_open_fds"), "open"),
                        Query(gauge("process_max_fds"), "limit"),
                    ),
                    columns=6,
                ),
                Panel(
                    "Calls that wait for a thread",
                    "By pool. Those that wait for long name what is short.",
                    "short",
                    (Query(gauge("lodefs_pool_waiting_calls", "pool"), "{{pool}}"),),
                ),
                Panel(
                    "Data processes",
                    "Those that take orders, and orders that they carry out.",
                    "short",
                    (
                        Query(gauge("lodefs_data_processes"), "processes"),
                        Query(gauge("lodefs_data_processes_busy_orders"), "orders"),
                    ),
                ),
                Panel(
                    "Mounts and warm jobs",
                    "Mounts whose figures the proxy can read, and warm jobs that run.",
                    "short",
                    (
                        Query(gauge("lodefs_mounts"), "mounts"),
                        Query(gauge("lodefs_warm_jobs"), "warm jobs"),
                    ),
                ),
            ),
        ),
    ),
)
