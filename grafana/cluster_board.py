"""*Cluster*: are all nodes well, where do bytes come from, and what does the store not send?"""

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
    quantile,
    rate,
)

CLUSTER = Board(
    "lodefs-cluster",
    "lodefs / Cluster",
    "All nodes of a cluster: whether they are well, where bytes come from, and what that saves.",
    (JOB, INSTANCE),
    (
        Row(
            "Is it well?",
            (
                Panel(
                    "Nodes up",
                    "Proxies that Prometheus could scrape.",
                    "short",
                    (Query(f"count(up{{{NODES}}} == 1)", "nodes"),),
                    Look.FIGURE,
                    4,
                ),
                Panel(
                    "Alerts",
                    "Number of lodefs alerts that fire now. See Alerting for their names, and the "
                    "runbooks.",
                    "short",
                    (
                        Query(
                            'count(ALERTS{alertname=~"Lodefs.*", alertstate="firing"})'
                            " or vector(0)",
                            "alerts",
                        ),
                    ),
                    Look.FIGURE,
                    4,
                ),
                Panel(
                    "From the node's own cache",
                    "Share of the bytes read by programs that came from their node's cache.",
                    "percentunit",
                    (
                        Query(
                            "sum(increase(lodefs_read_bytes_total"
                            f'{{{NODES}, source=~"direct|cache"}}[$__range]))'
                            f" / sum(increase(lodefs_read_bytes_total{{{NODES}}}[$__range]))",
                            "share",
                        ),
                    ),
                    Look.FIGURE,
                    4,
                ),
                Panel(
                    "Not sent by the store",
                    "Bytes that readers got, less those that the store sent, in the time shown. "
                    "Reads that the kernel answers by itself are not included.",
                    "bytes",
                    (
                        Query(
                            f"sum(increase(lodefs_store_saved_bytes_total{{{NODES}}}[$__range]))",
                            "saved",
                        ),
                    ),
                    Look.FIGURE,
                    4,
                ),
                Panel(
                    "Money saved",
                    "What sending these bytes would have cost, at the prices in the settings "
                    "(price_per_1000_gets, price_per_gb); 0 without prices.",
                    "short",
                    (
                        Query(
                            f"sum(increase(lodefs_store_saved_cost_total{{{NODES}}}[$__range]))",
                            "saved",
                        ),
                    ),
                    Look.FIGURE,
                    4,
                ),
                Panel(
                    "Wrong bytes noticed",
                    "Chunks, answers of nodes and cache files that failed verification in the "
                    "time shown. No reader got them. Investigate any value above zero.",
                    "short",
                    (
                        Query(
                            "sum(increase(lodefs_verification_failures_total"
                            f"{{{NODES}}}[$__range]))",
                            "failures",
                        ),
                    ),
                    Look.FIGURE,
                    4,
                ),
            ),
        ),
        Row(
            "Where bytes come from",
            (
                Panel(
                    "Read by programs, by source",
                    "direct: from the cache's files, without the proxy; cache: by the proxy; "
                    "peers: from other nodes; store: fetched for the reader.",
                    "Bps",
                    (
                        Query(
                            "sum by (source) (instance_source:lodefs_read_bytes:rate5m"
                            f"{{{NODES}}})",
                            "{{source}}",
                        ),
                    ),
                    Look.STACKED,
                ),
                Panel(
                    "Sent by the store, by node",
                    "A dataset should leave the store about once for the whole cluster.",
                    "Bps",
                    (Query(rate("lodefs_store_request_bytes_total", "instance"), "{{instance}}"),),
                    Look.STACKED,
                ),
                Panel(
                    "Between nodes",
                    "Bytes that nodes sent to others. If one node has much more, check its "
                    "network.",
                    "Bps",
                    (Query(rate("lodefs_peer_sent_bytes_total", "instance"), "{{instance}}"),),
                    Look.STACKED,
                ),
                Panel(
                    "Busiest repositories",
                    "The ten repositories that programs read most.",
                    "Bps",
                    (
                        Query(
                            "topk(10, sum by (repository) "
                            '(job_repository_source:lodefs_read_bytes:rate5m{job=~"$job"}))',
                            "{{repository}}",
                        ),
                    ),
                ),
                Panel(
                    "From the node's own cache, by node",
                    "A node far below the others has too small a cache, or lost it.",
                    "percentunit",
                    (Query(f"instance:lodefs_hit_bytes:ratio_rate5m{{{NODES}}}", "{{instance}}"),),
                ),
                Panel(
                    "Reads",
                    "Reads by programs, by source.",
                    "reqps",
                    (Query(rate("lodefs_reads_total", "source"), "{{source}}"),),
                    Look.STACKED,
                ),
            ),
        ),
        Row(
            "Caches and the store",
            (
                Panel(
                    "Cache used",
                    "Cache in use, as a share of each node's limit.",
                    "percentunit",
                    (
                        Query(
                            f"lodefs_cache_used_bytes{{{NODES}}} / "
                            f"lodefs_cache_limit_bytes{{{NODES}}}",
                            "{{instance}}",
                        ),
                    ),
                ),
                Panel(
                    "Age of what is evicted",
                    "Median time since the last use of an evicted file. If it is shorter than an "
                    "epoch, the "
                    "cache is too small for the data. The panel is empty while nothing is evicted.",
                    "s",
                    (
                        Query(
                            quantile(0.5, "lodefs_cache_evicted_age_seconds", "instance"),
                            "{{instance}}",
                        ),
                    ),
                ),
                Panel(
                    "Requests to the store that failed",
                    "Failed requests, by class of the error. NotFound is not a failure.",
                    "reqps",
                    (
                        Query(
                            rate(
                                "lodefs_store_request_seconds_count",
                                "outcome",
                                'outcome!~"ok|NotFound|AlreadyExists"',
                            )
                            + " or vector(0)",
                            "{{outcome}}",
                        ),
                    ),
                ),
                Panel(
                    "Attempts repeated",
                    "throttled: the store asked for fewer requests; unreached: there was no "
                    "answer.",
                    "reqps",
                    (Query(rate("lodefs_store_retries_total", "reason"), "{{reason}}"),),
                ),
                Panel(
                    "Other nodes, as nodes see them",
                    "Other nodes as each node counts them: with N nodes, each should see N - 1 "
                    "well.",
                    "short",
                    (Query(gauge("lodefs_peer_nodes", "state"), "{{state}}"),),
                    Look.STACKED,
                ),
                Panel(
                    "Restarts",
                    "Starts of the proxy in the last hour, by node.",
                    "short",
                    (
                        Query(
                            f"changes(process_start_time_seconds{{{NODES}}}[1h])",
                            "{{instance}}",
                        ),
                    ),
                ),
                Panel(
                    "Versions",
                    "Number of nodes that run each version of lodefs.",
                    "short",
                    (Query(f"count by (version) (lodefs_build_info{{{NODES}}})", "{{version}}"),),
                    Look.TABLE,
                    24,
                    ("version",),
                ),
            ),
        ),
    ),
)
