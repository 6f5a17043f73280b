"""The Spark session of a pipeline on the command line."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from merganser.engines.spark import ship
from merganser.engines.spark.java import check_java

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

LOCAL = "local[*]"
# Defaults of a local session; --conf overrides them.
_LOCAL_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.log.level": "ERROR",
    # Otherwise each task waits 40 ms for TCP's delayed acknowledgement.
    "spark.python.unix.domain.socket.enabled": "true",
}


@contextmanager
def open_session(
    name: str, master: str | None, settings: Mapping[str, str], *, progress: bool
) -> Iterator[SparkSession]:
    """Start Spark, or join the session that spark-submit has started; stop it when the block ends.

    The default master is that of spark-submit or the environment, else this machine. An `sc://` master is a Spark
    Connect server.
    """
    master = master or settings.get("spark.master")
    remote = master if master is not None and master.startswith("sc://") else None
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ or "SPARK_REMOTE" in os.environ or "MASTER" in os.environ
    builder = SparkSession.builder.appName(f"merganser {name}")
    if remote is not None:
        builder = builder.remote(remote)
    elif master is not None or not submitted:
        check_java()
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        builder = builder.master(master or LOCAL)
    here = remote is None and (master or (LOCAL if not submitted else "")).startswith("local")
    shown = {"spark.ui.showConsoleProgress": str(progress).lower()}
    for key, value in {**(_LOCAL_SETTINGS if here else {}), **shown, **settings}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    try:
        if not (here and "local-cluster" not in (master or "")):
            ship(spark)
        yield spark
    finally:
        spark.stop()
