"""The arithmetic of a latency curve, l(n) = a + b s softplus((n - c) / s) (DLB section 3.3).

Apart from `curve.Curve`, whose structure cannot be compiled: a root works it out for every cell at every report.
Parameters as there: a [s], b [s per request per server], c and s [requests per server].
"""

from __future__ import annotations

from math import exp, log1p


def latency_s(a: float, b: float, c: float, s: float, n: float) -> float:
    """l(n) [s]."""
    u = (n - c) / s
    return a + b * s * (u + log1p(exp(-u)) if u > 0.0 else log1p(exp(u)))


def slope(b: float, c: float, s: float, n: float) -> float:
    """l'(n) [s per request per server]."""
    u = (n - c) / s
    if u > 0.0:
        return b / (1.0 + exp(-u))
    e = exp(u)
    return b * e / (1.0 + e)


def gradient_s(a: float, b: float, c: float, s: float, n: float) -> float:
    """1/μ'(n) [s], where μ' = (l - n l') / l².

    Written as l - n l' the difference of two large numbers is left past the knee; with p = σ((n-c)/s) and the
    entropy H(p) it equals (a - b c) + b (s H(p) + c (1 - p)), a sum of positive terms, and
    H(p) = log(1+e) + |u| e/(1+e), e = exp(-|u|), never cancels either.
    """
    u = (n - c) / s
    distance = abs(u)
    e = exp(-distance)
    minority = e / (1.0 + e)
    log_term = log1p(e)
    if u > 0.0:
        softplus = u + log_term
        idle_share = minority
    else:
        softplus = log_term
        idle_share = 1.0 - minority
    latency = a + b * s * softplus
    entropy = log_term + distance * minority
    return latency * latency / ((a - b * c) + b * (s * entropy + c * idle_share))
