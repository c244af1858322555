"""``python -m tinytrain plan --preset 120m --gpu-memory 24``: what a run will need, before it is started."""

from dataclasses import dataclass, replace

from tinytrain.commands.option_types import MaybeFloat, MaybeInt
from tinytrain.model import find_preset
from tinytrain.watch.planner import PEAK_TFLOPS, plan
from tinytrain.watch.planner import Plan as Planned


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Say what a run needs: parameters, bytes by kind, micro-batches, operations and hours. Nothing is built for it."""

    preset: str = "120m"
    """the model: nano, tiny, 27m, 120m, 350m or 7b"""
    vocab_size: MaybeInt = None
    """tokens of the vocabulary; the preset's if not given"""
    row_length: MaybeInt = None
    """tokens in a row; the model's positions if not given"""
    batch_size: MaybeInt = None
    """rows in an update, over all processes; one micro-batch in each process if not given"""
    micro_batch_size: MaybeInt = None
    """rows in one forward and backward pass; the most that --gpu-memory has room for if not given"""
    precision: str = "bf16"
    """width of the forward pass: fp32, bf16 or fp16"""
    recompute: bool = False
    """keep less from the forward pass, and compute it again (activation checkpointing)"""
    loss_chunk: MaybeInt = None
    """tokens whose logits are held at one time; those of a whole micro-batch if not given"""
    processes: int = 1
    """devices that share each update"""
    shard: bool = False
    """share out weights, gradients and moments over the processes instead of copying them"""
    gpu_memory: MaybeFloat = None
    """memory of one device, in GiB"""
    tokens: MaybeFloat = None
    """tokens to read in all, such as 500e6; 20 for each parameter if not given"""
    gpu: str = "h200"
    """the device: h200, h100, a100, l40s, l4, t4, v100, rtx4090 or rtx3090"""
    mfu: float = 0.4
    """share of the device's 16-bit peak that the model's own operations reach; large runs have reached 0.21 to 0.46"""


def planned(options: Plan) -> Planned:
    """The plan that ``options`` ask for. Raises ``ValueError`` for an unknown name, or for what cannot be."""
    config = find_preset(options.preset)
    if options.gpu not in PEAK_TFLOPS:
        raise ValueError(f"gpu {options.gpu!r} is not one of {', '.join(PEAK_TFLOPS)}")
    if options.vocab_size is not None:
        config = replace(config, vocab_size=options.vocab_size)
    return plan(
        config,
        row_length=options.row_length,
        batch_size=options.batch_size,
        micro_batch_size=options.micro_batch_size,
        precision=options.precision,
        recompute=options.recompute,
        loss_chunk=options.loss_chunk,
        processes=options.processes,
        shard=options.shard,
        gpu_memory=options.gpu_memory,
        tokens=options.tokens,
        peak_tflops=PEAK_TFLOPS[options.gpu],
        mfu=options.mfu,
    )
