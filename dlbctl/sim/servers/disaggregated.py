"""DLB's model of a server (Appendix B): one prefill engine, then decode engines with slots.

The prefill engine takes one prompt at a time, in the order of arrival; then the request waits for a free slot of any
decode engine. With both in order and nothing taken back, every time is known at arrival: two events a request.
"""

from __future__ import annotations

from heapq import heapreplace

from dlbctl.sim.agenda import Agenda
from dlbctl.sim.servers.server import Job, Server


class Disaggregated(Server):
    """Seconds per token: prefill_s, decode_s. slots: of all its decode engines together."""

    def __init__(self, agenda: Agenda, *, prefill_s: float, decode_s: float, slots: int) -> None:
        super().__init__(agenda)
        self._prefill_s = prefill_s
        self._decode_s = decode_s
        self._prefilled_s = 0.0  # when the prefill engine will be free
        self._free_s = [0.0] * slots  # when each slot will be: a heap

    def submit(self, job: Job) -> bool:
        """Lay its work out behind what is there."""
        agenda, free_s = self.agenda, self._free_s
        begins_s = max(agenda.now_s, self._prefilled_s) + job.prompt_tokens * self._prefill_s * self.slowness
        self._prefilled_s = begins_s
        ends_s = max(begins_s, free_s[0]) + job.output_tokens * self._decode_s * self.slowness
        heapreplace(free_s, ends_s)
        agenda.at(begins_s, job.begin)
        agenda.at(ends_s, job.finish)
        return True
