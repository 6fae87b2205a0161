"""Prometheus metrics: vLLM's names where it has them, draftwood's for the rest. Counting a token costs no lock."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from draftwood.core.records import Round
from draftwood.engine.engine import Engine
from draftwood.engine.results import GenerationResult
from draftwood.eval.energy import counters
from draftwood.serve.answers import FINISH_REASONS

LATENCY_BUCKETS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
)
GAP_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 2.5)
MODEL_LABEL = "model_name"
SUMMED_LOADS = (  # figures of the load that several models have in sum
    *("running", "waiting", "kv_used", "kv_held", "kv_budget"),
    *("tokens", "rounds", "drafted", "accepted"),
)


METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def joint_text(metrics: Sequence[ServerMetrics]) -> bytes:
    """The answer to a scrape of several models, each sample with its model's name."""
    families: dict[str, Metric] = {}
    for one in metrics:
        one.joules()
        for family in one.registry.collect():
            families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            families[family.name].samples += family.samples
    joint = CollectorRegistry()
    joint.register(_Collected(families.values()))
    return generate_latest(joint)


def joint_load(metrics: Sequence[ServerMetrics]) -> dict[str, float]:
    """The load now of several models, in sum."""
    loads = [one.load() for one in metrics]
    return {"time": time.time(), **{name: sum(load[name] for load in loads) for name in SUMMED_LOADS}}


class _Collected(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


class ServerMetrics(Collector):
    """Sums over requests, filled by the event loop, and the engine's own state when it is asked for."""

    def __init__(self, engine: Engine, name: str) -> None:
        self.engine, self.name = engine, name
        self.registry = CollectorRegistry()
        self.sums: defaultdict[str, float] = defaultdict(float)
        self.finish_counts: Counter[str] = Counter()
        self.positions: Counter[int] = Counter()  # accepted at each drafted position
        self.registry.register(self)

        def histogram(name: str, about: str, buckets: tuple[float, ...]) -> Histogram:
            made = Histogram(f"vllm:{name}", about, [MODEL_LABEL], registry=self.registry, buckets=buckets)
            child: Histogram = made.labels(self.name)
            return child

        self.first_token_seconds = histogram(
            "time_to_first_token_seconds", "Seconds to the first token.", LATENCY_BUCKETS
        )
        self.token_gap_seconds = histogram("inter_token_latency_seconds", "Seconds between tokens.", GAP_BUCKETS)
        self.request_seconds = histogram("e2e_request_latency_seconds", "Seconds of a whole request.", LATENCY_BUCKETS)
        self._energy = counters(engine.target.device)
        self._read = self._joules_read()
        self._share = 0.0

    def round(self, round_: Round, seconds: float, first: bool) -> None:
        """Count a round that came `seconds` after the request's last one, or after its start for the first one."""
        tokens, sums = len(round_.tokens), self.sums
        if first:
            self.first_token_seconds.observe(seconds)
        elif tokens:
            self.token_gap_seconds.observe(seconds / tokens)
        sums["generation_tokens"] += tokens
        sums["rounds"] += 1
        sums["target_rows"] += round_.target_rows
        sums["draft_rows"] += round_.draft_rows
        if round_.drafted:
            sums["drafts"] += 1
            sums["draft_tokens"] += round_.drafted
            sums["accepted_tokens"] += round_.depth_accepted
            for place in range(round_.depth_accepted):
                self.positions[place] += 1
        sums["bounded"] += len(round_.bounds)
        sums["bounded_accepted"] += sum(accepted for _, accepted in round_.bounds)
        sums["bounds"] += sum(bound for bound, _ in round_.bounds)
        for layer in round_.layers:
            sums["layers"] += 1
            sums["widths"] += layer.width

    def finished(self, result: GenerationResult, seconds: float) -> None:
        """Count a generation that ended, `seconds` after its request came."""
        self.request_seconds.observe(seconds)
        self.sums["prompt_tokens"] += len(result.prompt_tokens)
        self.finish_counts[FINISH_REASONS[result.finish_reason]] += 1

    def aborted(self, generations: int) -> None:
        """Count generations that ended without a result."""
        if generations:
            self.finish_counts["abort"] += generations

    def joules(self) -> float | None:
        """Joules so far of one running request's equal share; a request's part is the difference of two calls."""
        if not self._energy:
            return None
        now = self._joules_read()
        self._share += (now - self._read) / max(1, len(self.engine.scheduler.active))
        self.sums["joules"] += now - self._read
        self._read = now
        return self._share

    def _joules_read(self) -> float:
        return sum(counter.joules() for counter in self._energy)

    def text(self) -> bytes:
        """The answer to a scrape."""
        self.joules()
        return generate_latest(self.registry)

    def load(self) -> dict[str, float]:
        """The load now, for the page."""
        scheduler, memory = self.engine.scheduler, self.engine.memory
        return {
            "time": time.time(),
            "running": len(scheduler.active),
            "waiting": len(scheduler.waiting),
            "kv_used": memory["used"],
            "kv_held": memory["held"],
            "kv_budget": scheduler.memory or 0,
            "prefix_hit_rate": self.engine.prefix_hit_rate,
            "tokens": self.sums["generation_tokens"],
            "rounds": self.sums["rounds"],
            "drafted": self.sums["draft_tokens"],
            "accepted": self.sums["accepted_tokens"],
            **({"joules": self.sums["joules"]} if self._energy else {}),
        }

    def collect(self) -> Iterator[Metric]:
        """The families that are not histograms."""
        sums, prefixes, load = self.sums, self.engine.scheduler.prefixes, self.load()
        memory = load["kv_used"] / load["kv_budget"] if load["kv_budget"] else 0.0
        gauges = {
            "vllm:num_requests_running": (load["running"], "Requests that share the forwards."),
            "vllm:num_requests_waiting": (load["waiting"], "Requests that wait."),
            "vllm:kv_cache_usage_perc": (memory, "Share of the memory for keys and values that is used; 1: all."),
            "draftwood:kv_cache_held_bytes": (load["kv_held"], "Bytes of keys and values that are held."),
            "draftwood:tau": (sums["generation_tokens"] / max(1, sums["rounds"]), "Tokens per target forward."),
            "draftwood:mean_width": (sums["widths"] / max(1, sums["layers"]), "Beams per layer."),
        }
        counts = {
            "vllm:prompt_tokens": (sums["prompt_tokens"], "Tokens of prompts."),
            "vllm:generation_tokens": (sums["generation_tokens"], "Tokens that were generated."),
            "vllm:spec_decode_num_drafts": (sums["drafts"], "Rounds that drafted."),
            "vllm:spec_decode_num_draft_tokens": (sums["draft_tokens"], "Drafted tokens."),
            "vllm:spec_decode_num_accepted_tokens": (sums["accepted_tokens"], "Accepted drafts on the longest paths."),
            "vllm:num_preemptions": (self.engine.scheduler.preempted, "Requests that were put back."),
            "vllm:prefix_cache_queries": (prefixes.tokens_sought, "Tokens that were looked up among prefixes."),
            "vllm:prefix_cache_hits": (prefixes.hits, "Tokens that were taken from prefixes."),
            "draftwood:rounds": (sums["rounds"], "Rounds: a target forward of a request each."),
            "draftwood:target_rows": (sums["target_rows"], "Rows that the target computed."),
            "draftwood:draft_rows": (sums["draft_rows"], "Rows that draft models computed."),
            "draftwood:bounded_positions": (sums["bounded"], "Places with independent drafts, of one round in 16."),
            "draftwood:bounded_accepted": (sums["bounded_accepted"], "Those of them at which a draft was accepted."),
            "draftwood:acceptance_bounds": (
                sums["bounds"],
                "Those at which any rule could accept one, on average.",
            ),
            "draftwood:layers": (sums["layers"], "Layers of beams."),
        }
        if self._energy:
            counts["draftwood:energy_joules"] = (sums["joules"], "Energy of the machine.")
        for name, (value, about) in gauges.items():
            gauge = GaugeMetricFamily(name, about, labels=[MODEL_LABEL])
            gauge.add_metric([self.name], value)
            yield gauge
        for name, (value, about) in counts.items():
            yield self._counter(name, about, {(): value})
        name = "vllm:spec_decode_num_accepted_tokens_per_pos"
        by_position: dict[tuple[str, ...], float] = {
            (str(place),): float(count) for place, count in sorted(self.positions.items())
        }
        yield self._counter(name, "Accepted drafts by position.", by_position, "position")
        by_reason: dict[tuple[str, ...], float] = {
            (reason,): float(count) for reason, count in self.finish_counts.items()
        }
        yield self._counter("vllm:request_success", "Texts that ended, by reason.", by_reason, "finished_reason")

    def _counter(
        self, name: str, about: str, values: dict[tuple[str, ...], float], *labels: str
    ) -> CounterMetricFamily:
        counter = CounterMetricFamily(name, about, labels=[MODEL_LABEL, *labels])
        for label, value in values.items():
            counter.add_metric([self.name, *label], value)
        return counter
