"""Any list of clauses that is applied in order agrees with one native MERGE for each source row."""

from __future__ import annotations

import random
import tempfile
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import oracle
from tests.clause_oracle import merge_in_order, needs_merge
from tests.engines.test_clause_property import POOLS, SOURCE, TARGET, Case, make_case
from tests.support import load, open_dataset_io, snapshot

from merganser.core.model.engine import ACTION_COLUMN
from merganser.errors import PartitionMoveError

if TYPE_CHECKING:
    from merganser.core.merge.dataset_io import DatasetIO
    from merganser.core.model.clauses import Clause

SEQUENCES = [None, 1, 2, 3, 4]


def make_ordered_case(rnd: random.Random) -> Case:
    """Make a case whose source repeats keys, and whose target may do so."""
    case = make_case(rnd)
    count = rnd.choice([0, 4, 12, 25])
    source = [_make_row(rnd, SOURCE, case.keys, null_keys=0) for _ in range(count)]
    target = [
        row | {"seq": rnd.choice(SEQUENCES)} for row in case.target.to_pylist() for _ in range(rnd.choice([1, 1, 1, 2]))
    ]
    inserts = [one for one in case.clauses if one.action == "insert"]
    in_inserts = any(one.values is None for one in inserts) or rnd.random() < 0.7
    return replace(
        case,
        target=pa.Table.from_pylist(target, TARGET.append(pa.field("seq", pa.int64()))),
        source=pa.Table.from_pylist(source, SOURCE.append(pa.field("seq", pa.int64()))),
        clauses=[_set_sequence(rnd, one, in_inserts=in_inserts) for one in case.clauses],
    )


def _make_row(rnd: random.Random, schema: pa.Schema, keys: list[str], *, null_keys: float) -> dict[str, Any]:
    nulls = {name: null_keys if name in keys else 0.15 for name in schema.names}
    row = {name: None if rnd.random() < nulls[name] else rnd.choice(POOLS[name][:5]) for name in schema.names}
    return row | {"seq": rnd.choice(SEQUENCES)}


def _set_sequence(rnd: random.Random, clause: Clause, *, in_inserts: bool) -> Clause:
    """Let most updates set the sequence, and all inserts or none."""
    is_set = in_inserts if clause.side == "not_matched" else clause.side == "matched" and rnd.random() < 0.7
    return clause if clause.values is None or not is_set else replace(clause, values={**clause.values, "seq": "s.seq"})


# Q8 Q1 Q4 K9 M3
@needs_merge
@pytest.mark.slow
def test_rows_of_a_key_in_order_agree_with_one_native_merge_for_each(engine: str, example_count: int) -> None:
    io = open_dataset_io(engine)
    check = given(seed=st.integers(0, 1 << 32))(lambda seed: _check(io, make_ordered_case(random.Random(seed))))
    settings(max_examples=max(1, min(example_count // 2, 400)))(check)()


def _check(io: DatasetIO, case: Case) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/t"
        io.write_dataset(
            case.target,
            path,
            partition_columns=case.partition_columns,
            max_rows_per_file=case.rows_per_file,
            row_group_size=case.rows_per_group,
        )
        options = {"sequence_column": "seq", "repeated_keys": "apply_in_order", **case.options}
        merge = io.merge_into(path, case.source, case.keys, audit="rows", batch_id="one", **options).add(*case.clauses)
        pairs = merge_in_order(case.target, case.source, case.keys, case.clauses, "seq")
        before = snapshot(path)
        if any(_moves(*pair, case.partition_columns) for pair in pairs):
            with pytest.raises(PartitionMoveError):
                merge.execute()
            assert snapshot(path) == before
            return
        plan = merge.plan()
        assert snapshot(path) == before, "a plan changed the dataset"
        result = merge.execute()
        expected = [after for _, after in pairs if after is not None]
        assert oracle.to_multiset(load(io, path).to_pylist()) == oracle.to_multiset(expected)
        found = {"insert": result.inserted, "update": result.updated, "delete": result.deleted}
        assert {"insert": plan.inserted, "update": plan.updated, "delete": plan.deleted} == found
        assert found["insert"] == sum(old is None and new is not None for old, new in pairs)
        assert found["delete"] == sum(old is not None and new is None for old, new in pairs)
        changed = sum(None not in (old, new) and old != new for old, new in pairs)
        # Without skip_unchanged, an update to the same values is an update.
        assert found["update"] == changed if case.options else found["update"] >= changed
        assert (result.source_count, result.deduplicated) == (case.source.num_rows, 0)
        assert result.audit is not None
        audited = result.audit.column(ACTION_COLUMN).to_pylist()
        assert {name: audited.count(name) for name in found} == found


def _moves(old: dict[str, Any] | None, new: dict[str, Any] | None, columns: list[str]) -> bool:
    return old is not None and new is not None and any(old[name] != new[name] for name in columns)
