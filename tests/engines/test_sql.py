"""MERGE statements: what DuckDB's own MERGE does to a native table, `sql` does to a dataset."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pytest
from tests.clause_oracle import needs_merge
from tests.support import assert_unchanged, put, read_rows

from merganser.errors import InvalidArgumentError, SchemaMismatchError, SqlError

if TYPE_CHECKING:
    from tests.support import AnyDatasetIO

PEOPLE = pa.table(
    {
        "id": pa.array([1, 2, 3, 4], pa.int64()),
        "name": ["John", "Anna", None, "Sue"],
        "salary": [92_000.0, 100_000.0, 50_000.0, None],
    }
)
CHANGES = pa.table(
    {
        "id": pa.array([2, 3, 5, 6], pa.int64()),
        "name": ["Annie", "Max", "Ida", None],
        "salary": [110_000.0, None, 70_000.0, 60_000.0],
        "op": ["U", "D", "I", "D"],
    }
)
ON_ID = "MERGE INTO {people} AS t USING changes AS s ON t.id = s.id "
SAME = "MERGE INTO {people} AS t USING (SELECT id, name, salary FROM changes) AS s ON t.id = s.id "

# Statements of every kind that the documentations of DuckDB, Spark and Delta Lake describe, and of the SQL standard.
STATEMENTS = {
    "whole rows": """
        MERGE INTO {people} USING (
            SELECT unnest([3, 1]) AS id, unnest(['Sarah', 'Jon']) AS name, unnest([95e3, 105e3]) AS salary
        ) AS upserts ON (upserts.id = people.id)
        WHEN MATCHED THEN UPDATE
        WHEN NOT MATCHED THEN INSERT;""",
    "one column": """
        MERGE INTO {people} USING (SELECT 1 AS id, 98_000::DOUBLE AS salary) AS salary_updates USING (id)
        WHEN MATCHED THEN UPDATE SET salary = salary_updates.salary""",
    "keys to delete": "MERGE INTO {people} USING (SELECT 1 AS id,) AS deletes USING (id) WHEN MATCHED THEN DELETE",
    "a condition": """
        MERGE INTO {people} USING (SELECT unnest([2, 3]) AS id, 95_000.0 AS most) AS deletes USING (id)
        WHEN MATCHED AND people.salary >= most THEN DELETE""",
    "an else": """
        MERGE INTO {people} USING (SELECT unnest([3, 2]) AS id, 10_000 AS raise) AS raises ON raises.id = people.id
        WHEN MATCHED AND people.salary > 90_000 THEN DO NOTHING
        WHEN MATCHED THEN UPDATE SET salary = people.salary + raises.raise""",
    "not matched by source": """
        MERGE INTO {people} USING (SELECT 1 AS id) AS kept ON kept.id = people.id
        WHEN NOT MATCHED BY SOURCE AND salary < 60_000 THEN DELETE
        WHEN NOT MATCHED BY SOURCE THEN UPDATE SET salary = people.salary / 2, name = NULL""",
    "insert only": SAME + "WHEN NOT MATCHED THEN INSERT",
    "by target": SAME + "WHEN NOT MATCHED BY TARGET THEN INSERT *",
    "star": SAME + "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *",
    "by position": SAME + "WHEN MATCHED THEN UPDATE BY POSITION WHEN NOT MATCHED THEN INSERT BY POSITION",
    "by name": """
        MERGE INTO {people} AS t USING (SELECT salary, id FROM changes) AS s ON t.id = s.id
        WHEN MATCHED THEN UPDATE BY NAME
        WHEN NOT MATCHED THEN INSERT BY NAME *""",
    "columns": ON_ID
    + """
        WHEN MATCHED THEN UPDATE SET name = s.name || ' ' || t.name, salary = coalesce(s.salary, t.salary)
        WHEN NOT MATCHED THEN INSERT (salary, id, name) VALUES (s.salary * 2, s.id, upper(s.name))""",
    "some columns": ON_ID + "WHEN NOT MATCHED THEN INSERT (id, name) VALUES (id, name)",
    "operations": ON_ID
    + """
        WHEN MATCHED AND s.op = 'D' THEN DELETE
        WHEN MATCHED AND op = 'U' THEN UPDATE SET salary = s.salary
        WHEN NOT MATCHED AND s.op <> 'D' THEN INSERT (id, name, salary) VALUES (s.id, s.name, s.salary)
        WHEN NOT MATCHED THEN DO NOTHING
        WHEN NOT MATCHED BY SOURCE AND t.name = 'Sue' THEN DO NOTHING
        WHEN NOT MATCHED BY SOURCE THEN DELETE""",
    "several inserts": ON_ID
    + """
        WHEN NOT MATCHED AND s.op = 'I' THEN INSERT (id, name) VALUES (s.id, 'new')
        WHEN NOT MATCHED AND s.salary > 1 THEN INSERT (id, salary) VALUES (s.id, -s.salary)""",
    "aliases": """
        MERGE INTO {people} target USING changes source ON (source.id = target.id)
        WHEN MATCHED AND target.salary > source.salary - 20_000
            THEN UPDATE SET salary = greatest(target.salary, source.salary)
        WHEN NOT MATCHED THEN INSERT (id, salary) VALUES (source.id, source.salary)""",
    "swapped aliases": """
        MERGE INTO {people} AS s USING changes AS t ON s.id = t.id
        WHEN MATCHED THEN UPDATE SET salary = t.salary, name = s.name || t.name""",
    "quoted aliases": """
        MERGE INTO {people} AS "the target" USING changes AS "WHEN" ON "the target".id = "WHEN".id
        WHEN MATCHED AND "WHEN".op = 'U' THEN UPDATE SET "name" = "WHEN"."name" """,
    "names of tables": "MERGE INTO {people} USING changes ON people.id = changes.id WHEN MATCHED THEN DELETE",
    "capitals": "merge into {people} T using changes S on t.id = S.ID when matched then update set salary = S.Salary",
    "comments": """
        MERGE INTO /* target */ {people} AS t -- WHEN MATCHED THEN DELETE
        USING changes AS s /* ON t.id <> s.id */ ON t.id = /* equal */ s.id
        WHEN MATCHED /* AND false */ THEN UPDATE SET salary = /* old */ 1 -- + s.salary
    """,
    "words in strings": ON_ID
    + """
        WHEN MATCHED AND s.name <> 'WHEN MATCHED THEN DELETE; --' THEN UPDATE SET name = ', THEN WHEN (''' || s.name
        WHEN NOT MATCHED THEN INSERT (id, name) VALUES (s.id, $$), (' WHEN $$ || E'\\'x')""",
    "case": ON_ID
    + """
        WHEN MATCHED AND CASE WHEN s.op = 'U' THEN true ELSE false END
            THEN UPDATE SET salary = CASE s.op WHEN 'U' THEN CASE WHEN true THEN 7 END ELSE 8 END, name = 'c'
        WHEN NOT MATCHED THEN INSERT (id, salary) VALUES (s.id, CASE WHEN s.op = 'I' THEN 1 ELSE 2 END)""",
    "functions": ON_ID
    + """
        WHEN MATCHED AND s.salary BETWEEN 1 AND 1e9 AND s.op IN ('U', 'D') THEN UPDATE
            SET salary = list_sum([x + 1 FOR x IN [s.salary, t.salary] IF x > 1]), name = {{'a': s.name}}.a[1:2]
        WHEN MATCHED AND NOT s.op LIKE 'x!_' ESCAPE '!' THEN UPDATE SET name = struct_pack(n := s.op).n""",
    "a computed key": """
        MERGE INTO {people} AS t USING (SELECT id::VARCHAR AS code, salary FROM changes) AS s
        ON t.id = CAST(s.code AS BIGINT)
        WHEN MATCHED THEN UPDATE SET salary = s.salary
        WHEN NOT MATCHED THEN INSERT (id, salary) VALUES (CAST(s.code AS BIGINT), s.salary)""",
    "two keys": """
        MERGE INTO {people} AS t USING (FROM changes WHERE name > '') AS s
        ON (t.id = s.id AND (s.name || '') = t.name)
        WHEN MATCHED THEN DELETE""",
    "a query": """
        MERGE INTO {people} AS t USING (
            WITH newest AS (SELECT *, row_number() OVER (PARTITION BY id ORDER BY salary DESC) AS place FROM changes)
            SELECT c.id, max(c.salary) FROM newest c JOIN changes AS d USING (id) WHERE place = 1 GROUP BY c.id
        ) AS s(id, paid) ON t.id = s.id
        WHEN MATCHED THEN UPDATE SET salary = s.paid""",
    "values": """
        MERGE INTO {people} AS t USING (VALUES (2, 'x'), (9, 'y')) AS s(id, name) ON t.id = s.id
        WHEN MATCHED THEN UPDATE SET name = s.name
        WHEN NOT MATCHED THEN INSERT BY NAME""",
    "from": "MERGE INTO {people} AS t USING (FROM changes WHERE op = 'D') AS s ON t.id = s.id WHEN MATCHED THEN DELETE",
    "nothing": SAME + "WHEN MATCHED THEN DO NOTHING WHEN NOT MATCHED AND false THEN INSERT BY NAME",
}


def run_native(statement: str) -> tuple[list[dict[str, Any]], Counter[str], list[dict[str, Any]]]:
    """The rows of a native table afterwards, how many were changed by each action, and what is returned."""
    with duckdb.connect() as connection:
        connection.register("given", PEOPLE)
        connection.execute("CREATE TABLE people AS FROM given")
        connection.register("changes", CHANGES)
        text = statement.format(people="people").rstrip().removesuffix(";")
        returned: list[dict[str, Any]] = []
        if " RETURNING " in text:
            returned = connection.sql(text).to_arrow_table().to_pylist()
            text = text.partition(" RETURNING ")[0]
            connection.execute("CREATE OR REPLACE TABLE people AS FROM given")
        counts = Counter(row[0] for row in connection.sql(f"{text}\nRETURNING merge_action").fetchall())
        return connection.sql("FROM people ORDER BY id").to_arrow_table().to_pylist(), counts, returned


def run(io: AnyDatasetIO, lake: str, statement: str, **given: Any) -> Any:
    put(f"{lake}/people/a.parquet", PEOPLE.slice(0, 2))
    put(f"{lake}/people/b.parquet", PEOPLE.slice(2))
    if "changes" in statement:
        given = {"changes": CHANGES, **given}
    return io.sql(statement.format(people=f"'{lake}/people'"), **{"batch_id": "one", **given})


# Q1 Q6
@needs_merge
@pytest.mark.parametrize("name", STATEMENTS)
def test_a_statement_does_what_duckdb_does_to_a_native_table(io: AnyDatasetIO, lake: str, name: str) -> None:
    rows, counts, _ = run_native(STATEMENTS[name])
    result = run(io, lake, STATEMENTS[name])
    assert read_rows(io, f"{lake}/people") == rows
    assert (result.inserted, result.updated, result.deleted) == (counts["INSERT"], counts["UPDATE"], counts["DELETE"])


RETURNING = {
    "all": "RETURNING *",
    "action and all": "RETURNING merge_action, *",
    "keys": "RETURNING id, merge_action",
    "columns": "RETURNING t.SALARY AS paid, merge_action AS what, name",
}


# R5
@needs_merge
@pytest.mark.parametrize("name", RETURNING)
def test_returning_gives_what_duckdb_returns(io: AnyDatasetIO, lake: str, name: str) -> None:
    statement = STATEMENTS["operations"] + f" {RETURNING[name]}"
    _, _, returned = run_native(statement)
    audit = run(io, lake, statement).audit
    assert audit.column_names == list(returned[0])
    assert sorted(audit.to_pylist(), key=repr) == sorted(returned, key=repr)
    assert len(returned) == 4


def test_returning_of_no_change_has_its_columns(io: AnyDatasetIO, lake: str) -> None:
    audit = run(io, lake, f"{ON_ID} WHEN MATCHED AND false THEN DELETE RETURNING merge_action, *").audit
    assert (audit.num_rows, audit.column_names) == (0, ["merge_action", "id", "name", "salary"])


def test_returning_names_columns_before_anything_is_written(io: AnyDatasetIO, lake: str) -> None:
    put(f"{lake}/people/a.parquet", PEOPLE)
    text = f"MERGE INTO '{lake}/people' t USING changes s ON t.id = s.id\nWHEN MATCHED THEN DELETE RETURNING nam"
    with assert_unchanged(lake), pytest.raises(SqlError, match=r"line 2, column 36, near 'nam': .* id, name, salary"):
        io.sql(text, changes=CHANGES)
    with assert_unchanged(lake), pytest.raises(InvalidArgumentError, match="audit and RETURNING"):
        io.sql(text.replace(" nam", " name"), changes=CHANGES, audit=True)
    new = text.replace("people", "new").replace("MATCHED THEN DELETE", "NOT MATCHED THEN INSERT BY NAME")
    with assert_unchanged(lake), pytest.raises(SqlError, match="does not exist yet"):
        io.sql(new, changes=CHANGES)


# Q7
@pytest.mark.parametrize("action", ["UPDATE", "UPDATE SET *", "UPDATE BY POSITION"])
def test_all_columns_are_refused_where_position_and_name_differ(io: AnyDatasetIO, lake: str, action: str) -> None:
    put(f"{lake}/people/a.parquet", PEOPLE)
    for columns in ("salary, name, id", "id, name", "id, name, salary, op"):
        source = f"USING (SELECT {columns} FROM changes) AS s ON t.id = s.id WHEN"
        for clause in (
            f"MATCHED THEN {action}",
            f"NOT MATCHED THEN {action.replace('UPDATE', 'INSERT').replace('SET ', '')}",
        ):
            with (
                assert_unchanged(f"{lake}/people"),
                pytest.raises(SchemaMismatchError, match=r"Write (UPDATE|INSERT) BY NAME"),
            ):
                io.sql(f"MERGE INTO '{lake}/people' AS t {source} {clause}", changes=CHANGES)


@pytest.mark.parametrize("clause", ["MATCHED THEN UPDATE BY NAME", "NOT MATCHED THEN INSERT BY NAME"])
def test_by_name_refuses_a_column_that_the_target_lacks(io: AnyDatasetIO, lake: str, clause: str) -> None:
    put(f"{lake}/people/a.parquet", PEOPLE)
    with (
        assert_unchanged(f"{lake}/people"),
        pytest.raises(SchemaMismatchError, match="also 'op', which the target lacks"),
    ):
        io.sql(f"MERGE INTO '{lake}/people' t USING changes s ON t.id = s.id WHEN {clause}", changes=CHANGES)


def test_a_new_dataset_takes_the_columns_of_the_source(io: AnyDatasetIO, lake: str) -> None:
    text = f"MERGE INTO '{lake}/new' t USING changes s ON t.id = s.id WHEN NOT MATCHED THEN INSERT *"
    assert io.sql(text, changes=CHANGES).inserted == 4
    assert read_rows(io, f"{lake}/new") == CHANGES.to_pylist()


def test_sources_are_paths_and_queries_over_paths(io: AnyDatasetIO, lake: str) -> None:
    put(f"{lake}/people/a.parquet", pa.table({"id": [1], "code": ["007"]}))
    with open(f"{lake}/monday.csv", "w", encoding="utf-8") as file:
        file.write("id,code\n1,008\n2,009\n")
    merge = f"MERGE INTO '{lake}/people' AS t USING %s ON t.id = s.id "
    both = "WHEN MATCHED THEN UPDATE BY NAME WHEN NOT MATCHED THEN INSERT BY NAME"
    for source in (f"'{lake}/monday.csv' AS s", f"(SELECT * FROM '{lake}/mon*.csv' AS m WHERE m.id > 0) AS s"):
        assert io.sql(merge % source + both).source_count == 2
        assert read_rows(io, f"{lake}/people") == [{"id": 1, "code": "008"}, {"id": 2, "code": "009"}]
    named = io.sql(merge % f"(SELECT c.* FROM c JOIN '{lake}/people' p USING (id)) s" + both, c=f"{lake}/monday.csv")
    assert named.source_count == 2


def test_options_of_a_merge_are_options_of_a_statement(io: AnyDatasetIO, lake: str) -> None:
    first = run(io, lake, STATEMENTS["columns"], batch_id="monday", retain=1)
    again = io.sql(STATEMENTS["columns"].format(people=f"'{lake}/people'"), changes=CHANGES, batch_id="monday")
    assert (first.replayed, again.replayed, again.updated) == (False, True, first.updated)
    with assert_unchanged(lake), pytest.raises(TypeError, match=r"sql\(\) got an unexpected .*Did you mean batch_id"):
        io.sql(STATEMENTS["columns"].format(people=f"'{lake}/people'"), changes=CHANGES, batch="monday")


def test_options_of_reading_need_a_file(io: AnyDatasetIO, lake: str) -> None:
    put(f"{lake}/people/a.parquet", PEOPLE)
    for source, match in {"(FROM changes)": "the query reads none", "changes": "column_types is for CSV"}.items():
        text = f"MERGE INTO '{lake}/people' AS t USING {source} AS s ON t.id = s.id WHEN MATCHED THEN DELETE"
        with assert_unchanged(f"{lake}/people"), pytest.raises(InvalidArgumentError, match=match):
            io.sql(text, changes=CHANGES, column_types={"op": "string"})


def test_a_statement_is_planned(io: AnyDatasetIO, lake: str) -> None:
    put(f"{lake}/people/a.parquet", PEOPLE)
    text = STATEMENTS["operations"].format(people=f"'{lake}/people'")
    with assert_unchanged(lake):
        plan = io.sql(text, plan=True, changes=CHANGES)
    result = io.sql(text, changes=CHANGES)
    assert (plan.inserted, plan.updated, plan.deleted) == (result.inserted, result.updated, result.deleted)


# Q5
def test_is_not_distinct_from_matches_null_keys(io: AnyDatasetIO, lake: str) -> None:
    put(f"{lake}/people/a.parquet", pa.table({"id": pa.array([1, None], pa.int64()), "v": ["a", "b"]}))
    source = pa.table({"id": pa.array([None, 3], pa.int64()), "v": ["B", "C"]})
    text = f"MERGE INTO '{lake}/people' AS t USING s ON t.id IS NOT DISTINCT FROM s.id WHEN MATCHED THEN UPDATE BY NAME"
    assert io.sql(text, s=source).updated == 1
    with pytest.raises(SqlError, match="= does not match NULL keys"):
        io.sql(text.replace("IS NOT DISTINCT FROM", "="), s=source, null_keys="match")


# Q7
def test_a_missing_source_is_refused_with_its_position(io: AnyDatasetIO, lake: str) -> None:
    put(f"{lake}/people/a.parquet", PEOPLE)
    text = f"MERGE INTO '{lake}/people' AS t\nUSING changes AS s ON t.id = s.id WHEN MATCHED THEN DELETE"
    with assert_unchanged(lake), pytest.raises(SqlError, match=r"line 2, column 7, near 'changes .* no rows are given"):
        io.sql(text)
    with assert_unchanged(lake), pytest.raises(TypeError, match="unexpected keyword argument 'change'"):
        io.sql(text, change=CHANGES)
    with assert_unchanged(lake), pytest.raises(SqlError, match=r"line 2, column 27, near 'changes WHERE"):
        io.sql(text.replace("changes", "(SELECT * FROM old, changes WHERE id > 1)"), old=CHANGES)
