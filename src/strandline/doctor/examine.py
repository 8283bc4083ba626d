"""The examination of a whole lake, and the repairs that are safe.

A table that is broken does not keep the others from being examined. Deleted is only what is older than the grace
time and what, looked at again, still no commit claims; nothing at all while the catalog is in doubt.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from strandline.catalog import FOLDER, Catalog, CatalogState, Entry
from strandline.definitions import FORMAT
from strandline.doctor.deep import examine_rows
from strandline.doctor.finding import Finding, Report
from strandline.doctor.leftovers import Lives, leftovers_of, lifeless, unfinished
from strandline.doctor.repair import repaired
from strandline.doctor.tables import TableExam
from strandline.duck import Duck
from strandline.errors import StrandlineError
from strandline.progress import Progress, silent
from strandline.storage import Storage
from strandline.storage.commits import CommitLog

GRACE_S = 3600.0
_ENTRY = re.compile(rf"{FOLDER}/(\d{{20}})\.json\Z")


def examine(
    storage: Storage,
    *,
    deep: bool = False,
    repair: bool = False,
    grace_s: float = GRACE_S,
    progress: Progress = silent,
) -> Report:
    """Examine the lake in `storage`; with `repair`, put right what can be."""
    findings: list[Finding] = []
    listing = {info.path: info for info in storage.list("")}
    state, lives = _catalog(storage, listing, findings)
    is_sure = not findings
    exams = [TableExam(storage, entry, listing) for entry in (state.tables.values() if state else ())]
    whole = sum(path.startswith("tables/") and path.endswith(".parquet") for path in listing) * (2 if deep else 1)
    done = [0]

    def advance(name: str) -> Callable[[int], None]:
        def by(count: int) -> None:
            done[0] += count
            progress(min(done[0], whole), whole, name)

        return by

    duck = Duck(storage)
    for exam in exams:
        findings += _examined(exam, deep, duck, advance(exam.entry.name), grace_s if is_sure else None)
    if is_sure:
        findings += unfinished(storage, grace_s)
        findings += lifeless(storage, lives, listing, grace_s)
    if repair:
        findings = [repaired(storage, finding) for finding in findings]
    files, rows = sum(exam.files for exam in exams), sum(exam.rows for exam in exams)
    return Report(storage.uri, len(exams), files, rows, deep, tuple(findings))


def _examined(
    exam: TableExam, deep: bool, duck: Duck, advance: Callable[[int], None], grace_s: float | None
) -> list[Finding]:
    """What is found in one table; leftovers are looked for when there is a grace time."""
    extra: list[Finding] = []
    try:
        exam.run(advance)
        if deep and exam.definition is not None:
            examine_rows(exam.log, exam.baseline, exam.definition, duck, advance)
        if grace_s is not None:
            extra += leftovers_of(exam, grace_s)
    except Exception as error:
        # Damage has no end of forms; whichever it is, the other tables are examined.
        what = f"the examination of this table broke off: {type(error).__name__}: {error}"
        extra.append(Finding("wrong", exam.entry.name, what, exam.entry.folder))
    return exam.findings + extra


def _catalog(storage: Storage, listing: Iterable[str], findings: list[Finding]) -> tuple[CatalogState | None, Lives]:
    """The lake's tables, and whether the catalog can be relied on."""
    numbers = sorted(int(found.group(1)) for path in listing if (found := _ENTRY.match(path)))
    where = storage.url(FOLDER)

    def wrong(what: str) -> None:
        findings.append(Finding("wrong", None, what, where))

    if numbers != list(range(len(numbers))):
        missing = next(n for n in range(len(numbers) + 1) if n not in numbers)
        wrong(f"catalog entry {missing} is missing before others: tables may be hidden")
    try:
        state = Catalog(storage).refresh()
        dropped_ms, seen = _history(storage, len(numbers))
    except StrandlineError as error:
        wrong(f"the catalog is not readable: {error.message}")
        return None, Lives({}, {})
    if not state.lake_id:
        wrong("the lake has no id")
    if state.format != FORMAT:
        wrong(f"the lake has format {state.format}; this version writes {FORMAT}")
    live = {entry.folder: entry.name for entry in state.tables.values()}
    if len(live) != len(state.tables):
        wrong("two tables share one folder")
    for entry in state.tables.values():
        if entry.folder.rsplit("/", 1)[-1] != entry.generation or seen.count(entry.generation) != 1:
            wrong(f"table {entry.name!r} shares its generation {entry.generation} or its folder")
    return state, Lives(live, dropped_ms)


def _history(storage: Storage, count: int) -> tuple[dict[str, int], list[str]]:
    """When each dropped generation ended, and every generation that was ever created."""
    commits = CommitLog(storage, FOLDER)
    now: dict[str, Entry] = {}
    dropped_ms: dict[str, int] = {}
    created: list[str] = []
    for version in range(count):
        for action in commits.read(version) or []:
            if "create" in action:
                created.append(action["generation"])
                now[action["create"]] = Entry(action["create"], action["generation"], action["folder"])
            elif "rename" in action and action["rename"] in now:
                now[action["to"]] = now.pop(action["rename"])
            elif "drop" in action and action["drop"] in now:
                dropped_ms[now.pop(action["drop"]).generation] = int(action.get("at", 0))
    return dropped_ms, created
