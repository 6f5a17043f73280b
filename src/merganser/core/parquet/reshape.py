"""Changes the schema in a Parquet footer: columns that are copied, perhaps under another name, and newly encoded ones.

`reshape` makes the footer of the new file before its row groups are known, and maps the leaves of the new schema to
those of the old one. `splice` then copies column chunks by this map. Field ids, types and levels of copied columns stay
as they are; column orders and copies of the schema in the key-value metadata follow the new schema.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from merganser.core.parquet import thrift
from merganser.core.parquet.encode import read_leaves
from merganser.core.parquet.source_file import META, SCHEMA, CannotSpliceError, SourceFile, open_columns
from merganser.core.parquet.thrift import Struct, ThriftList
from merganser.safe_json import load_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa

ARROW_SCHEMA = b"ARROW:schema"
_PANDAS = b"pandas"
# Other copies of the schema, which readers may prefer to the schema itself.
_SCHEMA_COPIES = {
    b"org.apache.spark.sql.parquet.row.metadata",
    b"parquet.avro.schema",
    b"avro.schema",
    b"iceberg.schema",
    b"geo",
}
_KEY_VALUES, _COLUMN_ORDERS = 5, 7
_NAME, _CHILDREN, _FIELD_ID = 4, 5, 9
_PATH, _SORTING = 3, 4


@dataclass(frozen=True, slots=True)
class ReshapedFile:
    """A file that is copied into another schema: its footer in that schema, and which leaves are copied."""

    template: SourceFile
    copied: Mapping[int, int]  # the new number of each leaf of the old file that is copied

    def copy_chunk(self, leaf: int, chunk: Struct) -> Struct:
        """Return the footer's entry of a copied chunk, with the path that its leaf has now."""
        path = list(self.template.leaves[leaf].path)
        meta = chunk[META]
        if meta[_PATH] == path:
            return chunk
        return chunk.replace({META: meta.replace({_PATH: ThriftList(thrift.BINARY, path)})})

    def copy_sorting(self, group: Struct) -> Struct:
        """Return a row group's entry that is sorted by as many of its sorting columns as are copied."""
        kept: list[Struct] = []
        for column in group.get(_SORTING, ()):
            if column[1] not in self.copied:
                break
            kept.append(column.replace({1: self.copied[column[1]]}))
        return group.replace({_SORTING: ThriftList(thrift.STRUCT, kept) if kept else None})


class ReshapedColumn(NamedTuple):
    """A column of the new schema, its name in the old one, if it has one, and whether its chunks are copied."""

    name: str
    origin: str | None
    is_copied: bool


def reshape(
    old: SourceFile, columns: Sequence[ReshapedColumn], encoded: pa.Buffer | None, key_values: Mapping[bytes, bytes]
) -> ReshapedFile:
    """Change the schema of a file; `encoded` is a file without rows of the columns that are not copied, in order."""
    have = _split_schema(old)
    new = iter(() if encoded is None else _split_schema(open_columns(encoded)).values())
    elements: list[Struct] = []
    numbers: list[int | None] = []
    for name, origin, is_copied in columns:
        before = None if origin is None else have[origin.encode()]
        if before is not None and is_copied:
            numbers += before.leaves
            elements += [before.elements[0].replace({_NAME: name.encode()}), *before.elements[1:]]
        else:
            column = next(new)
            numbers += [None] * len(column.leaves)
            elements += _keep_field_id(column.elements, before)
    root = old.tree[SCHEMA][0].replace({_CHILDREN: len(columns)})
    changes: dict[int, Any] = {SCHEMA: ThriftList(thrift.STRUCT, [root, *elements])}
    changes[_KEY_VALUES] = _encode_key_values(key_values) if key_values else None
    if _COLUMN_ORDERS in old.tree:
        type_defined = Struct({1: Struct({}, {})}, {1: thrift.STRUCT})
        orders = [type_defined if at is None else old.tree[_COLUMN_ORDERS][at] for at in numbers]
        changes[_COLUMN_ORDERS] = ThriftList(thrift.STRUCT, orders)
    tree = old.tree.replace(changes)
    template = replace(old, tree=tree, leaves=read_leaves(tree[SCHEMA]))
    return ReshapedFile(template, {at: leaf for leaf, at in enumerate(numbers) if at is not None})


@dataclass(frozen=True, slots=True)
class _SchemaColumn:
    """One column in a schema: its elements, and the numbers of its leaves."""

    elements: list[Struct]
    leaves: list[int]


def _split_schema(file: SourceFile) -> dict[bytes, _SchemaColumn]:
    """Split a schema, which is flattened depth first, into its columns."""
    found: dict[bytes, _SchemaColumn] = {}
    leaf = missing = 0
    for element in file.tree[SCHEMA][1:]:
        if not missing:
            column = found[element[_NAME]] = _SchemaColumn([], [])
            missing = 1
        column.elements.append(element)
        children = element.get(_CHILDREN, 0)
        missing += children - 1
        if not children:
            column.leaves.append(leaf)
            leaf += 1
    if len(found) != file.tree[SCHEMA][0].get(_CHILDREN):
        raise CannotSpliceError("the schema has columns of the same name")
    return found


def _keep_field_id(elements: list[Struct], old: _SchemaColumn | None) -> list[Struct]:
    """Give a column that is encoded anew the field id that it had; a new column has none."""
    bare = [element.replace({_FIELD_ID: None}) for element in elements]
    if old is None or _FIELD_ID not in old.elements[0]:
        return bare
    return [bare[0].replace({_FIELD_ID: old.elements[0][_FIELD_ID]}), *bare[1:]]


def _encode_key_values(key_values: Mapping[bytes, bytes]) -> ThriftList:
    wires = {1: thrift.BINARY, 2: thrift.BINARY}
    return ThriftList(thrift.STRUCT, [Struct({1: key, 2: value}, wires) for key, value in key_values.items()])


def update_key_values(old: Mapping[bytes, bytes], copied: Mapping[str, str]) -> dict[bytes, bytes]:
    """Return the key-value metadata for a new schema, without copies of the old one.

    `copied` has the old name of each column that keeps its type: pandas' copy is cut down to these columns.
    """
    kept = {key: value for key, value in old.items() if key not in (*_SCHEMA_COPIES, _PANDAS, ARROW_SCHEMA)}
    if _PANDAS in old and (pandas := _update_pandas(old[_PANDAS], copied)) is not None:
        kept[_PANDAS] = pandas
    return kept


def _update_pandas(text: bytes, copied: Mapping[str, str]) -> bytes | None:
    """Rename and leave out columns in what pandas stores of a frame; None if it lost its index or is damaged."""
    names = {old: new for new, old in copied.items()}
    with suppress(ValueError, KeyError, TypeError, AttributeError):
        found = load_json(text)
        indexes = [names[one] if isinstance(one, str) else one for one in found["index_columns"]]
        columns = [_rename_pandas(one, names) for one in found["columns"] if _get_pandas_field(one) in names]
        return json.dumps({**found, "index_columns": indexes, "columns": columns}).encode()
    return None


def _get_pandas_field(column: Mapping[str, Any]) -> Any:
    return column.get("field_name") or column["name"]


def _rename_pandas(column: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    new = names[_get_pandas_field(column)]
    is_renamed = new != _get_pandas_field(column)
    return {**column, "field_name": new, "name": new if is_renamed else column["name"]}
