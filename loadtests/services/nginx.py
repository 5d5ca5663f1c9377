"""nginx with one worker process that serves a directory. Needs Debian's nginx-light."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from loadtests.services import HOST, free_port, wait_for_port
from tests.support.chunkstore.child_process import Child, private_directory

STARTS_MAX = 3  # a port may be taken between choosing and using it

_CONF = """\
daemon off;
{user}
worker_processes 1;
pid {dir}/nginx.pid;
error_log stderr;
events {{ worker_connections 1024; }}
http {{
    access_log off;
    sendfile on;
    tcp_nopush on;
    keepalive_requests 1000000;
    client_body_temp_path {dir}/body;
    proxy_temp_path {dir}/proxy;
    fastcgi_temp_path {dir}/fastcgi;
    uwsgi_temp_path {dir}/uwsgi;
    scgi_temp_path {dir}/scgi;
    server {{
        listen {host}:{port};
        root "{root}";
        autoindex on;
    }}
}}
"""


@dataclass(frozen=True, slots=True)
class Nginx:
    """A running nginx."""

    port: int

    @property
    def url(self) -> str:
        """``http://127.0.0.1:PORT``."""
        return f"http://{HOST}:{self.port}"


@contextmanager
def nginx(directory: Path, host: str = HOST) -> Iterator[Nginx]:
    """Serves the files of ``directory`` at an address, until the end of the block."""
    with private_directory("ln-") as private:
        for attempt in range(1, STARTS_MAX + 1):
            port = free_port()
            with Child(_argv(private, directory, host, port)) as child:
                if wait_for_port(child, port):
                    yield Nginx(port)
                    return
                if attempt == STARTS_MAX:
                    raise child.failed(f"does not listen on port {port}")


def _argv(private: Path, directory: Path, host: str, port: int) -> list[str]:
    user = "user root;" if os.geteuid() == 0 else ""  # else its worker would be www-data
    conf = private / "nginx.conf"
    conf.write_text(
        _CONF.format(dir=private, host=host, port=port, root=directory.absolute(), user=user)
    )
    return ["/usr/sbin/nginx", "-c", str(conf), "-p", str(private), "-e", "stderr"]
