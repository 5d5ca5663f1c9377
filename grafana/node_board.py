"""*Node*: everything that one proxy reports, from its readers down to its disk."""

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
                    "Answers by route. Reads of mounts from the cache's files are not included.",
                    "reqps",
                    (Query(rate("lodefs_http_request_seconds_count", "route"), "{{route}}"),),
                    Look.STACKED,
                ),
                Panel(
                    "Time of an answer",
                    "Time until an answer was written, by the source of its bytes.",
                    "s",
                    quantiles("lodefs_http_request_seconds", "source"),
                ),
                Panel(
                    "Time to first byte",
                    "Time until the first bytes of a file were available.",
                    "s",
                    quantiles("lodefs_http_first_byte_seconds", "source"),
                ),
                Panel(
                    "Errors and broken answers",
                    "Answers of class 5xx, and bodies that an error broke off.",
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
                    "Bytes in the cache, pinned bytes, and the limit.",
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
                    "Time since the last use of an evicted file. If it is shorter than an epoch, "
                    "the cache "
                    "is too small for the data. The panel is empty while nothing is evicted.",
                    "s",
                    quantiles("lodefs_cache_evicted_age_seconds"),
                ),
                Panel(
                    "Wrong bytes noticed",
                    "Wrong chunks from the store, answers of other nodes, and files of the cache. "
                    "No reader "
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
                    "Writes that failed because the disk was full, or because everything "
                    "evictable is pinned.",
                    "ops",
                    (
                        Query(rate("lodefs_cache_no_space_errors_total"), "disk full"),
                        Query(rate("lodefs_cache_pinned_full_writes_total"), "all is pinned"),
                    ),
                ),
                Panel(
                    "Last check of cached bytes",
                    "Bytes by the time of their last check against their ids (setting scrub_days).",
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
                    "Calls by operation, without retries.",
                    "reqps",
                    (
                        Query(
                            rate("lodefs_store_request_seconds_count", "operation"), "{{operation}}"
                        ),
                    ),
                ),
                Panel(
                    "Time of a request to the store",
                    "Time of a call, with its retries and the wait for its turn.",
                    "s",
                    quantiles("lodefs_store_request_seconds", "operation"),
                ),
                Panel(
                    "Time of a fetch",
                    "Time of one unit (up to 8 MiB), from its turn until it is in the cache.",
                    "s",
                    quantiles("lodefs_fetch_seconds", "source"),
                ),
                Panel(
                    "In flight",
                    "Bytes being fetched, or waiting to be fetched.",
                    "bytes",
                    (Query(gauge("lodefs_fetch_in_flight_bytes"), "in flight"),),
                ),
                Panel(
                    "Pieces fetched and joined",
                    "Pieces that readers needed, and those of them that were already being "
                    "fetched.",
                    "ops",
                    (
                        Query(rate("lodefs_fetch_pieces_total"), "needed"),
                        Query(rate("lodefs_fetch_joins_total"), "joined"),
                    ),
                ),
                Panel(
                    "Ranges for a GiB",
                    "Ranged requests to the store for each GiB that it sent. 128 means units of "
                    "8 MiB; some thousands mean small random reads.",
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
                    "Other nodes, as this node sees them.",
                    "short",
                    (Query(gauge("lodefs_peer_nodes", "state"), "{{state}}"),),
                    Look.STACKED,
                ),
                Panel(
                    "To and from other nodes",
                    "Bytes sent to other nodes, and received from them.",
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
                    "Processors that the proxy's main process uses. Near 1, this process is the "
                    "limit.",
                    "short",
                    (Query(rate("process_cpu_seconds_total"), "processors"),),
                    columns=6,
                ),
                Panel(
                    "Event loop's lag",
                    "How late the proxy handles a timer.",
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
                    "Open files and sockets, and their limit.",
                    "short",
                    (
                        Query(gauge("process_open_fds"), "open"),
                        Query(gauge("process_max_fds"), "limit"),
                    ),
                    columns=6,
                ),
                Panel(
                    "Calls that wait for a thread",
                    "Waiting calls, by pool. A pool with long waits needs more threads or a "
                    "faster disk.",
                    "short",
                    (Query(gauge("lodefs_pool_waiting_calls", "pool"), "{{pool}}"),),
                ),
                Panel(
                    "Data processes",
                    "Data processes that accept orders, and orders under way.",
                    "short",
                    (
                        Query(gauge("lodefs_data_processes"), "processes"),
                        Query(gauge("lodefs_data_processes_busy_orders"), "orders"),
                    ),
                ),
                Panel(
                    "Mounts and warm jobs",
                    "Mounts whose counters the proxy can read, and running warm jobs.",
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
