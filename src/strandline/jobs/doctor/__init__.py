"""Examine a lake: does everything hold that should, and what lies around that nothing needs?"""

from strandline.jobs.doctor.examine import examine
from strandline.jobs.doctor.finding import Finding, Report

__all__ = ["Finding", "Report", "examine"]
