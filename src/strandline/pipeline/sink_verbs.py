"""The verbs of a lake that concern its sinks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from strandline.consumers.context import Context
from strandline.pipeline import commands, pausing, redelivery
from strandline.pipeline.addition import AddedSink, SinkChange, add_sink, declare_sink, plan_sink
from strandline.pipeline.backfill import Backfill
from strandline.pipeline.commands import ResetReport, RetireReport
from strandline.pipeline.pausing import PauseReport, RemoveReport
from strandline.pipeline.recover_marks import RecoveredSink, adopt_state
from strandline.pipeline.redelivery import ReplayReport
from strandline.pipeline.resolve import sinks_needing
from strandline.progress import Progress, silent
from strandline.sinks.contract import Sink
from strandline.sinks.definition import BACKFILL, SinkDef, Start
from strandline.state.letters import DeadLetter


class SinkVerbs(Context):
    """Declare, add, pause and remove sinks, and look after what they could not send."""

    def sink(
        self,
        name: str,
        table: str,
        *,
        to: Sink,
        where: str | None = None,
        columns: Sequence[str] | None = None,
        mask: Mapping[str, str] | None = None,
        salt: str | None = None,
        deletes: bool = True,
        start: Start = BACKFILL,
    ) -> SinkDef:
        """Declare that a table's changes are sent to `to`, by a tick. Nothing is written before that.

        `where` and `columns` select rows and columns; `mask` hides columns by `hash` (with `salt`), `null` or `redact`.
        A row that `where` refuses is sent as a delete; without `deletes`, no deletes are sent. `start` is where a new
        sink begins: with the current table (`backfill`), with the next change (`head`), or with the changes after a
        seq."""
        declared = SinkDef.declare(
            name, table, to, where=where, columns=columns, mask=mask, salt=salt, deletes=deletes, start=start
        )
        return declare_sink(self, declared)

    def plan_sink(self, sink: SinkDef) -> SinkChange:
        """What `add_sink` would change."""
        return plan_sink(self, sink)

    def add_sink(self, sink: SinkDef) -> AddedSink:
        """Keep a declared sink in the state: every tick of the lake serves it, also in another program."""
        return add_sink(self, sink)

    def reset_sink(self, name: str, start: Start = BACKFILL, *, dry_run: bool = False) -> ResetReport:
        """Start a sink again: with the current table, with the next change (`head`), or with the changes after a
        seq."""
        return commands.reset(self, name, start, dry_run=dry_run)

    def retire_sink(self, name: str, *, dry_run: bool = False) -> RetireReport:
        """Retire a sink: it sends nothing more, and the log is no longer kept for it."""
        return commands.retire(self, name, dry_run=dry_run)

    def pause_sink(self, name: str) -> PauseReport:
        """Pause a sink: no tick serves it until `resume_sink`. The log is kept for it."""
        return pausing.pause(self, name)

    def resume_sink(self, name: str) -> PauseReport:
        """Let a paused sink go on from its marks."""
        return pausing.resume(self, name)

    def remove_sink(self, name: str, *, dry_run: bool = False) -> RemoveReport:
        """End a sink and forget it, with its marks and dead letters. What it has sent stays there."""
        return pausing.remove(self, name, dry_run=dry_run)

    def backfill(self, name: str) -> Backfill:
        """The history of a large table that a sink delivers in rounds: how far it is, its rate, pause and restart."""
        return Backfill(self, name)

    def adopt_state(self, *, skip: Sequence[str] = ()) -> list[RecoveredSink]:
        """After the state was lost or restored from an old copy: ask every destination how far it has come, and
        continue there. The sinks in `skip` are retired without asking."""
        return adopt_state(self, skip=skip)

    def sinks_needing(self, table: str, column: str, *, in_any_setting: bool = False) -> list[str]:
        """The sinks whose conditions need a column, or with `in_any_setting` those that name it in any setting."""
        return sinks_needing(self, self.table(table), column, in_any_setting=in_any_setting)

    def replay(self, letters: Sequence[DeadLetter], *, progress: Progress = silent) -> list[ReplayReport]:
        """Send dead letters again, with the current row of each key. Accepted letters are deleted."""
        return redelivery.replay(self, [letter.id for letter in letters], progress=progress) if letters else []

    def rows_of(self, letter: DeadLetter) -> pa.Table | None:
        """The rows of a dead letter as they are now; None when its table was dropped."""
        return redelivery.rows_of(self, letter)
