"""Which column of a table a name in a file means. It is kept with the table: the name means that column for ever."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

Rule = Literal["snake", "keep"]
RULES: tuple[Rule, ...] = ("snake", "keep")


@dataclass(frozen=True)
class RenamedColumn:
    """A column whose name in the file, `source`, is another one."""

    source: str
    column: str


@dataclass(frozen=True)
class NameMap:
    """The names in files that are not the names of their columns.

    `columns` has, for each such name, one column for each time that the name occurs in a file. `rule` is the rule of a
    table that was made from files; None for a table that was declared."""

    rule: Rule | None = None
    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)

    def column_of(self, name: str) -> str | None:
        """The column of a name in a file, the first one when the name occurs more than once."""
        found = self.columns.get(name)
        return found[0] if found else None

    @cached_property
    def _sources(self) -> Mapping[str, list[str]]:
        found: dict[str, list[str]] = defaultdict(list)
        for source, columns in self.columns.items():
            for column in columns:
                found[column].append(source)
        return found

    def sources_of(self, column: str) -> list[str]:
        """The names in files that mean this column. In a table made from files, a column without a name in the map has
        its own name in the files."""
        return self._sources.get(column) or ([] if self.rule is None else [column])

    @property
    def renamed(self) -> list[RenamedColumn]:
        """The names that are not those of their columns, each with its column."""
        pairs = ((source, column) for source, columns in self.columns.items() for column in columns)
        return [RenamedColumn(source, column) for source, column in pairs if source != column]

    def add(self, sources: Sequence[str], columns: Sequence[str]) -> NameMap:
        """The map with the names of one file and their columns. Names that are known keep their columns."""
        in_file: dict[str, list[str]] = defaultdict(list)
        for source, column in zip(sources, columns, strict=True):
            in_file[source].append(column)
        merged = dict(self.columns)
        for source, found in in_file.items():
            known = merged.get(source, ())
            # A name without text stands for a place in the file, which the next file may not have.
            if source.strip() and (known or found != [source]):
                merged[source] = (*known, *found[len(known) :])
        return self if merged == self.columns else NameMap(self.rule, merged)

    def rename(self, old: str, new: str) -> NameMap:
        """The map after a column was renamed: the names in files that meant it mean it still, its old name too."""
        merged = {s: tuple(new if c == old else c for c in columns) for s, columns in self.columns.items()}
        merged.setdefault(old, (new,))
        return NameMap(self.rule, {source: columns for source, columns in merged.items() if columns != (source,)})

    def union(self, other: NameMap) -> NameMap:
        """The entries of both; where they differ, those of this map."""
        return NameMap(self.rule or other.rule, {**other.columns, **self.columns})

    def to_dict(self) -> dict[str, Any]:
        return {"rule": self.rule, "columns": {source: list(columns) for source, columns in self.columns.items()}}

    @staticmethod
    def from_dict(facts: Mapping[str, Any]) -> NameMap:
        return NameMap(facts["rule"], {source: tuple(columns) for source, columns in facts["columns"].items()})
