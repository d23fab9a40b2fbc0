"""Rates: the shares, fractions and times that a framework reaches on a GPU, each with its unit and its bounds."""

from __future__ import annotations

from dataclasses import dataclass, replace

from costmodel.quantity import quantity


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeRates:
    """Rates and fractions of the time model; each has a physical meaning and a source in the profile's file."""

    gemm: float = quantity("sustained share of the GPU's measured burst GEMM rate", "1", (0.01, 2.0), light=1.0)
    gemm_fp8: float = quantity("the same for fp8 GEMMs, casts and scaling included", "1", (0.01, 2.0), light=1.0)
    gemm_mxfp8: float = quantity("the same for fp8 GEMMs with a scale per block of 32", "1", (0.01, 2.0), light=1.0)
    gemm_fp4: float = quantity(
        "the same for 4-bit GEMMs, of the fp8 table at the 4-bit peak", "1", (0.01, 2.0), light=1.0
    )
    grouped_gemm: float = quantity(
        "rate of a grouped GEMM over a dense one of the same rows, forward and dgrad", "1", (0.01, 2.0), light=1.0
    )
    grouped_wgrad: float = quantity(
        "the same for the weight gradient, which accumulates into fp32", "1", (0.01, 2.0), light=1.0
    )
    fp8_rowwise: float = quantity(
        "rate of fp8 GEMMs with a scale per row over those with one per tensor, casts included",
        "1",
        (0.01, 1.0),
        light=1.0,
    )
    attention_forward: float = quantity(
        "share of the bf16 peak on causal FLOPs, fused attention, forward", "1", (0.01, 1.0), light=1.0
    )
    attention_backward: float = quantity(
        "the same for the backward pass, counted as 2.5 times the forward FLOPs", "1", (0.01, 1.0), light=1.0
    )
    attention_tiles: float = quantity(
        "blocks of 128 queries and one head at which attention reaches half of its rate", "1", (0.0, 1e5), light=0.0
    )
    memory_bandwidth: float = quantity(
        "share of HBM bandwidth that bandwidth-bound operators reach", "1", (0.01, 2.0), light=1.0
    )
    loss_bandwidth: float = quantity("share of that which the fused cross entropy reaches", "1", (0.01, 1.0), light=1.0)
    kernel: float = quantity(
        "time between kernels that the GPU waits for the host, per kernel", "s", (0.0, 1e-2), light=0.0
    )
    layer_floor: float = quantity(
        "host time per layer and pass, below which no layer gets faster", "s", (0.0, 1.0), light=0.0
    )
    tp_floor: float = quantity(
        "host time per layer and pass for each further tensor-parallel rank", "s", (0.0, 1.0), light=0.0
    )
    tp_floor_network: float = quantity(
        "the same for each rank where the group leaves its node", "s", (0.0, 1.0), light=0.0
    )
    ring_step: float = quantity(
        "time per step of a ring beyond the wire: of each tensor-parallel collective across nodes, and of each layer's "
        "exchange of ZeRO-1 shards",
        "s",
        (0.0, 1e-2),
        light=0.0,
    )
    routed_bytes: float = quantity(
        "HBM bytes per routed token and hidden element that permutation, padding and dispatch buffers move in a pass",
        "B",
        (0.0, 400.0),
        light=0.0,
    )
    routed_cast: float = quantity(
        "the same for casts to fewer bits, beyond the kernel that made the element", "B", (0.0, 400.0), light=0.0
    )
    behind: float = quantity("compute time added by software far behind the newest release", "1", (0.0, 2.0), light=0.0)
    routed_behind: float = quantity("routed_cast added by such software, over today's", "1", (0.0, 20.0), light=0.0)
    tp_overlap: float = quantity("share of tensor-parallel traffic hidden behind GEMMs", "1", (0.0, 1.0))
    tp_overlap_async: float = quantity("the same where asynchronous tensor parallelism is on", "1", (0.0, 1.0))
    cp_overlap: float = quantity(
        "share of the layer's attention time that context-parallel traffic may hide behind", "1", (0.0, 1.0)
    )
    ep_overlap: float = quantity(
        "share of the expert layer's compute that expert all-to-all may hide behind", "1", (0.0, 1.0)
    )
    ep_overlap_dualpipe: float = quantity(
        "the same where each chunk is paired with another's traffic: DualPipe, 1F1B overlap", "1", (0.0, 1.0)
    )
    dp_overlap: float = quantity(
        "share of the compute beside it that data-parallel traffic may hide behind", "1", (0.0, 1.0)
    )
    pp_overlap: float = quantity("share of pipeline point-to-point traffic hidden in the steady state", "1", (0.0, 1.0))
    send: float = quantity("host time of each send between pipeline stages", "s", (0.0, 1.0), light=0.0)
    shard_layer: float = quantity("host time per layer of exchanging ZeRO-1 shards", "s", (0.0, 1.0), light=0.0)
    optimizer: float = quantity(
        "share of the operators' bandwidth that the optimizer step reaches", "1", (0.01, 1.0), light=1.0
    )
    contention: float = quantity("slowdown of compute while communication runs beside it", "1", (0.0, 1.0))
    network: float = quantity("share of the cluster's network bandwidth that the run gets", "1", (0.01, 2.0))
    network_taper: float = quantity(
        "how that share falls with the nodes: half their number to the power of minus this", "1", (0.0, 1.0), light=0.0
    )
    straggler: float = quantity("step time lost per doubling of the GPU count", "1", (0.0, 0.2))
    step_fixed: float = quantity("time of a step outside of the model: data, logging, synchronisation", "s", (0.0, 1e4))
    dispatch_bytes: float = quantity("bytes per element of the tokens sent to experts (2 bf16, 1 fp8)", "B", (0.1, 8.0))
    combine_bytes: float = quantity("bytes per element of the expert outputs sent back", "B", (0.1, 8.0))
    node_dedup: float = quantity(
        "1 if a token crosses the network once per node and not once per expert", "1", (0.0, 1.0)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRates:
    """What the framework keeps: fractions, bytes per element and fixed buffers of the memory model."""

    weight_bytes: float = quantity(
        "bytes per parameter of 16-bit weights kept beside the fp32 master (0 if cast)", "B", (0.0, 4.0)
    )
    bucket_bytes: float = quantity(
        "bytes per parameter of 16-bit gradients beside fp32 ones, where DP > 1", "B", (0.0, 8.0)
    )
    scores_saved: float = quantity("bytes kept per attention score (0 fused, 5 unfused with dropout)", "B", (0.0, 16.0))
    mlp_saved: float = quantity("bytes kept per element of the MLP width, gated (6 fused, 8 eager)", "B", (2.0, 32.0))
    norm_saved: float = quantity(
        "bytes kept per hidden element and norm for its output (2; 0 if recomputed)", "B", (0.0, 16.0)
    )
    swiglu_saved: float = quantity(
        "bytes of mlp_saved that hold the activation function's output (2; 0 if recomputed)", "B", (0.0, 16.0)
    )
    keys_copied: float = quantity(
        "1 if multi-head attention keeps keys and values twice: in the fused projection's output and apart",
        "1",
        (0.0, 1.0),
    )
    logit_bytes: float = quantity("bytes per logit at the loss (2 fused, 6 fp32 copy, 14 eager)", "B", (0.0, 64.0))
    wgrad_buffer: float = quantity("1 if one weight gradient per weight shape is kept as a buffer", "1", (0.0, 1.0))
    gathered_input: float = quantity(
        "bytes per hidden element of gathered tensor-parallel input kept per layer", "B", (0.0, 16.0)
    )
    fp8_activations: float = quantity("1 if GEMM inputs are stored in fp8 for the backward pass", "1", (0.0, 1.0))
    fp8_swiglu_input: float = quantity("1 if the activation function's input is stored in fp8 too", "1", (0.0, 1.0))
    fp8_attention_output: float = quantity(
        "bytes per element of attention output and projection input under fp8 (3 bf16 and fp8; 1.5 one E5M6)",
        "B",
        (0.0, 16.0),
    )
    cp_saved: float = quantity(
        "bytes per attention output element kept more under context parallelism", "B", (0.0, 16.0)
    )
    fp8_weight_copies: float = quantity(
        "bytes per parameter of fp8 weight copies beside the bf16 weights", "B", (0.0, 8.0)
    )
    reserved_ratio: float = quantity(
        "memory reserved by the allocator over memory allocated at the peak", "1", (1.0, 4.0)
    )
    waiting_tensors: float = quantity(
        "tensors of tensor-parallel collectives that the allocator holds until the GPU has caught up with the host",
        "1",
        (0.0, 1000.0),
    )
    host_flops: float = quantity(
        "FLOPs of a layer, micro-batch and rank, per TP rank, from which the host runs ahead (0: always)",
        "FLOP",
        (0.0, 1e18),
    )
    overhead: float = quantity("context, kernels and communicators outside of the allocator", "B", (0.0, 1e12))
    gather_buffer: float = quantity(
        "least size of the buffers that ZeRO 3 gathers weights in, and ZeRO 2 and 3 reduce gradients in, each",
        "B",
        (0.0, 1e12),
    )
    dispatch_buffer: float = quantity("static buffers of the expert dispatch kernels", "B", (0.0, 1e12))


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Measured over predicted, at the ends of the central 80 % of runs that were not fitted."""

    time_low: float = quantity("10th percentile of measured over predicted step time", "1", (0.01, 1.0))
    time_high: float = quantity("90th percentile of measured over predicted step time", "1", (1.0, 100.0))
    memory_low: float = quantity("10th percentile of measured over predicted memory", "1", (0.01, 1.0))
    memory_high: float = quantity("90th percentile of measured over predicted memory", "1", (1.0, 100.0))
    memory_runs: float = quantity("runs of the profile whose memory these ends rest on", "1", (0.0, 1e9))
    outside: float = quantity("how much wider, in the logarithm, where no runs cover the layout", "1", (1.0, 10.0))

    @property
    def wider(self) -> Interval:
        """The interval outside of what runs cover."""
        names = ("time_low", "time_high", "memory_low", "memory_high")
        return replace(self, outside=1.0, **{name: getattr(self, name) ** self.outside for name in names})
