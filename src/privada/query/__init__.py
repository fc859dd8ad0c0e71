"""The one place where private records are looked at, and where looks are paid for.

Every query is: charge, draw, compute a bounded sum, add noise, release.
"""
