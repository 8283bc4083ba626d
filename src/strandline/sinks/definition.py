"""A sink as a user declares it: the table, the destination, and which rows and columns are sent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from importlib import import_module
from typing import Any, cast

from strandline.errors import Invalid
from strandline.model import secret
from strandline.model.definition import TableDef
from strandline.model.names import name_list
from strandline.model.text import check_text, check_texts
from strandline.sinks.contract import CHANGES, MIRROR, Sink
from strandline.sinks.outgoing import Outgoing
from strandline.state.consumers import check_consumer_name

KINDS = {
    "http": ("strandline.sinks.http", "HttpSink"),
    "parquet": ("strandline.sinks.parquet", "ParquetSink"),
    "delta": ("strandline.sinks.delta", "DeltaSink"),
    "iceberg": ("strandline.sinks.iceberg", "IcebergSink"),
}
BACKFILL, HEAD = "backfill", "head"
Start = str | int


@dataclass(frozen=True)
class SinkDef:
    """A declared sink. `start` says where a new sink begins: with the current table (`backfill`), with the next change
    (`head`), or with the changes after a seq."""

    name: str
    table: str
    to: Sink
    where: str | None = None
    columns: tuple[str, ...] | None = None
    mask: Mapping[str, str] = field(default_factory=dict, hash=False)
    salt: str | None = field(default=None, repr=False)
    deletes: bool = True
    start: Start = BACKFILL

    @staticmethod
    def declare(
        name: str,
        table: str,
        to: Sink,
        *,
        where: str | None = None,
        columns: Sequence[str] | None = None,
        mask: Mapping[str, str] | None = None,
        salt: str | None = None,
        deletes: bool = True,
        start: Start = BACKFILL,
    ) -> SinkDef:
        check_consumer_name(name)
        if not isinstance(getattr(to, "kind", None), str) or not hasattr(to, "open"):
            raise Invalid(
                f"sink {name!r} goes to a {type(to).__name__}; expected a sink such as ParquetSink('s3://bucket/prefix')",
                consumer=name,
            )
        check_start(start, name)
        names = None if columns is None else name_list("columns", columns)
        declared = SinkDef(name, table, to, where, names, dict(mask or {}), salt, deletes, start)
        check_texts(f"sink {name!r}", declared.to_dict())
        if salt is not None:
            check_text(f"salt of sink {name!r}", salt)
        return declared

    def to_dict(self) -> dict[str, Any]:
        """What the state keeps: everything but secrets."""
        return {
            "to": {"kind": self.to.kind, **self.to.to_dict()},
            "where": self.where,
            "columns": None if self.columns is None else list(self.columns),
            "mask": dict(self.mask),
            "salt": secret.reference(self.salt),
            "deletes": self.deletes,
            "start": self.start,
        }

    def lost_secrets(self) -> list[str]:
        """The settings with a literal secret, which `to_dict` leaves out."""
        kept = self.to_dict()
        found = ["salt"] if kept["salt"] != self.salt else []
        return found + [name for name, value in kept["to"].items() for name in _find_unkept(name, self.to, value)]

    @staticmethod
    def from_dict(name: str, table: str, facts: Mapping[str, Any], given: SinkDef | None = None) -> SinkDef:
        """The sink that `to_dict` described. `given` is its present declaration, if any, with the secrets and the way
        to reach the destination."""
        to = dict(facts["to"])
        kind = to.pop("kind")
        if kind not in KINDS:
            raise Invalid(
                f"sink {name!r} is of the kind {kind!r}, which this version does not know",
                hint="Upgrade: pip install -U strandline",
                consumer=name,
            )
        return SinkDef(
            name,
            table,
            _build_destination(kind, to, None if given is None else given.to),
            facts["where"],
            None if facts["columns"] is None else tuple(facts["columns"]),
            facts["mask"],
            given.salt if given is not None and facts["salt"] == secret.GIVEN else facts["salt"],
            facts["deletes"],
            facts["start"],
        )

    def settle(self, definition: TableDef, kind: str | None, facts: Mapping[str, Any] | None) -> SinkDef:
        """The same sink with a mode. A sink on record, with this kind and these facts, keeps its mode at its place. A
        new one mirrors its table if it can."""
        if self.to.mode is not None:
            return self
        mode = CHANGES if self._why_no_mirror(definition) else MIRROR
        if facts is not None and kind == self.to.kind:
            found = _build_destination(kind, {k: v for k, v in facts["to"].items() if k != "kind"}, None)
            if _with_mode(self.to, found.mode).destination == found.destination:
                mode = found.mode or mode
        return replace(self, to=_with_mode(self.to, mode))

    def _why_no_mirror(self, definition: TableDef) -> str:
        """Why a mirror would not equal the table; empty when it would."""
        if definition.version is not None:
            return f"table {self.table!r} has the version column {definition.version!r}: an older row may win there"
        if self.start != BACKFILL:
            return f"it is to start at {self.start!r}, and a mirror starts with the whole table"
        return "" if self.deletes else "it is to send no deletes"

    def check_mirror(self, definition: TableDef) -> None:
        """`Invalid` for a mirror that would not equal its table."""
        if self.to.keeps_rows and (why := self._why_no_mirror(definition)):
            raise Invalid(
                f"sink {self.name!r} cannot mirror its table at {self.to.destination}: {why}",
                hint="Send its changes instead: mode='changes', or --mode changes.",
                consumer=self.name,
                table=self.table,
            )

    def outgoing(self, definition: TableDef, *, is_new: bool = False, with_salt: bool = True) -> Outgoing:
        """Which of a table's changes are sent, and how. With `is_new`, dropped columns are an error. Without the salt
        the result is for checks only."""
        self.check_mirror(definition)
        salt = None
        if self.salt is not None and with_salt:
            salt = secret.resolve(self.salt, f"salt of sink {self.name!r}")
        return Outgoing.of(
            definition,
            where=self.where,
            columns=self.columns,
            mask=self.mask,
            salt=salt,
            deletes=self.deletes,
            is_new=is_new,
        )


def _find_unkept(name: str, given: object, kept: object) -> Iterator[str]:
    """The names of the settings, nested ones too, that are not kept as they were given."""
    now = given.get(name) if isinstance(given, Mapping) else getattr(given, name, None)
    if isinstance(kept, Mapping):
        for each, value in kept.items():
            yield from _find_unkept(each, now, value)
    elif kept != now:
        yield name


def _build_destination(kind: str, facts: Mapping[str, Any], given: Sink | None) -> Sink:
    """The destination that facts describe. If the given one is the same place, its access settings count: it has the
    secrets that are not written down, and a corrected token must also serve a batch begun with the wrong one."""
    module, made = KINDS[kind]
    found: Any = getattr(import_module(module), made).from_dict(facts)
    if given is not None and given.kind == kind and given.mode is None:
        given = _with_mode(given, found.mode)
    if given is not None and (given.kind, given.destination) == (kind, found.destination):
        kept = {each.name: getattr(found, each.name) for each in fields(found) if each.name not in given.access}
        found = replace(cast(Any, given), **kept)
    sink: Sink = found
    return sink


def _with_mode(to: Sink, mode: str | None) -> Sink:
    sink: Sink = replace(cast(Any, to), mode=mode)
    return sink


def check_start(start: object, name: str) -> Start:
    if isinstance(start, int) and not isinstance(start, bool) and start >= 0:
        return start
    if isinstance(start, str) and start in (BACKFILL, HEAD):
        return start
    raise Invalid(f"start of sink {name!r} is {start!r}; expected 'backfill', 'head' or a seq", consumer=name)
