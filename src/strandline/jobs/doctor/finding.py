"""What an examination finds."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Severity = Literal["wrong", "note"]
Repair = Literal["checkpoint"]


@dataclass(frozen=True)
class Finding:
    """One finding. `wrong` is damage, or rows that wait for a person; a `note` costs space at most.

    `repair` is what `--repair` would do: replace the bad checkpoints of the folder in `paths` by one made from its
    commit files. `command` is a verb that solves it. With neither, a person has to look."""

    severity: Severity
    table: str | None
    what: str
    where: str
    repair: Repair | None = None
    paths: tuple[str, ...] = field(default=(), repr=False)
    is_repaired: bool = False
    command: str | None = None

    @property
    def is_for_a_person(self) -> bool:
        """Whether it is wrong and no repair is known."""
        return self.severity == "wrong" and not self.repair


@dataclass(frozen=True)
class Report:
    """An examination: how much was looked at and what was found."""

    uri: str
    tables: int
    files: int
    rows: int
    is_deep: bool
    findings: tuple[Finding, ...]

    @property
    def is_sound(self) -> bool:
        """Whether nothing is wrong, or everything is repaired."""
        return all(finding.severity == "note" or finding.is_repaired for finding in self.findings)

    @property
    def is_damaged(self) -> bool:
        """Whether something is wrong that no repair can solve."""
        return any(finding.is_for_a_person for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        return {
            "lake": self.uri,
            "is_well": self.is_sound,
            "tables": self.tables,
            "files": self.files,
            "rows": self.rows,
            "is_deep": self.is_deep,
            "findings": [asdict(finding) for finding in self.findings],
        }
