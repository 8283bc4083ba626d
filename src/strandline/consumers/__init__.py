"""Everything that reads a table's log and moves a mark: one cursor a file."""
