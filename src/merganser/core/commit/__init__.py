"""The journaled commit, with recovery, history and undo."""
