"""A callback gets the progress of a merge."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from tests.support import open_dataset_io, put, snapshot

import merganser
from merganser.errors import InvalidArgumentError

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support import AnyDatasetIO

    from merganser.progress import Progress


def test_a_callback_gets_every_stage_and_file(io: AnyDatasetIO, tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    for number in range(3):
        put(f"{path}/f{number}.parquet", pa.table({"id": [2 * number, 2 * number + 1], "v": ["a", "b"]}))
    heard: list[Progress] = []
    source = pa.table({"id": [0, 2, 4, 9], "v": ["x"] * 4})
    io.merge(source, path, "upsert", "id", progress=heard.append)
    assert list(dict.fromkeys(one.stage for one in heard)) == ["read", "plan", "rewrite", "add", "commit", "done"]
    assert [one.done for one in heard if one.stage == "rewrite"] == [0, 1, 2, 3]
    assert {one.total for one in heard if one.stage == "rewrite"} == {3}
    assert {one.rows for one in heard if one.stage != "read"} == {4}
    assert "progress" not in merganser.history(path)[0].options


def test_a_callback_that_cannot_be_called_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="progress must be a function"):
        open_dataset_io("arrow").merge(pa.table({"id": [1]}), str(tmp_path / "t"), "upsert", "id", progress=True)  # type: ignore[arg-type]


def test_a_callback_that_fails_stops_the_merge_before_it_changes_anything(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    put(f"{path}/a.parquet", pa.table({"id": [1]}))
    before = snapshot(path)

    def stop(progress: Progress) -> None:
        if progress.stage == "commit":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        open_dataset_io("arrow").merge(pa.table({"id": [2]}), path, "upsert", "id", progress=stop)
    assert snapshot(path) == before
