"""The controller's figures for Prometheus. Promise: counting a call costs nothing that could be felt; states are counted when asked for."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ludus.controller.service.roster import Roster

WAIT_BUCKETS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300)


class Metrics:
    def __init__(self, roster: Roster) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_Now(roster))
        self.calls = Counter(
            "ludus_calls", "Calls of clients, by how they came.", ["call", "by"], registry=self.registry
        )
        self.refused = Counter(
            "ludus_refused", "Calls refused or failed, by HTTP status.", ["status"], registry=self.registry
        )
        self.ended = Counter(
            "ludus_sessions_ended", "Sessions that ended, by cause.", ["cause"], registry=self.registry
        )
        self.lost = Counter("ludus_workers_lost", "Workers that were lost.", registry=self.registry)
        self.open_s = Histogram(
            "ludus_open_seconds",
            "From asking to the open session, queueing included.",
            registry=self.registry,
            buckets=WAIT_BUCKETS,
        )

    def text(self) -> bytes:
        return generate_latest(self.registry)


class _Now(Collector):
    def __init__(self, roster: Roster) -> None:
        self._roster = roster

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        seats = self._roster.seats.values()
        present = [seat for seat in seats if seat.away_until is None]
        sessions = Tally(session.ask.environment for session in self._roster.sessions.values())
        yield GaugeMetricFamily("ludus_workers", "Workers that can be called.", value=len(present))
        yield GaugeMetricFamily(
            "ludus_workers_away", "Workers whose link broke, within the grace.", value=len(seats) - len(present)
        )
        yield GaugeMetricFamily(
            "ludus_slots", "Slots of the workers that can be called.", value=sum(s.slots for s in present)
        )
        yield _by_environment("ludus_sessions", "Live sessions.", sessions)
        yield _by_environment("ludus_waiting", "Sessions that wait for a slot.", self._roster.waiting.counts())


def _by_environment(name: str, text: str, values: dict[str, int]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=["environment"])
    for environment, value in values.items():
        family.add_metric([environment], value)
    return family
