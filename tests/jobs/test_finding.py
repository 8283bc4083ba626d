"""What an examination finds, and what that means."""

from __future__ import annotations

import json

from strandline.jobs.doctor.finding import Finding, Report

NOTE = Finding("note", "items", "an old file", "log/a.parquet", command="vacuum items")
BAD = Finding("wrong", "items", "a bad checkpoint", "log/_delta_log", repair="checkpoint", paths=("log",))
LOST = Finding("wrong", "items", "a file is missing", "log/b.parquet")


def report(*findings: Finding) -> Report:
    return Report("/lake", 1, 2, 3, False, findings)


def test_notes_leave_a_lake_sound() -> None:
    assert report().is_sound and report(NOTE).is_sound and not report(NOTE).is_damaged


def test_what_is_wrong_is_sound_again_when_it_is_repaired() -> None:
    assert not report(NOTE, BAD).is_sound and not report(BAD).is_damaged
    mended = Finding("wrong", "items", "a bad checkpoint", "log/_delta_log", repair="checkpoint", is_repaired=True)
    assert report(mended).is_sound


def test_what_no_repair_is_known_for_needs_a_person() -> None:
    assert LOST.is_for_a_person and not BAD.is_for_a_person and not NOTE.is_for_a_person
    assert report(BAD, LOST).is_damaged


def test_a_report_is_plain_data() -> None:
    told = json.loads(json.dumps(report(NOTE, LOST).to_dict()))
    assert (told["is_well"], [each["severity"] for each in told["findings"]]) == (False, ["note", "wrong"])
    assert told["findings"][0]["command"] == "vacuum items"
