"""Columns of texts that many rows share: read, changed and written as dictionaries, so that few texts are looked at."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from merganser.core.columnar.take import whole

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt


_READ = (pa.string(), pa.binary())


def is_dictionary(kind: pa.DataType) -> bool:
    """Say whether a column of texts or bytes came as a dictionary, in the form that a reader makes when asked to."""
    return pa.types.is_dictionary(kind) and kind.index_type == pa.int32() and kind.value_type in _READ


def plain_texts(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Write a dictionary out."""
    return column.cast(column.type.value_type).cast(kind)


def stored_as_dictionaries(schema: pa.Schema, options: Mapping[str, Any]) -> list[str]:
    """Name the columns of texts and bytes that are stored as dictionaries: then few texts stand for many rows."""
    stored = options.get("use_dictionary", False)
    return [
        field.name
        for field in schema
        if (stored is True or (stored and field.name in stored))
        and (pa.types.is_large_string(field.type) or pa.types.is_large_binary(field.type))
    ]


def replaced_texts(old: pa.ChunkedArray, positions: npt.NDArray[np.int64], new: pa.ChunkedArray) -> pa.ChunkedArray:
    """Put new values into a column that was read as a dictionary, without writing out the texts of other rows.

    Texts that no row has any more leave the dictionary.
    """
    held, values = whole(old.unify_dictionaries()), whole(new).dictionary_encode()
    texts = pa.concat_arrays([held.dictionary.cast(new.type), values.dictionary])
    # The first place of a text that is there already, else its own.
    places = pc.index_in(values.dictionary, texts)
    mask = np.zeros(len(held), np.bool_)
    mask[positions] = True
    indices = pc.replace_with_mask(held.indices, pa.array(mask), places.take(values.indices))
    valid, numbers = indices.is_valid().to_numpy(zero_copy_only=False), indices.fill_null(0).to_numpy()
    used = np.bincount(numbers[valid], minlength=len(texts)) > 0
    renumbered = (np.cumsum(used, dtype=np.int32) - 1)[numbers] if len(texts) else numbers
    indices = pa.array(renumbered, pa.int32(), mask=~valid)
    return pa.chunked_array([pa.DictionaryArray.from_arrays(indices, texts.filter(pa.array(used)))])
