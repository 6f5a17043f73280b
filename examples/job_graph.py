"""A graph of jobs and companies that is imported every day, on some days twice.

Pass a folder to keep the result: `python examples/job_graph.py lake`.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from typing import TypedDict

from merganser import GraphDatabase
from merganser.graph import Endpoint


class Posting(TypedDict):
    """One posting of the board."""

    url: str
    title: str
    company: str


MONDAY: list[Posting] = [
    {"url": "/job/1", "title": "Engineer", "company": "TechCorp"},
    {"url": "/job/2", "title": "Designer", "company": "TechCorp"},
]
TUESDAY: list[Posting] = [
    {"url": "/job/2", "title": "Lead designer", "company": "TechCorp"},
    {"url": "/job/3", "title": "Analyst", "company": "DataWorks"},
]


def main(lake: str) -> None:
    """Run all steps in a folder; the graph of an earlier run is matched again."""
    os.makedirs(lake, exist_ok=True)
    with GraphDatabase(os.path.join(lake, "jobs.db")) as db:
        # The indexes make merges fast, and keep two runs at once from creating duplicates.
        db.create_property_index("Job", "url", unique=True)
        db.create_property_index("Company", "name", unique=True)
        for day, postings in (("2026-03-02", MONDAY), ("2026-03-03", TUESDAY), ("2026-03-03", TUESDAY)):
            created = merge_day(db, postings, day)
            print(f"{day}: {created} new; {db.nodes('Job').count()} jobs, {db.nodes('Company').count()} companies")

        print("\nJobs at TechCorp:")
        at_techcorp = db.nodes("Job").connected_to("Company", "POSTED_BY", match={"name": "TechCorp"})
        for job in at_techcorp.order_by("url").exec():
            seen = job.properties
            print(f"  {seen['title']}, first seen {seen['first_seen']}, last seen {seen['last_seen']}")

        print("\nWho shares a company with /job/1:")
        first = db.nodes("Job").where({"url": "/job/1"}).first()
        if first is not None:
            neighbours = db.traverse(first.id, "POSTED_BY", direction="both", max_depth=2).nodes()
            print(" ", *(node.properties["url"] for node in neighbours if node.type == "Job"))


def merge_day(db: GraphDatabase, postings: list[Posting], day: str) -> int:
    """Merge a day's postings; return how many records are new."""
    jobs = [{"url": post["url"], "title": post["title"], "first_seen": day, "last_seen": day} for post in postings]
    edges = [{"url": post["url"], "company": post["company"]} for post in postings]
    with db.transaction():
        done = [
            db.bulk_merge_nodes("Company", [{"name": post["company"]} for post in postings], match_on="name"),
            db.bulk_merge_nodes("Job", jobs, match_on="url", on_match=["title", "last_seen"]),
            db.bulk_merge_edges(
                "POSTED_BY",
                edges,
                from_node=Endpoint("Job", {"url": "url"}),
                to_node=Endpoint("Company", {"name": "company"}),
            ),
        ]
    return sum(result.created for result in done)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A graph of jobs and companies, imported every day.")
    parser.add_argument("lake", nargs="?", help="folder for the graph; without it, a temporary one")
    lake = parser.parse_args().lake
    if lake:
        main(lake)
    else:
        with tempfile.TemporaryDirectory(prefix="merganser-jobs-") as folder:
            main(folder)
