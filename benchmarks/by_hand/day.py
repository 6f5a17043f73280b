"""One day of postings into tables of jobs and companies, and into the graph of both, twice: as tables and in SQLite."""

from __future__ import annotations

import time
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from benchmarks.by_hand.graph_file import merge_edges, merge_nodes, open_graph
from benchmarks.by_hand.tables import COMPANIES, COMPANY_NODES, EDGES, JOB_NODES, JOBS, QUARANTINE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import Column, DataFrame, SparkSession

    from benchmarks.by_hand.tables import Storage

SCHEMA = """
    url STRING, title STRING, company STRING, company_country STRING, city STRING, country STRING, remote BOOLEAN,
    salary_min DOUBLE, salary_max DOUBLE, currency STRING, skills ARRAY<STRING>, description STRING,
    posted_at STRING, scraped_at STRING
"""
TIMES = ("posted_at", "scraped_at")
CORRUPT = "_corrupt_record"
# Columns of staged rows that clean ones do not keep.
REASON, RAW, FILE = "_reason", "_raw", "_file"
FAIL_ABOVE = 0.05


def run_day(storage: Storage, spark: SparkSession, feed: Path, folder: Path, day: str) -> None:
    """Merge the postings of a day."""
    with log_time("source and quarantine"):
        clean = stage(storage, spark, feed / day, folder / "staged" / day)
    today = F.lit(day).cast("date")
    jobs = keep_latest(clean, "url", "scraped_at").persist()
    companies = clean.select(F.col("company").alias("name"), F.col("company_country").alias("country"))
    companies = companies.dropDuplicates(["name"]).withColumn("last_seen", today).persist()
    with log_time("jobs"):
        storage.upsert(jobs, JOBS)
    with log_time("companies"):
        storage.upsert(companies, COMPANIES)
    company_nodes = companies.select("name", "country", today.alias("first_seen"), "last_seen")
    job_nodes = jobs.select(
        "url", "title", "city", "country", "salary_min", "salary_max", "currency", today.alias("first_seen")
    )
    edges = clean.select(F.col("url").alias("src"), F.col("company").alias("dst")).distinct()
    edges = edges.withColumn("since", today).persist()
    merge_tables(storage, company_nodes, job_nodes, edges)
    merge_graph(folder / "graph.db", company_nodes, job_nodes, edges)
    for rows in (jobs, companies, edges):
        rows.unpersist()


def stage(storage: Storage, spark: SparkSession, source: Path, staged: Path) -> DataFrame:
    """Read and check the postings, add bad rows to the quarantine and return the others."""
    read = spark.read.schema(f"{SCHEMA}, {CORRUPT} STRING").json(str(source))
    names = [name for name in read.columns if name != CORRUPT]
    raw = F.coalesce(CORRUPT, F.to_json(F.struct(*names)))
    times = {name: F.col(name).try_cast("timestamp") for name in TIMES}
    rows = read.withColumns({REASON: find_defect(), FILE: F.col("_metadata.file_path")})
    rows = rows.withColumn(RAW, F.when(F.col(REASON).isNotNull(), raw)).withColumns(times).drop(CORRUPT)
    rows.write.mode("overwrite").parquet(str(staged))
    rows = spark.read.parquet(str(staged))
    total, bad = rows.agg(F.count("*"), F.count(REASON)).collect()[0]
    print(f"  {total:,} rows, {bad:,} of them bad", flush=True)
    if bad > FAIL_ABOVE * total:
        raise ValueError(f"{bad:,} of {total:,} rows are bad")
    # Two lines of a file may be equal; both are kept, and no more than both if the day is run again.
    digest = F.sha2(F.concat_ws("\n", FILE, REASON, RAW), 256)
    equal = Window.partitionBy("id").orderBy(F.lit(0))
    failed = rows.where(F.col(REASON).isNotNull()).select(digest.alias("id"), FILE, REASON, RAW)
    failed = failed.withColumn("id", F.concat_ws("-", "id", F.row_number().over(equal)))
    storage.upsert(failed, QUARANTINE)
    return rows.where(F.col(REASON).isNull()).drop(REASON, RAW, FILE)


def find_defect() -> Column:
    """Find the first rule that a row fails; NULL is a good row."""
    lost = [F.col(name).isNotNull() & F.col(name).try_cast("timestamp").isNull() for name in TIMES]
    return (
        F.when(F.col(CORRUPT).isNotNull(), "malformed")
        .when(F.col("url").isNull() | F.col("company").isNull(), "no key")
        .when(lost[0] | lost[1], "no time")
        .when((F.col("salary_min") < 0) | (F.col("salary_max") < F.col("salary_min")), "salary range")
    )


def keep_latest(rows: DataFrame, key: str, order: str) -> DataFrame:
    """Keep the latest row of each key."""
    window = Window.partitionBy(key).orderBy(F.col(order).desc())
    return rows.withColumn("_number", F.row_number().over(window)).where("_number = 1").drop("_number")


def merge_tables(storage: Storage, companies: DataFrame, jobs: DataFrame, edges: DataFrame) -> None:
    """Merge nodes and edges into tables."""
    with log_time("Company nodes, tables"):
        storage.upsert(companies, COMPANY_NODES)
    with log_time("Job nodes, tables"):
        storage.upsert(jobs, JOB_NODES)
    with log_time("edges, tables"):
        # Their nodes were merged just now from the same rows, so all of them exist.
        storage.upsert(edges, EDGES)


def merge_graph(path: Path, companies: DataFrame, jobs: DataFrame, edges: DataFrame) -> None:
    """Merge nodes and edges into SQLite."""
    with closing(open_graph(path)) as graph:
        with log_time("Company nodes, SQLite"):
            merge_nodes(graph, "Company", to_node_rows(companies, "name", COMPANY_NODES.updates))
        with log_time("Job nodes, SQLite"):
            merge_nodes(graph, "Job", to_node_rows(jobs, "url", JOB_NODES.updates))
        with log_time("edges, SQLite"):
            rows = edges.select("src", "dst", F.to_json(F.struct("since")))
            merge_edges(graph, "POSTED_BY", ("Job", "Company"), rows)


def to_node_rows(rows: DataFrame, key: str, updates: tuple[str, ...]) -> DataFrame:
    """Select the key of each node, its properties, and those that a match overwrites, null if they are removed."""
    patch = F.to_json(F.struct(*updates), {"ignoreNullFields": "false"})
    return rows.select(key, F.to_json(F.struct(*rows.columns)), patch)


@contextmanager
def log_time(step: str) -> Iterator[None]:
    """Print how long a step takes."""
    begin = time.perf_counter()
    yield
    print(f"  {step:24} {time.perf_counter() - begin:6.2f} s", flush=True)
