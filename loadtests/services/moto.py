"""moto's S3 server in a process of its own."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from loadtests.services import HOST, S3Server
from tests.support.chunkstore.child_process import Child

START_TIMEOUT_S = 120.0  # it imports a lot

# Serves at an IP address and port. moto looks whether an object exists, and then writes it: two
# threads could both create it, so conditional writes come one after the other.
PROGRAM = """
import logging, sys, threading
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server
logging.getLogger("werkzeug").setLevel(logging.ERROR)
app, creating = DomainDispatcherApplication(create_backend_app), threading.Lock()
def serve(environ, start_response):
    if "HTTP_IF_NONE_MATCH" not in environ or environ["REQUEST_METHOD"] != "PUT":
        return app(environ, start_response)
    with creating:
        return app(environ, start_response)
server = make_server(sys.argv[1], int(sys.argv[2]), serve, threaded=True)
print(f"port {server.port}", flush=True)
server.serve_forever()
"""


@contextmanager
def moto_server() -> Iterator[S3Server]:
    """A running moto; it takes any credentials, and forgets everything at its end."""
    with Child([sys.executable, "-c", PROGRAM, HOST, "0"]) as child:
        port = child.wait_for(r"^port (\d+)$", timeout_s=START_TIMEOUT_S).group(1)
        yield S3Server(f"http://{HOST}:{port}", "AKIAIOSFODNN7EXAMPLE", "moto-takes-any")
