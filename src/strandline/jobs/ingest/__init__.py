"""Load files into a table, each once, however often it is asked for."""

from strandline.jobs.ingest.job import FileReport, IngestReport, ingest

__all__ = ["FileReport", "IngestReport", "ingest"]
