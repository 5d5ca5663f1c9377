"""A push in parts as the indexed Job of the docs, from a bucket that all pods can read."""

from __future__ import annotations

from typing import Any

import yaml

from loadtests.kube import images
from loadtests.kube.installation import CREDENTIALS, ENDPOINT, STORE, Installation
from loadtests.kube.node import ROOT

SOURCE = "s3://crawl/7"
FILES = 2600  # parts of 500, of 1,000 and of 1,100 files
ENVIRONMENT = {**CREDENTIALS, "AWS_DEFAULT_REGION": "us-east-1", "AWS_ENDPOINT_URL": ENDPOINT}
_FILL = """
import sys, boto3
from concurrent.futures import ThreadPoolExecutor
bucket = boto3.resource("s3").Bucket("crawl")
bucket.create()
def put(n):
    bucket.put_object(Key=f"7/{n % 13}/{n}", Body=str(n).encode())
with ThreadPoolExecutor(8) as pool:
    list(pool.map(put, range(int(sys.argv[1]))))
"""


def job(tag: str) -> dict[str, Any]:
    """The page's Job, with the image, the store and the cores that there are here."""
    page = (ROOT / "docs" / "many-machines.md").read_text()
    found: dict[str, Any] = yaml.safe_load(page.partition("```yaml\n")[2].partition("```")[0])
    (container,) = found["spec"]["template"]["spec"]["containers"]
    container["image"] = f"{images.LODEFS}:{tag}"
    container["resources"]["requests"] = {"cpu": "100m", "memory": "100Mi"}
    more = {**ENVIRONMENT, "LODEFS_STORE": STORE, "SOURCE": SOURCE}
    container["env"] = [{"name": name, "value": value} for name, value in more.items()]
    return found


def test_the_job_of_the_page_makes_the_commit_of_a_plain_push(lodefs: Installation) -> None:
    """Each index is a task; a pod that is deleted while they run is replaced."""
    node = lodefs.node
    lodefs.python(_FILL, str(FILES))
    made = lodefs.lodefs("plan", "create", "crawl-7", SOURCE, "data/crawl")
    assert f"3 parts, {FILES:,} files" in made
    node.apply(job(lodefs.tag))
    node.until(
        lambda: "crawl-7-0-" in node.kubectl("get", "pods", "-l", "job-name=crawl-7"), "a first pod"
    )
    node.kubectl("delete", "pods", "-l", "batch.kubernetes.io/job-completion-index=0", "--now")
    node.kubectl(
        "wait", "--for=condition=complete", "job/crawl-7", "--timeout=600s", timeout_s=630.0
    )
    assert "3 of 3 parts" in lodefs.lodefs("plan", "status", "crawl-7")
    lodefs.lodefs("plan", "finish", "crawl-7")
    assert "nothing changed: data/crawl@main" in lodefs.lodefs("push", SOURCE, "data/crawl")
    node.kubectl("delete", "job", "crawl-7", "--timeout=120s")
