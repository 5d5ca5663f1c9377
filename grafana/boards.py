"""All dashboards."""

from __future__ import annotations

from grafana.cluster_board import CLUSTER
from grafana.job_board import JOBS
from grafana.node_board import NODE
from grafana.panels import Board
from grafana.slow_board import SLOW

BOARDS: tuple[Board, ...] = (CLUSTER, NODE, JOBS, SLOW)
