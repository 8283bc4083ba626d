"""A vacuum of a whole lake."""

import strandline as sl
from strandline.jobs.lake_vacuum import vacuum_lake
from strandline.tables.broken import BrokenTable
from support import ITEMS


def test_leftovers_go_only_with_a_vacuum_of_the_whole_lake_and_a_broken_table_stops_no_other(lake: sl.Lake):
    for name in ("gone", "bad", "good"):
        lake.create_table(name, ITEMS, key=["id"]).upsert([{"id": 1}])
    lake.drop("gone")
    bad = lake.table("bad")
    commits = [info.path for info in lake.storage.list(f"{bad.entry.folder}/log/_delta_log")]
    lake.storage.delete(commits)
    again = sl.Lake(lake.storage.uri)
    some = vacuum_lake(again, ["good"], grace="0s", with_leftovers=False)
    assert [each.table for each in some.tables] == ["good"] and not some.leftovers
    whole = vacuum_lake(again, ["bad", "good"], grace="0s", with_leftovers=False, dry_run=True)
    assert [isinstance(each, BrokenTable) for each in whole.tables] == [True, False]
    assert whole.to_dict()["is_dry_run"]
