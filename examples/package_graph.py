"""A graph of the installed Python packages and what they require, in step with what is installed.

Pass a folder to keep the result: `python examples/package_graph.py lake`.
"""

from __future__ import annotations

import argparse
import os
import re
import tempfile
from importlib.metadata import distributions

from merganser import GraphDatabase
from merganser.graph import BulkResult, Endpoint

Rows = list[dict[str, str]]


def read_packages() -> tuple[Rows, Rows]:
    """Read the packages, and their requirements but for those of extras."""
    packages, requirements = {}, []
    for found in distributions():
        name = normalize_name(found.metadata["Name"])
        # The first of several on the path is the one that Python imports.
        if name in packages:
            continue
        packages[name] = {"name": name, "version": found.version}
        required = {text for text in found.requires or () if "extra ==" not in text}
        names = {normalize_name(text) for text in required}
        requirements += [{"package": name, "required": other} for other in sorted(names)]
    return list(packages.values()), requirements


def normalize_name(requirement: str) -> str:
    """Take the name of a package from a requirement such as `NumPy>=2; python_version > "3.9"`.

    >>> normalize_name('typing_extensions>=4; python_version < "3.13"')
    'typing-extensions'
    """
    name = re.match(r"[\w.-]+", requirement)
    return re.sub(r"[-_.]+", "-", name[0] if name else "").lower()


def main(lake: str) -> None:
    """Run all steps in a folder; the graph of an earlier run becomes that of the packages installed now."""
    os.makedirs(lake, exist_ok=True)
    with GraphDatabase(os.path.join(lake, "packages.db")) as db:
        db.create_property_index("Package", "name", unique=True)
        sync_packages(db)
        again = sync_packages(db)
        for kind, done in zip(("packages", "requirements"), again, strict=True):
            print(f"again, {kind}: {done.created} new, {done.changed} changed, {done.missing} gone")

        print("\nRequired by most:")
        query = """
            MATCH (:Package)-[:REQUIRES]->(p:Package)
            RETURN p.name AS name, count(*) AS users ORDER BY users DESC, name LIMIT 3
        """
        for row in db.query(query).to_arrow().to_pylist():
            print(f"  {row['name']}: {row['users']}")

        print("\nWhat merganser requires, directly or not:")
        first = db.nodes("Package").where({"name": "merganser"}).first()
        if first is not None:
            found = db.traverse(first.id, "REQUIRES").nodes()
            print(" ", *sorted(str(package.properties["name"]) for package in found))


def sync_packages(db: GraphDatabase) -> tuple[BulkResult, BulkResult]:
    """Make the graph that of the installed packages: what was uninstalled goes, with its edges."""
    packages, requirements = read_packages()
    with db.transaction():
        nodes = db.bulk_merge_nodes("Package", packages, match_on="name", on_match="*", missing="delete", detach=True)
        # Requirements of other systems or Pythons need not be installed.
        edges = db.bulk_merge_edges(
            "REQUIRES",
            requirements,
            from_node=Endpoint("Package", {"name": "package"}),
            to_node=Endpoint("Package", {"name": "required"}),
            missing="delete",
            on_missing_node="skip",
        )
    return nodes, edges


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A graph of the installed packages.")
    parser.add_argument("lake", nargs="?", help="folder for the graph; without it, a temporary one")
    lake = parser.parse_args().lake
    if lake:
        main(lake)
    else:
        with tempfile.TemporaryDirectory(prefix="merganser-packages-") as folder:
            main(folder)
