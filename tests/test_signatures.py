"""Signatures: all engines take the same parameters, and documented ones keep their names and order."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import pytest

import merganser
from merganser import core
from merganser.core.merge.dataset_io import DatasetIO
from merganser.core.model.options import ARGUMENTS, DECLARATIONS, Call, Options, list_options
from merganser.engines import ENGINES, open_engine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import ModuleType

METHODS = ("merge", "plan", "write_dataset", "read")
# Names and order that callers of the documented interface rely on; more parameters may follow.
MERGE = [
    "source",
    "path",
    "strategy",
    "key_columns",
    "partition_columns",
    "filesystem",
    "compression",
    "max_rows_per_file",
    "row_group_size",
]
DOCUMENTED: dict[str, tuple[Callable[..., Any], list[str]]] = {
    "normalize_keys": (core.normalize_keys, ["key_columns"]),
    "validate_keys_and_schema": (core.validate_keys_and_schema, ["source", "target", "key_columns"]),
    "compute_merge_stats": (
        core.compute_merge_stats,
        ["strategy", "target_before", "target_after", "inserted_rows", "updated_rows", "deleted_rows"],
    ),
    "list_dataset_files": (core.list_dataset_files, ["dataset_path", "filesystem"]),
    "parse_hive_partition_path": (core.parse_hive_partition_path, ["file_path", "partition_columns"]),
    "analyze_dataset_files": (
        core.ParquetMetadataAnalyzer().analyze_dataset_files,
        ["dataset_path", "filesystem"],
    ),
    "identify_candidate_files": (
        core.PartitionPruner().identify_candidate_files,
        ["file_metadata", "key_columns", "source_keys", "partition_schema"],
    ),
    "file_might_contain_keys": (
        core.ConservativeMembershipChecker().file_might_contain_keys,
        ["file_metadata", "key_columns", "source_keys"],
    ),
    "confirm_affected_files": (
        core.confirm_affected_files,
        ["candidate_files", "key_columns", "source_keys", "filesystem"],
    ),
    "create_staging_directory": (core.IncrementalFileManager().create_staging_directory, ["base_path"]),
    "atomic_replace_files": (
        core.IncrementalFileManager().atomic_replace_files,
        ["source_files", "target_files", "filesystem"],
    ),
    "cleanup_staging_files": (core.IncrementalFileManager().cleanup_staging_files, []),
    "validate_no_null_keys": (core.validate_no_null_keys, ["source_table", "key_columns"]),
    "validate_partition_column_immutability": (
        core.validate_partition_column_immutability,
        ["source_table", "target_table", "key_columns", "partition_columns"],
    ),
    "plan_incremental_rewrite": (
        core.plan_incremental_rewrite,
        ["dataset_path", "source_keys", "key_columns", "filesystem", "partition_schema"],
    ),
    "merge_parquet_dataset_pyarrow": (
        merganser.merge_parquet_dataset_pyarrow,
        ["source", "target_path", "key_columns", "strategy", "dedup_order_by", "compression", "filesystem"],
    ),
    "DuckDBDatasetIO": (merganser.DuckDBDatasetIO, ["connection", "filesystem"]),
    "write_parquet_dataset": (
        merganser.DuckDBDatasetIO().write_parquet_dataset,
        ["source", "path", "strategy", "key_columns", "mode", "rewrite_mode"],
    ),
    "DuckDBParquetHandler.write_parquet_dataset": (
        merganser.DuckDBParquetHandler().write_parquet_dataset,
        ["source", "path", "strategy", "key_columns", "mode", "rewrite_mode"],
    ),
    "DuckDBParquetHandler.merge_parquet_dataset": (
        merganser.DuckDBParquetHandler().merge_parquet_dataset,
        ["source", "target_path", "key_columns", "strategy", "dedup_order_by", "compression"],
    ),
    "MergeFileMetadata": (core.MergeFileMetadata, ["path", "row_count", "operation", "size_bytes"]),
    "MergeResult": (
        core.MergeResult,
        [
            "strategy",
            "source_count",
            "target_count_before",
            "target_count_after",
            "inserted",
            "updated",
            "deleted",
            "files",
            "rewritten_files",
            "inserted_files",
            "preserved_files",
        ],
    ),
    "ParquetFileMetadata": (
        core.ParquetFileMetadata,
        ["path", "row_group_count", "total_rows", "column_stats", "partition_values"],
    ),
    "IncrementalRewritePlan": (
        core.IncrementalRewritePlan,
        ["affected_files", "unaffected_files", "new_files", "affected_rows"],
    ),
    "PathValidator.validate_path_for_sql": (core.PathValidator.validate_path_for_sql, ["path"]),
    "PathValidator.escape_for_sql": (core.PathValidator.escape_for_sql, ["path"]),
}


def parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    return list(inspect.signature(function).parameters.values())


def read_arguments(function: Callable[..., Any]) -> dict[str, str]:
    """Read the parameters and their descriptions under `Args:` of a docstring."""
    listed = (inspect.getdoc(function) or "").partition("Args:\n")[2].partition("\n\n")[0]
    found = re.split(r"^    (\*{0,2}\w+): ", listed, flags=re.MULTILINE)[1:]
    return {name: " ".join(text.split()) for name, text in zip(found[::2], found[1::2], strict=True)}


# R3
@pytest.mark.parametrize("method", METHODS)
def test_all_engines_take_the_same_parameters(method: str) -> None:
    found = [
        [(one.name, one.kind, one.default) for one in parameters(getattr(open_engine(name), method))]
        for name in ENGINES
    ]
    assert all(own == found[0] for own in found)


def test_an_option_of_another_engine_is_refused() -> None:
    for engine in ("arrow", "spark"):
        with pytest.raises(TypeError, match="use_merge, an option of the duckdb engine"):
            merganser.merge([], "t", key_columns="id", engine=engine, use_merge=True)


@pytest.mark.parametrize("call", get_args(Call))
@pytest.mark.parametrize("owner", [merganser, DatasetIO])
def test_signatures_and_docstrings_follow_the_declared_options(owner: Any, call: Call) -> None:
    function = getattr(owner, call)
    found = {one.name: one for one in parameters(function)}
    assert [name for name in found if name in DECLARATIONS] == list_options(call)
    assert set(found) - set(DECLARATIONS) - {"self"} <= set(ARGUMENTS)
    described = read_arguments(function)
    for name in list_options(call):
        default, annotation = next((one.default, one.type) for one in fields(Options) if one.name == name)
        assert (found[name].default, found[name].annotation) == (default, annotation)
        assert described[name] == DECLARATIONS[name].description


def test_generated_code_is_up_to_date() -> None:
    script = Path(__file__).parents[1] / "scripts" / "options.py"
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, ""), "Run `make options`, then commit what it wrote."


# R1
def test_merge_takes_the_documented_parameters_in_their_order() -> None:
    for name in ENGINES:
        own = parameters(open_engine(name).merge)
        assert [one.name for one in own if one.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD] == MERGE
        defaults = {one.name: one.default for one in own}
        assert {key: defaults[key] for key in ("strategy", "partition_columns", "filesystem", "compression")} == {
            "strategy": "upsert",
            "partition_columns": None,
            "filesystem": None,
            "compression": "snappy",
        }
        assert (defaults["max_rows_per_file"], defaults["row_group_size"]) == (5_000_000, 500_000)
        assert next(one.kind for one in own if one.name == "data") is inspect.Parameter.KEYWORD_ONLY


# P5
def test_plan_takes_what_merge_takes_but_what_only_writing_needs() -> None:
    for name in ENGINES:
        dataset_io = open_engine(name)
        merge, plan = ({one.name for one in parameters(getattr(dataset_io, verb))} for verb in ("merge", "plan"))
        assert plan <= merge
        assert {"source", "path", "strategy", "key_columns", "partition_columns", "filesystem"} <= plan


# O1
def test_write_dataset_takes_mode_third() -> None:
    for name in ENGINES:
        own = parameters(open_engine(name).write_dataset)
        assert [one.name for one in own[:4]] == ["source", "path", "mode", "partition_columns"]
        assert next(one.default for one in own if one.name == "mode") == "append"


@pytest.mark.parametrize("name", DOCUMENTED)
def test_documented_names_keep_their_parameters(name: str) -> None:
    function, expected = DOCUMENTED[name]
    assert [one.name for one in parameters(function)][: len(expected)] == expected
    rest = parameters(function)[len(expected) :]
    assert all(one.default is not one.empty or one.kind is one.VAR_KEYWORD for one in rest)


# Every public method of these is documented; more classes may be added.
DOCUMENTED_CLASSES: tuple[type, ...] = (
    merganser.DuckDBDatasetIO,
    merganser.PyArrowDatasetIO,
    merganser.SparkDatasetIO,
    merganser.DuckDBParquetHandler,
    core.ConservativeMembershipChecker,
    core.IncrementalFileManager,
    core.ParquetMetadataAnalyzer,
    core.PartitionPruner,
)
# Functions without an example of their own, and why.
NO_EXAMPLE = {
    **dict.fromkeys(
        (
            "DatasetIO.alter",
            "DatasetIO.merge",
            "DatasetIO.merge_into",
            "DatasetIO.plan",
            "DatasetIO.sql",
            "DatasetIO.write_dataset",
        ),
        "the functions of merganser have one",
    ),
    **dict.fromkeys(
        (
            "DuckDBDatasetIO.close",
            "DuckDBParquetHandler.close",
            "DuckDBParquetHandler.merge_parquet_dataset",
            "DuckDBParquetHandler.write_parquet_dataset",
            "IncrementalFileManager.atomic_replace_files",
            "IncrementalFileManager.cleanup_staging_files",
            "IncrementalFileManager.create_staging_directory",
        ),
        "the class has one",
    ),
    **dict.fromkeys(
        ("ConservativeMembershipChecker", "ParquetMetadataAnalyzer", "PartitionPruner"), "their method has one"
    ),
    **dict.fromkeys(("DatasetIO.make_options", "DatasetIO.plan_merge", "DatasetIO.run_merge"), "MergeBuilder calls it"),
    **dict.fromkeys(
        (
            "SparkDatasetIO",
            "SparkDatasetIO.foreach_batch",
            "SparkDatasetIO.merge_into",
            "SparkDatasetIO.read",
            "SparkDatasetIO.read_columns",
        ),
        "it would start a JVM; docs/spark.md has one",
    ),
}


def find_documented(packages: Iterable[ModuleType], classes: Iterable[type]) -> dict[str, Callable[..., Any]]:
    """Find the functions that packages export, and classes with their public methods."""
    found = [getattr(package, name) for package in packages for name in dir(package)]
    functions: list[Any] = [one for one in found if inspect.isfunction(one)]
    for owner in classes:
        methods = inspect.getmembers(owner, inspect.isfunction)
        functions += [owner, *(method for name, method in methods if not name.startswith("_"))]
    return {function.__qualname__: function for function in functions}


PUBLIC = find_documented((merganser, core), DOCUMENTED_CLASSES)


@pytest.mark.parametrize("name", PUBLIC)
def test_public_functions_document_their_parameters(name: str) -> None:
    function = PUBLIC[name]
    own = [one for one in parameters(function) if one.name != "self"]
    assert [one.name for one in own if one.annotation is one.empty] == []
    stars: dict[Any, str] = {inspect.Parameter.VAR_KEYWORD: "**", inspect.Parameter.VAR_POSITIONAL: "*"}
    described = read_arguments(function)
    assert list(described) == [f"{stars.get(one.kind, '')}{one.name}" for one in own]
    assert all(text.endswith(".") for text in described.values())
    assert (">>> " in (inspect.getdoc(function) or "")) is (name not in NO_EXAMPLE)


def test_functions_without_an_example_exist() -> None:
    assert set(NO_EXAMPLE) <= set(PUBLIC)


def test_the_top_level_takes_the_parameters_of_a_dataset_io() -> None:
    for verb in ("merge", "plan", "write_dataset"):
        top = [one for one in parameters(getattr(merganser, verb)) if one.name not in {"engine", "options"}]
        names = [one.name for one in parameters(getattr(open_engine("arrow"), verb))]
        by_place = [one.name for one in top if one.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
        assert names[: len(by_place)] == by_place
        assert {one.name for one in top} <= set(names)


def test_an_unknown_engine_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match="Choose one of: auto, duckdb, arrow"):
        merganser.merge(None, "t", key_columns="id", engine="abacus")


def test_every_name_of_core_is_importable_and_documented() -> None:
    for name in dir(core):
        assert getattr(core, name) is not None
        assert name == "MergeStrategy" or getattr(core, name).__doc__
