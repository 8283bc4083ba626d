"""A table's settings: when its log is folded, how far back it can be read, when its rows expire.

They are part of the table's definition, so every process acts alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from strandline.errors import Invalid
from strandline.model import duration

_OLD_NAMES = {"fold_ratio": "compact_ratio", "fold_files": "compact_files", "fold_age": "compact_age"}
_TIMES = ("compact_age", "keep", "grace", "retention")


@dataclass(frozen=True)
class TableSettings:
    """A table's settings; times are in seconds.

    A vnode is compacted when its changes in the log pass `compact_ratio` of its rows in the baseline, or the oldest of
    them is older than `compact_age`. More than `compact_files` small files of the log become one. Every state of the
    last `keep` can be read. A file is deleted after nothing has needed it for `grace`. `retention` is how long a row is
    kept by its time column; None keeps it for ever."""

    compact_ratio: float = 0.2
    compact_files: int = 32
    compact_age: float = 7 * 86400.0
    keep: float = 86400.0
    grace: float = 3600.0
    retention: float | None = None

    def changed(self, settings: Mapping[str, Any]) -> TableSettings:
        """The same with other settings; times as numbers of seconds, timedeltas or texts such as `7d`."""
        known = [field.name for field in fields(self)]
        checked: dict[str, Any] = {}
        for name, value in settings.items():
            if name not in known:
                now = f"It is called {_OLD_NAMES[name]} now." if name in _OLD_NAMES else f"Settings: {', '.join(known)}"
                raise Invalid(f"there is no setting {name!r}", hint=now, setting=name)
            checked[name] = _check_value(name, value)
        return replace(self, **checked)

    @staticmethod
    def from_dict(facts: Mapping[str, Any]) -> TableSettings:
        """The settings that `to_dict` wrote, also under their old names; those of a later version that are unknown here
        are ignored."""
        known = {field.name for field in fields(TableSettings)}
        named = {_OLD_NAMES.get(name, name): value for name, value in facts.items()}
        return TableSettings().changed({name: value for name, value in named.items() if name in known})

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def shown(self) -> dict[str, str]:
        """Each setting as a person would write it."""
        return {
            name: "none" if value is None else duration.to_text(value) if name in _TIMES else str(value)
            for name, value in self.to_dict().items()
        }


def _check_value(name: str, value: Any) -> Any:
    if name in _TIMES:
        if name == "retention" and (value is None or value == "none"):
            return None
        length_s = duration.seconds(value, name)
        if name == "retention" and not length_s:
            raise Invalid("retention is 0; expected a length of time, or none to keep rows for ever", setting=name)
        return length_s
    try:
        if isinstance(value, bool):
            raise ValueError
        number = float(value)
        if not (math.isfinite(number) and number >= (1 if name == "compact_files" else 0)):
            raise ValueError
        if name == "compact_files" and number != int(number):
            raise ValueError
    except (TypeError, ValueError) as error:
        expected = "a whole number, 1 or more" if name == "compact_files" else "a number, 0 or more"
        raise Invalid(f"{name} is {value!r}; expected {expected}", setting=name) from error
    return int(number) if name == "compact_files" else number
