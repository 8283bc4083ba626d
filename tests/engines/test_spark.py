"""The one Spark session."""

import re
import zipfile
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

import strandline
from strandline.engines import spark as sparks
from strandline.storage import digest
from support import refused

ROOT = Path(__file__).parents[2]


def test_there_is_one_session_with_the_settings_that_matter(spark):
    assert sparks.session() is spark
    assert sparks.session(spark) is spark
    assert sparks.is_running()
    assert {name: spark.conf.get(name) for name in sparks.SETTINGS} == sparks.SETTINGS


def test_the_whole_package_travels_to_the_executors():
    names = zipfile.ZipFile(sparks._package_file()).namelist()
    root = Path(strandline.__file__).parent
    assert sorted(names) == sorted(f"strandline/{path.relative_to(root)}" for path in root.rglob("*.py"))


def test_a_lane_runs_in_the_workers(spark):
    def double(batches):
        for batch in batches:
            yield pa.record_batch({"id": [value * 2 for value in batch.column("id").to_pylist()]})

    found = sparks.run_lane(spark.range(5), double, "id long").collect()
    assert sorted(row["id"] for row in found) == [0, 2, 4, 6, 8]


def test_settings_are_put_back_when_the_last_of_several_jobs_is_done(spark):
    name = "spark.sql.parquet.columnarReaderBatchSize"
    before = spark.conf.get(name)
    first, second = sparks.running_job(spark, 100_000), sparks.running_job(spark, 1_000_000)
    first.__enter__()
    second.__enter__()
    assert int(spark.conf.get(name)) == 16
    first.__exit__(None, None, None)
    assert int(spark.conf.get(name)) == 16
    second.__exit__(None, None, None)
    assert spark.conf.get(name) == before


def test_a_job_leaves_the_callers_group_as_it_was_and_ends_its_tasks_when_it_fails(spark):
    context = spark.sparkContext
    context.setJobGroup("mine", "my description", interruptOnCancel=False)
    names = ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel")
    before = [context.getLocalProperty(name) for name in names]
    with pytest.raises(ZeroDivisionError), sparks.running_job(spark, 10):
        spark.range(5).count()
        raise ZeroDivisionError
    assert [context.getLocalProperty(name) for name in names] == before
    assert not context.statusTracker().getActiveJobsIds()


def test_the_share_that_is_done_never_falls():
    told = []
    share = sparks._Progress(lambda done, whole: told.append(done / whole))
    for stages in ([], [(0, 2)], [(2, 2)], [(2, 2), (0, 4)], [(2, 2), (4, 4), (1, 9)], [(2, 2)] * 6 + [(0, 9)] * 3):
        share.hear(stages)
    assert told == sorted(told) and told[-1] < 1


def test_jobs_have_names_that_a_person_understands(spark):
    context, name = spark.sparkContext, "spark.job.description"
    before = context.getLocalProperty(name)
    with sparks.running_job(spark, 10, name="compact messages, 16 vnodes"):
        assert context.getLocalProperty(name) == "strandline: compact messages, 16 vnodes"
        with sparks.named_jobs(spark, "check 12 files"):
            assert context.getLocalProperty(name) == "strandline: check 12 files"
        assert context.getLocalProperty(name) == "strandline: compact messages, 16 vnodes"
    assert context.getLocalProperty(name) == before


def jobs_of(spark):
    """The descriptions of all jobs so far, by their numbers, as the Spark UI shows them."""
    context = spark.sparkContext._jsc.sc()
    context.listenerBus().waitUntilEmpty()
    jobs = context.statusStore().jobsList(None)
    found = (jobs.apply(at) for at in range(jobs.size()))
    return {job.jobId(): job.description().get() if job.description().isDefined() else None for job in found}


def test_every_job_of_a_table_says_what_it_does(spark, lake, monkeypatch, tmp_path):
    before = jobs_of(spark)
    monkeypatch.setenv("STRANDLINE_ENGINE", "spark")
    monkeypatch.setattr(digest, "_QUICK_BYTES", -1)
    table = lake.create_table("messages", pa.schema([("id", pa.int64()), ("name", pa.string())]), key=["id"], vnodes=2)
    table.upsert(spark.range(40).selectExpr("id", "'x' AS name"))
    table.compact(full=True)
    with refused(strandline.Invalid):
        table.upsert(spark.range(3))
    table.delete(spark.range(3))
    table.export(tmp_path / "out")
    table.restore(1)
    (tmp_path / "more.jsonl").write_text('{"id": 1, "name": "y"}\n')
    lake.ingest("messages", tmp_path / "more.jsonl")
    lake.sink("archive", "messages", to=strandline.ParquetSink(str(tmp_path / "sink")))
    assert lake.tick().is_well
    jobs = Counter(name for number, name in jobs_of(spark).items() if number not in before)
    told = set(jobs)
    assert None not in told, "a job without a name"
    wanted = {
        "upsert into messages",
        "delete from messages",
        "ingest 1 file into messages",
        "compact messages, 2 vnodes",
        "export messages",
        "send messages to archive",
        "restore into messages",
        "find values of messages that an upsert would lose",
    }
    wanted = {f"strandline: {name}" for name in wanted}
    assert wanted <= told
    # One job for the rows, and one before it if they are shuffled. Others read the merged table, or have several steps.
    bulk = [name for name in wanted if kind_of(name).split()[1] in ("upsert", "delete", "ingest", "compact", "export")]
    assert len(bulk) == 5
    assert {name: jobs[name] for name in bulk if jobs[name] > 2} == {}
    assert any(re.fullmatch(r"strandline: check \d+ files?", name) for name in told)
    documented = re.findall(r"^\| `(strandline: [^`]+)` \|", (ROOT / "docs" / "spark.md").read_text(), re.M)
    assert {kind_of(name) for name in documented} == {kind_of(name) for name in told} | {"strandline: look"}


def kind_of(name):
    return " ".join(name.split()[:2])


def test_workers_that_lack_a_package_are_told_of(spark):
    def lane(batches):
        raise ModuleNotFoundError("No module named 'duckdb'", name="duckdb")
        yield

    with refused(strandline.Unavailable) as caught:
        sparks.collect(sparks.run_lane(spark.range(1), lane, "id long"), "look")
    assert "duckdb" in caught.value.message and "PYSPARK_PYTHON" in caught.value.hint
