"""String columns with few distinct values, read, changed and written as dictionaries, which is faster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from merganser.core.columnar.take import to_array

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

_STRINGS = (pa.string(), pa.binary())


def is_dictionary(data_type: pa.DataType) -> bool:
    """Check for a dictionary of strings or bytes, as Parquet readers make them on request."""
    return pa.types.is_dictionary(data_type) and data_type.index_type == pa.int32() and data_type.value_type in _STRINGS


def decode_dictionary(column: pa.ChunkedArray, data_type: pa.DataType) -> pa.ChunkedArray:
    """Cast a dictionary column to the type of its values, or to the large form of that type."""
    return column.cast(column.type.value_type).cast(data_type)


def find_dictionary_columns(schema: pa.Schema, options: Mapping[str, Any]) -> list[str]:
    """Find the columns of strings and bytes that the writer options store as dictionaries."""
    stored = options.get("use_dictionary", False)
    return [
        field.name
        for field in schema
        if (stored is True or (stored and field.name in stored))
        and (pa.types.is_large_string(field.type) or pa.types.is_large_binary(field.type))
    ]


def replace_dictionary_values(
    old: pa.ChunkedArray, positions: npt.NDArray[np.int64], new: pa.ChunkedArray
) -> pa.ChunkedArray:
    """Replace values of a dictionary column without decoding other rows; entries that no row uses are dropped."""
    held, values = to_array(old.unify_dictionaries()), to_array(new).dictionary_encode()
    entries = pa.concat_arrays([held.dictionary.cast(new.type), values.dictionary])
    # `index_in` returns the first place, so an old entry is reused.
    places = pc.index_in(values.dictionary, entries)
    mask = np.zeros(len(held), np.bool_)
    mask[positions] = True
    indices = pc.replace_with_mask(held.indices, pa.array(mask), places.take(values.indices))
    valid, numbers = indices.is_valid().to_numpy(zero_copy_only=False), indices.fill_null(0).to_numpy()
    used = np.bincount(numbers[valid], minlength=len(entries)) > 0
    renumbered = (np.cumsum(used, dtype=np.int32) - 1)[numbers] if len(entries) else numbers
    indices = pa.array(renumbered, pa.int32(), mask=~valid)
    return pa.chunked_array([pa.DictionaryArray.from_arrays(indices, entries.filter(pa.array(used)))])
