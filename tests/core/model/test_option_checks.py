"""Which options go together: the table in the docs, the checks and the reasons are one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, cast, get_args
from uuid import uuid4

import pyarrow as pa
import pytest
from fsspec.implementations.memory import MemoryFileSystem

import merganser
from merganser.core.model.clauses import STRATEGY_CLAUSES
from merganser.core.model.option_checks import REQUIREMENTS
from merganser.core.model.options import Options, make_request
from merganser.core.model.strategy import MergeStrategy
from merganser.errors import InvalidArgumentError

PAGE = Path(__file__).parents[3] / "docs" / "changes.md"
VALUES: dict[str, Any] = {
    "update_columns": "v",
    "update_mode": "non_null",
    "insert_columns": "v",
    "sequence_column": "at",
    "operation_column": "op",
    "skip_unchanged": True,
    "scope": {"day": 1},
    "on_partition_move": "move",
    "dedup_order_by": "v",
    "repeated_keys": "apply_in_order",
    "null_keys": "match",
    "audit": True,
    "batch_id": "b",
    "retain": 1,
}


def table() -> list[tuple[str, str, bool]]:
    """Read the table of options and strategies: option, strategy, whether they go together."""
    text = PAGE.read_text("utf-8")
    lines = re.findall(r"^\| (.*) \|$", text[text.index("| option |") :], re.MULTILINE)
    head, *rows = [line.split(" | ") for line in lines]
    return [
        (option, strategy, cell != "no")
        for row in rows
        for option in re.findall(r"`(\w+)", row[0])
        for strategy, cell in zip(head[1:], row[1:], strict=True)
    ]


# M1 M2 M3 M4 M5 M6 M8
def test_the_table_in_the_docs_is_what_is_checked() -> None:
    assert set(get_args(MergeStrategy)) == set(STRATEGY_CLAUSES) == {strategy for _, strategy, _ in table()}
    assert {option for option, _, _ in table()} == set(VALUES) >= set(REQUIREMENTS)
    for option, strategy, together in table():
        arguments = (cast("MergeStrategy", strategy), "id", Options(**{option: VALUES[option]}))
        if together:
            make_request(*arguments)
        else:
            with pytest.raises(InvalidArgumentError, match=f"{option}.*{strategy}.*, which .*Leave one of them out"):
                make_request(*arguments)


def test_a_history_records_no_filesystem_and_no_callback() -> None:
    files, path = MemoryFileSystem(), f"/{uuid4().hex}"
    options: dict[str, Any] = {"batch_id": "b", "use_merge": False, "partition_by": "v", "max_rows_per_file": 7}
    merganser.merge(
        pa.table({"id": [1], "v": [2]}), path, key_columns="id", filesystem=files, progress=lambda _: None, **options
    )
    assert merganser.history(path, filesystem=files)[0].options == {"partition_columns": ["v"], "max_rows_per_file": 7}


# M3 M5
@pytest.mark.parametrize("option", ["update_columns", "insert_columns", "skip_unchanged"])
def test_columns_that_are_named_have_the_sequence_column_among_them(option: str) -> None:
    def asked(*columns: str) -> Any:
        given: dict[str, Any] = {"sequence_column": "at", option: list(columns)}
        return make_request("upsert", "id", Options(**given))

    asked("v", "at")
    with pytest.raises(InvalidArgumentError, match=f"{option} leaves out the sequence_column 'at'"):
        asked("v")
