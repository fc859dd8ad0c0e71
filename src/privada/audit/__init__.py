"""Audits: what an attacker makes of a trained model, and what the promise allows."""

from privada.audit.membership import Attack, MembershipAudit, confidence, membership

__all__ = ["Attack", "MembershipAudit", "confidence", "membership"]
