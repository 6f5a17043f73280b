"""How commands end: what they print to standard output, and the exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support import assert_unchanged, list_data_files

import merganser
from merganser.core.commit.commit import open_session
from merganser.core.storage.location import locate

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from click.testing import Result

COMMAND = [sys.executable, "-m", "merganser.cli"]


@pytest.fixture
def orders(tmp_path: Path) -> str:
    """A dataset, and a file to merge."""
    pq.write_table(pa.table({"id": [2], "v": [2.5]}), tmp_path / "rows.parquet")
    merganser.merge(pa.table({"id": [1], "v": [1.5]}), str(tmp_path / "orders"), key_columns="id", retain=1)
    return str(tmp_path / "orders")


def test_values_without_a_json_form_are_converted(tmp_path: Path, answer: Callable[..., Any]) -> None:
    values = {
        "id": pa.array([1]),
        "nan": pa.array([float("nan")]),
        "far": pa.array([float("-inf")]),
        "bytes": pa.array([b"\0\xff"]),
        "day": pa.array([0], pa.date32()),
        "time": pa.array([0], pa.timestamp("us", "UTC")),
        "price": pa.array([150], pa.decimal128(5, 2)),
    }
    pq.write_table(pa.table(values), tmp_path / "rows.parquet")
    told = answer("merge", str(tmp_path / "rows.parquet"), str(tmp_path / "t"), "--key", "id", "--audit", "rows")
    row = {name.removeprefix("after_"): value for name, value in told["audit"][0].items()}
    assert (row["nan"], row["far"], row["bytes"]) == ("NaN", "-Infinity", "00ff")
    assert (row["day"], row["time"], row["price"]) == ("1970-01-01", "1970-01-01T00:00:00+00:00", "150.00")


@pytest.mark.parametrize("command", [["undo"], ["vacuum"], ["write", "rows.parquet", "--mode", "overwrite"]])
def test_an_unanswered_confirmation_is_reported_as_json_too(
    command: list[str], orders: str, tmp_path: Path, cli: Callable[..., Result], answer: Callable[..., Any]
) -> None:
    arguments = [command[0], *(str(tmp_path / word) for word in command[1:2]), orders, *command[2:]]
    with assert_unchanged(orders):
        told = answer(*arguments, code=2)["error"]
        assert (told["exit_code"], "pass --yes" in told["message"]) == (2, True)
        assert "Usage" not in cli(*arguments, code=2).stderr


def test_a_commit_stands_even_if_its_output_cannot_be_printed(orders: str, tmp_path: Path) -> None:
    arguments = [*COMMAND, "merge", str(tmp_path / "rows.parquet"), orders, "--key", "id", "--json"]
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(arguments, stdout=writer, stderr=subprocess.PIPE, text=True, check=False, timeout=60)
    os.close(writer)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False)
    assert len(list_data_files(orders)) == 2
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run(arguments, stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=60)
    assert done.returncode == 0
    assert done.stderr.splitlines()[-1].startswith("The command succeeded, but its output cannot be written")


def test_streams_may_be_closed(orders: str, tmp_path: Path) -> None:
    source = str(tmp_path / "rows.parquet")
    script = f"{sys.executable} -m merganser.cli merge"
    done = subprocess.run(f"{script} {source} {orders} --key id 2>&-", shell=True, check=False, timeout=60)  # noqa: S602
    assert done.returncode == 0
    closed = f"{script} - {orders} --key id <&-"
    told = subprocess.run(closed, shell=True, check=False, timeout=60, capture_output=True, text=True)  # noqa: S602
    assert (told.returncode, "Standard input is closed" in told.stderr) == (1, True)


@pytest.mark.parametrize("command", ["recover", "vacuum", "history"])
def test_a_path_without_a_dataset_is_refused(command: str, tmp_path: Path, cli: Callable[..., Result]) -> None:
    told = cli(command, str(tmp_path / "typo"), *(["--yes"] if command == "vacuum" else []), code=1).stderr
    assert "There is no dataset at" in told
    assert os.listdir(tmp_path) == []


def test_another_writer_is_not_an_interrupted_commit(orders: str, tmp_path: Path, answer: Callable[..., Any]) -> None:
    arguments = ["merge", str(tmp_path / "rows.parquet"), orders, "--key", "id", "--lock-timeout", "0.1"]
    location = locate(orders)
    with open_session(location) as session, session.staging() as staging:
        location.store.write_small(staging.journal, b"{}")
        told = answer(*arguments, code=1)
        location.store.remove(staging.journal)
    assert told["error"]["type"] == "LockTimeoutError"


@pytest.mark.parametrize(
    "wrong",
    [
        ["--engine", "arrow", "--use-merge"],
        ["--retain", "-1"],
        ["--row-group-size", "0"],
        ["--max-rows-per-file", "0"],
        ["--lock-timeout", "-1"],
    ],
)
def test_numbers_that_cannot_be_meant_are_wrong_usage(
    wrong: list[str], orders: str, tmp_path: Path, cli: Callable[..., Result]
) -> None:
    with assert_unchanged(orders):
        refused = cli("merge", str(tmp_path / "rows.parquet"), orders, "--key", "id", *wrong, code=2)
    assert wrong[-2] in refused.stderr or wrong[-1] in refused.stderr
    cli("history", orders, "--limit", "0", code=2)
    cli("compact", orders, "--target-file-mb", "inf", code=2)


def test_names_with_commas_are_quoted_and_paths_may_go_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: Callable[..., Any]
) -> None:
    pq.write_table(pa.table({"a,b": [1], "c": [2], "zip": ["12"]}), tmp_path / "rows.parquet")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    arguments = ["merge", "../rows.parquet", "../t", "--key", '"a,b",c', "--partition-by", "zip"]
    assert answer(*arguments)["inserted"] == 1
    assert (tmp_path / "t").is_dir()
    scoped = answer(*arguments, "--strategy", "full_merge", "--scope", "zip=12", "--yes")
    assert scoped["updated"] == 1


def test_a_replayed_batch_and_an_audit_are_reported(orders: str, tmp_path: Path, cli: Callable[..., Result]) -> None:
    arguments = ["merge", str(tmp_path / "rows.parquet"), orders, "--key", "id", "--batch-id", "b"]
    assert "'id': 2" in cli(*arguments, "--audit", "rows").stdout
    assert cli(*arguments).stdout == f"{orders}: batch b was merged before; nothing was done\n"
    feed = str(tmp_path / "feed")
    shown = cli("merge", str(tmp_path / "rows.parquet"), orders, "--key", "id", "--audit", feed).stdout
    assert f"changed rows: {feed}/" in shown


def test_an_undo_reports_what_it_undoes(orders: str, cli: Callable[..., Result]) -> None:
    assert "merge upsert: 1 inserted?" in cli("undo", orders, code=2).stderr


def test_a_shell_completes_commands_options_and_files(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").touch()

    def completed(words: str, number: int) -> str:
        environment = {
            **os.environ,
            "_MERGANSER_COMPLETE": "bash_complete",
            "COMP_WORDS": words,
            "COMP_CWORD": str(number),
        }
        code = "import sys; sys.argv = ['merganser']; from merganser.cli import main; main()"
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        return done.stdout

    assert "plain,merge" in completed("merganser me", 1)
    assert "plain,--partition-by" in completed("merganser merge --part", 2)
    assert "file," in completed("merganser merge r", 2)


def test_json_of_an_error_is_an_object(orders: str, answer: Callable[..., Any]) -> None:
    told = answer("merge", "nowhere.csv", orders, "--key", "id", code=1)
    assert json.dumps(told)
    assert list(told["error"]) == ["type", "message", "exit_code"]
