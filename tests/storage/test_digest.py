"""A flipped bit in a data file: whoever would write its rows again notices, wherever in the file it is."""

import zlib
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import strandline as sl
from strandline.jobs.doctor import examine
from strandline.storage import digest
from strandline.storage.open import open_storage
from strandline.storage.parquet import writer
from support import ITEMS, by_id, data_files, files_below, refused, rows_of

REPEATED = [{"id": at, "name": f"{at % 3}" * 2_000, "qty": at} for at in range(2_000)]


def flip(path, at, bit=0):
    data = bytearray(Path(path).read_bytes())
    data[at] ^= 1 << bit
    Path(path).write_bytes(data)


def parts_of(path):
    """A byte of every part of a Parquet file, by the part's name."""
    size = Path(path).stat().st_size
    meta = pq.read_metadata(path)
    footer = int.from_bytes(Path(path).read_bytes()[-8:-4], "little")
    chunks = {c.path_in_schema: c for c in (meta.row_group(0).column(at) for at in range(meta.num_columns))}
    name, qty = chunks["name"], chunks["qty"]
    assert name.has_dictionary_page
    first = qty.data_page_offset
    return {
        "the first magic": 1,
        "the last magic": size - 2,
        "the length of the footer": size - 7,
        "the beginning of the footer": size - 8 - footer + 3,
        "the middle of the footer": size - 8 - footer // 2,
        "a page header": first + 2,
        "a page": first + qty.total_compressed_size // 2,
        "the header of a dictionary": name.dictionary_page_offset + 2,
        "a dictionary": name.data_page_offset - 4,
        "a page of codes": name.dictionary_page_offset + name.total_compressed_size - 2,
    }


PARTS = [
    "the first magic",
    "the last magic",
    "the length of the footer",
    "the beginning of the footer",
    "the middle of the footer",
    "a page header",
    "a page",
    "the header of a dictionary",
    "a dictionary",
    "a page of codes",
]


def only_file(table, part):
    folder = Path(table.log.storage.uri) / table.entry.folder
    (name,) = [name for name in data_files(table) if name.startswith(part)]
    return folder / name


@pytest.fixture
def repeated(lake):
    table = lake.create_table("repeated", ITEMS, key=["id"], vnodes=1)
    table.upsert(REPEATED)
    return table


def act_fold(table, folder):
    report = table.compact(full=True)
    if report.degraded:
        raise sl.Corrupt(report.degraded[0].message, path=report.degraded[0].path)


def act_export(table, folder):
    table.export(folder / "out")


def act_export_of_changes(table, folder):
    table.export(folder / "out", changes=(0, None))


def act_narrow_export(table, folder):
    table.export(folder / "out", columns=["id", "name", "qty"], where="qty >= 0")


def act_backup(table, folder):
    sl.Lake(table.log.storage.uri).backup(folder / "out")


def act_sink(table, folder):
    lake = sl.Lake(table.log.storage.uri)
    lake.sink("copy", table.name, to=sl.ParquetSink(folder / "out"))
    (report,) = lake.tick().sinks
    if report.error is not None:
        raise report.error


def act_restore(table, folder):
    table.restore(0)


def act_purge(table, folder):
    table.purge([5])


ACTS = [
    act_fold,
    act_export,
    act_export_of_changes,
    act_narrow_export,
    act_backup,
    act_sink,
    act_restore,
    act_purge,
]


@pytest.mark.parametrize("part", PARTS)
def test_a_flipped_bit_anywhere_in_a_file_is_a_fault_of_that_file(repeated, part):
    path = only_file(repeated, "log/")
    (file,) = repeated.log.refresh().snapshot.files.values()
    where = f"{repeated.log.folder}/{file.path}"
    assert digest.find_fault(repeated.log.storage, where, file) == ""
    at = parts_of(path)[part]
    for bit in (0, 3, 7):
        flip(path, at, bit)
        assert digest.find_fault(repeated.log.storage, where, file) != ""
        flip(path, at, bit)
    assert digest.find_fault(repeated.log.storage, where, file) == ""


@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.__name__)
@pytest.mark.parametrize("part", ["a page", "a dictionary", "the middle of the footer", "a page header"])
def test_whoever_writes_rows_again_verifies_what_it_reads(repeated, tmp_path, act, part):
    path = only_file(repeated, "log/")
    flip(path, parts_of(path)[part])
    head, version = repeated.head, repeated.baseline.refresh().version
    with pytest.raises(sl.Corrupt) as caught:
        act(repeated, tmp_path)
    assert path.name in str(caught.value.fields["path"])
    assert repeated.baseline.refresh().version == version
    assert repeated.head == head + (act is act_purge), "a purge deletes first; the rows are erased when it is repeated"
    assert not [name for name in files_below(tmp_path / "out") if name.endswith(".parquet")], "nothing left"


@pytest.mark.parametrize("act", [act_fold, act_export, act_backup], ids=lambda act: act.__name__)
def test_damage_in_the_baseline_is_noticed_too(repeated, tmp_path, act):
    repeated.compact(full=True)
    path = only_file(repeated, "baseline/")
    flip(path, parts_of(path)["a page"])
    repeated.upsert([{"id": 1, "name": "new"}], missing="null")
    with pytest.raises(sl.Corrupt) as caught:
        act(repeated, tmp_path)
    assert path.name in str(caught.value.fields["path"])


def test_a_table_folds_again_when_the_file_was_put_back(repeated):
    path = only_file(repeated, "log/")
    whole, expected = path.read_bytes(), rows_of(repeated.to_arrow())
    flip(path, parts_of(path)["a page"])
    assert repeated.compact(full=True).degraded
    path.write_bytes(whole)
    report = repeated.compact(full=True)
    assert (report.vnodes, report.degraded) == (1, ())
    assert rows_of(sl.Lake(repeated.log.storage.uri).table("repeated").to_arrow()) == expected


@pytest.mark.parametrize("act", ["export", "sink", "restore", "fold"])
def test_what_a_read_kept_of_a_damaged_file_goes_before_rows_are_written_again(lake, items, tmp_path, act):
    """A file with other rows and sound pages is read, and put back."""
    items.upsert([{"id": at, "name": "old"} for at in range(3)])
    items.compact(full=True)
    items.upsert([{"id": 1, "name": "new"}])
    expected = by_id(items)
    items.forget_folds()
    path = Path(lake.storage.uri) / items.log.folder / items.log.refresh().by_seq[-1][1].path
    whole, rows = path.read_bytes(), pq.read_table(path)
    pq.write_table(rows.set_column(rows.column_names.index("_op"), "_op", pa.array(["delete"])), path)
    assert by_id(items) == {0: "old", 2: "old"}
    if act == "fold":
        assert items.compact(full=True).degraded
    path.write_bytes(whole)
    if act == "export":
        items.export(tmp_path / "out")
    elif act == "sink":
        lake.sink("copy", "items", to=sl.ParquetSink(tmp_path / "out"))
        assert lake.tick(only=["copy"]).is_well
    elif act == "restore":
        items.upsert([{"id": 1, "name": "newer"}])
        items.restore(2)
    if act in ("export", "sink"):
        found = [
            row for file in (tmp_path / "out").rglob("*.parquet") for row in pq.ParquetFile(file).read().to_pylist()
        ]
        assert {row["id"]: row["name"] for row in found} == expected
    assert by_id(items) == expected


def test_a_file_that_lost_a_row_group_and_has_a_sound_footer_is_noticed(repeated):
    """Only the commit knows how many rows it had."""
    path = only_file(repeated, "log/")
    rows = pq.read_table(path)
    pq.write_table(rows.slice(0, rows.num_rows - 1), path, write_page_checksum=True)
    with refused(sl.Corrupt):
        act_fold(repeated, None)


@pytest.mark.parametrize("part", PARTS)
def test_a_file_from_before_there_were_digests_is_read_to_verify_its_pages(repeated, part):
    """What its pages' checksums do not cover, its headers and its footer, shows when it is read, or not at all."""
    path = only_file(repeated, "log/")
    (file,) = repeated.log.refresh().snapshot.files.values()
    old = type(file)(**{**vars(file), "crc": None})
    where = f"{repeated.log.folder}/{file.path}"
    assert digest.find_fault(repeated.log.storage, where, old) == ""
    flip(path, parts_of(path)[part])
    if part in ("a page", "a dictionary", "a page of codes", "the last magic", "the length of the footer"):
        assert digest.find_fault(repeated.log.storage, where, old) != ""


def test_a_file_from_before_there_were_digests_that_lost_rows_is_noticed(repeated):
    (file,) = repeated.log.refresh().snapshot.files.values()
    path = only_file(repeated, "log/")
    rows = pq.read_table(path)
    pq.write_table(rows.slice(0, rows.num_rows - 1), path, write_page_checksum=True)
    old = type(file)(**{**vars(file), "crc": None, "size": path.stat().st_size})
    fault = digest.find_fault(repeated.log.storage, f"{repeated.log.folder}/{file.path}", old)
    assert "1999 rows" in fault and "2000" in fault


def test_the_digest_of_a_file_is_that_of_its_bytes_and_survives_checkpoints(repeated):
    for at in range(25):
        repeated.upsert([{"id": at, "name": "more"}], missing="null")
    repeated.compact(full=True)
    repeated.log.delta.checkpoint()
    fresh = sl.Lake(repeated.log.storage.uri).table("repeated")
    root = Path(repeated.log.storage.uri)
    for state in (fresh.log.refresh(), fresh.baseline.refresh()):
        for file in state.snapshot.files.values():
            assert file.crc == zlib.crc32((root / state.folder / file.path).read_bytes())


def test_a_deep_examination_tells_of_damage_that_no_page_checksum_covers(repeated):
    path = only_file(repeated, "log/")
    flip(path, parts_of(path)["the middle of the footer"], 3)
    report = examine(open_storage(repeated.log.storage.uri), deep=True)
    assert any(path.name in finding.where for finding in report.findings)


def test_a_damaged_file_of_one_vnode_keeps_no_other_vnode_from_being_folded(items):
    items.upsert([{"id": at, "name": "old"} for at in range(200)])
    items.compact(full=True)
    (one, *_) = sorted(name for name in data_files(items) if name.startswith("baseline/"))
    path = Path(items.log.storage.uri) / items.entry.folder / one
    flip(path, path.stat().st_size // 2)
    items.upsert([{"id": at, "name": "new"} for at in range(200)])
    report = items.compact(full=True)
    assert (report.vnodes, len(report.degraded)) == (3, 1)
    assert one.split("/")[1] in report.degraded[0].path
    assert set(by_id(items).values()) <= {"old", "new"}


def test_a_file_is_read_once_to_be_verified(repeated, tmp_path, monkeypatch):
    """So the cost follows what is read."""
    repeated.compact(full=True)
    repeated.upsert([{"id": 1, "name": "new"}], missing="null")
    read = []
    fault = digest.find_fault
    monkeypatch.setattr(
        digest, "find_fault", lambda storage, path, *rest: read.append(path) or fault(storage, path, *rest)
    )
    repeated.export(tmp_path / "out")
    assert len(read) == len(set(read)) == 2
    read.clear()
    repeated.compact(full=True)
    assert len(read) == len(set(read)) == 2
    read.clear()
    repeated.to_arrow()
    repeated.upsert([{"id": 1, "name": "newer"}], missing="null")
    assert read == [], "reads and writes cost what they did"


def test_a_file_written_in_pieces_has_the_digest_of_the_whole(tmp_path):
    storage = open_storage(str(tmp_path))
    rows = pa.table({"x": pa.array(range(100_000), pa.int64())})
    budget = writer.Budget(group_rows=10_000)
    files = list(writer.write_files(storage, "f", lambda: "a.parquet", rows.to_batches(), rows.schema, budget=budget))
    assert [digest.find_fault(storage, f"f/{file.path}", file) for file in files] == [""]
