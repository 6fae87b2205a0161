"""The metrics of several replicas: all together, as if they were one server, or each with its name."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

AVERAGED_GAUGES = ("vllm:kv_cache_usage_perc", "draftwood:tau", "draftwood:mean_width")  # their sums mean nothing


class CombinedMetrics(Collector):
    """The scrapes of several replicas as one: sums, or means of shares; with `each`, values labelled by replica."""

    def __init__(self, texts: Mapping[str, str], each: bool = False) -> None:
        self.texts, self.each = texts, each

    def collect(self) -> Iterator[Metric]:
        """The families, those of the first replica first."""
        families: dict[str, Metric] = {}
        values: dict[str, dict[tuple[str, tuple[tuple[str, str], ...]], list[float]]] = defaultdict(dict)
        for replica, text in self.texts.items():
            for family in text_string_to_metric_families(text):
                families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                for sample in family.samples:
                    labels = {**sample.labels, "replica": replica} if self.each else sample.labels
                    values[family.name].setdefault((sample.name, tuple(labels.items())), []).append(sample.value)
        for name, family in families.items():
            for (sample_name, pairs), samples in values[name].items():
                family.add_sample(
                    sample_name, dict(pairs), sum(samples) / (len(samples) if name in AVERAGED_GAUGES else 1)
                )
            yield family

    def text(self) -> bytes:
        """The metrics in Prometheus' text format."""
        registry = CollectorRegistry()
        registry.register(self)
        return generate_latest(registry)
