"""A graph of airports, carriers and flights, kept in step with the schedules that carriers publish every day.

Pass a folder to keep the result: `python examples/flight_graph.py lake`.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from typing import TypedDict

from merganser import GraphDatabase
from merganser.graph import Endpoint


class Flight(TypedDict):
    """One flight of a schedule."""

    number: int
    start: str
    end: str
    minutes: int


CARRIERS = {"AL": "Alpine", "NO": "Northern"}
# The schedule of a carrier lists all its flights of the day: what it no longer lists is cancelled.
SCHEDULES: list[tuple[str, str, list[Flight]]] = [
    (
        "2026-03-02",
        "AL",
        [
            {"number": 1, "start": "ZRH", "end": "OSL", "minutes": 150},
            {"number": 2, "start": "OSL", "end": "TOS", "minutes": 110},
        ],
    ),
    ("2026-03-02", "NO", [{"number": 7, "start": "OSL", "end": "TOS", "minutes": 115}]),
    (
        "2026-03-03",
        "AL",
        [
            {"number": 1, "start": "ZRH", "end": "OSL", "minutes": 145},
            {"number": 3, "start": "ZRH", "end": "BGO", "minutes": 140},
        ],
    ),
]


def main(lake: str) -> None:
    """Run all steps in a folder; the graph of an earlier run follows the schedules again."""
    os.makedirs(lake, exist_ok=True)
    with GraphDatabase(os.path.join(lake, "flights.db")) as db:
        db.create_property_index("Airport", "code", unique=True)
        db.create_property_index("Carrier", "code", unique=True)
        carriers = [{"code": code, "name": name} for code, name in CARRIERS.items()]
        db.bulk_merge_nodes("Carrier", carriers, match_on="code", on_match="*")
        for day, code, flights in SCHEDULES:
            print(f"{day} {code}: {sync_schedule(db, code, flights)}")

        print("\nFlights by carrier:")
        for row in db.edges("FLIGHT").count_by("carrier"):
            print(f"  {row['carrier']}: {row['count']}")

        print("\nCarriers at OSL:")
        query = '(c:Carrier)-[:SERVES]->(:Airport {code: "OSL"}) RETURN c.name AS name'
        for row in db.query(query).to_arrow().to_pylist():
            print(f"  {row['name']}")

        print("\nFrom ZRH to TOS:")
        query = """
            MATCH (:Airport {code: $start})-[a:FLIGHT]->(via)-[b:FLIGHT {minutes < 120}]->(:Airport {code: $end})
            RETURN a.carrier AS first, via.code AS via, b.carrier AS second
        """
        for row in db.query(query, start="ZRH", end="TOS").to_arrow().to_pylist():
            print(f"  {row['first']} to {row['via']}, then {row['second']}")


def sync_schedule(db: GraphDatabase, carrier: str, flights: list[Flight]) -> str:
    """Make the flights of a carrier those of its schedule, and leave those of others alone."""
    codes = {code for flight in flights for code in (flight["start"], flight["end"])}
    airport = {name: Endpoint("Airport", {"code": name}) for name in ("start", "end", "served")}
    own = {"carrier": carrier}
    with db.transaction():
        db.bulk_merge_nodes("Airport", [{"code": code} for code in sorted(codes)], match_on="code")
        done = db.bulk_merge_edges(
            "FLIGHT",
            flights,
            from_node=airport["start"],
            to_node=airport["end"],
            match_on="number",
            on_match="*",
            missing="delete",
            scope=own,
        )
        db.bulk_merge_edges(
            "SERVES",
            [{"code": carrier, "served": code} for code in sorted(codes)],
            from_node=Endpoint("Carrier", {"code": "code"}),
            to_node=airport["served"],
            missing="delete",
            scope=own,
        )
    return f"{done.created} new, {done.changed} changed, {done.missing} cancelled"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A graph of flights, in step with daily schedules.")
    parser.add_argument("lake", nargs="?", help="folder for the graph; without it, a temporary one")
    lake = parser.parse_args().lake
    if lake:
        main(lake)
    else:
        with tempfile.TemporaryDirectory(prefix="merganser-flights-") as folder:
            main(folder)
