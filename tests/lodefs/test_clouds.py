"""Stores on Google Cloud Storage and Azure from the command line, on small servers of this
process."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lodefs.app import run
from lodefs.settings.session import Session
from tests.chunkstore.objects.test_interface_clouds import azure_environment
from tests.support.chunkstore.bad_server import Answer, BadServer, Request
from tests.support.chunkstore.cloud_servers import AzureServer, GcsServer

Command = Callable[..., tuple[int, str]]
GCS, AZURE = "gs://bucket/store", "az://bucket/store"


@pytest.fixture
def google() -> Iterator[BadServer]:
    with BadServer(GcsServer()) as server:
        yield server


@pytest.fixture
def command(
    google: BadServer,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> Iterator[Command]:
    """Runs ``lodefs ARGUMENTS...``; returns the exit code, and what was written."""
    with BadServer(AzureServer()) as azure:
        variables = azure_environment(azure.endpoint_url) | {
            "STORAGE_EMULATOR_HOST": google.endpoint_url,
            "HOME": str(tmp_path),
            "XDG_CACHE_HOME": str(tmp_path / "cache"),
            "LODEFS_CONFIG": os.devnull,
        }
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

        def go(*arguments: str) -> tuple[int, str]:
            session = Session(dict(os.environ))
            code = run(list(arguments), session)
            session.close()
            return code, b"".join(capfdbinary.readouterr()).decode()

        yield go


def test_from_cloud_to_cloud(command: Command, tmp_path: Path) -> None:
    """What is pushed to one cloud is copied to the other and back, collected, and checked."""
    source = tmp_path / "source"
    source.mkdir()
    text = "one line of many\n" * 10_000
    (source / "a").write_text(text)
    assert command("init", GCS)[0] == command("init", AZURE)[0] == 0
    code, says = command("init", GCS)
    assert code != 0 and "is a lodefs store already" in says
    assert command("--store", GCS, "push", str(source), "cats")[0] == 0
    assert command("copy", GCS, AZURE, "--all")[0] == 0
    assert command("--store", GCS, "gc")[0] == 0
    assert command("copy", AZURE, GCS, "--all")[0] == 0
    for store in (GCS, AZURE):
        assert command("--store", store, "verify")[1].endswith("all is well\n")
        assert command("--store", store, "cat", "cats:a") == (0, text)


def test_what_init_says_of_a_server(command: Command, google: BadServer) -> None:
    """A dry run tells what a server lacks, and writes no store; init refuses it."""
    code, says = command("init", "--dry-run", "--json", AZURE)
    assert code == 0 and all(json.loads(line)["holds"] for line in says.splitlines())
    honest = google.script

    def careless(request: Request) -> Answer:
        path = request.path.replace("&ifGenerationMatch=0", "")
        return honest(type(request)(request.method, path, request.headers, request.body))

    google.script = careless
    code, says = command("init", "--dry-run", GCS)
    assert code == 1 and "fault put if absent: the condition is ignored" in says
    code, says = command("init", GCS)
    assert code != 0 and "cannot hold a store: put if absent" in says
    assert isinstance(honest, GcsServer) and not honest.stored


@pytest.mark.parametrize(
    ("store", "says"),
    [
        ("gs://missing/store", "there is no bucket missing"),
        ("az://missing/store", "there is no bucket missing"),
        ("az://bucket/store?account=other", "needs AZURE_STORAGE_KEY"),
        ("gs://NoBucket/store", "not a valid name"),
    ],
)
def test_places_that_are_none(
    command: Command, monkeypatch: pytest.MonkeyPatch, store: str, says: str
) -> None:
    """One line says what is wrong, and what to do."""
    monkeypatch.setitem(__import__("sys").modules, "azure.identity", None)
    code, written = command("init", store)
    assert code != 0 and says in written and written.count("\n") == 1
