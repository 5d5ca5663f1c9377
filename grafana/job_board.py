"""*Dataset and job*: is this job waiting for data, and where does its data come from?"""

from __future__ import annotations

from grafana.panels import (
    INSTANCE,
    JOB,
    NODES,
    RATE,
    Board,
    Look,
    Panel,
    Query,
    Row,
    Variable,
    average,
    rate,
)

_REPOSITORY = 'repository=~"$repository"'
_MOUNT = 'mountpoint=~"$mountpoint"'
_WAITING = f"lodefs_mount_waiting_seconds_total{{{NODES}, {_MOUNT}}}{RATE}"

JOBS = Board(
    "lodefs-job",
    "lodefs / Dataset and job",
    "A dataset, and the mounts through which jobs read it: is a job waiting for its data?",
    (
        JOB,
        INSTANCE,
        Variable("repository", "Repository", f"lodefs_read_bytes_total{{{NODES}}}", "repository"),
        Variable(
            "mountpoint",
            "Mount",
            f"lodefs_mount_info{{{NODES}, {_REPOSITORY}}}",
            "mountpoint",
        ),
    ),
    (
        Row(
            "Is this job waiting for data?",
            (
                Panel(
                    "Requests that wait at a time",
                    "Average number of reads and other requests of the job that wait. With one "
                    "reader, 1 "
                    "means that it does nothing but wait. Near 0, the job does not wait for "
                    "data. Reads from the page cache and passthrough reads never count as waiting.",
                    "short",
                    (Query(f"sum(rate({_WAITING}))", "waiting"),),
                    Look.FIGURE,
                    6,
                ),
                Panel(
                    "What they wait for",
                    "Average number of waiting requests, by layer. store: warm the dataset before "
                    "the "
                    "job; cache_disk: use a faster disk; proxy, fuse: the node lacks processor "
                    "time.",
                    "short",
                    (Query(f"sum by (layer) (rate({_WAITING}))", "{{layer}}"),),
                    Look.STACKED,
                    12,
                ),
                Panel(
                    "Waiting now",
                    "Requests of the kernel without an answer at this moment.",
                    "short",
                    (
                        Query(
                            f"sum(lodefs_mount_waiting_requests{{{NODES}, {_MOUNT}}})", "requests"
                        ),
                    ),
                    Look.FIGURE,
                    6,
                ),
                Panel(
                    "Time of a request, by operation",
                    "Average time until the kernel had its answer.",
                    "s",
                    (
                        Query(
                            average("lodefs_mount_operation_seconds", "operation", _MOUNT),
                            "{{operation}}",
                        ),
                    ),
                ),
                Panel(
                    "Requests of the kernel",
                    "Requests by operation. Many lookups and lists with few reads mean small "
                    "files, or a walk.",
                    "reqps",
                    (
                        Query(
                            rate("lodefs_mount_operation_seconds_count", "operation", _MOUNT),
                            "{{operation}}",
                        ),
                    ),
                ),
                Panel(
                    "Errors",
                    "Requests answered with EIO or ESTALE.",
                    "reqps",
                    (
                        Query(
                            rate("lodefs_mount_errors_total", "operation", _MOUNT)
                            + " or vector(0)",
                            "{{operation}}",
                        ),
                    ),
                ),
            ),
        ),
        Row(
            "Where its data comes from",
            (
                Panel(
                    "Bytes of the dataset, by source",
                    "Bytes for all readers of the repository on these nodes.",
                    "Bps",
                    (Query(rate("lodefs_read_bytes_total", "source", _REPOSITORY), "{{source}}"),),
                    Look.STACKED,
                ),
                Panel(
                    "Bytes of the dataset, by node",
                    "A node that reads less than the others holds the job up.",
                    "Bps",
                    (
                        Query(
                            rate("lodefs_read_bytes_total", "instance", _REPOSITORY), "{{instance}}"
                        ),
                    ),
                ),
                Panel(
                    "From the node's own cache",
                    "Share of the bytes of its readers that came from their node's cache.",
                    "percentunit",
                    (
                        Query(
                            rate(
                                "lodefs_read_bytes_total",
                                "",
                                f'{_REPOSITORY}, source=~"direct|cache"',
                            )
                            + f" / ({rate('lodefs_read_bytes_total', '', _REPOSITORY)} > 0)",
                            "share",
                        ),
                    ),
                ),
                Panel(
                    "Bytes through the mount, by source",
                    "Bytes that the kernel asked for, its read-ahead included.",
                    "Bps",
                    (Query(rate("lodefs_mount_read_bytes_total", "source", _MOUNT), "{{source}}"),),
                    Look.STACKED,
                ),
                Panel(
                    "Files that the kernel reads by itself",
                    "Files opened with passthrough, per second. No other panel includes "
                    "reads of these files.",
                    "ops",
                    (Query(rate("lodefs_mount_passthrough_opens_total", "", _MOUNT), "opened"),),
                ),
                Panel(
                    "Reads of the dataset",
                    "Reads by programs, by source.",
                    "reqps",
                    (Query(rate("lodefs_reads_total", "source", _REPOSITORY), "{{source}}"),),
                ),
                Panel(
                    "Mounts",
                    "Which commit is mounted where: what a model is trained on.",
                    "short",
                    (
                        Query(
                            f"lodefs_mount_info{{{NODES}, {_MOUNT}, {_REPOSITORY}}}",
                            "{{mountpoint}}",
                        ),
                    ),
                    Look.TABLE,
                    24,
                    ("instance", "repository", "commit", "mountpoint", "user", "version"),
                ),
            ),
        ),
    ),
)
