"""The examination of a whole lake, and the repairs that are safe.

After a broken table the others are still examined. Only bad checkpoints are deleted here. Files that nothing needs are
reported, with the command that deletes them.
"""

from __future__ import annotations

from collections.abc import Callable

from strandline.engines.duck import Duck
from strandline.errors import StrandlineError
from strandline.jobs.doctor.finding import Finding, Report
from strandline.jobs.doctor.notes import lake_health, table_health
from strandline.jobs.doctor.repair import repair_finding
from strandline.jobs.doctor.rows import examine_rows
from strandline.jobs.doctor.tables import TableExam
from strandline.model.definition import FORMAT
from strandline.progress import Progress, silent
from strandline.storage.open import Storage
from strandline.tables.catalog import FOLDER, Catalog, CatalogState


def examine(
    storage: Storage,
    *,
    deep: bool = False,
    repair: bool = False,
    progress: Progress = silent,
) -> Report:
    """Examine the lake in `storage`; with `repair`, also repair what can be repaired."""
    findings: list[Finding] = []
    listing = {info.path: info for info in storage.list("")}
    state = _examine_catalog(storage, findings)
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
        findings += _examine_table(exam, deep, duck, advance(exam.entry.name))
    if is_sure:
        findings += lake_health(storage)
    if repair:
        findings = [repair_finding(storage, finding) for finding in findings]
    files, rows = sum(exam.files for exam in exams), sum(exam.rows for exam in exams)
    return Report(storage.uri, len(exams), files, rows, deep, tuple(findings))


def _examine_table(exam: TableExam, deep: bool, duck: Duck, advance: Callable[[int], None]) -> list[Finding]:
    """The findings of one table; if nothing is wrong, also the notes about its upkeep."""
    extra: list[Finding] = []
    try:
        exam.run(advance)
        if deep and exam.definition is not None:
            examine_rows(exam.log, exam.baseline, exam.definition, duck, advance)
        if all(finding.severity == "note" for finding in exam.findings):
            extra += table_health(exam, duck)
    except Exception as error:
        # Damage can raise any error; the other tables are examined all the same.
        what = f"the examination of this table failed: {type(error).__name__}: {error}"
        extra.append(Finding("wrong", exam.entry.name, what, exam.entry.folder))
    return exam.findings + extra


def _examine_catalog(storage: Storage, findings: list[Finding]) -> CatalogState | None:
    """The lake's tables, as far as the catalog can be read."""

    def wrong(what: str, where: str = storage.url(FOLDER)) -> None:
        findings.append(Finding("wrong", None, what, where))

    catalog = Catalog(storage)
    try:
        state = catalog.refresh()
        lives = catalog.generations()
    except StrandlineError as error:
        wrong(f"{error.message}. {error.hint}", storage.url(error.fields.get("path", FOLDER)))
        try:
            return catalog.refresh()
        except StrandlineError:
            return None
    if not state.lake_id:
        wrong("the lake has no id")
    if state.format != FORMAT:
        wrong(f"the lake has format {state.format}; this version writes {FORMAT}")
    if len(lives.live) != len(state.tables):
        wrong("two tables share one folder")
    for entry in state.tables.values():
        if entry.folder.rsplit("/", 1)[-1] != entry.generation or entry.generation in lives.dropped:
            wrong(f"table {entry.name!r} shares its generation {entry.generation} or its folder")
    return state
