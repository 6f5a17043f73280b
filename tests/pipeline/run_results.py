"""Outcomes of runs that never were: usual, empty, huge, hostile."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from merganser.pipeline.run_result import RuleCount, RunOutcome, SourceOutcome, StepOutcome, TaskOutcome
from merganser.timeline import Span

HOSTILE = "</script><img src=\"http://example.invalid/x.png\" onerror=alert(1)>&amp; 'q' \x00\ud800"


def make_times(started: float, *spans: tuple[Any, str, float, int]) -> dict[str, Any]:
    """Spans of a kind, name, length and count that follow each other without a gap, and what they add up to."""
    begins = [started + sum(one[2] for one in spans[:number]) for number in range(len(spans))]
    found = tuple(Span(*one[:2], begin, *one[2:]) for one, begin in zip(spans, begins, strict=True))
    return {"started": started, "seconds": sum(span.seconds for span in found), "spans": found}


def make_source(name: str = "orders", read: int = 0, filtered: int = 0, **more: Any) -> SourceOutcome:
    """A source whose counts add up."""
    quarantined = more.pop("quarantined", 0)
    facts: dict[str, Any] = {
        "paths": (f"s3://lake/raw/{name}/*.parquet",),
        "files": 3,
        "rules": (),
        "staged": False,
        "seconds": 2.25,
        **more,
    }
    rows_in = read - filtered
    return SourceOutcome(
        name=name,
        rows_read=read,
        rows_filtered=filtered,
        rows_in=rows_in,
        rows_quarantined=quarantined,
        rows_clean=rows_in - quarantined,
        **facts,
    )


def make_step(name: str = "orders", **more: Any) -> StepOutcome:
    """A step whose rows add up, with the counts that are given and none besides."""
    changes = ("inserted", "updated", "deleted", "skipped")
    counts: dict[str, Any] = dict.fromkeys(
        (
            *("rows_quarantined", "rows_skipped_null", "rows_deduplicated", *changes),
            *("files_written", "files_rewritten", "files_preserved", "files_removed"),
        ),
        0,
    )
    counts |= {field: more.pop(field) for field in list(more) if field in counts}
    merged = sum(counts[field] for field in changes)
    lost = counts["rows_quarantined"] + counts["rows_skipped_null"] + counts["rows_deduplicated"]
    facts: dict[str, Any] = {
        "kind": "dataset",
        "source": "orders",
        "target": "s3://lake/warehouse/orders",
        "state": "done",
        "seconds": 1.5,
        "rows_in": merged + lost,
        "rows_merged": merged,
        **more,
    }
    return StepOutcome(name=name, **counts, **facts)


def make_run(*outcomes: SourceOutcome | StepOutcome | TaskOutcome, **more: Any) -> RunOutcome:
    """A run of these sources, steps and tasks."""
    facts: dict[str, Any] = {
        "pipeline": "daily sales",
        "run_id": "2025-01-02-7f3a",
        "parameters": {"day": "2025-01-01"},
        "started_at": datetime(2025, 1, 2, 3, 4, 5, tzinfo=UTC),
        "seconds": 83.4,
        "spark_version": "4.3.0",
        "master": "local[2]",
        "quarantine": "s3://lake/quarantine/daily",
        **more,
    }
    return RunOutcome(
        sources=tuple(found for found in outcomes if isinstance(found, SourceOutcome)),
        steps=tuple(found for found in outcomes if isinstance(found, StepOutcome)),
        tasks=tuple(found for found in outcomes if isinstance(found, TaskOutcome)),
        **facts,
    )


def make_run_times(*spans: tuple[Any, str, float, int]) -> dict[str, Any]:
    """The same for a run, which starts at 0."""
    times = make_times(0.0, *spans)
    del times["started"]
    return times


# What is left of the seconds.
REST = ("driver", "other work", 0.125, 1)

USUAL = make_run(
    make_source(
        read=1_204_331,
        filtered=4_331,
        quarantined=2_052,
        rules=(RuleCount("currency is known", 0), RuleCount("customer is known", 212), RuleCount("amount > 0", 1_840)),
        **make_times(1.5, ("job", "read source", 2.0, 1), ("commit", "commit", 0.125, 1), REST),
    ),
    make_source("customers", read=80_400, quarantined=39, rules=(RuleCount("email has an @", 39),), staged=True),
    make_step(
        inserted=1_000_000,
        updated=150_000,
        skipped=46_000,
        deleted=748,
        rows_deduplicated=1_200,
        files_written=12,
        files_rewritten=31,
        files_preserved=957,
        files_removed=31,
        **make_times(
            5.0,
            ("waiting", "lock", 1.5, 1),
            ("job", "match keys", 9.0, 2),
            ("job", "write files", 30.0, 1),
            ("commit", "commit", 1.0, 1),
            REST,
        ),
    ),
    make_step("customers", source="customers", updated=361, skipped=80_000, files_rewritten=2, state="replayed"),
    make_step(
        "Customer",
        kind="nodes",
        target="s3://lake/graph/nodes/type=Customer",
        inserted=361,
        **make_times(5.0, ("merge", "SQLite", 0.004, 1), ("driver", "other work", 0.0, 1)),
    ),
    make_step(
        "placed",
        kind="edges",
        target="s3://lake/graph/edges/type=placed",
        inserted=9_052,
        rows_skipped_null=948,
        **make_times(5.0, ("waiting", "earlier steps", 0.5, 1), ("merge", "SQLite", 0.75, 3), REST),
    ),
    TaskOutcome(name="records of the graph", **make_times(3.75, ("job", "fold records", 1.25, 1), REST)),
    **make_run_times(
        ("driver", "inspect source files", 1.5, 1),
        ("steps", "sources", 2.25, 1),
        ("steps", "steps", 43.0, 1),
        REST,
    ),
)

ZERO = make_run(make_source(seconds=0.0), make_step(seconds=0.0), parameters={}, quarantine=None)

ONE = make_run(make_source(read=1), make_step(inserted=1, files_written=1))

EMPTY = make_run(seconds=0.0)

EXTREME = make_run(
    make_source("", seconds=0.0),
    make_source("source_without_blanks_" * 8, read=10**10, filtered=1, quarantined=1, rules=(RuleCount("r" * 120, 1),)),
    make_source("注文データ שלום", read=7, filtered=3, quarantined=2, rules=(RuleCount(HOSTILE, 2),)),
    # A bar of one large part and seven that are next to nothing.
    make_step(
        HOSTILE,
        inserted=10**10,
        **dict.fromkeys(("updated", "skipped", "deleted", "rows_deduplicated", "rows_skipped_null"), 1),
        rows_quarantined=1,
        files_written=1,
        files_rewritten=1,
        files_preserved=10**7,
    ),
    # A bar at the end of its chart, whose parts are next to nothing.
    make_step("late", **make_times(2.0**18, *(("job", f"job {number}", 1e-6, 1) for number in range(7)))),
    make_step("step_without_blanks_" * 10, target="s3://" + "folder/" * 40, source="source_without_blanks_" * 8),
    *(
        make_step(
            f"step {number}",
            inserted=4**number,
            updated=number,
            skipped=1,
            files_written=number,
            **make_times(
                2.0**number,
                ("waiting", "lock", 1e-6, 1),
                ("job", HOSTILE, 2.0**number, 10**7),
                ("merge", "SQLite", 0.0, 1),
                ("commit", "commit", 1e-3, 1),
                REST,
            ),
        )
        for number in range(18)
    ),
    TaskOutcome(name=HOSTILE, **make_times(0.0, ("job", HOSTILE, 2.0, 1))),
    **make_run_times(("steps", "steps", 2.0**18, 1), REST),
    pipeline=HOSTILE * 2,
    parameters={"day": "2025-01-01", "p" * 80: "v" * 200, HOSTILE: HOSTILE},
)

WRONG = make_run(make_source(read=10), make_step(inserted=9, rows_in=10))
