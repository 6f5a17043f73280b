"""The columns that the driver and its tasks agree on."""

from __future__ import annotations

import pyarrow as pa

from merganser.core.rows.key_scan import POSITION_COLUMNS

# A packet: the number of the task that gets it, what it holds, its place among others, and its content. What a task
# returns: its pickled result, or its error as JSON.
NUMBER = "number"
KIND = "kind"
PLACE = "place"
PACKET = "packet"
RESULT = "result"
ERROR = "error"
# A source row: the number of its source file and its position there.
SOURCE_FILE = "source_file"
ROW = "row"
# The row of `SourceFacts.partitions` that a source row belongs to.
PARTITION = "partition_number"
# Whether a source row is not inserted, but deletes what it matches if the policy has a delete column; the `Action` of
# a match.
IS_EXCLUDED = "is_excluded"
ACTION = "action"
# A target row.
FILE, ROW_GROUP, POSITION = POSITION_COLUMNS

# A source row without its values, if it is new and in general; a target row and the source row that it matches.
NEW_SCHEMA = pa.schema([(SOURCE_FILE, pa.int32()), (ROW, pa.int64()), (PARTITION, pa.int32())])
NEW_ROW_COLUMNS = [ROW, PARTITION]
SOURCE_SCHEMA = pa.schema([*NEW_SCHEMA, (IS_EXCLUDED, pa.bool_())])
MATCH_SCHEMA = pa.schema(
    [(FILE, pa.int32()), (ROW_GROUP, pa.int32()), (POSITION, pa.int64()), *SOURCE_SCHEMA, (ACTION, pa.int8())]
)
