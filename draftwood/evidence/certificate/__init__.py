"""Whether a method is as exact as it says: by enumeration, by samples, on greedy text and at one place of real text."""

from draftwood.evidence.certificate.certify import Budget, Certificate, certify
from draftwood.evidence.certificate.checks import Check

__all__ = ["Budget", "Certificate", "Check", "certify"]
