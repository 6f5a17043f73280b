"""How many requests a merge sends, which cost more on an object store than bytes do."""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import TYPE_CHECKING, Any
from unittest import mock

import aiobotocore.client
import fsspec
import pyarrow as pa
import pytest

import merganser
from merganser.core import list_dataset_files
from merganser.errors import TargetPathError

# Six of them are for folders that SeaweedFS lists after their removal; a client may repeat a few.
MOST_REQUESTS, MOST_LISTINGS, MOST_HEADS = 90, 18, 5

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def count_requests() -> Iterator[Counter[str]]:
    """Count the requests of all clients of S3 in this process, by their names; pages of listings too."""
    counted: Counter[str] = Counter()
    original = aiobotocore.client.AioBaseClient._make_api_call

    async def call(self: Any, name: str, parameters: Any) -> Any:
        counted[name] += 1
        return await original(self, name, parameters)

    with mock.patch.object(aiobotocore.client.AioBaseClient, "_make_api_call", call):
        yield counted


@pytest.mark.s3_only
def test_a_small_merge_sends_few_requests(lake: str) -> None:
    # One footer each, and no question before a small object is read or written
    path = f"{lake}/t"
    rows = pa.table({"id": range(400), "v": ["old"] * 400})
    merganser.merge(rows, path, key_columns="id", max_rows_per_file=10, engine="arrow")
    with count_requests() as counted:
        result = merganser.merge(pa.table({"id": [15], "v": ["new"]}), path, key_columns="id", engine="arrow")
    assert (result.updated, len(result.preserved_files)) == (1, 39)
    assert counted["HeadBucket"] == 0
    assert counted["HeadObject"] <= MOST_HEADS
    assert counted["ListObjectsV2"] <= MOST_LISTINGS
    assert counted.total() <= MOST_REQUESTS, counted


@pytest.mark.s3_only
def test_an_object_is_not_a_dataset(lake: str) -> None:
    path = f"{lake}/t"
    fsspec.core.url_to_fs(path)[0].pipe_file(path, b"a file")
    with pytest.raises(TargetPathError, match="is a file; a dataset is a folder"):
        merganser.merge(pa.table({"id": [1]}), path, key_columns="id")
    assert list_dataset_files(f"{lake}/missing") == []
