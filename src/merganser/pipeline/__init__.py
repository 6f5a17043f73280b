"""The Spark job: raw files in; merged datasets and graph out, bad rows kept aside, and a report.

A configuration is made and checked without Spark; `run` needs it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from merganser.engines import load as _load_extra
from merganser.errors import AccountingError, ConfigurationError, PipelineError, QualityError
from merganser.pipeline.config.tables import Check, Dataset, Edge, Ends, Graph, Node, Pipeline, Source
from merganser.pipeline.config.toml_file import load
from merganser.pipeline.config.when import When
from merganser.pipeline.report.files import write_report
from merganser.pipeline.report.page import report_page
from merganser.pipeline.report.terminal import report_lines
from merganser.pipeline.run_result import RuleCount, RunOutcome, SourceOutcome, StepOutcome, TaskOutcome
from merganser.timeline import Span

if TYPE_CHECKING:
    from merganser.pipeline.runner.driver import run

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
    "Span",
    "StepOutcome",
    "TaskOutcome",
    "When",
    "load",
    "report_lines",
    "report_page",
    "run",
    "write_report",
]


def __getattr__(name: str) -> Any:
    if name == "run":
        return _load_extra("merganser.pipeline.runner.driver", "run", "merganser[spark]")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
