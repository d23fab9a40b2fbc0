"""Which rates a fit may move: their bounds, and how far they are expected to move."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Knob:
    """A rate that may be fitted: bounds that physics gives, and how far it is expected to move (in ln, or absolute)."""

    low: float
    high: float
    spread: float
    logarithmic: bool = True

    def to_scale(self, value: float) -> float:
        """The value on the scale that is fitted."""
        return float(np.log(max(value, self.low))) if self.logarithmic else value

    def from_scale(self, value: float) -> float:
        """Back from the fitted scale."""
        return float(np.exp(value)) if self.logarithmic else float(value)


TIME_KNOBS: Mapping[str, Knob] = {
    "gemm": Knob(0.3, 1.1, 0.15),
    "gemm_fp8": Knob(0.3, 1.5, 0.2),
    "gemm_mxfp8": Knob(0.3, 1.5, 0.2),
    "gemm_fp4": Knob(0.3, 1.5, 0.2),
    "grouped_gemm": Knob(0.2, 1.2, 0.3),
    "grouped_wgrad": Knob(0.1, 1.2, 0.3),
    "fp8_rowwise": Knob(0.3, 1.0, 0.3),
    "attention_forward": Knob(0.05, 0.75, 0.3),
    "attention_backward": Knob(0.05, 0.75, 0.3),
    "memory_bandwidth": Knob(0.2, 1.15, 0.25),
    "routed_bytes": Knob(1.0, 100.0, 0.7),
    "routed_cast": Knob(1.0, 80.0, 1.0),
    "behind": Knob(0.0, 0.5, 0.1, False),
    "routed_behind": Knob(0.0, 10.0, 2.0, False),
    "kernel": Knob(0.5e-6, 3e-5, 0.6),
    "layer_floor": Knob(1e-5, 1e-2, 0.8),
    "tp_floor": Knob(1e-7, 5e-3, 1.0),
    "tp_floor_network": Knob(1e-7, 5e-3, 1.0),
    "ring_step": Knob(1e-7, 1e-3, 1.0),
    "tp_overlap": Knob(0.0, 0.9, 0.25, False),
    "tp_overlap_async": Knob(0.0, 0.95, 0.25, False),
    "ep_overlap": Knob(0.0, 0.95, 0.25, False),
    "dp_overlap": Knob(0.0, 1.0, 0.25, False),
    "pp_overlap": Knob(0.0, 1.0, 0.25, False),
    "send": Knob(1e-6, 2e-2, 1.0),
    "shard_layer": Knob(1e-5, 2e-2, 1.0),
    "optimizer": Knob(0.05, 1.0, 0.5),
    "network": Knob(0.2, 1.05, 0.3),
    "straggler": Knob(0.0, 0.03, 0.004, False),
    "step_fixed": Knob(1e-3, 2.0, 1.0),
}
MEMORY_KNOBS: Mapping[str, Knob] = {
    "logit_bytes": Knob(1.0, 16.0, 0.4),
    "mlp_saved": Knob(4.0, 8.0, 0.15),
    "gathered_input": Knob(0.0, 4.0, 1.0, False),
    "reserved_ratio": Knob(1.0, 1.4, 0.06),
    "waiting_tensors": Knob(0.0, 120.0, 15.0, False),
    "overhead": Knob(0.5 * 2.0**30, 16.0 * 2.0**30, 0.7),
}

OF_GPU = (
    "gemm", "gemm_fp8", "gemm_mxfp8", "gemm_fp4", "grouped_gemm", "grouped_wgrad", "attention_forward",
    "attention_backward", "memory_bandwidth", "routed_bytes", "routed_cast", "ep_overlap", "network", "straggler",
    "step_fixed",
    *MEMORY_KNOBS,
)  # fmt: skip
"""Rates that differ between GPUs of an architecture; the others are the framework's, whatever the GPU."""

KNOWN_LIMITS = {name: (knob.low, knob.high) for name, knob in {**TIME_KNOBS, **MEMORY_KNOBS}.items()}
"""Least and most that a fitted rate may be."""
