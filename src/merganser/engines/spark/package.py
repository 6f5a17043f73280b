"""Send this package to the executors of a cluster that does not have it."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def ship(spark: SparkSession) -> None:
    """Send merganser to executors that lack it, of classic Spark or Connect; they need PyArrow and fsspec already."""
    spark.addArtifacts(_build_archive(), pyfile=True)


@cache
def _build_archive() -> str:
    """Pack the package; executors fetch it whenever they start, so it stays until this process ends."""
    package = Path(__file__).parents[2]
    folder = Path(tempfile.mkdtemp(prefix="merganser-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    shutil.copytree(package, folder / "package" / package.name, ignore=shutil.ignore_patterns("__pycache__"))
    return shutil.make_archive(f"{folder}/merganser", "zip", folder / "package")
