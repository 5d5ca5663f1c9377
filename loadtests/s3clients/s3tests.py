"""``./run clients s3-tests CHECKOUT``: the functions of ceph/s3-tests about listing, ranges,
conditions and HEAD, from a checkout of https://github.com/ceph/s3-tests, against the proxy. What
they write is pushed (s3tests_plugin.py). Nothing of the suite is part of lodefs."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

from loadtests.s3clients.environments import python_of
from loadtests.s3clients.serving import LODEFS, serving

BUCKETS = 400
NAMES = (
    *(
        "test_bucket_list",
        "test_bucket_head",
        "test_head_bucket",
        "test_ranged",
        "test_get_object_if",
    ),
    *("test_object_head", "test_object_raw_get", "test_object_read", "test_non_multipart_get_part"),
    *(
        "test_object_raw_auth",
        "test_list_buckets_",
        "test_object_requestid",
        "test_bucket_notexist",
    ),
    *("test_object_write_to_non", "test_bucketv2_notexist", "test_object_raw_response"),
)
# What cannot pass, and why; docs/s3.md has the same list.
LEFT_OUT = {
    "it writes ACLs, versions, or to buckets that do not exist": (
        *("test_bucket_list_return_data_versioning", "test_object_write_to_nonexist_bucket"),
        *("test_object_raw_get_bucket_acl", "test_object_header_acl_grants"),
        *("test_bucket_header_acl_grants", "test_bucket_list_long_name"),
    ),
    "objects for everybody, by ACL": (
        *("test_bucket_list_objects_anonymous", "test_bucket_listv2_objects_anonymous"),
        *("test_object_raw_get", "test_object_raw_get_bucket_gone"),
        *("test_object_raw_get_object_gone", "test_list_buckets_anonymous"),
    ),
    "a bucket of the settings cannot go": ("test_object_raw_authenticated_bucket_gone",),
    "presigned by Signature Version 2": (
        *("test_object_raw_get_x_amz_expires_not_expired",),
        *("test_object_raw_get_x_amz_expires_not_expired_tenant",),
        *("test_object_raw_get_x_amz_expires_out_range_zero",),
        *("test_object_raw_get_x_amz_expires_out_max_range",),
        *("test_object_raw_get_x_amz_expires_out_positive_range",),
    ),
    "extensions of RGW": (
        *("test_head_bucket_usage", "test_bucket_head_extended"),
        *("test_bucket_list_unordered", "test_bucket_listv2_unordered"),
    ),
    "it compares with the ETag that a PUT answered, which no push has": (
        *("test_get_object_ifmatch_good", "test_get_object_ifnonematch_good"),
    ),
    "an account without buckets": ("test_list_buckets_paginated",),
    "another status than AWS has (416)": ("test_non_multipart_get_part",),
    "Prefix of V1 is escaped with encoding-type=url, as AWS documents": (
        "test_bucket_list_prefix_unreadable",
    ),
}
_USER = """
[{section}]
access_key = {access_key}
secret_key = {secret_key}
display_name = lodefs
user_id = lodefs
email = nobody@example.org
tenant = none
"""
_SECTIONS = ("s3 main", "s3 alt", "s3 tenant", "iam", "iam root", "iam alt root")


def run(checkout: Path) -> int:
    """pytest's exit code."""
    with tempfile.TemporaryDirectory(prefix="lodefs-s3-tests-") as scratch:
        folder = Path(scratch)
        aliases = {f"bucket-{n:03}": f"tests/bucket-{n:03}@main" for n in range(BUCKETS)}
        with serving(folder, {"a": b""}, aliases) as (endpoint, keys):
            parts = urlsplit(endpoint)
            conf = folder / "s3tests.conf"
            text = f"[DEFAULT]\nhost = {parts.hostname}\nport = {parts.port}\nis_secure = False\n"
            for section in _SECTIONS:
                text += _USER.format(
                    section=section,
                    access_key=keys["AWS_ACCESS_KEY_ID"],
                    secret_key=keys["AWS_SECRET_ACCESS_KEY"],
                )
            conf.write_text(text + "[fixtures]\nbucket prefix = nothing-{random}-\n")
            environment = {
                **keys,
                "S3TEST_CONF": str(conf),
                "S3_BUCKETS": str(BUCKETS),
                "LODEFS": str(LODEFS),
                "LODEFS_CONFIG": str(folder / "lodefs.toml"),
                "XDG_CACHE_HOME": str(folder),
                "PYTHONPATH": f"{Path(__file__).parent}:{checkout}",
                "AWS_REQUEST_CHECKSUM_CALCULATION": "when_required",
            }
            words = ["-m", "pytest", "-q", "-rfsE", "--tb=short", "-p", "s3tests_plugin"]
            words += ["-k", " or ".join(NAMES), "s3tests/functional/test_s3.py"]
            for why, names in LEFT_OUT.items():
                print(f"left out: {why}: {', '.join(names)}", flush=True)
                for name in names:
                    words += ["--deselect", f"s3tests/functional/test_s3.py::{name}"]
            command = [python_of("s3-tests"), *words]
            return subprocess.run(command, cwd=checkout, env=environment, check=False).returncode
