"""Text as a proxy's /metrics has it, of figures that a test sets, and a server that gives it."""

from __future__ import annotations

from tests.support.chunkstore.bad_server import Answer, Request

AWKWARD = 'a\\"b\\\\c\\n<b>\u202e'  # as a label has it: quote, backslash, line break, bidi mark


class Figures:
    """What the proxy has done. ``script`` is a server's."""

    def __init__(self) -> None:
        self.began_s = 1000.0
        self.datasets: dict[str, dict[str, tuple[int, int]]] = {}  # reads and bytes by source
        self.mounts: dict[str, dict[str, tuple[int, int]]] = {}
        self.first_byte = (0, 0.0)
        self.more = ""
        self.status = 200

    def text(self) -> str:
        """The body."""
        lines = ["# HELP x y", f"process_start_time_seconds {self.began_s}"]
        for kind, label, rows in (
            ("lodefs_", "repository", self.datasets),
            ("lodefs_mount_", "mountpoint", self.mounts),
        ):
            for name, sources in rows.items():
                for source, (reads, size_bytes) in sources.items():
                    labels = f'{{{label}="{name}",source="{source}"}}'
                    lines += [
                        f"{kind}reads_total{labels} {reads}",
                        f"{kind}read_bytes_total{labels} {size_bytes}",
                    ]
        labels = '{route="files",source="store"}'
        lines += [
            f"lodefs_http_first_byte_seconds_count{labels} {self.first_byte[0]}",
            f"lodefs_http_first_byte_seconds_sum{labels} {self.first_byte[1]}",
            'lodefs_http_streams{door="unix"} 4',
            "lodefs_fetch_in_flight_bytes 8388608",
            "lodefs_cache_used_bytes 1048576",
            "lodefs_cache_limit_bytes 4194304",
            'lodefs_peer_nodes{state="well"} 2',
            'lodefs_peer_nodes{state="down"} 1',
            self.more,
        ]
        return "\n".join(lines) + "\n"

    def script(self, _request: Request) -> Answer:
        """Answers every request with it."""
        return Answer(self.status, self.text().encode())
