"""The controller's metrics for Prometheus."""

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
        self.registry.register(_Gauges(roster))
        self.calls = self._counter("ludus_calls", "Calls of clients, by transport.", "call", "by")
        self.refused = self._counter("ludus_refused", "Calls refused or failed, by HTTP status.", "status")
        self.ended = self._counter("ludus_sessions_ended", "Sessions that ended, by cause.", "cause")
        self.lost = self._counter("ludus_workers_lost", "Workers that were lost.")
        self.open_s = Histogram(
            "ludus_open_seconds",
            "Seconds from the request to the open session, including the queue.",
            registry=self.registry,
            buckets=WAIT_BUCKETS,
        )

    def text(self) -> bytes:
        return generate_latest(self.registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, registry=self.registry)


class _Gauges(Collector):
    def __init__(self, roster: Roster) -> None:
        self._roster = roster

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        seats = self._roster.seats.values()
        present = [seat for seat in seats if seat.away_until is None]
        slots = sum(seat.slots for seat in present)
        sessions = Tally(session.environment for session in self._roster.sessions.values())
        yield GaugeMetricFamily("ludus_workers", "Connected workers.", value=len(present))
        yield GaugeMetricFamily("ludus_workers_away", "Disconnected workers.", value=len(seats) - len(present))
        yield GaugeMetricFamily("ludus_slots", "Slots of the connected workers.", value=slots)
        yield _by_environment("ludus_sessions", "Live sessions.", sessions)
        yield _by_environment("ludus_waiting", "Sessions that wait for a slot.", self._roster.waiting.counts())


def _by_environment(name: str, text: str, values: dict[str, int]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=["environment"])
    for environment, value in values.items():
        family.add_metric([environment], value)
    return family
