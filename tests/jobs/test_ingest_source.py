"""Files to load: found by name or pattern once each, described as they are, and read up to their last finished line."""

import os

import pytest

import strandline as sl
from strandline.jobs.ingest.source import find
from support import refused


@pytest.fixture
def inbox(tmp_path):
    folder = tmp_path / "inbox"
    (folder / "deep").mkdir(parents=True)
    for name in ("b.jsonl", "a.jsonl", "c.csv.gz", "deep/d.jsonl", "e.parquet"):
        (folder / name).write_text("{}\n")
    return folder


def names(*patterns, **options):
    return [os.path.basename(source.path) for source in find(list(map(str, patterns)), None, **options)]


def test_files_of_a_pattern_come_by_name_and_each_file_once(inbox):
    assert names(inbox / "b.jsonl", inbox / "*.jsonl") == ["b.jsonl", "a.jsonl"]
    assert names(inbox / "**" / "*.jsonl") == ["a.jsonl", "b.jsonl", "d.jsonl"]
    assert names(f"file://{inbox}/a.jsonl") == ["a.jsonl"]


def test_a_folder_means_its_data_files_at_any_depth(inbox):
    for name in ("_SUCCESS", "notes.txt", ".part.csv.crc", "_temporary/x.jsonl", "year=2024/_p=1/f.PARQ"):
        (inbox / name).parent.mkdir(parents=True, exist_ok=True)
        (inbox / name).write_text("{}\n")
    found = find([str(inbox)], None)
    assert [source.uri.removeprefix(f"{inbox}/") for source in found] == [
        "a.jsonl", "b.jsonl", "c.csv.gz", "deep/d.jsonl", "e.parquet", "year=2024/_p=1/f.PARQ",
    ]  # fmt: skip
    assert [source.partitions for source in found][-2:] == [{}, {"year": "2024", "_p": "1"}]


@pytest.mark.parametrize("folder", ["_delta_log", ".hoodie", "metadata", "catalog"])
def test_a_folder_that_is_a_table_of_another_kind_is_refused(inbox, folder):
    (inbox / folder).mkdir()
    (inbox / folder / "0.json").write_text("{}")
    with refused(sl.Invalid, file=str(inbox)) as caught:
        find([str(inbox)], None)
    assert ("table import" in (caught.value.hint or "")) == (folder == "_delta_log")


def test_folders_in_the_path_as_it_is_written_hold_columns(inbox, monkeypatch):
    (inbox / "p=1").mkdir()
    (inbox / "p=1" / "x.jsonl").write_text("{}\n")
    assert [s.partitions for s in find([f"{inbox}/p=*/*.jsonl", f"{inbox}/p=1/x.jsonl"], None)] == [{"p": "1"}]
    monkeypatch.chdir(inbox / "p=1")
    assert [s.partitions for s in find(["x.jsonl"], None)] == [{}]


def test_a_name_with_a_wild_sign_is_a_file_when_it_is_there(inbox):
    (inbox / "x[1].jsonl").write_text("{}\n")
    assert names(inbox / "x[1].jsonl") == ["x[1].jsonl"]


def test_the_name_says_the_kind_unless_it_is_told(inbox):
    kinds = {source.path: (source.kind, source.compression) for source in find([str(inbox / "*.*")], None)}
    assert kinds == {
        "a.jsonl": ("jsonl", None),
        "b.jsonl": ("jsonl", None),
        "c.csv.gz": ("csv", "gzip"),
        "e.parquet": ("parquet", None),
    }
    (inbox / "odd").write_text("{}\n")
    (told,) = find([str(inbox / "odd")], None, "jsonl")
    assert told.kind == "jsonl" and told.is_text
    for name in ("odd", "x.parquet.gz"):
        (inbox / name).write_text("{}\n")
        with refused(sl.Invalid, file=name):
            find([str(inbox / name)], None)


@pytest.mark.parametrize(
    ("pattern", "kind"),
    [("none.jsonl", sl.NotFound), ("*.nope", sl.NotFound), ("empty", sl.NotFound), ("a\0b", sl.Invalid)],
)
def test_what_is_no_file_is_refused(inbox, pattern, kind):
    (inbox / "empty").mkdir()
    with refused(kind):
        find([f"{inbox}/{pattern}"], None)
    with refused(sl.Invalid):
        find([], None)


def test_a_link_leads_to_the_place_of_its_file(inbox):
    os.symlink(inbox / "a.jsonl", inbox / "z.jsonl")
    first, link = find([str(inbox / "a.jsonl"), str(inbox / "z.jsonl")], None)
    assert first.place == link.place and first.uri != link.uri


@pytest.mark.parametrize(
    ("text", "finished"),
    [("{}\n{}\n", 6), ("{}\n{", 3), ("{", 0), ("", 0), ("x" * 200_000 + "\n" + "y" * 200_000, 200_001)],
    ids=["whole", "open", "one", "empty", "long"],
)
def test_a_text_counts_up_to_its_last_line_end(inbox, text, finished):
    (inbox / "a.jsonl").write_text(text)
    (source,) = find([str(inbox / "a.jsonl")], None)
    cut = source.finished()
    assert (cut.size, cut.unfinished_bytes) == (finished, len(text) - finished)
    assert b"".join(cut.chunks(0, cut.size, 1000)) == text[:finished].encode()


def test_a_compressed_file_is_taken_whole(inbox):
    (source,) = find([str(inbox / "c.csv.gz")], None)
    assert source.finished() is source


def test_a_file_that_changes_or_goes_while_it_is_read_is_noticed(inbox):
    (source,) = find([str(inbox / "a.jsonl")], None)
    assert source.is_unchanged()
    (inbox / "a.jsonl").write_text("{")
    assert not source.is_unchanged()
    with refused(sl.Invalid, file=source.uri):
        list(source.chunks(0, source.size, 100))
    (inbox / "a.jsonl").unlink()
    with refused(sl.NotFound, file=source.uri):
        list(source.chunks(0, source.size, 100))


@pytest.mark.parametrize(
    ("name", "hint"), [("a.xlsx", "as CSV"), ("a.orc", "as Parquet"), ("a.sqlite", "tables"), ("a.txt", "--format csv")]
)
def test_a_file_of_another_format_says_what_to_do(tmp_path, name, hint):
    (tmp_path / name).write_text("x\n")
    with refused(sl.Invalid, file=name) as caught:
        find([str(tmp_path / name)], None)
    assert hint in caught.value.hint
    assert [source.kind for source in find([str(tmp_path / name)], None, "csv")] == ["csv"]


def test_a_pipe_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "a.csv")
    for place in (tmp_path, tmp_path / "a.csv"):
        with refused(sl.Invalid, file=str(tmp_path / "a.csv")):
            find([str(place)], None)
