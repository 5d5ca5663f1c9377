"""*Why is it slow*: latency by layer, from the job down to the store."""

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
    average,
    gauge,
    quantile,
    quantiles,
    rate,
)

SLOW = Board(
    "lodefs-slow",
    "lodefs / Why is it slow",
    "Latency by layer. Read from the top: the first row names the layer, and its own row says why.",
    (JOB, INSTANCE),
    (
        Row(
            "Which layer?",
            (
                Panel(
                    "What mounts wait for",
                    "Average number of waiting requests, by layer, over all mounts of these nodes.",
                    "short",
                    (
                        Query(
                            "sum by (layer) "
                            f"(instance_mountpoint_layer:lodefs_mount_waiting_seconds:rate5m{{{NODES}}})",
                            "{{layer}}",
                        ),
                    ),
                    Look.STACKED,
                    12,
                ),
                Panel(
                    "Mounts that wait most",
                    "The ten mounts with the most waiting requests, and the layer that they wait "
                    "for.",
                    "short",
                    (
                        Query(
                            "topk(10, instance_mountpoint_layer:lodefs_mount_waiting_seconds:rate5m"
                            f"{{{NODES}}})",
                            "{{instance}} {{mountpoint}} {{layer}}",
                        ),
                    ),
                    columns=12,
                ),
            ),
        ),
        Row(
            "The store",
            (
                Panel(
                    "Time of a get",
                    "Time of one request with its retries. Compare it with `lodefs bench-store`.",
                    "s",
                    quantiles("lodefs_store_request_seconds", "", 'operation="get"'),
                ),
                Panel(
                    "Attempts repeated",
                    "throttled: the store asked for fewer requests; unreached: there was no "
                    "answer.",
                    "reqps",
                    (Query(rate("lodefs_store_retries_total", "reason"), "{{reason}}"),),
                ),
                Panel(
                    "Share of failed requests",
                    "NotFound is not a failure.",
                    "percentunit",
                    (
                        Query(
                            f"instance:lodefs_store_request_errors:ratio_rate5m{{{NODES}}}",
                            "{{instance}}",
                        ),
                    ),
                ),
            ),
        ),
        Row(
            "Other nodes",
            (
                Panel(
                    "Time of a fetch from another node",
                    "Time of one unit (up to 8 MiB).",
                    "s",
                    (
                        Query(quantile(0.5, "lodefs_fetch_seconds", "source"), "median {{source}}"),
                        Query(quantile(0.99, "lodefs_fetch_seconds", "source"), "99 % {{source}}"),
                    ),
                ),
                Panel(
                    "Nodes that are not well",
                    "Nodes as other nodes see them, by what is wrong.",
                    "short",
                    (
                        Query(
                            gauge("lodefs_peer_nodes", "state", 'state!="well"'),
                            "{{state}}",
                        ),
                    ),
                ),
                Panel(
                    "Asked in vain",
                    "Fetches that went to the store after other nodes were asked.",
                    "ops",
                    (Query(rate("lodefs_peer_fallbacks_total", "instance"), "{{instance}}"),),
                ),
            ),
        ),
        Row(
            "The cache and its disk",
            (
                Panel(
                    "Age of what is evicted",
                    "Median time since last use. If it is shorter than an epoch, each epoch "
                    "fetches everything again.",
                    "s",
                    (
                        Query(
                            quantile(0.5, "lodefs_cache_evicted_age_seconds", "instance"),
                            "{{instance}}",
                        ),
                    ),
                ),
                Panel(
                    "Served without being kept",
                    "Bytes that did not fit into the cache, so that the next reader fetches them "
                    "again.",
                    "Bps",
                    (Query(rate("lodefs_cache_uncached_bytes_total", "instance"), "{{instance}}"),),
                ),
                Panel(
                    "Calls that wait for the disk",
                    "Calls that wait for a thread of the pools that read and write the cache.",
                    "short",
                    (
                        Query(
                            gauge("lodefs_pool_waiting_calls", "pool", 'pool=~"disk|serving"'),
                            "{{pool}}",
                        ),
                    ),
                ),
            ),
        ),
        Row(
            "The proxy",
            (
                Panel(
                    "Event loop's lag",
                    "99th percentile. Above about 10 ms, the proxy lacks processor time.",
                    "s",
                    (
                        Query(
                            quantile(0.99, "lodefs_event_loop_lag_seconds", "instance"),
                            "{{instance}}",
                        ),
                    ),
                ),
                Panel(
                    "Processor",
                    "Processors that the proxy's main process uses.",
                    "short",
                    (Query(rate("process_cpu_seconds_total", "instance"), "{{instance}}"),),
                ),
                Panel(
                    "Fetches that wait for their turn",
                    "Waiting read-ahead; readers themselves go first.",
                    "short",
                    (Query(gauge("lodefs_fetch_waiting_units", "instance"), "{{instance}}"),),
                ),
            ),
        ),
        Row(
            "The mount",
            (
                Panel(
                    "Time of a read",
                    "Average time that the kernel waited for a read, by mount.",
                    "s",
                    (
                        Query(
                            average(
                                "lodefs_mount_operation_seconds",
                                "instance, mountpoint",
                                'operation="read"',
                            ),
                            "{{instance}} {{mountpoint}}",
                        ),
                    ),
                ),
                Panel(
                    "Workers that were replaced",
                    "Replaced workers, and requests that the kernel sent again: each is a stall "
                    "of a second.",
                    "ops",
                    (
                        Query(rate("lodefs_mount_worker_restarts_total"), "workers"),
                        Query(rate("lodefs_mount_resends_total"), "resends"),
                    ),
                ),
                Panel(
                    "Opened with passthrough",
                    "Files that the kernel reads directly from the cache's file, which is the "
                    "fastest way.",
                    "ops",
                    (
                        Query(
                            rate("lodefs_mount_passthrough_opens_total", "instance"),
                            "{{instance}}",
                        ),
                    ),
                ),
            ),
        ),
    ),
)
