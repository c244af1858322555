"""What a run will need before it is started: parameters, memory, floating-point operations, hours.

The byte counts are those of this package's ``GPT`` and ``train_step``. They follow from what autograd keeps for the
backward pass, and are tested against a count of every tensor of a real update (``watch.tensor_memory``), in one
process. What sharding takes is an estimate: in small models it lay within a tenth of the count. Not in them: what a
GPU's context and allocator keep for themselves, for which ``plan`` has a reserve, and the buffers of kernels.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from html import escape

from tinytrain.model import ModelConfig

GiB = 2**30
SIXTEEN_BIT = ("bf16", "fp16")

PEAK_TFLOPS = {
    "h200": 989.0,
    "h100": 989.0,
    "a100": 312.0,
    "l40s": 362.0,
    "l4": 121.0,
    "t4": 65.0,
    "v100": 125.0,
    "rtx4090": 165.0,
    "rtx3090": 71.0,
}
"""10^12 dense 16-bit operations per second with float32 sums, from the makers' data sheets (H100 and V100: SXM)"""


def count_parameters(config: ModelConfig, *, tied: bool = True) -> int:
    """Parameters of ``GPT(config)``, without building it; with ``tied=False`` those of one with a head of its own.

    >>> from tinytrain.model import PRESETS
    >>> count_parameters(PRESETS["120m"]), count_parameters(PRESETS["120m"], tied=False)
    (108489216, 131529216)
    """
    V, D, L, T = config.vocab_size, config.d_model, config.n_layers, config.max_positions
    block = 12 * D * D + 9 * D + 4 * D  # four matrices: D x 3D, D x D, D x 4D, 4D x D; their biases; two norms
    return V * D * (1 if tied else 2) + T * D + L * block + 2 * D


def flops_per_token(config: ModelConfig, row_length: int | None = None, *, recompute: bool = False) -> int:
    """Floating-point operations of one token, forward and backward, in rows of ``row_length``.

    Two for each weight in a matrix and twice as many backward, so 6 N, and 12 L T D for attention's two products over
    the row (Chowdhery et al. 2022, appendix B; the causal mask's saving is not counted). ``recompute`` adds the
    blocks' second forward pass, which counts as work of the hardware and not of the model.
    """
    V, D, L = config.vocab_size, config.d_model, config.n_layers
    T = row_length or config.max_positions
    blocks, head = 2 * 12 * D * D * L + 4 * L * T * D, 2 * V * D
    return 3 * (blocks + head) + (blocks if recompute else 0)


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes at the fullest moment of an update, by kind, in one process."""

    weights: int
    gradients: int
    moments: int
    casts: int
    """16-bit copies of the matrices, which autocast makes"""
    activations: int
    """what autograd keeps for the backward pass"""
    logits: int
    """logits, their log-softmax and their gradient"""
    temporary: int
    """gradients on their way, one layer's or the embedding's"""

    @property
    def total(self) -> int:
        """All of it."""
        return sum(vars(self).values())


def memory_of(
    config: ModelConfig,
    *,
    micro_batch_size: int,
    row_length: int | None = None,
    precision: str = "fp32",
    recompute: bool = False,
    accumulate: bool = False,
    shards: int = 1,
    loss_chunk: int | None = None,
) -> Memory:
    """The fullest moment of one update with AdamW, float32 weights and ``train_step``.

    ``micro_batch_size`` rows of ``row_length`` tokens at a time; ``accumulate`` if an update has several micro-batches;
    ``shards`` processes share weights, gradients and moments out; ``loss_chunk`` is that of the model. Raises
    ``ValueError`` for a size under 1, a row longer than the model's positions, or an unknown precision.
    """
    T = config.max_positions if row_length is None else row_length
    _check(config, micro_batch_size, T, precision, shards)
    if loss_chunk is not None and loss_chunk < 1:
        raise ValueError(f"loss_chunk={loss_chunk} must be at least 1 token")
    V, D, L, H = config.vocab_size, config.d_model, config.n_layers, config.n_heads
    half, n, P = precision in SIXTEEN_BIT, micro_batch_size * T, count_parameters(config)
    table = 4 * V * D
    # What one block keeps for each token, in bytes. Float32 residual stream twice (D each); in the forward width the
    # two normalised inputs (2 D), q, k, v (3 D), attention's output (D), GELU's input and output (8 D); then norms'
    # means and deviations (4 numbers) and attention's logsumexp (H).
    narrow = 2 if half else 4
    block = 4 * 2 * D + narrow * 14 * D + 4 * (4 + H) + (2 * D if config.dropout else 0)
    ends = 4 * D + narrow * D + 8 + 16  # the last norm's input, stream and head's input; ids and labels
    inputs = 4 * D * L  # with recompute: what enters each block
    kept = n * ((inputs if recompute else L * block) + ends)
    casts = 2 * (12 * D * D * L + V * D) if half else 0
    alone = 2 * (12 * D * D + V * D) if half else 0  # the head's and one block's
    share = math.ceil(P / shards)
    full = 0 if shards == 1 else 4 * (P - L * 12 * D * D) + 2 * 4 * 12 * D * D  # gathered: the ends, and two blocks
    fixed = {"weights": 4 * share + full, "moments": 8 * share}
    gradients = 4 * share if accumulate else 0
    chunk = min(n, loss_chunk or n)
    head = narrow * V * D if chunk < n else 0  # the head's gradient, to which each chunk adds its own
    loss = {
        **fixed,
        "gradients": gradients,
        "casts": alone if recompute else casts,
        "activations": kept,
        "logits": 12 * chunk * V,
        "temporary": head,
    }
    adding = {**loss, "logits": 0, "temporary": 3 * head}  # of the chunks before, of this one, and their sum
    # A block's backward pass, of the last one and of the first: GELU's gradients, and the stream's; the table's waits.
    backward = [
        {
            **fixed,
            "gradients": gradients or 4 * 12 * D * D * (L - 1 - number) // shards,
            "casts": alone if recompute else 2 * 12 * D * D * (number + 1) * half,
            "activations": n * (4 * D * number + block if recompute else (number + 1) * block),
            "logits": 0,
            "temporary": table + n * (narrow * 4 * D + 4 * D),
        }
        for number in (L - 1, 0)
    ]
    # The embedding's: head and embedding each have a gradient as large as the table, and they are added.
    embedding = {
        **fixed,
        "gradients": 4 * share,
        "casts": 0,
        "activations": 0,
        "logits": 0,
        "temporary": (3 if accumulate else 2) * table,
    }
    return max((Memory(**moment) for moment in (loss, adding, *backward, embedding)), key=lambda memory: memory.total)


def _check(config: ModelConfig, rows: int, row_length: int, precision: str, shards: int) -> None:
    if rows < 1 or shards < 1 or row_length < 1:
        raise ValueError(f"micro_batch_size={rows}, row_length={row_length} and shards={shards} must be at least 1")
    if row_length > config.max_positions:
        raise ValueError(f"row_length={row_length} is longer than the model's max_positions={config.max_positions}")
    if precision not in ("fp32", *SIXTEEN_BIT):
        raise ValueError(f"precision={precision!r} is not one of fp32, bf16, fp16")


def largest_micro_batch(config: ModelConfig, memory_bytes: float, *, most: int = 2**20, **how: object) -> int:
    """The largest ``micro_batch_size`` up to ``most`` whose ``memory_of(..., **how)`` fits into ``memory_bytes``; 0
    if not even one row does."""

    def fits(rows: int) -> bool:
        return memory_of(config, micro_batch_size=rows, **how).total <= memory_bytes  # type: ignore[arg-type]

    low, high = 0, 1
    while high <= most and fits(high):
        low, high = high, 2 * high
    high = min(high, most + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A run on paper. Printing it shows it."""

    config: ModelConfig
    row_length: int
    precision: str
    recompute: bool
    processes: int
    shard: bool
    parameters: int
    memory: Memory
    """of one process, at its fullest"""
    memory_limit: float | None
    """bytes of one device"""
    micro_batch_size: int
    accumulation: int
    """micro-batches of one process in an update"""
    batch_size: int
    """rows in an update, over all processes"""
    flops_per_token: int
    tokens: float
    peak_tflops: float
    """of one device"""
    mfu: float
    """share of the peak that the model's own operations reach"""

    @property
    def tokens_per_update(self) -> int:
        return self.batch_size * self.row_length

    @property
    def updates(self) -> int:
        """Updates until ``tokens`` are read."""
        return math.ceil(self.tokens / self.tokens_per_update)

    @property
    def tokens_per_second(self) -> float:
        """Of all processes together."""
        return self.processes * self.peak_tflops * 1e12 * self.mfu / self.flops_per_token

    @property
    def hours(self) -> float:
        """Until ``tokens`` are read."""
        return self.tokens / self.tokens_per_second / 3600

    def rows(self) -> Mapping[str, str]:
        """What is planned, in words, by name."""
        limit = "" if self.memory_limit is None else f" of {self.memory_limit / GiB:.4g} GiB"
        estimate = "; with shares an estimate" if self.shard and self.processes > 1 else ""
        kinds = [f"{name} {size / GiB:.3g}" for name, size in vars(self.memory).items() if size]
        c = self.config
        return {
            "model": f"{c.n_layers} layers, width {c.d_model}, {c.n_heads} heads, vocabulary {c.vocab_size:,}",
            "parameters": f"{self.parameters:,} (untied: {count_parameters(c, tied=False):,})",
            "memory": f"{self.memory.total / GiB:.3g} GiB{limit} in each process, at its fullest{estimate}",
            "of that, in GiB": ", ".join(kinds),
            "batch": f"{self.batch_size:,} rows of {self.row_length:,} tokens = {self.tokens_per_update:,} tokens an "
            f"update: {self.micro_batch_size:,} rows × {self.accumulation:,} × {self.processes:,} processes",
            "operations": f"{self.flops_per_token:.3g} for each token, forward and backward",
            "tokens": f"{self.tokens:.3g} = {self.updates:,} updates, {self.tokens / self.parameters:.3g} for each "
            f"parameter (20 is the rule of Hoffmann et al. 2022)",
            "time": f"{self.hours:.3g} hours at {self.mfu:.0%} of {self.peak_tflops * self.processes:,.4g} TFLOP/s: "
            f"{self.tokens_per_second:,.0f} tokens/s",
        }

    def __str__(self) -> str:
        rows = self.rows()
        width = max(map(len, rows))
        return "\n".join(f"{name:{width}}  {words}" for name, words in rows.items())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        left = "style='text-align:left'"
        lines = (
            f"<tr><th {left}>{escape(name)}</th><td {left}>{escape(words)}</td></tr>"
            for name, words in self.rows().items()
        )
        return f"<table>{''.join(lines)}</table>"


def plan(
    config: ModelConfig,
    *,
    row_length: int | None = None,
    batch_size: int | None = None,
    micro_batch_size: int | None = None,
    precision: str = "bf16",
    recompute: bool = False,
    processes: int = 1,
    shard: bool = False,
    loss_chunk: int | None = None,
    gpu_memory: float | None = None,
    reserve: float = 1.0,
    tokens: float | None = None,
    peak_tflops: float = PEAK_TFLOPS["h200"],
    mfu: float = 0.4,
) -> Plan:
    """Plan a run of ``GPT(config)`` with AdamW.

    ``batch_size`` rows of ``row_length`` tokens make an update over all ``processes``; it is one micro-batch in each
    process if not given. ``micro_batch_size`` is the largest that fits into ``gpu_memory`` GiB less ``reserve`` GiB
    (the device's context, and what its allocator cannot use), cut so that the batch divides evenly, or as given.
    ``tokens`` are 20 for each parameter if not given (Hoffmann et al. 2022). ``mfu`` is the share of ``peak_tflops``
    that a device reaches in its model's own operations: 0.21 to 0.46 in the runs of Chowdhery et al. 2022, table 3.

    Raises ``ValueError`` where not even one row fits, a batch does not divide, or a number makes no sense.
    """
    if processes < 1 or not 0 < mfu <= 1 or not peak_tflops > 0:
        raise ValueError(f"processes={processes} and peak_tflops={peak_tflops} must be above 0, and mfu={mfu} up to 1")
    for name, value in (("batch_size", batch_size), ("micro_batch_size", micro_batch_size), ("row_length", row_length)):
        if value is not None and value < 1:
            raise ValueError(f"{name}={value} must be at least 1")
    for name, number in (("tokens", tokens), ("gpu_memory", gpu_memory)):
        if number is not None and not 0 < number < math.inf:
            raise ValueError(f"{name}={number} must be above 0, and finite")
    if batch_size is not None and batch_size % processes:
        raise ValueError(f"batch_size={batch_size} rows cannot be shared evenly by {processes} processes")
    T = config.max_positions if row_length is None else row_length
    limit = None if gpu_memory is None else gpu_memory * GiB
    how = {
        "row_length": T,
        "precision": precision,
        "recompute": recompute,
        "shards": processes if shard else 1,
        "loss_chunk": loss_chunk,
    }
    each = None if batch_size is None else batch_size // processes
    rows = micro_batch_size or _rows(config, limit, reserve, each, how)
    if each is not None and each % rows:
        raise ValueError(f"{each} rows for each process cannot be cut into micro-batches of {rows}")
    accumulation = 1 if each is None else each // rows
    parameters = count_parameters(config)
    made = Plan(
        config=config,
        row_length=T,
        precision=precision,
        recompute=recompute,
        processes=processes,
        shard=shard,
        parameters=parameters,
        memory=memory_of(config, micro_batch_size=rows, accumulate=accumulation > 1, **how),  # type: ignore[arg-type]
        memory_limit=limit,
        micro_batch_size=rows,
        accumulation=accumulation,
        batch_size=rows * accumulation * processes,
        flops_per_token=flops_per_token(config, T),
        tokens=20.0 * parameters if tokens is None else float(tokens),
        peak_tflops=peak_tflops,
        mfu=mfu,
    )
    if not recompute:
        return made
    slower = made.flops_per_token / flops_per_token(config, T, recompute=True)  # the second forward pass takes its time
    return replace(made, mfu=mfu * slower)


def _rows(config: ModelConfig, limit: float | None, reserve: float, each: int | None, how: dict) -> int:
    """Rows in a micro-batch: as many as fit, and a divisor of the rows of one process."""
    if limit is None:
        return each or 1
    room = limit - reserve * GiB
    whole = largest_micro_batch(config, room, most=each or 2**20, accumulate=False, **how)
    if whole and (each is None or whole == each):
        return whole
    rows = largest_micro_batch(config, room, most=each or 2**20, accumulate=True, **how)
    while each and rows and each % rows:
        rows -= 1
    if not rows:
        least = memory_of(config, micro_batch_size=1, accumulate=each != 1, **how).total
        raise ValueError(
            f"one row of {how['row_length']} tokens needs {least / GiB:.3g} GiB, and there are {room / GiB:.3g} GiB "
            f"({limit / GiB:.3g} less a reserve of {reserve:g}). Try recompute=True, shorter rows, or shard=True over "
            f"several processes"
        )
    return rows
