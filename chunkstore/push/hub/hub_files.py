"""The files of one commit of the Hugging Face Hub, read by ranges over HTTP."""

from __future__ import annotations

from lodefs.chunkstore.push.hub.hub_listing import HubCommit
from lodefs.chunkstore.push.remote.fsspec_files import KINDS, FsspecFiles
from lodefs.chunkstore.push.remote.http_ranges import page_class


def open_hub_files(of_hub: HubCommit) -> FsspecFiles:
    """Opens the files of a commit, with the settings of huggingface_hub. fsspec's file system of
    the hub asks twice for each range, and keeps the names of all files. aiohttp sends the token to
    the hub alone, and not to where that redirects."""
    import fsspec
    from huggingface_hub import HfApi
    from huggingface_hub.utils import build_hf_headers

    endpoint = HfApi().endpoint
    options = {"response_class": page_class(), "headers": build_hf_headers()}
    filesystem = fsspec.filesystem(
        endpoint.partition(":")[0], encoded=True, client_kwargs=options, skip_instance_cache=True
    )
    kind = "" if of_hub.kind == "model" else f"{of_hub.kind}s/"
    return FsspecFiles(
        filesystem,
        f"{endpoint}/{kind}{of_hub.repo_id}/resolve/{of_hub.sha}",
        f"{of_hub.repo_url}@{of_hub.sha}",
        KINDS["https"],
        location="",
        is_pinned=True,
    )
