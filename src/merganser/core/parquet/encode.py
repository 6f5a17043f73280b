"""Writes rows with the schema, key-value metadata and encodings of an existing Parquet file.

A changed row group has no bloom filters, which is always correct; a new file has them for the columns that
`find_bloom_filter_columns` returns.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from merganser.core.columnar.arrow_versions import check_fixed_lists
from merganser.core.parquet import thrift
from merganser.errors import UnreadableFileError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from merganser.core.parquet.chunks import Chunk
    from merganser.core.parquet.footer import Footer

_INTEGERS = {"INT32", "INT64"}
_DICTIONARY = {"RLE_DICTIONARY", "PLAIN_DICTIONARY"}
# Without INTERVAL, which DuckDB hashes in normalised form, and floats: 0.0 and -0.0 are equal, their hashes are not.
_BLOOM_FILTER_TYPES = {"INT32", "INT64", "BYTE_ARRAY"}
_WRITABLE_ENCODINGS = {
    "DELTA_BINARY_PACKED": _INTEGERS,
    "DELTA_LENGTH_BYTE_ARRAY": {"BYTE_ARRAY"},
    "DELTA_BYTE_ARRAY": {"BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY"},
    "BYTE_STREAM_SPLIT": {"FLOAT", "DOUBLE", "INT32", "INT64", "FIXED_LEN_BYTE_ARRAY"},
}
# Bytes of a value without a dictionary, where all values have as many.
_PLAIN_BYTES = {"INT32": 4, "INT64": 8, "FLOAT": 4, "DOUBLE": 8}
_MIN_PLAIN_BYTES = 1 << 18  # below it, any dictionary is built in no time
_DATA_PAGE_V2 = 3
_DATA_PAGES = (0, _DATA_PAGE_V2)
_PLAIN_ENCODING = 0
_VERSIONS = rb"(?:\s+version\s+(\d{1,9})(?:\.(\d{1,9}))?(?:\.(\d{1,9}))?)?"
_ODD_WRITER = re.compile(rb"\s*(parquet-mr|parquet-cpp)(?![-\w])" + _VERSIONS, re.IGNORECASE)

_REPEATED = 2
_DECIMAL, _TIME, _TIMESTAMP, _INTEGER = 5, 7, 8, 10
_INT32, _INT64, _FIXED = 1, 2, 7
_PLAIN: tuple[object, ...] = ()
_INTERVAL: tuple[object, ...] = ("INTERVAL",)
_CONVERTED: dict[int, tuple[object, ...]] = {
    0: ("STRING",),
    4: ("ENUM",),
    6: ("DATE",),
    # These do not specify UTC or local time, and readers differ.
    7: ("TIME", 1, None),
    8: ("TIME", 2, None),
    9: ("TIMESTAMP", 1, None),
    10: ("TIMESTAMP", 2, None),
    19: ("JSON",),
    20: ("BSON",),
    21: _INTERVAL,
    **{11 + power: ("INTEGER", 8 << power, False) for power in range(4)},
    **{15 + power: ("INTEGER", 8 << power, True) for power in range(4)},
}
_LOGICAL = {1: ("STRING",), 4: ("ENUM",), 6: ("DATE",), 12: ("JSON",), 13: ("BSON",), 14: ("UUID",)}
# Types whose bytes have the same meaning and order with and without the annotation.
_COMPATIBLE_TYPES: dict[tuple[object, ...], set[tuple[object, ...]]] = {
    ("ENUM",): {_PLAIN, ("STRING",)},
    ("JSON",): {_PLAIN, ("STRING",)},
    ("BSON",): {_PLAIN},
    ("UUID",): {_PLAIN},
    _INTERVAL: {_PLAIN},
}


@dataclass(frozen=True, slots=True)
class Leaf:
    """The properties of a column in the schema that a reader needs to decode its chunks."""

    path: tuple[bytes, ...]
    repetitions: tuple[int, ...]
    physical_type: int
    length: int | None
    logical_type: tuple[object, ...]

    @property
    def is_repeated(self) -> bool:
        """Whether a row may hold several values."""
        return _REPEATED in self.repetitions

    @property
    def has_no_order(self) -> bool:
        """Whether the format defines no order of the values, so that bounds have no meaning."""
        return self.logical_type == _INTERVAL


def encode_row_group(batches: Iterable[pa.RecordBatch], schema: pa.Schema, options: Mapping[str, Any]) -> pa.Buffer:
    """Encode rows as a Parquet file in memory, with the `derive_writer_options` of an old row group."""
    table = pa.Table.from_batches(batches, schema=schema)
    check_fixed_lists(table)
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, schema.remove_metadata(), **options) as writer:
        # One row group; beyond PyArrow's limit of 64 Mi rows more, without rows none.
        if table.num_rows:
            writer.write_table(table, row_group_size=table.num_rows)
    return sink.getvalue()


def open_writer_like(
    where: Any, schema: pa.Schema, options: Mapping[str, Any], key_values: Mapping[bytes, bytes]
) -> pq.ParquetWriter:
    """Open a writer for a whole file with the writer options and the key-value metadata, verbatim, of an old one."""
    writer = pq.ParquetWriter(where, schema.remove_metadata(), **options)
    if key_values:
        writer.add_key_value_metadata(dict(key_values))
    return writer


def rename_options(options: Mapping[str, Any], origins: Mapping[str, str], encoded: Collection[str]) -> dict[str, Any]:
    """Convert writer options of an old schema to those of a new one, whose columns have these old names, if any.

    Columns that are `encoded` in another type lose a special encoding; new ones get dictionaries and statistics.
    """
    names = {old: new for new, old in origins.items()}
    added = [name for name in encoded if name not in origins]
    converted = dict(options)
    for key in ("use_dictionary", "write_statistics"):
        if isinstance(paths := options.get(key), list):
            converted[key] = [new for path in paths if (new := _rename_path(path, names))] + added
    if isinstance(codecs := options.get("compression"), dict):
        renamed = {new: codec for path, codec in codecs.items() if (new := _rename_path(path, names))}
        converted["compression"] = dict.fromkeys(added, next(iter(codecs.values()))) | renamed
    if encodings := options.get("column_encoding"):
        kept = {old: new for old, new in names.items() if new not in encoded}
        special = {new: one for path, one in encodings.items() if (new := _rename_path(path, kept))}
        converted["column_encoding"] = special or None
        if special and converted.get("use_dictionary") is True:
            converted["use_dictionary"] = [name for name in (*origins, *added) if name not in special]
    return converted


def _rename_path(path: str, names: Mapping[str, str]) -> str | None:
    """Rename the column of a leaf's path, whose name may itself contain dots; None if the column is gone."""
    if path in names:
        return names[path]
    column = next((name for name in names if path.startswith(f"{name}.")), None)
    return None if column is None else names[column] + path[len(column) :]


def derive_writer_options(footer: Footer, row_group: int = 0) -> dict[str, Any]:
    """Return the arguments of `pq.ParquetWriter` that keep the options of an old row group, leaf by leaf."""
    # For a file without row groups, options that do not depend on the schema are PyArrow's defaults.
    return derive_options_by_group(footer, [row_group])[row_group]


def derive_options_by_group(footer: Footer, row_groups: Iterable[int]) -> dict[int, dict[str, Any]]:
    """Return the writer options of several row groups, reading the footer once."""
    metadata = footer.metadata
    leaves = [metadata.schema.column(number) for number in range(metadata.num_columns)]
    shared = derive_schema_options(metadata)
    wanted = set(row_groups)
    if not metadata.num_row_groups or not wanted:
        return dict.fromkeys(wanted, shared)
    options = {}
    for number, chunks in footer.load_chunks(wanted).items():
        newer = any(page == _DATA_PAGE_V2 for chunk in chunks for page, _, _ in chunk.pages)
        version = {"data_page_version": "2.0" if newer else "1.0"}
        options[number] = shared | _derive_chunk_options(leaves, chunks) | version
    return options


def derive_schema_options(metadata: pq.FileMetaData | None) -> dict[str, Any]:
    """Return the arguments of `pq.ParquetWriter` that keep an old file's schema; without one, the newest format."""
    leaves = [] if metadata is None else [metadata.schema.column(number) for number in range(metadata.num_columns)]
    return {
        "version": "2.6",  # below it, nanoseconds and unsigned integers would change their type
        "store_schema": False,
        "use_compliant_nested_type": _names_list_items_element(leaves),
        "store_decimal_as_integer": any(_is_decimal(leaf) and leaf.physical_type in _INTEGERS for leaf in leaves),
        "write_time_adjusted_to_utc": any(_is_utc_time(leaf) for leaf in leaves),
    }


def derive_new_file_options(footer: Footer) -> dict[str, Any]:
    """Return the arguments of `pq.ParquetWriter` for a new file beside an old one."""
    metadata = footer.metadata
    shared = derive_schema_options(metadata)
    with suppress(UnreadableFileError):
        # For columns without a dictionary in the old file, building one would be wasted work.
        if metadata.num_row_groups and metadata.row_group(0).num_rows:
            return shared | {"use_dictionary": derive_writer_options(footer)["use_dictionary"]}
    return shared


def find_bloom_filter_columns(footer: Footer) -> frozenset[str]:
    """Return the columns with a bloom filter in the first row group, of types on whose hashes all readers agree."""
    metadata = footer.metadata
    if not metadata.num_row_groups:
        return frozenset()
    leaves = (metadata.schema.column(leaf) for leaf in range(metadata.num_columns))
    with suppress(UnreadableFileError):
        return frozenset(
            leaf.path
            for leaf, chunk in zip(leaves, footer.load_chunks([0])[0], strict=True)
            if chunk.has_bloom_filter and leaf.physical_type in _BLOOM_FILTER_TYPES and "." not in leaf.path
        )
    return frozenset()


def read_leaves(schema: Sequence[thrift.Struct]) -> tuple[Leaf, ...]:
    """Read the leaves of a flattened schema tree; `parents` holds each group with its number of missing children."""
    leaves = []
    parents: list[tuple[int, tuple[bytes, ...], tuple[int, ...]]] = [(schema[0].get(5, 0) if schema else 0, (), ())]
    for element in schema[1:]:
        while parents and not parents[-1][0]:
            parents.pop()
        if not parents or len(parents) > thrift.MAX_DEPTH:
            raise thrift.ThriftError("the schema is not a tree, or a very deep one")
        expected, path, repetitions = parents.pop()
        parents.append((expected - 1, path, repetitions))
        path, repetitions = (*path, element[4]), (*repetitions, element.get(3, -1))
        physical, children = element.get(1), element.get(5, 0)
        if (physical is None) == (children == 0) or children < 0 or not 0 <= repetitions[-1] <= _REPEATED:
            raise thrift.ThriftError("a schema element is neither a column nor a group of columns")
        if physical is None:
            parents.append((children, path, repetitions))
        else:
            length = element.get(2) if physical == _FIXED else None
            leaves.append(Leaf(path, repetitions, physical, length, _read_logical_type(element, physical)))
    if any(expected for expected, _, _ in parents):
        raise thrift.ThriftError("the schema ends inside a group")
    return tuple(leaves)


def is_stored_alike(old: Leaf, new: Leaf) -> bool:
    """Check whether reading a chunk of `new` through the schema of `old` returns the values that were written."""
    # Repetitions are compared group by group: with equal maximum levels, another group may be the NULL one.
    if replace(old, logical_type=_PLAIN) != replace(new, logical_type=_PLAIN):
        return False
    if old.logical_type[-1:] == (None,):
        return old.logical_type[:2] == new.logical_type[:2]
    return old.logical_type == new.logical_type or new.logical_type in _COMPATIBLE_TYPES.get(old.logical_type, ())


def is_read_specially(created_by: bytes) -> bool:
    """Check whether the writer's name makes readers decode chunks in a way that is wrong for new chunks."""
    # parquet-mr before 1.2.9 miscounted the bytes of a chunk, so readers read more than the footer says. Of parquet-cpp
    # before 2.0, they decompress v2 pages even where the header says otherwise. Distrusted statistics do no harm:
    # readers only ignore those of the new chunks as well.
    writer = _ODD_WRITER.match(created_by)
    if writer is None:
        return False
    version = tuple(int(part or 0) for part in writer.groups()[1:])
    return version < ((1, 2, 9) if writer[1].lower() == b"parquet-mr" else (2, 0, 0))


def _derive_chunk_options(leaves: Sequence[Any], chunks: Sequence[Chunk]) -> dict[str, Any]:
    pairs = list(zip(leaves, chunks, strict=True))
    codecs = {leaf.path: chunk.codec for leaf, chunk in pairs}
    # INT96 has no usable statistics, but the timestamp that replaces it has.
    statistics = {leaf.path: chunk.has_statistics or leaf.physical_type == "INT96" for leaf, chunk in pairs}
    dictionary = {leaf.path: _needs_dictionary(leaf, chunk) for leaf, chunk in pairs if leaf.physical_type != "BOOLEAN"}
    special = {leaf.path: _find_special_encoding(leaf, chunk) for leaf, chunk in pairs}
    encodings = {path: encoding for path, encoding in special.items() if encoding and not dictionary.get(path)}
    return {
        # A single codec also applies to a leaf whose path changes.
        "compression": next(iter(codecs.values())) if len(set(codecs.values())) == 1 else codecs,
        "use_dictionary": _select_true(dictionary),
        "write_statistics": _select_true(statistics),
        "column_encoding": encodings or None,
        "write_page_index": any(chunk.has_page_index for chunk in chunks),
    }


def _select_true(choices: dict[str, bool]) -> bool | list[str]:
    """Return True for all paths, False for none, else the chosen paths."""
    chosen = [path for path, choice in choices.items() if choice]
    if not chosen:
        return False
    return True if len(chosen) == len(choices) else chosen


def _find_special_encoding(leaf: Any, chunk: Chunk) -> str | None:
    # In a rewrite a decimal may get another physical type, which the encoding does not support.
    if _is_decimal(leaf):
        return None
    writable = (name for name, types in _WRITABLE_ENCODINGS.items() if leaf.physical_type in types)
    return next((name for name in writable if name in chunk.encodings), None)


def _is_decimal(leaf: Any) -> bool:
    return bool(leaf.logical_type.type == "DECIMAL" or leaf.converted_type == "DECIMAL")


def _is_utc_time(leaf: Any) -> bool:
    return bool(leaf.logical_type.type == "TIME" and json.loads(leaf.logical_type.to_json()).get("isAdjustedToUTC"))


def _names_list_items_element(leaves: Sequence[Any]) -> bool:
    paths = [leaf.path for leaf in leaves]
    return any(".list.element" in path for path in paths) or not any(".list." in path for path in paths)


def _needs_dictionary(leaf: Any, chunk: Chunk) -> bool:
    """Check for a dictionary that saves bytes; one of nearly as many values as rows takes the most time to build."""
    # With plain data pages, the writer gave up a dictionary that grew too large, as ours would.
    has_plain_pages = any(page in _DATA_PAGES and encoding == _PLAIN_ENCODING for page, encoding, _ in chunk.pages)
    plain_size = chunk.value_count * _PLAIN_BYTES.get(leaf.physical_type, 0)
    pays = plain_size < _MIN_PLAIN_BYTES or chunk.size < plain_size
    return bool(_DICTIONARY & chunk.encodings) and not has_plain_pages and pays


def _read_logical_type(element: thrift.Struct, physical_type: int) -> tuple[object, ...]:
    """Return the annotated type, the same for a converted type and the equivalent logical type."""
    logical, converted = element.get(10), element.get(6)
    if logical is None:
        if converted == _DECIMAL:
            return "DECIMAL", element.get(7, 0), element.get(8, 0)
        meaning = _PLAIN if converted is None else _CONVERTED.get(converted, ("CONVERTED", converted))
    else:
        ((number, detail),) = logical.values.items()
        if number == _DECIMAL:
            return "DECIMAL", detail[1], detail[2]
        if number in (_TIME, _TIMESTAMP):
            return "TIME" if number == _TIME else "TIMESTAMP", *detail[2].values, detail[1]
        meaning = ("INTEGER", detail[1], detail[2]) if number == _INTEGER else _LOGICAL.get(number, ("LOGICAL", number))
        if number in (16, 17, 18):
            meaning = (*meaning, thrift.write_struct(detail))
    return _PLAIN if meaning == ("INTEGER", {_INT32: 32, _INT64: 64}.get(physical_type), True) else meaning
