"""The expected rows of a merge, computed file by file with PyArrow alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.digest import Digest, digest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


class WrongResultError(AssertionError):
    """A contender left other rows than expected."""


def expected(dataset: Path, batch: pa.Table, key: str, update_columns: Sequence[str] = ()) -> Digest:
    """Fingerprint the dataset with the batch merged into it; `key` alone identifies rows."""
    keys = batch[key].combine_chunks()
    found = Digest()
    for file in sorted(dataset.glob("*.parquet")):
        table = pq.read_table(file)
        matched = pc.is_in(table[key], keys)
        found += digest(table.filter(pc.invert(matched)).to_batches())
        if update_columns:
            found += digest(_replace_matched(table.filter(matched), batch, key, update_columns).to_batches())
    return found if update_columns else found + digest(batch.to_batches())


def expected_altered(dataset: Path, columns: Mapping[str, str]) -> Digest:
    """Fingerprint the dataset with these columns, NULL where it lacks them; the width of numbers does not matter."""
    found = Digest()
    for file in sorted(dataset.glob("*.parquet")):
        table = pq.read_table(file)
        for name in columns.keys() - {*table.column_names}:
            table = table.append_column(name, pa.nulls(table.num_rows, columns[name]))
        found += digest(table.to_batches())
    return found


def later(earlier: pa.Table, batch: pa.Table, key: str) -> pa.Table:
    """Combine two batches that are merged one after the other."""
    gone = pc.is_in(earlier[key], batch[key].combine_chunks())
    return pa.concat_tables([earlier.filter(pc.invert(gone)), batch])


def check(found: Digest, wanted: Digest) -> None:
    """Refuse rows that are not the expected ones."""
    if found.rows != wanted.rows:
        raise WrongResultError(f"wrong result: {found.rows:,} rows, not {wanted.rows:,}")
    if found != wanted:
        raise WrongResultError("wrong result: as many rows as there should be, but not the same")


def check_types(found: Mapping[str, str], wanted: Mapping[str, str]) -> None:
    """Refuse columns of another type than expected."""
    for name, data_type in wanted.items():
        if found.get(name) != data_type:
            raise WrongResultError(f"wrong result: {name} is of type {found.get(name)}, not {data_type}")


def _replace_matched(matched: pa.Table, batch: pa.Table, key: str, update_columns: Sequence[str]) -> pa.Table:
    places = pc.index_in(matched[key], batch[key].combine_chunks())
    for name in update_columns:
        matched = matched.set_column(matched.schema.get_field_index(name), name, batch[name].take(places))
    return matched
