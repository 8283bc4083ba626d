"""Check a fold before it commits: every row of the baseline and every change must be accounted for.

For each vnode: kept rows + removed rows = the rows of the baseline files that are read, by their commits. Added rows +
rows that expired at once = the keys whose last change is an upsert. Written rows = kept rows + added rows.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from strandline.errors import Corrupt, Internal
from strandline.model.change import CAME, GONE, KEPT, LOST, VNODE
from strandline.storage.snapshot import DataFile
from strandline.tables.merge import TableAt


@dataclass
class FoldAccount:
    """What a fold did with the rows of its vnodes.

    `counts` are rows by (vnode, fate), `base` the rows that the files have by their commits, `upserts` the keys that
    must come, or None where the rows of the baseline decide. `removed` are the paths of the replaced files."""

    vnodes: list[int] = field(default_factory=list)
    removed: set[str] = field(default_factory=set)
    counts: Counter[tuple[int, int]] = field(default_factory=Counter)
    base: Counter[int] = field(default_factory=Counter)
    upserts: dict[int, int | None] = field(default_factory=dict)

    def to_text(self) -> str:
        facts = (
            self.vnodes,
            sorted(self.removed),
            [[*place, count] for place, count in self.counts.items()],
            list(self.base.items()),
            list(self.upserts.items()),
        )
        return json.dumps(facts)

    @staticmethod
    def sum_texts(texts: Iterable[str]) -> FoldAccount:
        """The account of several folds of different vnodes together."""
        whole = FoldAccount()
        for text in texts:
            vnodes, removed, counts, base, upserts = json.loads(text)
            whole.vnodes += vnodes
            whole.removed.update(removed)
            whole.counts.update({(vnode, fate): count for vnode, fate, count in counts})
            whole.base.update(dict(base))
            whole.upserts |= dict(upserts)
        return whole


def rows_by_vnode(files: Iterable[DataFile]) -> Counter[int]:
    found: Counter[int] = Counter()
    for file in files:
        found[int(file.partition[VNODE] or 0)] += file.rows
    return found


def check_account(part: TableAt, account: FoldAccount, added: Sequence[DataFile]) -> None:
    """`Corrupt` when the fold read other row counts than the commits name, `Internal` when it did not write all that it
    read."""
    table = part.log.storage.url(part.log.folder)
    chosen = sorted(part.only or ())
    if sorted(account.vnodes) != chosen:
        raise Internal(f"{table}: vnodes {sorted(account.vnodes)} were compacted instead of {chosen}")
    written = rows_by_vnode(added)
    for vnode in chosen:
        kept, gone, came, lost = (account.counts[vnode, fate] for fate in (KEPT, GONE, CAME, LOST))
        if kept + gone != account.base[vnode]:
            raise Corrupt(
                f"vnode {vnode} of {table}: its baseline files hold {kept + gone} rows, and their commits say"
                f" {account.base[vnode]}; nothing was compacted",
                hint="See what is affected: strandline doctor --deep",
                vnode=vnode,
            )
        upserts = account.upserts.get(vnode)
        if upserts is not None and came + lost != upserts:
            raise Internal(
                f"vnode {vnode} of {table}: {came + lost} rows were to be written for {upserts} keys that were"
                " upserted; nothing was compacted",
                vnode=vnode,
            )
        if written[vnode] != kept + came:
            raise Internal(
                f"vnode {vnode} of {table}: {written[vnode]} rows were written of {kept + came}; nothing was compacted",
                vnode=vnode,
            )
