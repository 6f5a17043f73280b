"""Executors answer once a session which packages they have."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.support import assert_unchanged, open_spark, read_rows

from merganser import MissingExtraError
from merganser.engines.spark import versions
from merganser.engines.spark.package_probe import SHIPPED, Versions, find_versions
from merganser.engines.spark.versions import check_executors, compare_versions

if TYPE_CHECKING:
    from pathlib import Path

ROWS = pa.table({"id": [1, 2], "v": ["a", "b"]})


def having(**packages: str | None) -> Versions:
    found = find_versions()
    return {"python": "/usr/bin/python3", "packages": {**found["packages"], **packages}}


# X9, C7
def test_executors_with_another_pyarrow_are_refused_before_anything_is_written(
    lake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    io = open_spark()
    io.write_dataset(ROWS, f"{lake}/t")
    monkeypatch.setattr(versions, "_checked", set())
    monkeypatch.setattr(versions, "find_versions", lambda: having(pyarrow="99.0.0"))
    before = sorted(tmp_path.iterdir())
    expected = (
        rf"^The executors have pyarrow {pa.__version__} and the driver has 99\.0\.0, which cannot work together\."
    )
    for path in (f"{lake}/t", f"{lake}/new"):
        with assert_unchanged(f"{lake}/t"), pytest.raises(MissingExtraError, match=expected):
            io.merge(ROWS, path, "upsert", "id")
    assert sorted(tmp_path.iterdir()) == before
    # They are asked again, for they may have been started anew.
    monkeypatch.setattr(versions, "find_versions", find_versions)
    io.merge(pa.table({"id": [2], "v": ["c"]}), f"{lake}/t", "upsert", "id")
    assert read_rows(io, f"{lake}/t") == [{"id": 1, "v": "a"}, {"id": 2, "v": "c"}]


# X9
def test_a_session_is_asked_once(spark: Any) -> None:
    check_executors(spark)
    # It has a session's name, but nothing that runs a job.
    check_executors(SimpleNamespace(conf=spark.conf, session_id=getattr(spark, "session_id", None)))  # type: ignore[arg-type]


FITTING: list[dict[str, str | None]] = [
    {"merganser": SHIPPED},
    {"pyarrow": f"{pa.__version__.split('.')[0]}.99.0"},
    {"fsspec": "2024.1.0"},
]


@pytest.mark.parametrize("packages", FITTING, ids=str)
def test_packages_that_work_together(packages: dict[str, str | None]) -> None:
    compare_versions(find_versions(), having(**packages))
    compare_versions(having(**packages), find_versions())


OTHERS: list[tuple[dict[str, str | None], str]] = [
    (
        {"merganser": None},
        r"Python, /usr/bin/python3, has no package 'merganser'\. Call merganser\.engines\.spark\.ship",
    ),
    ({"fsspec": None}, r"has no package 'fsspec'\. Install fsspec \S+ there, or set PYSPARK_PYTHON"),
    ({"merganser": "0.0.1"}, r"have merganser 0\.0\.1 and the driver has \S+, which .*\.ship\(spark\)"),
    ({"numpy": "1.26.4"}, r"have numpy 1\.26\.4 and the driver has \S+, which cannot work together\. Install numpy"),
]


@pytest.mark.parametrize(("packages", "message"), OTHERS, ids=[str(packages) for packages, _ in OTHERS])
def test_packages_that_do_not(packages: dict[str, str | None], message: str) -> None:
    with pytest.raises(MissingExtraError, match=message):
        compare_versions(find_versions(), having(**packages))
