"""What tests leave out with an older PyArrow, because it lacks it."""

from __future__ import annotations

from typing import Any

import pytest

from merganser.core.columnar.arrow_versions import PYARROW

HAS_BLOOM_FILTERS = PYARROW >= 24
HAS_NULL_FIXED_LISTS = PYARROW >= 26
needs_bloom_filters = pytest.mark.skipif(not HAS_BLOOM_FILTERS, reason="this PyArrow writes no Bloom filters")


def bloom_filters(**values: int) -> dict[str, Any]:
    """Return the argument of `pq.write_table` for Bloom filters of columns with so many values, if it has one."""
    filters = {name: {"ndv": count} for name, count in values.items()}
    return {"bloom_filter_options": filters} if HAS_BLOOM_FILTERS else {}
