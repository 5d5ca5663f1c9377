"""Each block of shell commands of all pages is run by a test as it stands, or says why not. A new
block fails until it has its line here, but for those of pages that are run as a whole."""

from __future__ import annotations

import pytest

from tests.docs.pages import ROOT, block, blocks_of

PAGES = [
    *("README.md", "CONTRIBUTING.md", "deploy/README.md", "grafana/README.md"),
    *("loadtests/README.md", *sorted(page.name for page in (ROOT / "docs").glob("*.md"))),
]
WHOLE = {  # pages of which tests/docs/test_commands.py runs all blocks of these kinds
    "README.md": {"sh"},
    "cookbook.md": {"sh", "console"},
    "tour.md": {"sh", "console"},
    "writable.md": {"sh"},
}
SLURM = "needs a Slurm with the plug-in: `./run slurm test` has jobs like it"
NODE, PLUGIN = "tests/deploy/test_pages.py", "tests/deploy/test_managed_plugin.py"
BLOCKS = {
    "README.md#install-1": "it makes the .venv that runs this",
    "CONTRIBUTING.md#set-up-1": "it fetches a checkout, and runs what runs this",
    "CONTRIBUTING.md#the-loop-1": "it runs what runs this",
    "cluster.md#setting-it-up-1": NODE,
    "configuration.md#tls-1": "a token and a CA of the reader's: tests/proxy/http has such clients",
    "cookbook.md#commit-results-while-a-job-writes-them-1": "it never ends",
    "cookbook.md#commit-results-while-a-job-writes-them-2": SLURM,
    "cookbook.md#commit-results-while-a-job-writes-them-3": "a timer of the user's systemd",
    "cookbook.md#see-a-dataset-in-a-browser-1": "it never ends: tests/proxy/page has a browser",
    "docker.md#volumes-for-docker-1": PLUGIN,
    "docker.md#trying-it-without-installing-1": "takes the place of the machine's own plugin",
    "docker.md#volumes-that-take-changes-1": "tests/mount/docker/containers/test_writing.py is it",
    "git.md#five-lines-1": "tokens of a proxy: tests/proxy/lfs has one",
    "git.md#five-lines-2": "needs a proxy with TLS: tests/proxy/lfs has one",
    "git.md#only-new-chunks-1": "settings of the user: tests/proxy/lfs/test_agent.py has its own",
    "git.md#where-things-lie-1": "needs what was pushed: tests/proxy/lfs pulls it",
    "git.md#moving-to-it-1": "needs another server of Git LFS: tests/proxy/lfs pushes --all",
    "git.md#moving-to-it-2": "Git's own commands, which write a history anew",
    "git.md#a-git-commit-as-a-dataset-1": "tests/lodefs/test_import_git.py has a Git server",
    "git.md#volumes-of-a-git-repository-1": "tests/mount/docker/containers has a Git server",
    "hpc.md#for-users-a-command-that-sees-datasets-1": NODE,
    "hpc.md#for-users-a-command-that-sees-datasets-2": NODE,
    "hpc.md#for-users-enroot-and-pyxis-1": "needs enroot, pyxis and an image",
    "hpc.md#for-users-enroot-and-pyxis-2": "needs enroot: test_run_writable.py has a stand-in",
    "hpc.md#mounts-of-the-node-1": "needs the first process namespace: no container has it",
    "hpc.md#slurm-for-users-1": SLURM,
    "hpc.md#slurm-for-users-2": "needs four nodes with eight GPUs each",
    "hpc.md#slurm-for-users-3": SLURM,
    "hpc.md#slurm-for-users-4": SLURM,
    "hpc.md#changes-of-a-job-1": SLURM,
    "hpc.md#data-on-the-nodes-before-a-job-begins-1": "two lines of a script, and no command",
    "huggingface.md#hugging-face-1": "needs transformers: tests/proxy/hub has huggingface_hub",
    "huggingface.md#from-the-hub-into-the-store-1": "tests/chunkstore/push/remote has a hub",
    "import.md#taking-data-in-1": "a bucket of the reader's: tests/chunkstore/push/remote has such",
    "import.md#the-url-1": "a server of the reader's: tests/chunkstore/push/remote has such URLs",
    "import.md#dvc-1": "a repository of the reader's: tests/chunkstore/push/test_dvc.py makes such",
    "import.md#archives-1": "archives of the reader's: tests/lodefs/commands has such",
    "import.md#in-place-1": "needs a bucket: tests/lodefs/test_import_in_place.py has one",
    "import.md#in-place-2": "needs a bucket: tests/chunkstore/maintenance/test_adopt.py has one",
    "install.md#debian-package-1": NODE,
    "install.md#installsh-1": "pip builds and fetches all; test_life.py runs it on wheels",
    "install.md#bundle-1": "it is built for minutes; tests/deploy/test_bundle.py does the same",
    "install.md#the-first-node-1": NODE,
    "install.md#removal-1": NODE,
    "install.md#managed-plugin-of-docker-1": "it is built for minutes; its test has it built once",
    "install.md#building-a-release-1": "minutes; tests/deploy/test_release.py makes the cheap part",
    "kubernetes-install.md#install-1": "needs a registry",
    "kubernetes-install.md#install-2": "needs a registry and a cluster: `./run kube test` installs",
    "kubernetes.md#volumes-that-take-changes-1": "needs a cluster",
    "many-machines.md#step-by-step-1": "tests/docs/test_many_machines.py",
    "many-machines.md#on-one-machine-or-with-an-executor-1": "tests/docs/test_many_machines.py",
    "many-machines.md#as-an-array-of-slurm-1": "tests/docs/test_many_machines.py",
    "many-machines.md#checks-of-a-store-1": "tests/docs/test_many_machines.py",
    "many-machines.md#checks-of-a-store-2": "tests/docs/test_many_machines.py",
    "many-machines.md#copies-between-stores-1": "tests/docs/test_many_machines.py",
    "many-machines.md#garbage-1": "tests/docs/test_many_machines.py",
    "metrics.md#metrics-1": "needs curl on the node: tests/docs/test_metrics_page.py asks for all",
    "observing.md#why-is-a-job-slow-1": "it watches a job for 30 s: tests/lodefs/job_profile",
    "observing.md#tracing-one-request-1": "needs curl, and an id that is another one each time",
    "observing.md#tracing-one-request-2": NODE,
    "s3.md#five-minutes-1": "needs the AWS CLI: `./run clients aws` runs it",
    "s3.md#buckets-of-another-s3-1": "tests/proxy/s3 has such keys",
    "safety.md#copying-to-another-store-1": NODE,
    "safety.md#repair-1": NODE,
    "safety.md#repair-2": NODE,
    "scale.md#scale-what-a-cluster-of-8-to-10000-nodes-does-1": "hours of simulation",
    "services.md#settings-of-services-1": NODE,
    "services.md#mounts-at-boot-1": NODE,
    "services.md#logs-1": NODE,
    "space.md#what-a-store-costs-1": NODE,
    "space.md#deleting-a-dataset-1": NODE,
    "space.md#keeping-less-history-1": NODE,
    "space.md#freeing-space-in-a-store-1": NODE,
    "space.md#freeing-space-in-a-store-2": NODE,
    "space.md#freeing-space-in-a-store-3": NODE,
    "space.md#removing-bytes-for-good-1": NODE,
    "stores.md#google-cloud-storage-1": "needs an account at Google: ./run clouds has emulators",
    "stores.md#azure-1": "needs an account at Azure: ./run clouds has emulators",
    "weights.md#runai-model-streamer-1": "`./run examples` has such a key, and runs what follows",
    "weights.md#vllm-1": "needs vLLM and a GPU",
    "writable.md#writable-mounts-2": "an interactive shell",
    "writable.md#how-long-the-base-stays-1": "tests/mount/writable has commits onto a base",
    "writable.md#for-one-command-1": "tests/lodefs has such runs, with another program",
    "writable.md#where-the-changes-lie-1": "test_commands.py mounts with --upper",
}


def test_each_block_has_its_line() -> None:
    """Each block is in the list, or of a page that is run as a whole, and nothing else is."""
    assert [
        one.name
        for page in PAGES
        for one in blocks_of(page)
        if one.kind not in WHOLE.get(page, set())
    ] == list(BLOCKS)


@pytest.mark.parametrize("page", WHOLE)
def test_whole_pages_are_run(page: str) -> None:
    """The test that is said to run a page names it."""
    assert f'"{page}"' in (ROOT / "tests" / "docs" / "test_commands.py").read_text().replace(
        '"docs/', '"'
    )


@pytest.mark.parametrize("name", [name for name, where in BLOCKS.items() if ".py" in where[-3:]])
def test_who_is_said_to_run_it_does(name: str) -> None:
    """The file that is said to run a block names it, alone or with its number left open."""
    text = (ROOT / BLOCKS[name]).read_text()
    place = name.partition("#")[2]
    ways = (name, f"}}#{place}", f"#{place.rpartition('-')[0]}-{{n")
    assert any(way in text for way in ways)
    assert block(name)
