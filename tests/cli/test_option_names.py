"""Messages of the command line name options and commands, not parameters and functions of the library."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from merganser.cli.app import app
from merganser.cli.option_names import name_options

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from click.testing import Result


def spell(command: str, message: str) -> str:
    found = app.get_command(None, command)  # type: ignore[arg-type]
    assert found is not None
    with click.Context(found, parent=click.Context(app)):
        return name_options(message)


@pytest.mark.parametrize(
    ("command", "message", "expected"),
    [
        ("merge", "sequence_column and dedup_order_by both.", "--sequence-column and --dedup-order-by both."),
        ("merge", "key_columns names 'id' more than once.", "--key names 'id' more than once."),
        ("merge", "partition_columns leaves out 'day'.", "--partition-by leaves out 'day'."),
        ("merge", "Use strategy='deduplicate' to keep one.", "Use --strategy deduplicate to keep one."),
        ("merge", "Upgrade, or pass use_merge=False.", "Upgrade, or pass --no-use-merge."),
        ("merge", "Remove its log or pass ignore_table_format=True.", "Remove its log or pass --ignore-table-format."),
        ("merge", "scope has 'x' for 'day'.", "--scope has 'x' for 'day'."),
        ("merge", "Rows outside the scope. Widen the scope.", "Rows outside the scope. Widen the scope."),
        ("undo", "Pass retain=1 or more.", "Pass --retain 1 or more."),
        ("undo", "Pass a longer lock_timeout.", "Pass a longer --lock-timeout."),
        ("compact", "target_file_bytes must be positive.", "--target-file-mb must be positive."),
        ("plan", "Wait, or call recover(path), then plan.", "Wait, or run merganser recover PATH, then plan."),
        ("plan", "Call recover('my lake/x') to finish.", "Run merganser recover 'my lake/x' to finish."),
        ("plan", "call recover('a, b')", "run merganser recover 'a, b'"),
        ("merge", "Rewrite (write_dataset('a', mode='overwrite')).", "Rewrite (merganser write a --mode overwrite)."),
        ("merge", "each other's locks. Call recover(path).", "each other's locks. Run merganser recover PATH."),
        ("merge", "See write_dataset('a', <new folder>).", "See merganser write a NEW_FOLDER."),
        ("merge", "Rewrite (write_dataset with mode='overwrite').", "Rewrite (merganser write with --mode overwrite)."),
        ("run", "sequence_column goes with no order_by.", "sequence_column goes with no order_by."),
    ],
)  # fmt: skip
def test_parameters_and_functions_are_named_as_the_shell_has_them(command: str, message: str, expected: str) -> None:
    assert spell(command, message) == expected


@pytest.mark.parametrize(
    "message",
    [
        "Key column 'order_by' is missing.",
        "Its columns are: id, order_by, lock_timeout. Check them.",
        "1 duplicate key, for example order_by=5, retain=1. Correct it.",
        "The source has rows of key_columns=1, outside.",
        "lake/order_by/part.parquet is a file.",
        "lake/order_by.parquet is a file.",
    ],
)
def test_names_and_values_of_the_user_are_left_alone(message: str) -> None:
    assert spell("dedupe", message) == message


def test_errors_of_commands_name_options(tmp_path: Path, cli: Callable[..., Result]) -> None:
    pq.write_table(pa.table({"id": [1, 1], "v": [1, 2]}), tmp_path / "rows.parquet")
    source, target = str(tmp_path / "rows.parquet"), str(tmp_path / "t")
    assert "Use --strategy deduplicate" in cli("merge", source, target, "--key", "id", code=1).stderr
    assert "--key names 'id'" in cli("merge", source, target, "--key", "id,id", code=1).stderr
    cli("write", source, target)
    assert "--order-by" in cli("dedupe", target, "--key", "id", code=1).stderr
    assert "--sort-by names 'w'" in cli("compact", target, "--sort-by", "w", code=1).stderr
