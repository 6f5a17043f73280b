"""Any merge into any dataset agrees with the oracle: rows, counts, files, plan and audit."""

from __future__ import annotations

import datetime as dt
import json
import os
import random
import re
import tempfile
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import Phase, given, reject, settings
from hypothesis import strategies as st
from tests import oracle
from tests.support import (
    assert_unchanged,
    load,
    open_dataset_io,
    put,
    snapshot,
    snapshot_without_locks,
    to_plain_rows,
    to_plain_values,
)
from tests.values import FLOATS, NESTED, PLAIN, build, cells, is_carried_by_spark, to_new_type, to_stored_type

from merganser.core.dataset.snapshot import make_record
from merganser.core.storage.location import locate
from merganser.core.storage.staging import PARTITION_RECORD, choose_control_folder
from merganser.errors import (
    ColumnValueError,
    DuplicateKeyError,
    KeyColumnError,
    PartitionMoveError,
    PartitionValueError,
    TargetPathError,
    UnsupportedTypeError,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from merganser.core.merge.dataset_io import DatasetIO
    from merganser.core.merge.merge_plan import MergePlan
    from merganser.core.model.result import MergeResult

REFUSALS = {
    "null key": KeyColumnError,
    "operation": ColumnValueError,
    "duplicate key": DuplicateKeyError,
    "scope": PartitionValueError,
    "partition move": PartitionMoveError,
    "no target": TargetPathError,
}
OPERATION = "op"
# None are the library's own.
OPERATION_VALUES: tuple[dict[str, list[Any]] | None, ...] = (
    None,
    None,
    {"insert": ["+I"], "update": ["+U", "~"], "delete": ["-D", ""]},
    {"insert": [1], "update": [2], "delete": [3, 4]},
    {"update": ["set"], "delete": ["unset"]},
)
# What folder names can carry exactly.
PARTITIONED = (
    pa.string(),
    pa.large_string(),
    pa.int16(),
    pa.int64(),
    pa.uint32(),
    pa.date32(),
    pa.bool_(),
    pa.decimal128(9, 2),
    pa.timestamp("us"),
)
FOLDER_TEXTS = (
    "007",
    "7",
    " a b ",
    "x=y",
    "a/b",
    "50%",
    "%2F",
    "10:30",
    "東京",
    "é",
    "e\u0301",
    "A",
    "a",
    "null",
    "a+b",
    "'\"",
)


# -------------------- cases


@dataclass(frozen=True)
class TargetFile:
    """A file of the target: its path below the root, its rows, and how to write them."""

    rel: str
    table: pa.Table
    place: tuple[Any, ...]
    options: dict[str, Any]


@dataclass(frozen=True)
class Case:
    """A dataset, a source, and how to merge the one into the other."""

    columns: pa.Schema
    partitions: pa.Schema
    keys: list[str]
    source: pa.Table
    strategy: Any
    order_by: list[str] = field(default_factory=list)
    files: list[TargetFile] = field(default_factory=list)
    # A target that the library itself writes, in place of files.
    written: pa.Table | None = None
    max_rows: int = 3
    group_rows: int = 2
    # What is asked beyond the strategy, as the library takes it, and the scope once more, as its column has it.
    options: dict[str, Any] = field(default_factory=dict)
    scope: dict[str, list[Any]] = field(default_factory=dict)
    # True, "rows", or "path": a folder of its own.
    audit: Any = True

    @property
    def asked(self) -> oracle.Options:
        """What is asked beyond the strategy, as the oracle takes it."""
        kinds = {one.name: one.type for one in self.partitions}
        scope = {name: to_plain_values(build(values, kinds[name])) for name, values in self.scope.items()}
        return oracle.Options(self.schema.names, **(self.options | {"scope": scope}))

    @property
    def repeatable(self) -> bool:
        """Return whether a row that was inserted would not take more when it is matched."""
        inserted = self.asked.insert_columns
        replaced = self.asked.update_columns or self.schema.names
        return inserted is None or set(replaced) <= {*inserted, *self.keys}

    @property
    def schema(self) -> pa.Schema:
        """Every column as the dataset must give it back."""
        fields = [inner.with_type(to_stored_type(inner.type)) for inner in self.columns]
        return pa.schema([*fields, *self.partitions])


@st.composite
def cases(draw: st.DrawFn, engine: str = "arrow") -> Case:
    """Shapes, types that the engine carries, and values are drawn; which row gets which is decided by a drawn seed."""
    rnd = random.Random(draw(st.integers(0, 1 << 32)))
    folders, plain, floats, nested = (
        [kind for kind in kinds if _drawn(kind, engine)] for kinds in (PARTITIONED, PLAIN, FLOATS, NESTED)
    )
    partition_kinds = draw(st.lists(st.sampled_from(folders), max_size=2))
    partition_keys = [name for name in ("day", "ré gion")[: len(partition_kinds)] if rnd.random() < 0.4]
    key_kinds = draw(
        st.lists(
            st.sampled_from([*plain, *floats, *floats]),
            min_size=0 if partition_keys else 1,
            max_size=3 - len(partition_keys),
        )
    )
    value_kinds = draw(st.lists(st.sampled_from([*plain, *nested, *nested]), min_size=1, max_size=3))
    key_names = ["id", "a.b", "名"][: len(key_kinds)]
    value_names = ["v", "w", "x y"][: len(value_kinds)]
    kinds = dict(zip(key_names + value_names, key_kinds + value_kinds, strict=True))
    places = dict(zip(("day", "ré gion"), partition_kinds, strict=False))
    pools = {name: draw(st.lists(cells(kind), min_size=1, max_size=5)) for name, kind in kinds.items()}
    pools |= {name: draw(st.lists(folder_values(kind), min_size=1, max_size=3)) for name, kind in places.items()}
    for name, kind in zip(key_names, key_kinds, strict=True):
        pools[name] += [0.0, -0.0] if pa.types.is_floating(kind) else []
    required = {name for name in kinds if rnd.random() < 0.1}
    order = rnd.sample(list(kinds), len(kinds))
    keys = rnd.sample([*key_names, *partition_keys], len(key_names) + len(partition_keys))
    fields = [pa.field(name, kinds[name], nullable=name not in required) for name in order]
    metadata = {"owner": "ducks"} if rnd.random() < 0.3 else None
    columns, partitions = pa.schema(fields, metadata), pa.schema(places.items())

    moving = rnd.random() < 0.35
    homes: dict[str, dict[str, Any]] = {}

    def row(null: float) -> dict[str, Any]:
        cell = {name: _pick(rnd, pools[name], 0 if name in required else null) for name in [*kinds, *places]}
        free = {name: cell[name] for name in places if name not in keys}
        return cell if moving else cell | homes.setdefault(repr([cell[name] for name in keys]), free)

    target = [row(0.15) for _ in range(rnd.choice([0, 4, 8, 8, 14, 14]))]
    strategy = rnd.choice(list(oracle.STRATEGIES))
    made = Case(
        columns,
        partitions,
        keys,
        pa.table({}),
        strategy,
        max_rows=rnd.randint(1, 4),
        group_rows=rnd.randint(1, 3),
        audit=rnd.choice([True, "rows", "rows", "path"]),
    )
    if rnd.random() < 0.25:
        made = replace(made, written=_table(target, pa.schema([*columns, *partitions], metadata)))
    else:
        made = replace(made, files=_spread_over_files(rnd, target, made, pools))
    sortable = [one.name for one in made.schema if not pa.types.is_nested(one.type) and one.name not in keys]
    made = replace(made, options=_options_drawn(rnd, made, sortable, moving=moving))
    if strategy == "deduplicate" and "sequence_column" not in made.options:
        made = replace(made, order_by=rnd.sample(sortable, min(rnd.randint(0, 2), len(sortable))))

    fault = _fault(rnd, made.options)
    several = strategy == "deduplicate" or ("sequence_column" in made.options and rnd.random() < 0.7)
    # Several rows of a key are what `deduplicate` is for, and no rows at all what `full_merge` may have to face.
    sizes = [8, 14] if several else [0, 8, 12] if strategy == "full_merge" else [0, 4, 8, 12]
    rows = [row(0.15) for _ in range(rnd.choice(sizes))]
    if target and made.options.get("skip_unchanged"):
        rows = [rnd.choice(target) if rnd.random() < 0.5 else one for one in rows]
    if fault != "null key":
        rows = [one for one in rows if not any(oracle.is_refused_key(one[name], made.asked) for name in keys)]
    if not several and fault != "duplicate key":
        rows = list({_equal(one, keys, kinds | places): one for one in rows}.values())
    if "scope" in made.options:
        made = _scoped(rnd, made, rows, pools, outside=fault == "scope" and not several)
    if "operation_column" in made.options:
        rows = _with_operations(rnd, made, rows, unknown=fault == "operation")
    return replace(made, source=_source(rnd, made, rows, metadata))


def _fault(rnd: random.Random, options: dict[str, Any]) -> str | None:
    """Draw one defect of a source, so that it is clear which one the error names."""
    if rnd.random() < 0.86:
        return None
    own = [name for name, option in (("operation", "operation_column"), ("scope", "scope")) if option in options]
    return rnd.choice(own or ["null key", "duplicate key"])


def _options_drawn(rnd: random.Random, case: Case, sortable: Sequence[str], *, moving: bool) -> dict[str, Any]:
    """Draw options that go with the strategy and with one another; many cases have none."""
    options: dict[str, Any] = {"null_keys": "match"} if rnd.random() < 0.4 else {}
    if rnd.random() < 0.4:
        return options
    matched, _, deletes = oracle.STRATEGIES[case.strategy]
    if sortable and rnd.random() < 0.4:
        options["sequence_column"] = rnd.choice(sortable)
    if deletes and case.partitions.names and rnd.random() < 0.6:
        options["scope"] = {}
    if matched == "update":
        if not deletes and rnd.random() < 0.5:
            values = rnd.choice(OPERATION_VALUES)
            options |= {"operation_column": OPERATION} | ({"operation_values": values} if values else {})
        if rnd.random() < 0.5:
            options["skip_unchanged"] = True
        if case.partitions.names and rnd.random() < (0.8 if moving else 0.1):
            return options | {"on_partition_move": "move"}
        if rnd.random() < 0.25:
            options["update_mode"] = "non_null"
    return options | _columns_drawn(rnd, case, options)


def _columns_drawn(rnd: random.Random, case: Case, options: dict[str, Any]) -> dict[str, Any]:
    drawn: dict[str, Any] = {}
    if not case.files and case.written is None:
        # A first load takes the source's columns as they are.
        return drawn
    matched, inserts, _ = oracle.STRATEGIES[case.strategy]
    if matched == "update" and rnd.random() < 0.4:
        drawn["update_columns"] = _some_columns(rnd, case, options, partitions=rnd.random() < 0.5)
    if inserts and rnd.random() < 0.3:
        required = [one.name for one in case.columns if not one.nullable]
        drawn["insert_columns"] = [*dict.fromkeys([*_some_columns(rnd, case, options, partitions=True), *required])]
    return drawn


def _some_columns(rnd: random.Random, case: Case, options: dict[str, Any], *, partitions: bool) -> list[str]:
    """Draw columns to take, with the sequence among them, and of the partition columns all or none."""
    sequence = options.get("sequence_column")
    places = [name for name in case.partitions.names if name not in case.keys]
    values = [name for name in case.columns.names if name not in case.keys]
    taken = set(rnd.sample(values, rnd.randint(1, len(values))))
    taken |= {sequence} if sequence else set()
    taken |= {rnd.choice(case.keys)} if rnd.random() < 0.2 else set()
    taken |= set(places) if partitions or sequence in places else set()
    return rnd.sample(sorted(taken), len(taken))


def _scoped(
    rnd: random.Random, case: Case, rows: Sequence[dict[str, Any]], pools: dict[str, list[Any]], *, outside: bool
) -> Case:
    """Draw a scope that holds every source row, or not quite; its values as the column has them, or as text."""
    scope, given = {}, {}
    for name in rnd.sample(case.partitions.names, rnd.randint(1, len(case.partitions.names))):
        values = {repr(row[name]): row[name] for row in rows}
        if outside and values:
            del values[rnd.choice(list(values))]
        else:
            more = [value for value in [*pools[name], None] if rnd.random() < 0.3]
            values |= {repr(value): value for value in more}
        scope[name] = list(values.values()) or [rnd.choice(pools[name])]
        spelled = [_scope_value(rnd, value) for value in scope[name]]
        given[name] = spelled[0] if len(spelled) == 1 and rnd.random() < 0.5 else spelled
    return replace(case, scope=scope, options=case.options | {"scope": given})


def _scope_value(rnd: random.Random, value: Any) -> Any:
    text = text_of(value)
    return text if text is not None and escaped(text) == text and rnd.random() < 0.3 else value


def _with_operations(
    rnd: random.Random, case: Case, rows: Sequence[dict[str, Any]], *, unknown: bool
) -> list[dict[str, Any]]:
    """Return each row an operation; a row that deletes need have nothing but its key."""
    meanings = case.options.get("operation_values") or oracle.OPERATIONS
    absent = not case.files and case.written is None
    # On a first load the source decides which columns are never NULL.
    fixed = {*case.keys, *(one.name for one in case.columns if absent and not one.nullable)}
    found = []
    for row in rows:
        name = "delete" if rnd.random() < 0.4 else rnd.choice([name for name in meanings if name != "delete"])
        bare = name == "delete" and rnd.random() < 0.5
        kept = {one: value if one in fixed or not bare else None for one, value in row.items()}
        found.append(kept | {OPERATION: rnd.choice(meanings[name])})
    if unknown and found:
        row = rnd.choice(found)
        row[OPERATION] = rnd.choice([None, 99 if isinstance(row[OPERATION], int) else "nonsense"])
    return found


def _source(rnd: random.Random, case: Case, rows: Sequence[dict[str, Any]], metadata: Any) -> pa.Table:
    """Make the source: the columns that the merge needs, in any order, and some of the others."""
    everything = [*case.columns, *case.partitions]
    names = case.schema.names
    matched, inserts, _ = oracle.STRATEGIES[case.strategy]
    needed = {*case.keys, *case.order_by, case.options.get("sequence_column")}
    if matched == "update":
        needed |= set(case.options.get("update_columns", names))
    if inserts:
        needed |= set(case.options.get("insert_columns", names))
    if not case.files and case.written is None:
        needed |= set(names)
    elif case.written is None:
        # Partition columns without a recorded type have the types of the source's columns.
        needed |= set(case.partitions.names)
    taken = [one for one in everything if one.name in needed or rnd.random() < 0.3]
    if "operation_column" in case.options:
        values = case.options.get("operation_values", oracle.OPERATIONS)
        kind = pa.int8() if isinstance(values["delete"][0], int) else pa.string()
        bare = {one.name for one in taken if any(row[one.name] is None for row in rows)}
        taken = [one.with_nullable(True) if one.name in bare else one for one in taken] + [pa.field(OPERATION, kind)]
    return _table(rows, pa.schema(rnd.sample(taken, len(taken)), metadata))


def folder_values(kind: pa.DataType) -> st.SearchStrategy[Any]:
    if pa.types.is_integer(kind):
        return st.integers(0, 9) | st.just(120)
    if pa.types.is_date(kind):
        return st.integers(-3, 3).map(lambda days: dt.date(2025, 1, 4) + dt.timedelta(days))
    if pa.types.is_boolean(kind):
        return st.booleans()
    if pa.types.is_decimal(kind):
        return st.sampled_from(["0.00", "-1.50", "1.50", "1234567.89"]).map(Decimal)
    if pa.types.is_timestamp(kind):
        return st.sampled_from([dt.datetime(2025, 1, 1), dt.datetime(2025, 1, 1, 10, 30, 0, 1500)])  # noqa: DTZ001
    return st.sampled_from(FOLDER_TEXTS)


def _pick(rnd: random.Random, pool: Sequence[Any], null: float) -> Any:
    return None if rnd.random() < null else rnd.choice(pool)


def _equal(row: dict[str, Any], keys: Sequence[str], kinds: dict[str, pa.DataType]) -> oracle.Key:
    return tuple(to_plain_values(build([row[name]], kinds[name]))[0] for name in keys)


def _table(rows: Sequence[dict[str, Any]], schema: pa.Schema) -> pa.Table:
    return pa.table([build([row[one.name] for row in rows], one.type) for one in schema], schema=schema)


def _spread_over_files(
    rnd: random.Random, rows: Sequence[dict[str, Any]], case: Case, pools: dict[str, list[Any]]
) -> list[TargetFile]:
    """Spread rows over a few files in each of their partitions, some of them empty, each written in its own way."""
    names = case.partitions.names
    slots: dict[tuple[str, int], tuple[tuple[Any, ...], list[dict[str, Any]]]] = {}
    files = rnd.randint(1, 4)
    for row in rows:
        place = tuple(row[name] for name in names)
        slots.setdefault((repr(place), rnd.randrange(files)), (place, []))[1].append(row)
    for number in range(rnd.choice([0, 0, 1, 2])):
        place = tuple(_pick(rnd, pools[name], 0.2) for name in names)
        slots[repr(place), files + number] = (place, [])
    made = []
    for number, (place, members) in enumerate(slots.values()):
        inside, schema = members, case.columns
        if names and rnd.random() < 0.15:
            # The file holds a partition column too, and not even the value of its folder: the path wins.
            copied = rnd.choice(list(case.partitions))
            inside = [row | {copied.name: _pick(rnd, pools[copied.name], 0.2)} for row in members]
            schema = schema.insert(rnd.randint(0, len(schema)), copied)
        folders = "".join(f"{name}={spelled(rnd, value)}/" for name, value in zip(names, place, strict=True))
        made.append(TargetFile(f"{folders}f{number}.parquet", _table(inside, schema), place, _options(rnd)))
    return made


def _options(rnd: random.Random) -> dict[str, Any]:
    return {
        "row_group_size": rnd.choice([1, 2, 3, 100]),
        "compression": rnd.choice(["snappy", "snappy", "zstd", "gzip", "brotli", "lz4", "none"]),
        "use_dictionary": rnd.random() < 0.6,
        "write_statistics": rnd.random() < 0.8,
        "data_page_version": rnd.choice(["1.0", "2.0"]),
        "write_page_index": rnd.random() < 0.3,
        "store_decimal_as_integer": rnd.random() < 0.3,
    }


def text_of(value: Any) -> str | None:
    """The text of a partition value, before escaping."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dt.datetime):
        return str(value)[:19] + (str(value)[19:].rstrip("0") if value.microsecond else "")
    return None if value is None else str(value)


def spelled(rnd: random.Random, value: Any) -> str:
    """Spell a partition value the way one writer or another would."""
    text = text_of(value)
    if text is None:
        return "__HIVE_DEFAULT_PARTITION__"
    if isinstance(value, int) and not isinstance(value, bool) and rnd.random() < 0.2:
        text = f"00{text}"
    return quote(text, safe="") if rnd.random() < 0.3 else escaped(text)


def _drawn(kind: pa.DataType, engine: str) -> bool:
    """Leave out what Spark declines: some types, and instants that microseconds do not reach."""
    return not engine.startswith("spark") or (
        is_carried_by_spark(kind) and not (pa.types.is_timestamp(kind) and kind.unit in {"s", "ms"})
    )


def escaped(text: str) -> str:
    """Escape what Spark escapes, and nothing else."""
    return re.sub(r"[\x00-\x1f\"#%'*/:=?\\\x7f{\[\]^]", lambda found: f"%{ord(found[0]):02X}", text)


# -------------------- the target on disk


def write_target(io: DatasetIO, path: str, case: Case) -> dict[str, list[oracle.Row]]:
    """Write the target, and give its rows by file as the oracle sees them."""
    for file in case.files:
        put(f"{path}/{file.rel}", file.table, **file.options)
    if case.files and not _sets_partition_types(case):
        # Otherwise they would be strings.
        location = locate(path)
        os.makedirs(choose_control_folder(location))
        record = make_record({one.name: one.type for one in case.partitions})
        Path(choose_control_folder(location), PARTITION_RECORD).write_text(json.dumps(record), "utf-8")
    if case.written is not None:
        columns = case.partitions.names or None
        io.write_dataset(case.written, path, "overwrite", columns, max_rows_per_file=case.max_rows, row_group_size=2)
    return {rel: file_rows(path, rel, case) for rel in snapshot(path)}


def _sets_partition_types(case: Case) -> bool:
    """Return whether a merge takes its partition columns from the source, and so their types."""
    matched, inserts, _ = oracle.STRATEGIES[case.strategy]
    replaced = case.options.get("update_columns", case.partitions.names) if matched == "update" else []
    return inserts or set(case.partitions.names) <= {*case.keys, *replaced}


def file_rows(path: str, rel: str, case: Case, columns: pa.Schema | None = None) -> list[oracle.Row]:
    """Read one file with PyArrow alone; its folders give the partition values."""
    names = case.partitions.names
    folders = rel.split("/")[:-1]
    assert len(folders) == len(names)
    fixed = {
        field.name: to_plain_values(build([_folder_value(case, depth, folders[depth], field)], field.type))[0]
        for depth, field in enumerate(case.partitions)
    }
    table = read_file(f"{path}/{rel}")
    own = table.drop_columns([name for name in names if name in table.column_names]).schema
    wanted = columns or file_schema(case)
    # Not `check_metadata`: Parquet calls the elements of a list `element`, whatever Arrow called them.
    assert own.equals(wanted)
    assert own.metadata == wanted.metadata
    return [row | fixed for row in to_plain_rows(table)]


def read_file(path: str) -> pa.Table:
    with pq.ParquetFile(path) as parquet:
        groups = [parquet.read_row_group(group) for group in range(parquet.num_row_groups)]
        none = [pa.chunked_array([], type=one.type) for one in parquet.schema_arrow]
        return pa.concat_tables(groups) if groups else pa.table(none, schema=parquet.schema_arrow)


def file_schema(case: Case) -> pa.Schema:
    """The schema that every file must have, but for copies of partition columns."""
    make = to_stored_type if case.files else to_new_type
    return pa.schema([one.with_type(make(one.type)) for one in case.columns], case.columns.metadata)


def _folder_value(case: Case, depth: int, folder: str, partition: pa.Field) -> Any:
    """Read a folder that the target had, however it is spelled, or a new one, which has only one spelling."""
    for file in case.files:
        if file.rel.split("/")[depth] == folder:
            return file.place[depth]
    known = [*FOLDER_TEXTS, *range(10), 120, True, False, *map(Decimal, ("0.00", "-1.50", "1.50", "1234567.89"))]
    known += [dt.date(2025, 1, 1) + dt.timedelta(days) for days in range(7)]
    known += [dt.datetime(2025, 1, 1), dt.datetime(2025, 1, 1, 10, 30, 0, 1500)]  # noqa: DTZ001
    name, _, text = folder.partition("=")
    assert name == partition.name
    if text == "__HIVE_DEFAULT_PARTITION__":
        return None
    for value in known:
        try:
            build([value], partition.type)
        except (pa.ArrowException, TypeError):
            continue
        if text == escaped(text_of(value) or ""):
            return value
    raise AssertionError(folder)


# -------------------- the checks


def check(engine: str, case: Case) -> None:
    """Merge, and compare everything there is to see with the oracle."""
    with tempfile.TemporaryDirectory() as lake:
        io, path = open_dataset_io(engine), f"{lake}/t"
        before: dict[str, bytes] = {}
        try:
            target = write_target(io, path, case)
            before = snapshot(path)
            _check(io, lake, path, case, target)
        except UnsupportedTypeError:
            # An engine may decline a type, if it does so before it changes anything; this one carries them all.
            assert snapshot(path) == before
            if engine == "arrow" or engine.startswith("spark"):
                raise
            reject()


def _check(io: DatasetIO, lake: str, path: str, case: Case, before: dict[str, list[oracle.Row]]) -> None:
    arguments: dict[str, Any] = {
        "source": case.source,
        "path": path,
        "strategy": case.strategy,
        "key_columns": case.keys,
        "partition_columns": case.partitions.names or None,
        "dedup_order_by": case.order_by or None,
        **case.options,
    }
    try:
        expected = _expected(case, before)
    except oracle.RefusedError as refused:
        untouched = _everything(lake)
        with pytest.raises(REFUSALS[refused.reason]):
            io.plan(**arguments)
        assert _everything(lake) == untouched
        with assert_unchanged(path), pytest.raises(REFUSALS[refused.reason]):
            io.merge(**arguments)
        return
    untouched, old = _everything(lake), snapshot(path)
    plan = io.plan(**arguments)
    assert _everything(lake) == untouched
    limits: dict[str, Any] = {"max_rows_per_file": case.max_rows, "row_group_size": case.group_rows}
    result = io.merge(**arguments, **limits, audit=f"{lake}/audit" if case.audit == "path" else case.audit)
    for one in (result, plan):
        _check_counts(one, expected, case, before)
    _check_files(result, plan, expected, path, old, case)
    columns = _written_columns(case, first_load=not before)
    _check_new_files(result, expected, path, case, columns)
    _check_audit(result, expected, case, [*columns.names, *case.partitions.names], lake)
    if not (result.rewritten_files or result.inserted_files or result.removed_files):
        assert snapshot(path) == old
        return
    table = load(io, path)
    assert table.schema.equals(pa.schema([*columns, *case.partitions]))
    assert oracle.to_multiset(to_plain_rows(table)) == oracle.to_multiset(expected.rows)
    now = {rel: file_rows(path, rel, case, columns) for rel in snapshot(path)}
    _check_again(io, lake, case, arguments, expected, now)


def _expected(case: Case, target: dict[str, list[oracle.Row]]) -> oracle.Outcome:
    if not target and not oracle.STRATEGIES[case.strategy][1]:
        raise oracle.RefusedError("no target")
    source = to_plain_rows(case.source.cast(_stored_schema(case.source.schema)))
    return oracle.merge(target, source, case.strategy, case.keys, case.partitions.names, case.order_by, case.asked)


def _check_again(
    io: DatasetIO,
    lake: str,
    case: Case,
    arguments: dict[str, Any],
    first: oracle.Outcome,
    now: dict[str, list[oracle.Row]],
) -> None:
    """Merge the same source once more: the rows stay the same, and where nothing changes no byte does."""
    expected = _expected(case, now)
    if case.repeatable:
        assert oracle.to_multiset(expected.rows) == oracle.to_multiset(first.rows)
        assert (expected.count("insert"), expected.count("delete")) == (0, 0)
        assert not (case.asked.skip_unchanged and expected.changes)
    before = snapshot_without_locks(lake)
    again = io.merge(**arguments)
    _check_counts(again, expected, case, now)
    if not expected.changes:
        assert snapshot_without_locks(lake) == before
    assert oracle.to_multiset(to_plain_rows(load(io, f"{lake}/t"))) == oracle.to_multiset(expected.rows)


def _stored_schema(schema: pa.Schema) -> pa.Schema:
    return pa.schema([one.with_type(to_stored_type(one.type)) for one in schema])


def _everything(lake: str) -> tuple[dict[str, bytes], list[str]]:
    folders = [folder for folder, _, _ in os.walk(lake)]
    return snapshot(lake), sorted(folders)


def _check_counts(
    got: MergeResult | MergePlan, expected: oracle.Outcome, case: Case, before: dict[str, list[oracle.Row]]
) -> None:
    counts = (expected.count("insert"), expected.count("update"), expected.count("delete"), expected.skipped)
    assert (got.inserted, got.updated, got.deleted, got.skipped) == counts
    assert (got.source_count, got.target_count_before) == (case.source.num_rows, sum(map(len, before.values())))
    assert got.target_count_after == len(expected.rows) == got.target_count_before + got.inserted - got.deleted


def _check_files(
    result: MergeResult, plan: MergePlan, expected: oracle.Outcome, path: str, old: dict[str, bytes], case: Case
) -> None:
    actions = {"rewrite": expected.rewritten, "preserve": expected.preserved, "remove": expected.removed}
    for action, names in actions.items():
        assert sorted(file.path for file in plan.files if file.action == action) == _full(path, names)
    assert sorted(result.rewritten_files) == _full(path, expected.rewritten)
    assert sorted(result.preserved_files) == _full(path, expected.preserved)
    assert sorted(result.removed_files) == _full(path, expected.removed)
    now = snapshot(path)
    assert _full(path, now) == sorted(file.path for file in result.files)
    assert all(now[name] == old[name] for name in expected.preserved)
    for file in result.files:
        rel = os.path.relpath(file.path, path)
        assert (file.size_bytes, file.row_count) == (len(now[rel]), pq.read_metadata(file.path).num_rows)
    for name in expected.rewritten:
        # The rows keep their order, and files their schema and metadata.
        got = file_rows(path, name, case)
        assert [*map(oracle.freeze, map(_sorted, got))] == [*map(oracle.freeze, map(_sorted, expected.files[name]))]
        was, new = pq.ParquetFile(pa.BufferReader(old[name])), pq.ParquetFile(f"{path}/{name}")
        assert new.schema_arrow.equals(was.schema_arrow, check_metadata=True)
        assert new.metadata.metadata == was.metadata.metadata


def _full(path: str, names: Sequence[str] | dict[str, bytes]) -> list[str]:
    return sorted(f"{path}/{name}" for name in names)


def _written_columns(case: Case, *, first_load: bool) -> pa.Schema:
    """The schema of new files: on a first load the columns are ordered as in the source."""
    columns = file_schema(case)
    names = [name for name in case.source.schema.names if name in columns.names] if first_load else columns.names
    return pa.schema([columns.field(name) for name in names], columns.metadata)


def _check_new_files(result: MergeResult, expected: oracle.Outcome, path: str, case: Case, columns: pa.Schema) -> None:
    found = []
    for name in result.inserted_files:
        metadata = pq.read_metadata(name)
        assert metadata.num_rows <= case.max_rows
        assert all(metadata.row_group(at).num_rows <= case.group_rows for at in range(metadata.num_row_groups))
        found += file_rows(path, os.path.relpath(name, path), case, columns)
    assert oracle.to_multiset(found) == oracle.to_multiset(expected.new)


def _check_audit(result: MergeResult, expected: oracle.Outcome, case: Case, columns: Sequence[str], lake: str) -> None:
    audit = result.audit
    assert sorted(result.audit_files) == _full(f"{lake}/audit", snapshot(f"{lake}/audit"))
    if case.audit == "path":
        assert audit is None
        assert bool(result.audit_files) == bool(expected.changes)
        audit = pa.concat_tables(map(read_file, result.audit_files)) if result.audit_files else None
    if audit is None:
        assert case.audit == "path"
        return
    if case.audit is True:
        assert audit.column_names == [*case.keys, "merge_action"]
        assert oracle.to_multiset(_plain(audit)) == oracle.to_multiset(
            {name: change.row[name] for name in case.keys} | {"merge_action": change.action}
            for change in expected.changes
        )
        return
    old = audit.column("merge_old").combine_chunks()
    assert audit.column_names == [*columns, "merge_action", "merge_old"]
    assert old.type.names == columns
    was = _plain(pa.table(old.flatten(), columns))
    found = zip(_plain(audit.drop_columns("merge_old")), was, old.is_valid().to_pylist(), strict=True)
    assert oracle.to_multiset(
        (_sorted(row), _sorted(before) if there else None) for row, before, there in found
    ) == oracle.to_multiset(
        (_sorted(change.row | {"merge_action": change.action}), change.old and _sorted(change.old))
        for change in expected.changes
    )


def _plain(table: pa.Table) -> list[oracle.Row]:
    return to_plain_rows(table.cast(_stored_schema(table.schema)))


def _sorted(row: oracle.Row) -> oracle.Row:
    return dict(sorted(row.items()))


# -------------------- the tests


# K3 K4 K5 K6 K8 K9 K10 T1 T2 T3 T4 T5 S1 S4 H1 H2 H3 H4 H5 P1 P5 W1 W3 W4 C2 C7 Q5 R1 R2 R5 M1 M2 M3 M4 M5 M6 M8
@settings(max_examples=4)
@given(data=st.data())
def test_a_merge_agrees_with_the_oracle(engine: str, data: st.DataObject) -> None:
    check(engine, data.draw(cases(engine)))


# K3 K4 K5 K6 K8 K9 K10 T1 T2 T3 T4 T5 S1 S4 H1 H2 H3 H4 H5 P1 P5 W1 W3 W4 C2 C7 Q5 R1 R2 R5 M1 M2 M3 M4 M5 M6 M8
@pytest.mark.slow
@settings(max_examples=60)
@given(data=st.data())
def test_many_merges_agree_with_the_oracle(engine: str, data: st.DataObject) -> None:
    check(engine, data.draw(cases(engine)))


# S1 S4 T1 W1
@pytest.mark.parametrize("kind", [*PLAIN, *NESTED], ids=str)
@settings(max_examples=1, phases=[Phase.generate])
@given(data=st.data())
def test_every_type_survives_a_merge(engine: str, kind: pa.DataType, data: st.DataObject) -> None:
    values = data.draw(st.lists(cells(kind), min_size=1, max_size=4))
    strategy = data.draw(st.sampled_from(["upsert", "full_merge"]))
    check(engine, small_case(strategy, pa.int32(), [1, 2, 3, 4], kind, [*values, None]))


# S4 K4 K6 K9 Q5 R5
@pytest.mark.parametrize("kind", PLAIN, ids=str)
@settings(max_examples=1, phases=[Phase.generate])
@given(data=st.data())
def test_every_plain_type_can_be_a_key(engine: str, kind: pa.DataType, data: st.DataObject) -> None:
    strategy = data.draw(st.sampled_from(["upsert", "full_merge"]))
    null_keys = data.draw(st.sampled_from(["refuse", "match"]))
    case = small_case(strategy, kind, data.draw(key_lists(kind)), pa.int8(), [1, None, 2])
    check(engine, replace(case, options={"null_keys": null_keys}))


# S4 K4 K6 K9 Q5 R5
@pytest.mark.parametrize("kind", PLAIN, ids=str)
@settings(max_examples=1, phases=[Phase.generate])
@given(data=st.data())
def test_null_matches_null_in_a_key_of_every_plain_type(engine: str, kind: pa.DataType, data: st.DataObject) -> None:
    keys = data.draw(key_lists(kind))
    case = small_case("full_merge", kind, [*keys[:2], None, *keys[2:]], pa.int8(), [1, None, 2])
    check(engine, replace(case, options={"null_keys": "match"}))


def key_lists(kind: pa.DataType) -> st.SearchStrategy[list[Any]]:
    real = cells(kind).filter(lambda value: not oracle.is_null(value))
    return st.lists(real, min_size=2, max_size=2 if kind == pa.bool_() else 5, unique=True)


def small_case(strategy: str, key: pa.DataType, keys: Sequence[Any], kind: pa.DataType, values: Sequence[Any]) -> Case:
    """Two files: one without a match, one with a duplicate key; the source also has new keys."""
    schema = pa.schema([("id", key), ("v", kind)])
    held = [None, keys[0], keys[1], None, keys[1]]
    rows = [{"id": one, "v": values[at % len(values)]} for at, one in enumerate(held)]
    files = [
        TargetFile(f"f{number}.parquet", _table(part, schema), (), {"row_group_size": 2})
        for number, part in enumerate((rows[:2], rows[2:]))
    ]
    source = [{"id": one, "v": values[-1 - at % len(values)]} for at, one in enumerate(keys[1:])]
    return Case(schema, pa.schema([]), ["id"], _table(source, schema), strategy, files=files)


# -------------------- found cases


# O2 S4 W3
@pytest.mark.parametrize("kind", [*PLAIN, *NESTED, pa.list_(pa.uuid())], ids=str)
def test_a_source_without_rows_is_written_as_one_file_of_none(engine: str, lake: str, kind: pa.DataType) -> None:
    kinds = {"id": pa.int8(), "v": kind}
    source = pa.table({name: pa.chunked_array([], type=one) for name, one in kinds.items()})
    for partitions in ([], ["id"]):
        path = f"{lake}/t{len(partitions)}"
        written = open_dataset_io(engine).write_dataset(source, path, "overwrite", partitions)
        assert [file.row_count for file in written.files] == [0]
        assert pq.read_schema(written.files[0].path).field("v").type == to_new_type(kind)


# T4 R5
def test_the_audit_of_an_update_of_an_empty_folder_is_empty(engine: str, lake: str) -> None:
    os.makedirs(f"{lake}/t")
    result = open_dataset_io(engine).merge(pa.table({"id": [1], "v": [1]}), f"{lake}/t", "update", "id", audit=True)
    assert result.audit is not None
    assert result.audit.column_names == ["id", "merge_action"]
    assert result.audit.num_rows == 0


# T5
@pytest.mark.parametrize("kind", PARTITIONED, ids=str)
@pytest.mark.parametrize("strategy", list(oracle.STRATEGIES))
def test_an_empty_source_meets_every_partition_type(engine: str, kind: pa.DataType, strategy: str) -> None:
    schema = pa.schema([("id", pa.int64())])
    texts = {pa.bool_(): "true", pa.date32(): "2025-01-01", pa.timestamp("us"): "2025-01-01 00%3A00%3A00"}
    values = {pa.bool_(): True, pa.date32(): dt.date(2025, 1, 1), pa.timestamp("us"): dt.datetime(2025, 1, 1)}  # noqa: DTZ001
    value = values.get(kind, "1" if kind in (pa.string(), pa.large_string()) else 1)
    file = TargetFile(f"day={texts.get(kind, '1')}/f.parquet", pa.table({"id": [1, 2]}), (value,), {})
    partitions = pa.schema([("day", kind)])
    source = pa.schema([*schema, *partitions]).empty_table()
    check(engine, Case(schema, partitions, ["id"], source, strategy, files=[file]))


# K5 H4
@pytest.mark.parametrize("kind", [pa.timestamp("us"), pa.timestamp("s"), pa.date32(), pa.duration("s")], ids=str)
def test_a_refusal_shows_keys_that_python_has_no_value_for(engine: str, lake: str, kind: pa.DataType) -> None:
    # Spark counts microseconds.
    number = {pa.date32(): (1 << 31) - 1, pa.timestamp("s"): (1 << 62) // 10**6}.get(kind, (1 << 62) // 1000)
    far = pa.array([number], kind)
    table = pa.table({"id": far, "v": [1], "day": ["a"]})
    io, path = open_dataset_io(engine), f"{lake}/t"
    io.merge(table, path, "insert", "id", partition_columns=["day"])
    with assert_unchanged(path), pytest.raises(DuplicateKeyError):
        io.merge(pa.concat_tables([table, table]), path, "upsert", "id")
    with assert_unchanged(path), pytest.raises(PartitionMoveError):
        io.merge(table.set_column(2, "day", pa.array(["b"])), path, "upsert", "id")
