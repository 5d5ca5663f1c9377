"""The S3 origin: a real server in a namespace of its own, behind a relay that counts."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from loadtests.cluster.counting import Counts, Sent
from loadtests.cluster.dataset import Dataset
from loadtests.cluster.network import Host, Network
from loadtests.cluster.relays import RunningRelay
from loadtests.services import S3Server
from loadtests.services.ceph import ceph_rgw
from loadtests.services.moto import moto_server
from tests.support.chunkstore.child_process import run

NUMBER = 2  # the end of its address
PORT = 7480
BUCKET = "data"
STORE = f"s3://{BUCKET}/store"
REPO = "dataset"
DIRECT = "direct/"  # plain objects, for clients that read S3 without lodefs
PUSH_TIMEOUT_S = 600
SERVERS: dict[str, Callable[[], AbstractContextManager[S3Server]]] = {
    "rgw": ceph_rgw,
    "moto": moto_server,
}


@dataclass(slots=True)
class Origin:
    """A running origin. Nodes reach it at ``address`` (HOST:PORT) only, through the relay."""

    host: Host
    server: S3Server
    relay: RunningRelay
    folder: Path
    commit: str = ""

    @classmethod
    @contextmanager
    def started(cls, network: Network, folder: Path, kind: str) -> Iterator[Origin]:
        """An empty store on a server of ``kind``: "rgw" or "moto"."""
        host = network.add("s3", NUMBER)
        folder.mkdir()
        with host.entered():
            serving = SERVERS[kind]()
            server = serving.__enter__()
        try:
            own, upstream = f"{host.address}:{PORT}", urlsplit(server.endpoint_url).netloc
            with RunningRelay.started(host, folder, "relay", own, upstream) as relay:
                origin = cls(host, server, relay, folder)
                with host.entered():
                    client = server.client()
                    client.create_bucket(Bucket=BUCKET)
                    client.close()
                    origin._lodefs("init", STORE)
                yield origin
        finally:
            serving.__exit__(None, None, None)

    @property
    def endpoint_url(self) -> str:
        """The settings for nodes."""
        return f"http://{self.host.address}:{PORT}"

    @property
    def address(self) -> str:
        """The same as HOST:PORT."""
        return f"{self.host.address}:{PORT}"

    def push(self, dataset: Dataset) -> None:
        """Pushes a dataset past the relay, and sets ``commit``."""
        self._lodefs("push", str(dataset.root), REPO, "--json")
        log = self._lodefs("log", REPO, "--json")
        self.commit = json.loads(log.splitlines()[0])["commit"]

    def put_plain(self, dataset: Dataset) -> dict[str, str]:
        """Puts every file as an object of its own; by name, the signed target of a GET of it."""
        with self.host.entered():
            client = self.server.client()
            for file in dataset.files:
                body = (dataset.root / file.name).read_bytes()
                client.put_object(Bucket=BUCKET, Key=DIRECT + file.name, Body=body)
            client.close()
        outside = S3Server(self.endpoint_url, self.server.access_key, self.server.secret_key)
        client = outside.client()
        found = {}
        for file in dataset.files:
            wanted = {"Bucket": BUCKET, "Key": DIRECT + file.name}
            parts = urlsplit(client.generate_presigned_url("get_object", Params=wanted))
            found[file.name] = f"{parts.path}?{parts.query}"
        client.close()
        return found

    def begin_counting(self) -> None:
        """Starts counting for ``sent``."""
        self.relay.counts(reset=True)
        self.relay.sent()

    def sent(self) -> tuple[Counts, list[Sent]]:
        """What the relay sent since ``begin_counting``, and the bodies one by one. To be asked
        once."""
        return self.relay.counts(), self.relay.sent()

    def _lodefs(self, *words: str) -> str:
        """Runs one command of lodefs inside."""
        home = self.folder / "home"
        home.mkdir(exist_ok=True)
        config = home / "lodefs.toml"
        config.touch()
        own = {"HOME": str(home), "XDG_CACHE_HOME": str(home), "LODEFS_CONFIG": str(config)}
        own |= {"LODEFS_STORE": STORE, "AWS_ENDPOINT_URL": self.server.endpoint_url}
        return run(
            self.host.argv([lodefs_command(), *words]),
            env={**self.server.environment, **own},
            timeout_s=PUSH_TIMEOUT_S,
        )


def lodefs_command() -> str:
    """lodefs as its users start it."""
    return str(Path(sys.executable).with_name("lodefs"))
