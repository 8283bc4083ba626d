"""Examine a lake: does everything hold that should, and what lies around that nothing needs?"""

from strandline.doctor.examine import examine
from strandline.doctor.finding import Finding, Report

__all__ = ["Finding", "Report", "examine"]
