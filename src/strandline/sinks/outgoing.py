"""Which of a table's changes are sent: the one place where `where`, `columns`, `mask` and `deletes` are applied.

It fails closed. A row is sent as an upsert only when the condition is true. When it is false or unknown, the row is
sent as a delete with its key alone, since an earlier version of it may have been sent. Without a key or without
deletes, or when the condition names a dropped column, the change is withheld: it is not sent, and still counts for
positions and marks. Deletes are always sent, unless the sink sends none. A mask is applied to upserts and deletes
alike, so that their keys match.

The rules are written once for DuckDB and once for Spark; tests compare them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import pyarrow as pa
import pyarrow.types as pt

from strandline.engines.scan import duck_type, quoted, spark_type
from strandline.errors import Invalid
from strandline.model.change import DELETE, OP, UPSERT
from strandline.model.condition import Predicate
from strandline.model.definition import TableDef
from strandline.model.names import backticked
from strandline.model.types import is_json, names_of
from strandline.model.where import parse
from strandline.sinks.contract import WITHHELD

Quote = Callable[[str], str]
MASKS = ("hash", "null", "redact")
_REDACTED = "***"
_NEVER = Predicate("false", "false", frozenset(), ())


@dataclass(frozen=True)
class Outgoing:
    """A table's changes as they are sent. `names` are the columns, with the key; `lost` are dropped columns that the
    condition names."""

    definition: TableDef
    names: tuple[str, ...]
    predicate: Predicate | None
    masks: Mapping[str, str]
    salt: str
    sends_deletes: bool
    lost: tuple[str, ...] = ()

    @staticmethod
    def of(
        definition: TableDef,
        *,
        where: str | None = None,
        columns: Sequence[str] | None = None,
        mask: Mapping[str, str] | None = None,
        salt: str | None = None,
        deletes: bool = True,
        is_new: bool = True,
    ) -> Outgoing:
        """Check the settings of a sink against a table. With `is_new` they must not name a dropped column."""
        known = definition.schema if is_new else _every_column(definition)
        asked = list(known.names) if columns is None else names_of(known, columns)
        chosen = [name for name in asked if name in definition.schema.names]
        required = [*definition.key, *([definition.version] if definition.version else [])]
        names = tuple(dict.fromkeys([*definition.key, *chosen, *required]))
        lost = [name for name in known.names if name not in definition.schema.names]
        masks = {name: how for name, how in (mask or {}).items() if name not in lost}
        for name, how in masks.items():
            _check_mask(definition, known, name, how)
        if definition.version is not None and where is not None:
            raise Invalid(
                f"changes cannot be filtered here: with the version column {definition.version!r} an older row may win,"
                " and the delete that is sent for a filtered row would remove it",
                hint="Send all changes, or filter where they arrive.",
                column=definition.version,
            )
        predicate = None if where is None else parse(where, known)
        needed = () if predicate is None else tuple(name for name in lost if name in predicate.columns)
        if needed:
            predicate = _NEVER
        seed = "" if salt is None else hashlib.sha256(salt.encode()).hexdigest()
        return Outgoing(definition, names, predicate, masks, seed, deletes, needed)

    def without(self, alive: Predicate | None) -> Outgoing:
        """The same for the rows alone that meet another condition too; the others leave the destination."""
        if alive is None or self.lost:
            return self
        return replace(self, predicate=alive.also(self.predicate))

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns that are sent."""
        fields = []
        for name in self.names:
            field = self.definition.schema.field(name)
            kind = pa.string() if self.masks.get(name) == "hash" else field.type
            fields.append(pa.field(name, kind, name not in self.definition.key))
        return pa.schema(fields)

    @property
    def columns_to_read(self) -> list[str]:
        """The columns to read."""
        filtered = sorted(self.predicate.columns) if self.predicate else []
        return list(dict.fromkeys([*self.names, *filtered]))

    @property
    def cluster_by(self) -> tuple[str, ...]:
        """The unmasked clustering columns."""
        plain = [name for name in self.names if name not in self.masks]
        return self.definition.clustering(plain)

    def duckdb_exprs(self) -> list[str]:
        """The expressions that make `_op` and the columns from a change."""
        return self._exprs(quoted, self.predicate.duckdb if self.predicate else None, is_duckdb=True)

    def spark_exprs(self) -> list[str]:
        return self._exprs(backticked, self.predicate.spark if self.predicate else None, is_duckdb=False)

    def snapshot_exprs(self, *, is_duckdb: bool) -> list[str]:
        """The expressions that make the columns from a row of the table."""
        quote = quoted if is_duckdb else backticked
        return [f"{self._mask_column(name, quote, is_duckdb)} AS {quote(name)}" for name in self.names]

    def _exprs(self, quote: Quote, predicate: str | None, *, is_duckdb: bool) -> list[str]:
        tells_deletes = self.definition.is_keyed and self.sends_deletes
        masked = {name: self._mask_column(name, quote, is_duckdb) for name in self.names}
        if predicate is None:
            # A delete has only its key already.
            op = OP if tells_deletes else f"CASE WHEN {OP} = '{UPSERT}' THEN {OP} ELSE '{WITHHELD}' END AS {OP}"
            return [op, *(f"{value} AS {quote(name)}" for name, value in masked.items())]
        leaves = f"({OP} = '{UPSERT}' AND coalesce(({predicate}), false))"
        refused = f"'{DELETE}'" if tells_deletes else f"'{WITHHELD}'"
        if tells_deletes and self.predicate == _NEVER:
            refused = f"CASE WHEN {OP} = '{UPSERT}' THEN '{WITHHELD}' ELSE {OP} END"
        exprs = [f"CASE WHEN {leaves} THEN {OP} ELSE {refused} END AS {OP}"]
        for name, value in masked.items():
            kept = value if name in self.definition.key else f"CASE WHEN {leaves} THEN {value} END"
            exprs.append(f"{kept} AS {quote(name)}")
        return exprs

    def _mask_column(self, name: str, quote: Quote, is_duckdb: bool) -> str:
        column, how = quote(name), self.masks.get(name)
        kind = self.definition.schema.field(name).type
        if how == "hash":
            if is_duckdb:
                return f"sha256('{self.salt}' || CAST({column} AS VARCHAR))"
            return f"sha2(concat('{self.salt}', CAST({column} AS STRING)), 256)"
        if how == "redact":
            return f"CASE WHEN {column} IS NOT NULL THEN '{_REDACTED}' END"
        if how == "null":
            return f"CAST(NULL AS {duck_type(kind) if is_duckdb else spark_type(kind)})"
        return column


def _every_column(definition: TableDef) -> pa.Schema:
    """Every column that the table has or had, the present ones first."""
    fields = {field.name: field for columns in definition.schemas for field in columns}
    return pa.schema([*definition.schema, *(f for n, f in fields.items() if n not in definition.schema.names)])


def _check_mask(definition: TableDef, known: pa.Schema, name: str, how: str) -> None:
    if name not in known.names:
        raise Invalid(f"mask names {name!r}; expected a column, one of: {', '.join(known.names)}", column=name)
    if how not in MASKS:
        raise Invalid(f"mask of {name!r} is {how!r}; expected one of: {', '.join(MASKS)}", column=name)
    kind = definition.schema.field(name).type
    is_text = pt.is_string(kind) or is_json(kind)
    if how == "hash" and not (is_text or pt.is_integer(kind) or pt.is_boolean(kind) or pt.is_date(kind)):
        raise Invalid(f"column {name!r} is {kind}: only texts, integers, booleans and dates can be hashed", column=name)
    if how == "redact" and not pt.is_string(kind):
        raise Invalid(f"column {name!r} is {kind}: only texts can be redacted", hint="Use 'null'.", column=name)
    if how != "hash" and name in definition.key:
        raise Invalid(f"column {name!r} is in the key: it can be masked by 'hash' alone", column=name)
    if name == definition.version:
        raise Invalid(f"column {name!r} is the version column and cannot be masked", column=name)
