"""The ledger of both papers' claims against what was measured."""

from mixlab.analysis.claims.evidence import Evidence, Status, Verdict
from mixlab.analysis.claims.ledger import CLAIMS, Claim, Entry, draw_up

__all__ = ["CLAIMS", "Claim", "Entry", "Evidence", "Status", "Verdict", "draw_up"]
