"""What a fixed point's table says of the run that made its rows.

The facts lie in the configuration of the table's log, and change in the commit of the rows. So rows, input seqs, the
step's fingerprint and `is_converged` are those of one run, whatever happens.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from strandline.errors import Conflict, Corrupt
from strandline.storage.snapshot import Draft, Snapshot
from strandline.tables.log import KEPT_PROPERTY, Amend
from strandline.tables.log_state import LogState

PROPERTY = KEPT_PROPERTY


@dataclass(frozen=True)
class Facts:
    """The last run of a fixed point, which committed at `seq`.

    `inputs` are the seqs of the input tables, by generation, and `order` their generations as declared. `definition`
    says what was computed, `fingerprint` is a digest of it. `is_converged`: the step changed nothing any more;
    otherwise a limit ended it. `rounds` and `start` (`cold` or `warm`) tell how the rows came about."""

    inputs: Mapping[str, int]
    definition: Mapping[str, Any]
    fingerprint: str
    is_converged: bool
    rounds: int
    start: str
    order: Sequence[str] = ()
    seq: int = 0

    def to_text(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)


def read_facts(log: LogState) -> Facts | None:
    """The facts in a table's log; None for a table of another kind, or before the first run."""
    text = log.snapshot.configuration.get(PROPERTY)
    if text is None:
        return None
    try:
        found = json.loads(text)
        return Facts(**{**found, "order": tuple(found["order"])})
    except (ValueError, TypeError, KeyError) as error:
        raise Corrupt(
            f"the facts of the fixed point in {log.folder} cannot be read: {error}", path=log.folder
        ) from error


def with_facts(facts: Facts, expected: Facts | None, name: str, log: LogState) -> Amend:
    """Adds the facts to a commit. `Conflict` when another run has committed, or somebody has changed rows, since the
    log looked like this."""

    def amend(snapshot: Snapshot, draft: Draft) -> Draft:
        was = None if expected is None else expected.to_text()
        if snapshot.configuration.get(PROPERTY) != was:
            raise Conflict(
                f"another process has computed the fixed point {name!r} meanwhile", hint="Nothing was changed."
            )
        if LogState(snapshot, log.storage, log.folder).files(log.head, snapshot.version):
            raise Conflict(
                f"somebody has written to {name!r}, the table of a fixed point, meanwhile", hint="Nothing was changed."
            )
        text = replace(facts, seq=snapshot.version + 1).to_text()
        configuration = {**snapshot.configuration, PROPERTY: text}
        return replace(draft, metadata={**snapshot.metadata, "configuration": configuration})

    return amend
