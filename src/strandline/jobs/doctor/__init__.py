"""Examine a lake: is anything damaged, and which files does nothing need?"""

from strandline.jobs.doctor.examine import examine
from strandline.jobs.doctor.finding import Finding, Report

__all__ = ["Finding", "Report", "examine"]
