"""Everything that reads a table's log and moves a mark: one consumer a file."""
