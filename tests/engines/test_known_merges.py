"""The merges that users of Delta Lake know: what DuckDB's own MERGE does to a native table, `sql` does to a dataset."""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING, NamedTuple

import duckdb
import pyarrow as pa
import pytest
from tests.clause_oracle import needs_merge
from tests.support import put, read_rows

if TYPE_CHECKING:
    from tests.support import AnyDatasetIO

PEOPLE = pa.table(
    {
        "id": pa.array([1, 2, 3], pa.int64()),
        "name": ["Ida", "Max", "Eva"],
        "seen": [date(2026, 1, 5), date(2026, 11, 1), date(2026, 11, 9)],
    }
)
NEW_PEOPLE = pa.table(
    {
        "id": pa.array([2, 7], pa.int64()),
        "name": ["Maxi", "Kim"],
        "seen": [date(2026, 11, 17), date(2026, 11, 18)],
    }
)
ADDRESSES = pa.table(
    {
        "customer": pa.array([1, 1, 2, 3], pa.int64()),
        "since": [date(2024, 1, 1), date(2025, 1, 1), date(2025, 6, 1), date(2026, 2, 1)],
        "until": [date(2025, 1, 1), None, None, None],
        "address": ["Elm St", "Oak St", "Bay St", "Fir St"],
        "is_current": [False, True, True, True],
    }
)
NEW_ADDRESSES = pa.table(
    {
        "customer": pa.array([1, 2, 4], pa.int64()),
        "since": [date(2026, 11, 1)] * 3,
        "address": ["Sun St", "Bay St", "Ash St"],
    }
)
EVENTS = pa.table(
    {
        "id": pa.array([2, 2, 3, 3, 8, 9, 9], pa.int64()),
        "time": [5, 6, 7, 4, 1, 2, 3],
        "name": ["Moritz", "Mo", None, "Evi", "Tom", "Una", None],
        "is_deleted": [False, False, True, False, False, False, True],
    }
)


class Example(NamedTuple):
    """A table, the rows to merge, and the statement."""

    target: pa.Table
    source: pa.Table
    statement: str
    keys: tuple[str, ...] = ("id",)


EXAMPLES = {
    "an upsert of listed columns, the key too": Example(
        PEOPLE,
        NEW_PEOPLE,
        """MERGE INTO {target} AS people USING updates ON people.id = updates.id
        WHEN MATCHED THEN UPDATE SET id = updates.id, name = updates.name, seen = updates.seen
        WHEN NOT MATCHED THEN INSERT (id, name, seen) VALUES (updates.id, updates.name, updates.seen)""",
    ),
    "all columns": Example(
        PEOPLE,
        NEW_PEOPLE,
        """MERGE INTO {target} AS target USING updates AS source ON target.id = source.id
        WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *""",
    ),
    "a copy of the source": Example(
        PEOPLE,
        NEW_PEOPLE,
        """MERGE INTO {target} AS target USING updates AS source ON source.id = target.id
        WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT * WHEN NOT MATCHED BY SOURCE THEN DELETE""",
    ),
    "rows of the last days, if the source lacks them": Example(
        PEOPLE,
        NEW_PEOPLE,
        """MERGE INTO {target} AS target USING updates AS source ON source.id = target.id
        WHEN MATCHED THEN UPDATE SET seen = source.seen
        WHEN NOT MATCHED THEN INSERT (id, seen, name) VALUES (source.id, source.seen, source.name)
        WHEN NOT MATCHED BY SOURCE AND target.seen >= DATE '2026-11-19' - INTERVAL '14' DAY
            THEN UPDATE SET name = 'inactive'""",
    ),
    "new rows only, without those that are there": Example(
        PEOPLE,
        NEW_PEOPLE,
        """MERGE INTO {target} AS logs USING updates AS new_logs ON logs.id = new_logs.id
        WHEN NOT MATCHED AND new_logs.seen > DATE '2026-11-19' - INTERVAL 7 DAYS THEN INSERT *""",
    ),
    "a history of addresses": Example(
        ADDRESSES,
        NEW_ADDRESSES,
        """MERGE INTO {target} AS customers USING (
            SELECT customer, since, address, NULL::DATE AS until FROM updates
            WHERE (customer, address) NOT IN (SELECT (customer, address) FROM {rows} WHERE is_current)
            UNION ALL
            SELECT old.customer, old.since, old.address, new.since
            FROM updates AS new JOIN {rows} AS old USING (customer)
            WHERE old.is_current AND old.address <> new.address
        ) AS staged ON customers.customer = staged.customer AND customers.since = staged.since
        WHEN MATCHED AND customers.is_current AND staged.until IS NOT NULL
            THEN UPDATE SET is_current = false, until = staged.until
        WHEN NOT MATCHED THEN INSERT (customer, address, is_current, since)
            VALUES (staged.customer, staged.address, true, staged.since)""",
        ("customer", "since"),
    ),
    "the newest of several changes": Example(
        PEOPLE,
        EVENTS,
        """MERGE INTO {target} AS t USING (
            SELECT id, latest.name, latest.is_deleted
            FROM (SELECT id, max({{'time': time, 'name': name, 'is_deleted': is_deleted}}) AS latest
                  FROM updates GROUP BY id)
        ) AS s ON s.id = t.id
        WHEN MATCHED AND s.is_deleted THEN DELETE
        WHEN MATCHED THEN UPDATE SET id = s.id, name = s.name
        WHEN NOT MATCHED AND NOT s.is_deleted THEN INSERT (id, name) VALUES (id, name)""",
    ),
}


# Q1 Q6
@needs_merge
@pytest.mark.parametrize("name", EXAMPLES)
def test_a_known_merge_gives_what_duckdb_gives(io: AnyDatasetIO, lake: str, name: str) -> None:
    target, source, statement, keys = EXAMPLES[name]
    put(f"{lake}/rows/a.parquet", target.slice(0, 2))
    put(f"{lake}/rows/b.parquet", target.slice(2))
    with duckdb.connect() as connection:
        connection.register("given", target)
        connection.execute("CREATE TABLE rows AS FROM given")
        connection.register("updates", source)
        connection.execute(statement.format(target="rows", rows="rows"))
        expected = connection.sql(f"FROM rows ORDER BY {', '.join(keys)}").to_arrow_table().to_pylist()
    text = statement.format(target=f"'{lake}/rows'", rows=f"'{lake}/rows/*.parquet'")
    for _ in range(2):
        io.sql(text, updates=source, batch_id="today")
        assert read_rows(io, f"{lake}/rows", keys) == expected
    assert expected != target.to_pylist()
