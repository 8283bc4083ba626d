"""From the names in a file to the names of columns, by a rule.

`snake` makes plain words of them: "Order Date" and "orderDate" become order_date. `keep` takes them as they are. With
both, every column gets a name of its own: a column without a name is named by its place, a name that is taken gets a
number. The same names in the same order always give the same columns, and the map that is kept with a table comes
first. Two names of one file never share a column.
"""

from __future__ import annotations

import re
import shlex
import threading
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from strandline.errors import Invalid
from strandline.model.definition import TableDef
from strandline.model.name_map import RULES, NameMap, RenamedColumn, Rule
from strandline.model.names import caseless_name, is_reserved, join_names

DEFAULT: Rule = "snake"

_PLAIN = re.compile(r"[a-z_][a-z0-9_]*[a-z0-9][a-z0-9_]*\Z|[a-z]\Z")
# No column has a name that begins so.
_SKIPPED = "\0skip "
_SEPARATORS = re.compile(r"[\s_.:/-]+")


def check_rule(rule: str | None) -> Rule | None:
    if rule is not None and rule not in RULES:
        raise Invalid(f"names is {rule!r}; expected one of: {', '.join(RULES)}")
    return rule


def snake_name(source: str) -> str:
    """A name in small letters, digits and '_'; letters of every script stay. Empty when the name has none of them."""
    if _PLAIN.match(source):
        return source
    text = _part_words(unicodedata.normalize("NFC", source)).lower()
    words = "".join(sign if unicodedata.category(sign)[0] in "LMN" else " " for sign in text).split()
    if not words:
        return ""
    # A leading '_' stays, as in _id. A digit gets one: 2024 would be a number in SQL.
    start = "_" if source.startswith("_") or words[0][0].isdigit() else ""
    return start + "_".join(words)


def _part_words(text: str) -> str:
    """The text with a space before each word that starts with a capital: order Date, HTTP Server, but IDs."""
    parts = []
    for before, sign, after in zip(f" {text}", text, f"{text[1:]} ", strict=False):
        is_after_capital = before.isupper() and after.islower() and after != "s"
        if sign.isupper() and (before.islower() or is_after_capital or (before.isdigit() and after.islower())):
            parts.append(" ")
        parts.append(sign)
    return "".join(parts)


def name_columns(
    sources: Sequence[str],
    *,
    known: NameMap | None = None,
    columns: Sequence[str] = (),
    rule: Rule | None = None,
) -> list[str]:
    """The column of each name in a file, in the order of the file. Those that are not in `columns` are new.

    `known` is the map of the table and `columns` are its columns. A name means the column of the map, else the column
    of that name, else the one that differs in case only, else the one that the rule gives. `rule` is by default that of
    the table."""
    return _Naming(sources, known or NameMap(), columns, rule).run()


def new_map(sources: Sequence[str], columns: Sequence[str], rule: Rule | None) -> NameMap:
    """The map of a table that is made from a file with these names."""
    return NameMap(rule or DEFAULT).add(sources, columns)


def find_columns(names: Iterable[str], columns: Sequence[str], known: NameMap) -> tuple[str, ...]:
    """The columns that a person means, by their names in the table or in the file. Other names stay as they are."""
    exact = {**{source: found[0] for source, found in known.columns.items()}, **{column: column for column in columns}}
    by_case = {caseless_name(name): column for name, column in exact.items()}
    return tuple(
        exact.get(name) or by_case.get(caseless_name(name), name) if isinstance(name, str) else name for name in names
    )


def is_skipped(label: str) -> bool:
    """Whether a name that a `ColumnMatcher` gave is the label of a name to skip."""
    return label.startswith(_SKIPPED)


class ColumnMatcher:
    """Gives the names in files the columns of one table, and collects the names that the table has not met before.

    Names in `skip` get a label that is no column of the table. Threads may share it."""

    def __init__(self, definition: TableDef, rule: Rule | None = None, skip: Sequence[str] = ()) -> None:
        self._columns = definition.schema.names
        self._labels = {name: f"{_SKIPPED}{name}" for name in skip}
        self._all = {*self._columns, *self._labels.values()}
        self._rule = check_rule(rule)
        self._lock = threading.Lock()
        self.known = definition.names
        self.renamed: dict[RenamedColumn, None] = {}

    def match(self, sources: Sequence[str]) -> list[str]:
        """The column of each name in a file; the table need not have it."""
        with self._lock:
            wanted = [source for source in sources if source not in self._labels]
            columns = _Naming(wanted, self.known, self._columns, self._rule).run()
            self._note(wanted, columns)
            rest = iter(columns)
            return [self._labels.get(source) or next(rest) for source in sources]

    def one_by_one(self) -> Callable[[str], str]:
        """A function for the names of a file that come one after another, each once: the column of a name. A column is
        never given twice."""
        taken: set[str] = set()

        def match(source: str) -> str:
            if source in self._labels:
                return self._labels[source]
            with self._lock:
                (column,) = _Naming([source], self.known, self._columns, self._rule, taken).run()
                self._note([source], [column])
                return column

        return match

    def _note(self, sources: Sequence[str], columns: Sequence[str]) -> None:
        met = [(source, column) for source, column in zip(sources, columns, strict=True) if self.has(column)]
        if met:
            self.known = self.known.add([source for source, _ in met], [column for _, column in met])
            self.renamed |= {RenamedColumn(*pair): None for pair in met if pair[0] != pair[1]}

    @property
    def skipped(self) -> list[str]:
        """The labels of names to skip."""
        return list(self._labels.values())

    def has(self, column: str) -> bool:
        return column in self._all

    def require(self, sources: Sequence[str], place: str, *, hint: str = "", **fields: object) -> list[str]:
        """As `match`; `Invalid` when the table lacks a column. `hint` follows the hint of the error."""
        columns = self.match(sources)
        missing = [pair for pair in zip(sources, columns, strict=True) if not self.has(pair[1])]
        if missing:
            source, column = missing[0]
            message, columns_hint = self._explain_missing(source, column)
            ways = missing_hint([source for source, _ in missing], column)
            raise Invalid(f"{place}: {message}", hint=f"{columns_hint}\n{ways}{hint}", column=source, **fields)
        return columns

    def _explain_missing(self, source: str, column: str) -> tuple[str, str]:
        hint = f"Columns: {', '.join(self._columns)}"
        if source == column:
            return f"the table has no column {source!r}", hint
        base = next((name for name in self._columns if re.fullmatch(rf"{re.escape(name)}_\d+", column)), None)
        if base is not None:
            hint = f"The column {base!r} has its values from {(self.known.sources_of(base) or [base])[0]!r}.\n{hint}"
        return f"the table has no column for {source!r}; it would be {column!r}", hint


def missing_hint(sources: Sequence[str], column: str) -> str:
    """What to type when a table lacks the columns of these names in a file, of which `column` is the first."""
    skip = shlex.quote(join_names(sources))
    return (
        f"Leave out: --skip {skip}. Or add a column: strandline table add-column TABLE {shlex.quote(f'{column}:TYPE')}"
    )


class _Naming:
    """The names of one file, while they are given columns: first those that are sure, at last those by the rule."""

    def __init__(
        self,
        sources: Sequence[str],
        known: NameMap,
        columns: Sequence[str],
        rule: Rule | None,
        taken: set[str] | None = None,
    ) -> None:
        self._sources = sources
        self._known = known
        self._rule = check_rule(rule) or known.rule or DEFAULT
        self._columns = {caseless_name(column): column for column in columns}
        self._found: dict[int, str] = {}
        self._taken: set[str] = set() if taken is None else taken
        self._numbers: dict[tuple[str, str], int] = {}

    def run(self) -> list[str]:
        self._take_free(self._find_known())
        own = set(self._columns.values())
        self._take_free({at: source for at, source in self._rest() if source in own})
        cases = {at: self._columns.get(caseless_name(source)) for at, source in self._rest()}
        self._take_free({at: column for at, column in cases.items() if column is not None})
        ruled = {at: self._apply_rule(at, source) for at, source in self._rest()}
        # A name that the rule leaves as it is comes before the names that the rule makes equal to it.
        first = {source: at for at, source in reversed(self._rest())}
        for at in sorted(ruled, key=lambda at: (first.get(ruled[at]) != at, at)):
            self._take(at, self._find_free(self._sources[at], ruled[at]))
        return [self._found[at] for at in range(len(self._sources))]

    def _rest(self) -> list[tuple[int, str]]:
        return [(at, source) for at, source in enumerate(self._sources) if at not in self._found]

    def _take(self, at: int, column: str) -> None:
        self._found[at] = column
        self._taken.add(caseless_name(column))

    def _take_free(self, wanted: Mapping[int, str]) -> None:
        for at, column in wanted.items():
            if caseless_name(column) not in self._taken:
                self._take(at, column)

    def _find_known(self) -> dict[int, str]:
        """The columns that the map has. A name that occurs again means its next column there."""
        times: Counter[str] = Counter()
        found = {}
        for at, source in enumerate(self._sources):
            columns = self._known.columns.get(source, ())
            if times[source] < len(columns):
                found[at] = columns[times[source]]
            times[source] += 1
        return found

    def _apply_rule(self, at: int, source: str) -> str:
        name = snake_name(source) if self._rule == "snake" else _clean_name(source)
        return name or f"column_{at + 1}"

    def _find_free(self, source: str, name: str) -> str:
        """`name`, or `name` with the first number that makes it free."""
        if is_reserved(f"{name}_2"):
            # A reserved prefix, which no number frees.
            name = name.lstrip("_")
        number = self._numbers.get((source, name), 1)
        while True:
            text = name if number == 1 else f"{name}_{number}"
            column = self._columns.get(caseless_name(text))
            is_free = caseless_name(text) not in self._taken and not is_reserved(text)
            if is_free and (column is None or self._may_mean(source, column)):
                self._numbers[source, name] = number
                return column or text
            number += 1

    def _may_mean(self, source: str, column: str) -> bool:
        """Whether a new name may mean a column that has values already: not if these came from a name that has other
        signs, such as C# after C++."""
        others = self._known.sources_of(column)
        return not source.strip() or not others or any(_same_words(source, other) for other in others)


def _clean_name(source: str) -> str:
    """A name as it is, without what no engine takes in a name. Empty when it is only space."""
    name = source.encode(errors="replace").decode().replace("\0", "_")
    return name if name.strip() else ""


def _same_words(one: str, other: str) -> bool:
    return caseless_name(_SEPARATORS.sub("", one)) == caseless_name(_SEPARATORS.sub("", other))
