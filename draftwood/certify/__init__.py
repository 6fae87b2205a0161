"""Whether a method is as exact as it says: by enumeration, by samples, on greedy text and at one place of real text."""

from draftwood.certify.checks import Check
from draftwood.certify.report import Budget, Certificate, Report, Watch, certify, certify_each

__all__ = ["Budget", "Certificate", "Check", "Report", "Watch", "certify", "certify_each"]
