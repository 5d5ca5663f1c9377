"""*Cluster*: are all nodes well, where do the bytes come from, and what does the store not send?"""

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
                    "Alerts of lodefs that fire now. See Alerting for which, and the runbooks.",
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
                    "Share of the bytes that programs read and that their node's cache had.",
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
                    "Bytes that readers got beyond those that the store sent, in the time shown. "
                    "Reads that the kernel answers by itself are not in it.",
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
                    "What these would have cost more, at the prices in the settings "
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
                    "time shown. No reader got them. More than none needs a look.",
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
                    "What nodes sent to others. Much to or from one node: look at its network.",
                    "Bps",
                    (Query(rate("lodefs_peer_sent_bytes_total", "instance"), "{{instance}}"),),
                    Look.STACKED,
                ),
                Panel(
                    "Busiest repositories",
                    "The ten that programs read most of.",
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
                    "Share of each node's limit.",
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
                    "Median time since an evicted file was used last. Shorter than an epoch: the "
                    "cache is too small for the data. Nothing is shown while nothing is evicted.",
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
                    "By class of the error. NotFound is no failure.",
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
                    "throttled: the store asks for less; unreached: nothing has answered.",
                    "reqps",
                    (Query(rate("lodefs_store_retries_total", "reason"), "{{reason}}"),),
                ),
                Panel(
                    "Other nodes, as nodes see them",
                    "Counted by each node: of N nodes, each should see N - 1 well.",
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
                    "Which lodefs runs on how many nodes.",
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
