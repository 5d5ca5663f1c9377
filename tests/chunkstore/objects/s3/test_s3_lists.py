"""Answers to lists of S3."""

from __future__ import annotations

from lodefs.chunkstore.objects.s3.boto import S3Options, S3Transfer, open_client

ANSWER = b"""<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">
<Contents><Key>a</Key><LastModified>2026-11-27T15:31:27.123Z</LastModified></Contents>
</ListBucketResult>"""


def test_dates_stay_texts() -> None:
    """Nobody reads the dates of a list, so they are not parsed: that took most of its time."""
    client = open_client(S3Options(endpoint_url="http://127.0.0.1:9"), S3Transfer())
    shape = client.meta.service_model.operation_model("ListObjectsV2").output_shape
    parser = client._endpoint._response_parser_factory.create_parser("rest-xml")
    answer = parser.parse({"headers": {}, "body": ANSWER, "status_code": 200}, shape)
    client.close()
    assert answer["Contents"] == [{"Key": "a", "LastModified": "2026-11-27T15:31:27.123Z"}]
