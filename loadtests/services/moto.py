"""moto's S3 server in a process of its own."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from loadtests.services import HOST, S3Server
from tests.support.chunkstore.child_process import Child

START_TIMEOUT_S = 120.0  # it imports a lot

_PROGRAM = """
import logging, sys
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server
logging.getLogger("werkzeug").setLevel(logging.ERROR)
app = DomainDispatcherApplication(create_backend_app)
server = make_server(sys.argv[1], 0, app, threaded=True)
print(f"port {server.port}", flush=True)
server.serve_forever()
"""


@contextmanager
def moto_server() -> Iterator[S3Server]:
    """A running moto; it takes any credentials, and forgets everything at its end."""
    with Child([sys.executable, "-c", _PROGRAM, HOST]) as child:
        port = child.wait_for(r"^port (\d+)$", timeout_s=START_TIMEOUT_S).group(1)
        yield S3Server(f"http://{HOST}:{port}", "AKIAIOSFODNN7EXAMPLE", "moto-takes-any")
