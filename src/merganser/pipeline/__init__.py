"""The Spark job: raw files in; merged datasets and graph out, bad rows kept aside, and a report.

A configuration is made and checked without Spark; `run` needs it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from merganser.core.errors import AccountingError, ConfigurationError, PipelineError, QualityError
from merganser.engines import load as _load_extra
from merganser.pipeline.config import Check, Dataset, Edge, Ends, Graph, Node, Pipeline, Source
from merganser.pipeline.outcome import RuleCount, RunOutcome, SourceOutcome, StepOutcome
from merganser.pipeline.page import report_page
from merganser.pipeline.report import write_report
from merganser.pipeline.terminal import report_lines
from merganser.pipeline.toml_file import load

if TYPE_CHECKING:
    from merganser.pipeline.driver import run

__all__ = [
    "AccountingError",
    "Check",
    "ConfigurationError",
    "Dataset",
    "Edge",
    "Ends",
    "Graph",
    "Node",
    "Pipeline",
    "PipelineError",
    "QualityError",
    "RuleCount",
    "RunOutcome",
    "Source",
    "SourceOutcome",
    "StepOutcome",
    "load",
    "report_lines",
    "report_page",
    "run",
    "write_report",
]


def __getattr__(name: str) -> Any:
    if name == "run":
        return _load_extra("merganser.pipeline.driver", "run", "merganser[spark]")
    message = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(message)
