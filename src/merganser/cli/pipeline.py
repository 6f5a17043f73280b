"""`run` and `demo`: a pipeline on Spark, as `python -m merganser.pipeline` runs it."""

from __future__ import annotations

import sys

import click

from merganser.engines import load
from merganser.pipeline.__main__ import main as run_pipeline


@click.command()
@click.argument("file", metavar="PIPELINE.toml")
@click.option("--param", multiple=True, metavar="NAME=VALUE", help="A parameter; repeatable.")
@click.option("--master", help="Where Spark runs: local[4], yarn, spark://…, sc://…; default local[*].")
@click.option("--conf", multiple=True, metavar="KEY=VALUE", help="A Spark setting; repeatable.")
@click.option("--run-id", help="The name of this run; default: made of the configuration and the files.")
@click.option("--report", metavar="FOLDER", help="Where reports go; default: reports in the state folder.")
@click.option("--debug", is_flag=True, help="Show where in the code an error comes from.")
def run(
    file: str,
    param: tuple[str, ...],
    master: str | None,
    conf: tuple[str, ...],
    run_id: str | None,
    report: str | None,
    *,
    debug: bool,
) -> None:
    """Run a pipeline from its TOML file, on Spark."""
    given = [file, *(part for one in param for part in ("--param", one)), *(p for c in conf for p in ("--conf", c))]
    for name, value in (("--master", master), ("--run-id", run_id), ("--report", report)):
        given += [] if value is None else [name, value]
    sys.exit(run_pipeline([*given, *(["--debug"] if debug else [])]))


@click.command()
@click.argument("folder", default="demo")
@click.option("--rows", type=int, default=100_000, show_default=True, help="Postings a day.")
def demo(folder: str, rows: int) -> None:
    """Run three days of a made-up feed through the pipeline, on Spark.

    Everything is written into FOLDER.
    """
    load("merganser.pipeline.demo", "main", "merganser[spark]")(folder, rows)
