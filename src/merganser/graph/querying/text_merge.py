"""MERGE clauses of text queries as parts of a pattern to merge, and the result of that."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from merganser.graph.querying.results import Edges, Nodes, Rows
from merganser.graph.records import Edge

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from merganser.graph.querying.text_syntax import MergeClause, ParsedEdge, ParsedNode, ParsedPath, ReturnItem
    from merganser.graph.records import MergedEdge, MergedNode

    MakeError = Callable[[str, int], Exception]


@dataclass(frozen=True, slots=True)
class MergePlan:
    """The parts to merge, the variables that name some of them, and whether they are found or created as one."""

    parts: list[dict[str, Any]] = field(default_factory=list)
    variables: dict[str, int] = field(default_factory=dict)
    is_whole: bool = False


def plan_merge(clauses: Sequence[MergeClause], make_error: MakeError) -> MergePlan:
    """Plan the merge of clauses, each of which is a node, an edge between earlier nodes, or a whole path alone."""
    plan = MergePlan(is_whole=_is_whole(clauses[0].path))
    for clause in clauses:
        if len(clauses) > 1 and (plan.is_whole or _is_whole(clause.path, plan.variables)):
            message = (
                "a path with new nodes is found or created as one, and must be the only MERGE. Merge each of its nodes "
                "before it, and name them here by their variables alone"
            )
            raise make_error(message, clause.position)
        _add_clause(plan, clause, make_error)
    return plan


def read_merged(
    plan: MergePlan, items: Sequence[ReturnItem], merged: Sequence[MergedNode | MergedEdge]
) -> Nodes | Edges | Rows:
    """Read what RETURN asks of the merged parts, or count them without it."""
    if not items:
        created = sum(part.created for part in merged)
        counts = {"created": [created], "matched": [len(merged) - created]}
        return Rows(counts, dict.fromkeys(counts, "integer"), 1)
    columns, kinds = {}, {}
    for item in items:
        assert item.operand is not None  # noqa: S101 - the parser refuses counts
        record = merged[plan.variables[item.operand.variable]]
        columns[item.name], kinds[item.name] = [_read_operand(record, item)], _find_kind(record, item)
    if len(items) == 1 and items[0].operand and items[0].operand.kind == "record":
        (records,) = columns.values()
        return Edges(records) if isinstance(records[0], Edge) else Nodes(records)
    return Rows(columns, kinds, 1)


def _is_whole(path: ParsedPath, known: dict[str, int] | None = None) -> bool:
    has_new = any(node.name is None or node.name not in (known or {}) for node in path.nodes)
    return bool(path.edges) and (has_new or len(path.edges) > 1)


def _add_clause(plan: MergePlan, clause: MergeClause, make_error: MakeError) -> None:
    own: set[str] = set()
    positions = []
    for node in clause.path.nodes:
        if node.name in plan.variables:
            if node.type is not None or node.conditions or node.id is not None:
                raise make_error(f"{node.name} is merged already; name it alone, as in ({node.name})", node.position)
            positions.append(plan.variables[node.name])
        else:
            positions.append(_add_part(plan, node, _make_node_part(node, make_error), own))
    for number, edge in enumerate(clause.path.edges):
        ends = positions[number : number + 2]
        start, end = reversed(ends) if edge.direction == "in" else ends
        part = _make_edge_part(edge, make_error) | {"from": start, "to": end}
        _add_part(plan, edge, part, own)
    for word, given in (("on_create", clause.on_create), ("on_match", clause.on_match)):
        for name, properties in given.items():
            if name not in own:
                raise make_error(f"ON … SET sets properties of what its MERGE merges, not of {name}", clause.position)
            plan.parts[plan.variables[name]][word] = properties


def _add_part(plan: MergePlan, record: ParsedNode | ParsedEdge, part: dict[str, Any], own: set[str]) -> int:
    plan.parts.append(part)
    if record.name is not None:
        plan.variables[record.name] = len(plan.parts) - 1
        own.add(record.name)
    return len(plan.parts) - 1


def _make_node_part(node: ParsedNode, make_error: MakeError) -> dict[str, Any]:
    if node.type is None or node.id is not None:
        raise make_error("a node to merge has a type and properties, as in (:Job {url: $url})", node.position)
    return {"type": node.type, "match": _read_match(node, make_error)}


def _make_edge_part(edge: ParsedEdge, make_error: MakeError) -> dict[str, Any]:
    if len(edge.types) != 1 or edge.depths:
        raise make_error("an edge to merge has one type, as in -[:POSTED_BY]->", edge.position)
    direction = "both" if edge.direction == "both" else "out"
    return {"edge": edge.types[0], "match": _read_match(edge, make_error), "direction": direction}


def _read_match(record: ParsedNode | ParsedEdge, make_error: MakeError) -> dict[str, Any]:
    for _, operator, _ in record.conditions:
        if operator != "=":
            raise make_error("MERGE finds by values, as in {url: $url}, not by comparisons", record.position)
    match = {name: value for name, _, value in record.conditions}
    if len(match) < len(record.conditions):
        raise make_error("MERGE finds by one value of each property; give each once", record.position)
    return match


def _read_operand(record: MergedNode | MergedEdge, item: ReturnItem) -> Any:
    assert item.operand is not None  # noqa: S101 - as above
    if item.operand.kind == "record":
        return record
    return (
        record.properties.get(item.operand.name)
        if item.operand.kind == "property"
        else getattr(record, item.operand.name)
    )


def _find_kind(record: MergedNode | MergedEdge, item: ReturnItem) -> str:
    assert item.operand is not None  # noqa: S101 - as above
    if item.operand.kind == "record":
        return "edge" if isinstance(record, Edge) else "node"
    known = {"id": "integer", "type": "string"}
    return "property" if item.operand.kind == "property" else known.get(item.operand.name, "time")
