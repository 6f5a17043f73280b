"""The columns that the driver and its tasks agree on.

Columns of source rows are numbered on their way (`shuffle_tasks.make_wire_schema`), so none has one of these names.
"""

from __future__ import annotations

import pyarrow as pa

from merganser.core.rows.key_scan import POSITION_COLUMNS

# A task: its number in the job, and its pickled input. What it returns: its pickled result, or its error as JSON.
NUMBER = "number"
TASK_INPUT = "task_input"
RESULT = "result"
ERROR = "error"
# A source row: the number of its staged file or DataFrame partition, and its position there.
STAGED_FILE = "staged_file"
ROW = "row"
# The row of `SourceFacts.partitions` that a source row belongs to, and the one that a target row's file belongs to.
PARTITION = "partition_number"
EXPECTED_PARTITION = "expected_partition"
# Whether a source row deletes, and the `Action` of a match.
IS_DELETE = "is_delete"
ACTION = "action"
# A target row.
FILE, ROW_GROUP, POSITION = POSITION_COLUMNS
# The task that a match is sent to, by number. The new file that a row is sent to, and its position there.
TASK = "task"
NEW_FILE = "new_file"
NEW_POSITION = "new_position"

SOURCE_ROW_FIELDS = ((STAGED_FILE, pa.int32()), (ROW, pa.int64()))
GROUP_POSITION_FIELDS = ((ROW_GROUP, pa.int32()), (POSITION, pa.int64()))
TARGET_ROW_FIELDS = ((FILE, pa.int32()), *GROUP_POSITION_FIELDS)
# A match on its way to its file, without the source row that goes with it.
MATCH_FIELDS = (*GROUP_POSITION_FIELDS, *SOURCE_ROW_FIELDS, (IS_DELETE, pa.bool_()), (ACTION, pa.int8()))
