"""Credentials in a URL open it, and are masked in results, records, logs and messages."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import fsspec
import pyarrow as pa
import pytest
from tests.support import SECRET, VaultFileSystem, open_vault

import merganser
from merganser.core import ParquetMetadataAnalyzer, list_dataset_files
from merganser.engines.duckdb import engine as duckdb_engine
from merganser.errors import DatasetMergeError, InvalidArgumentError, TargetPathError, UnreadableFileError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support import AnyDatasetIO

ROWS = pa.table({"id": [1, 2], "v": ["a", "b"]})


@pytest.fixture
def vault() -> Iterator[str]:
    yield open_vault()
    VaultFileSystem.store.clear()


def kept() -> bytes:
    """Every byte in the vault, with the names of its files."""
    return b"\n".join(path.encode() + file.getvalue() for path, file in VaultFileSystem.store.items())


# M9
def test_a_url_with_a_password_is_merged_into_and_masked(
    io: AnyDatasetIO, vault: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    path = f"{vault}/t"
    shown: list[Any] = [io.merge(ROWS, path, key_columns="id", batch_id="monday", audit=f"{vault}/changes", retain=1)]
    shown.append(io.merge(ROWS, path, key_columns="id", batch_id="monday"))
    shown.append(plan := io.plan(ROWS, path, key_columns="id"))
    shown += [*merganser.history(path), merganser.inspect(path, "id"), merganser.compact(path), str(plan)]
    shown += [io.write_dataset(ROWS, path, "append"), merganser.dedupe(path, "id")]
    for one in shown:
        assert SECRET not in repr(one)
    assert merganser.history(path)[-1].options["audit"] == "vault://***@host/lake/changes"
    assert shown[0].files[0].path.startswith("vault://***@host/lake/t/")
    assert SECRET.encode() not in kept()
    assert SECRET not in caplog.text


def test_paths_that_are_to_be_opened_keep_the_password(io: AnyDatasetIO, vault: str) -> None:
    io.merge(ROWS, f"{vault}/t", key_columns="id")
    (path,) = list_dataset_files(f"{vault}/t")
    with fsspec.open(path) as stream:
        assert stream.read(4) == b"PAR1"
    assert [one.path for one in ParquetMetadataAnalyzer().analyze_dataset_files(f"{vault}/t")] == [path]


def test_the_password_of_a_source_that_cannot_be_read_is_masked(io: AnyDatasetIO, vault: str, lake: str) -> None:
    VaultFileSystem("ada", SECRET).pipe_file("/host/lake/bad.csv", b"id,v\n1\n")
    for name, kind in (
        ("none.csv", InvalidArgumentError),
        ("*.json", InvalidArgumentError),
        ("bad.csv", UnreadableFileError),
    ):
        with pytest.raises(kind) as caught:
            io.merge(f"{vault}/{name}", f"{lake}/t", key_columns="id")
        assert SECRET not in str(caught.value)
    with pytest.raises(InvalidArgumentError, match=r"filesystem of 'nosuch://\*\*\*@host/x\.csv'"):
        io.merge(f"nosuch://ada:{SECRET}@host/x.csv", f"{lake}/t", key_columns="id")
    with pytest.raises(TargetPathError, match=r"^vault://\*\*\*@host/lake/bad\.csv is a file") as refused:
        io.merge(ROWS, f"{vault}/bad.csv", key_columns="id")
    assert SECRET not in str(refused.value)


# D7
def test_the_log_of_a_failure_in_duckdb_has_no_password(
    vault: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    merganser.merge(ROWS, f"{vault}/t", key_columns="id", engine="duckdb")
    for name in ("_make_merge_statement", "_make_union_statement"):
        monkeypatch.setattr(duckdb_engine, name, lambda *_: "MERGE EVERYTHING\x1b NOW")
    with pytest.raises(DatasetMergeError, match="MERGE operation failed") as caught:
        merganser.merge(ROWS, f"{vault}/t", key_columns="id", engine="duckdb")
    assert "vault://***@host/lake/t failed in DuckDB" in caplog.text
    for told in (caplog.text, str(caught.value)):
        assert SECRET not in told
        assert "\x1b" not in told
